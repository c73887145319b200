"""Student's t against the printed tables."""

import math
from itertools import pairwise

import pytest

from profilerkit.compare.steps import t99

#: The 99.5 % points (NIST/SEMATECH e-Handbook, 1.3.6.7.2).
TABLE = {
    1: 63.657, 2: 9.925, 3: 5.841, 4: 4.604, 5: 4.032, 6: 3.707, 7: 3.499, 8: 3.355, 9: 3.250, 10: 3.169, 12: 3.055,
    15: 2.947, 20: 2.845, 30: 2.750, 40: 2.704, 60: 2.660, 120: 2.617,
}  # fmt: skip


@pytest.mark.parametrize("degrees", TABLE)
def test_students_t_is_that_of_the_tables(degrees):
    assert t99(degrees) == pytest.approx(TABLE[degrees], abs=0.004)


def test_between_whole_degrees_it_never_grows():
    points = [t99(1 + step / 7) for step in range(300)]
    assert all(later <= earlier for earlier, later in pairwise(points))
    assert t99(math.inf) == pytest.approx(2.576, abs=0.001)
