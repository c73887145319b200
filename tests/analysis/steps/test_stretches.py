"""Where rows are thinned, sums of neighbouring steps hold all of them."""

import numpy as np

from profilerkit.analysis.steps.series import StepSeries
from profilerkit.analysis.steps.table import MOST_STRETCHES, told_steps


def told(count, *, warmup=0, queued=None):
    steady = np.arange(count) >= warmup
    series = StepSeries(np.arange(count), np.arange(count), steady, np.ones(count, dtype=bool), {}, queued)
    states = tuple("steady" if judged else "warmup" for judged in steady)
    return told_steps(series, np.arange(count), states, "a test", inferred=False)


def test_what_the_thread_waited_is_of_the_judged_steps_if_half_of_their_time_is_known():
    # Steps take 0, 1, … 99 ns: the first ten are the warm-up, in which it waited all the time.
    waited = np.where(np.arange(100) < 10, np.arange(100), 2)
    assert told(100, warmup=10, queued=waited).queued_ratio == 180 / (4_950 - 45)
    half = np.where(np.arange(100) < 70, -1, 3)
    assert told(100, warmup=10, queued=half).queued_ratio == 90 / (4_950 - 2_415)
    assert told(100, warmup=10, queued=np.where(np.arange(100) < 75, -1, 3)).queued_ratio is None
    assert told(100).queued_ratio is None


def test_few_steps_need_no_sums():
    assert told(2_000).stretches is None


def test_stretches_are_consecutive_and_end_with_the_last_step():
    queued = np.where(np.arange(2_102) < 500, -1, 7)
    found = told(2_102, warmup=100, queued=queued).stretches
    # Of 2,002 steady steps the first is in none of 667 stretches of 3.
    assert found.steps == 3
    assert len(found.time_ns) == 667 <= MOST_STRETCHES
    assert found.time_ns[0] == 101 + 102 + 103
    assert found.time_ns[-1] == 2_099 + 2_100 + 2_101
    assert (found.queued_ns[0], found.queued_ns[-1]) == (None, 21)
    assert set(told(3_000).stretches.queued_ns) == {None}
