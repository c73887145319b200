"""What joining tiny collectives on a host would save: the calls and the waits between them, but no computing."""

import numpy as np
import pytest

from profilerkit.analysis.communication.details import LONGEST_CALL_NS, TINY_BYTES, burst_ns
from profilerkit.analysis.intervals import EMPTY, Spans
from tests.analysis.communication.test_log import log_of
from tests.recipes import Trace, replace

US = 1_000


def spans(*edges):
    return Spans(*(np.array(edges, dtype=np.int64).T * US))


WINDOW = spans((0, 5_000))


@pytest.fixture
def log(tmp_path):
    """Three reductions of 90 µs on the host, 10 µs apart."""
    trace = Trace(backend="gloo")
    for at in (100, 200, 300):
        trace.op(at, at + 5, name="c10d::allreduce_")
        trace.event("gloo:all_reduce", "user_annotation", at, at + 90, tid=103, **{"Input Dims": [[10]]})
    log = log_of(trace, tmp_path, on_host=True)
    start = np.array([100, 200, 300], dtype=np.int64) * US
    return replace(log, start=start, end=start + 90 * US, bytes=np.full(3, 40))


def test_of_a_burst_one_collective_stays(log):
    assert burst_ns(log, WINDOW, EMPTY) == 200 * US


def test_computing_between_them_stays_too(log):
    assert burst_ns(log, WINDOW, spans((190, 196), (400, 900))) == 194 * US


def test_each_step_keeps_its_own(log):
    assert burst_ns(log, spans((0, 195), (195, 5_000)), EMPTY) == pytest.approx(100 * US / 2)


@pytest.mark.parametrize(("size", "saved"), [(TINY_BYTES, 200 * US), (TINY_BYTES + 1, 0)])
def test_what_takes_longer_than_an_empty_one_is_no_part_of_it(log, size, saved):
    assert burst_ns(replace(log, bytes=np.full(3, size)), WINDOW, EMPTY) == saved


def test_a_long_pause_ends_it(log):
    late = np.array([0, LONGEST_CALL_NS, 2 * LONGEST_CALL_NS])
    assert burst_ns(replace(log, start=log.start + late, end=log.end + late), WINDOW, EMPTY) == 0


def test_unknown_sizes_and_devices_have_none(log):
    assert burst_ns(replace(log, bytes=np.full(3, -1)), WINDOW, EMPTY) == 0
    assert burst_ns(replace(log, on_host=False), WINDOW, EMPTY) == 0
