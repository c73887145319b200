"""Batches that a loop drops before it trains, as one that resumes a run does."""

import numpy as np
import pytest

from profilerkit.analysis.events import EVENT_DTYPE, skipped_batches
from profilerkit.analysis.steps.log import read_log
from profilerkit.rundir.layout import EventFlag, EventKind
from tests.recipes import US, Log


def resumed(count=100, *, between=20, per_step=1, flags=0, steps=40):
    """``count`` batches of 1 ms with so many µs behind each, then steps of 5 ms, of ``per_step`` batches."""
    log = Log()
    for _ in range(count):
        log.step(1_000 + between, wait=1_000, wait_flags=flags)
    for _ in range(steps):
        start = log.step(5_000, wait=1_000)
        for number in range(1, per_step):
            log.record(EventKind.WAIT, start + 1_000 + number, 1, -1)
        log.record(EventKind.BACKWARD, start + 3_000, 1_000)
        log.record(EventKind.OPTIMIZER, start + 4_500, 300)
    return log


def found(log):
    return skipped_batches(np.frombuffer(log.data, dtype=EVENT_DTYPE))


def test_batches_that_were_dropped_are_counted_and_timed():
    skipped = found(resumed())
    assert (skipped.count, skipped.time_ns) == (100, 100 * 1_020 * US)
    assert skipped.ratio == pytest.approx(102 / (102 + 39 * 5 + 4.5))


@pytest.mark.parametrize(
    "log",
    [
        resumed(63),
        resumed(200, between=300),  # something was done with each of them
        resumed(90, per_step=32),  # they are three steps' batches
        resumed(100, flags=EventFlag.GRAPHS),
        resumed(100, flags=EventFlag.OTHER_LOADER),
        resumed(100, steps=0),
        Log(),
    ],
)
def test_batches_that_may_have_served_something_were_not_dropped(log):
    assert found(log) is None


def test_batches_that_are_kept_or_read_once_were_not_dropped():
    kept = resumed(100, steps=1)  # it trains on what it has fetched
    kept.record(EventKind.BACKWARD, 200_000, 1_000)
    assert found(kept) is None
    read = Log()
    for _ in range(100):
        read.step(1_020, wait=1_000)
    read.step(1_020, wait=1_000, wait_flags=EventFlag.LAST)
    for _ in range(40):
        start = read.step(5_000, wait=1_000)
        read.record(EventKind.BACKWARD, start + 3_000, 1_000)
        read.record(EventKind.OPTIMIZER, start + 4_500, 300)
    assert found(read) is None


def test_iterations_whose_batches_were_dropped_are_no_judged_steps():
    log = resumed()
    judged = read_log(log.data, log.names).index[read_log(log.data, log.names).steady]
    assert (judged.min() > 100, judged.max(), len(judged)) == (True, 139, 39)
