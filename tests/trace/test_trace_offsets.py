"""Device clocks that are off against the host's."""

import numpy as np
import pytest
from trace_recipes import plain, span, write

from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import Category
from profilerkit.trace.launches import aligned, launch_of

MS = 1000  # µs


def pair(number, launched, start, *, dur=100, device=0):
    """A launch and its kernel; times in µs."""
    return [
        span("cudaLaunchKernel", cat="cuda_runtime", ts=launched, dur=5, correlation=number),
        span("k", cat="kernel", ts=start, dur=dur, pid=device, tid=7, device=device, stream=7, correlation=number),
    ]


def draining(offset, *, count=5, device=0, first=1, lag=10):
    """Launches that each find the device idle; its clock is ``offset`` µs behind."""
    return [
        event
        for number in range(count)
        for event in pair(first + number, 10_000 + MS * number, 10_000 + MS * number + lag + offset, device=device)
    ]


def queued(offset, *, count=5, ahead=30 * MS, wait="cudaDeviceSynchronize", returned=20):
    """A queue that never runs empty, and a wait that returns ``returned`` µs after the last kernel's true end."""
    at = 10_000 + ahead
    events = [event for n in range(count) for event in pair(n + 1, 10_000 + 10 * n, at + 1000 * n + offset, dur=999)]
    end = at + 1000 * count - 1 + returned
    return [*events, span(wait, cat="cuda_runtime", ts=10_500, dur=end - 10_500, correlation=999)]


@pytest.fixture
def moved(tmp_path):
    """Return by how many µs the work of each device was moved, and what is said of it."""

    def of(events):
        before = read_trace(write(tmp_path, plain(events)))
        after = aligned(before, launch_of(before))
        by = (before.ts_ns - after.ts_ns) / 1000
        work = after.category == Category.KERNEL
        assert (by[after.is_a(Category.RUNTIME, Category.CPU_OP)] == 0).all()
        devices = np.unique(after.device[work]).tolist()
        return {device: set(by[work & (after.device == device)].tolist()) for device in devices}, after.damage.notes

    return of


def test_starts_that_are_all_late_although_the_device_was_idle_are_moved(moved):
    by, notes = moved(draining(325 * MS))
    assert by == {0: {325_010}}
    assert notes == (
        "the clock of device 0 is 325 ms behind the host's, by its launches: its records were moved by that",
    )


def test_starts_before_their_launches_are_moved(moved):
    by, notes = moved(draining(-156 * MS))
    assert by == {0: {-155_990}}
    assert "156 ms ahead of the host's" in notes[0]


@pytest.mark.parametrize("lag", [10, 900])
def test_launches_as_they_should_be_are_left(moved, lag):
    assert moved(draining(0, lag=lag)) == ({0: {0}}, ())


def test_a_queue_that_was_full_before_the_recording_is_left(moved):
    assert moved(queued(0)) == ({0: {0}}, ())


@pytest.mark.parametrize("wait", ["cudaDeviceSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize"])
def test_work_that_ends_long_after_the_host_waited_for_it_is_moved(moved, wait):
    by, notes = moved(queued(300 * MS, wait=wait))
    assert by == {0: {299_980}}
    assert len(notes) == 1


def test_a_wait_for_another_stream_says_nothing(moved):
    waits = span("Stream Sync", cat="cuda_sync", ts=10_500, dur=5, pid=0, tid=9, stream=9, device=0)
    assert moved([*queued(0)[:-1], waits])[0] == {0: {0}}


def test_a_wait_for_the_stream_of_the_work_is_known_by_its_record(moved):
    waits = span("Stream Sync", cat="cuda_sync", ts=10_500, dur=5, pid=0, tid=7, stream=7, device=0)
    assert moved([*queued(0)[:-1], waits])[0] == {0: {30_000}}


def test_each_device_has_a_clock_of_its_own(moved):
    by, _ = moved([*draining(40 * MS), *draining(0, device=1, first=50)])
    assert by == {0: {40_010}, 1: {0}}


def test_records_joined_by_mistake_move_nothing(moved):
    assert moved([*draining(0, count=20), *pair(90, 500_000, 100), *pair(91, 600_000, 5_000)])[0] == {0: {0}}


def test_marks_on_the_device_move_along(tmp_path):
    mark = span("ProfilerStep#1", cat="gpu_user_annotation", ts=335_010, dur=4100, pid=0, tid=7, device=0)
    before = read_trace(write(tmp_path, plain([*draining(325 * MS), mark])))
    after = aligned(before, launch_of(before))
    assert (before.ts_ns - after.ts_ns)[after.category == Category.GPU_ANNOTATION].tolist() == [325_010_000]


def test_flow_links_move_along(tmp_path):
    ends = [
        {"ph": phase, "id": 1, "cat": "ac2g", "name": "ac2g", "pid": pid, "tid": tid, "ts": ts}
        for phase, pid, tid, ts in (("s", 1, 1, 10_000), ("f", 0, 7, 335_010))
    ]
    events = draining(325 * MS)
    before = read_trace(write(tmp_path, plain([*events, *ends, span("k", cat="kernel", ts=1, pid=0, tid=7, stream=7)])))
    after = aligned(before, launch_of(before))
    assert sorted((before.flows.ts_ns - after.flows.ts_ns).tolist()) == [0, 325_010_000]
