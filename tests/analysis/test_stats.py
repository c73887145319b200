import doctest

import numpy as np
import pytest

from profilerkit.analysis import stats
from profilerkit.analysis.stats import median_error


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(stats).failed == 0


@pytest.mark.parametrize("values", [[], [5]])
def test_one_value_says_nothing_about_the_error_of_its_median(values):
    assert median_error(np.array(values, dtype=np.int64)) is None


def test_the_error_of_a_median_falls_with_the_root_of_the_number_of_values():
    few = np.array([90, 100, 110, 100])
    assert median_error(few) == pytest.approx(2 * median_error(np.tile(few, 4)))
    assert median_error(np.full(4, 100)) == 0.0
