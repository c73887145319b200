"""Time a step's thread waited for a processor, from the samples around it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profilerkit.analysis.steps.table import queued_per_step
from profilerkit.rundir.sampled import HostSample, Sample

MS = 1_000_000


def sampled(*ratios, every_ms=1000):
    return [
        Sample(t_ns=number * every_ms * MS, host=HostSample(thread_queue_ratio=ratio))
        for number, ratio in enumerate(ratios)
    ]


def queued_ms(samples, steps):
    start, time = (np.array(column, dtype=np.int64) * MS for column in zip(*steps, strict=True))
    return [value // MS if value >= 0 else None for value in queued_per_step(samples, start, time).tolist()]


def test_a_ratio_is_about_the_time_since_the_sample_before():
    samples = sampled(None, 0.1, 0.5)
    assert queued_ms(samples, [(0, 1000), (1000, 1000), (900, 200)]) == [100, 500, 60]


def test_a_step_outside_of_the_samples_is_not_known():
    assert queued_ms(sampled(None, 0.1), [(900, 100), (900, 101)]) == [10, None]


def test_a_step_across_a_sample_that_does_not_tell_is_not_known():
    samples = sampled(None, 0.2, None, 0.4)
    assert queued_ms(samples, [(0, 500), (900, 200), (1500, 100), (2100, 100)]) == [100, None, None, 40]


def test_without_samples_nothing_is_known():
    assert queued_ms([], [(0, 10)]) == [None]
    assert queued_ms([Sample(t_ns=0), Sample(t_ns=10**9)], [(0, 10)]) == [None]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.lists(st.integers(1, 400), min_size=1, max_size=9))
def test_steps_never_wait_longer_than_they_take(ratios, times):
    starts = np.cumsum([0, *times[:-1]])
    found = queued_ms(sampled(*ratios), list(zip(starts.tolist(), times, strict=True)))
    assert all(value is None or 0 <= value <= time for value, time in zip(found, times, strict=True))
