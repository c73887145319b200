"""Slow steps: told by 1.3 times the median, or, where few are far longer, by those alone."""

import numpy as np
import pytest

from profilerkit.analysis.steps.series import StepSeries
from profilerkit.analysis.steps.table import FAR_RATIO, SLOW_RATIO, slow_steps

MS = 1_000_000
COUNT = 200


def series(far, far_ms, uneven, uneven_ms):
    """``COUNT`` steps of 10 ms, of which the first ``far`` and the next ``uneven`` are longer."""
    time = np.full(COUNT, 10 * MS)
    time[: far + uneven] = [far_ms * MS] * far + [uneven_ms * MS] * uneven
    time = time[np.random.default_rng(0).permutation(COUNT)]
    return StepSeries(
        index=np.arange(COUNT),
        time=time,
        steady=np.ones(COUNT, dtype=bool),
        optimizes=np.zeros(COUNT, dtype=bool),
        parts={},
    )


@pytest.mark.parametrize(
    ("steps", "count", "ratio"),
    [
        (series(3, 300, 40, 16), 3, FAR_RATIO),  # 870 ms of 1,110
        (series(10, 300, 40, 16), 10, FAR_RATIO),
        (series(11, 300, 40, 16), 51, SLOW_RATIO),  # more than one in twenty: they are the run
        (series(3, 100, 40, 16), 43, SLOW_RATIO),  # 270 ms of 510: most of it is in the uneven ones
        (series(4, 40, 30, 14), 34, SLOW_RATIO),  # 120 ms of 240, though the far ones last 160
        (series(0, 0, 40, 16), 40, SLOW_RATIO),
        (series(40, 29, 0, 0), 40, SLOW_RATIO),
    ],
    ids=[
        "few",
        "one in twenty",
        "more",
        "little of the excess",
        "and much of the time",
        "none far",
        "none above three times",
    ],
)
def test_few_steps_that_are_far_longer_are_told_from_uneven_ones(steps, count, ratio):
    slow = slow_steps(steps)
    assert (slow.count, slow.ratio) == (count, ratio)


def test_the_excess_of_few_far_steps_is_theirs_alone():
    steps = series(3, 300, 40, 16)
    usual = steps.time[steps.time < 100 * MS].mean()
    slow = slow_steps(steps)
    assert slow.excess_ns == pytest.approx(300 * MS - usual, abs=1)
    assert slow.share == pytest.approx(3 * slow.excess_ns / steps.time.sum())


def test_even_steps_have_no_slow_ones_and_few_steps_none_to_compare_with():
    assert slow_steps(series(0, 0, 0, 0)) is None
    assert slow_steps(series(COUNT, 300, 0, 0)) is None
