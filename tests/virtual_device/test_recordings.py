"""What the simulator writes of a loop on an asynchronous device is what capture and Kineto would write."""

import json

import pytest
from device_loops.judge import recorded
from device_loops.kinds import KINDS
from device_loops.program import WINDOW_FIRST, WINDOW_STEPS, Mark
from device_loops.recording import device_records, device_steps_ns, trace_of, write_run
from simulator.machine import Work

from profilerkit.capture.device_clock import DeviceClock
from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.reader import read_run

MS = 1_000_000


def events(kind, window, **which):
    """The complete events of a kind's trace."""
    found = json.loads(trace_of(kind.loop, recorded(kind.loop, window)[0]))["traceEvents"]
    return [event for event in found if event["ph"] == "X" and all(event[key] in of for key, of in which.items())]


def marks(events):
    return [event for event in events if event["name"].startswith("ProfilerStep")]


@pytest.mark.parametrize("name", ["item_never", "item_every_50"])
def test_a_host_that_runs_ahead_leaves_device_steps_of_the_devices_length(name):
    kind = KINDS[name]
    (rank,) = recorded(kind.loop, None)
    steps = device_steps_ns(rank)[20:]
    assert all(19.5 * MS < step < 20.6 * MS for step in steps)
    host = sorted(mark.end_ns - mark.start_ns for mark in rank.marks[20:60])
    assert host[len(host) // 2] < 2.2 * MS


def test_a_device_that_waits_for_the_host_has_caught_up_at_every_step():
    kind = KINDS["launch_bound"]
    found = list(device_records(recorded(kind.loop, None)[0].marks))
    assert sum(bool(record[1] & EventFlag.CAUGHT_UP) for record in found) >= 0.95 * len(found)


def test_a_window_opened_behind_shows_kernels_of_which_no_launch_is_there_and_a_tail():
    found = events(KINDS["item_never"], "queued")
    steps = marks(found)
    assert len(steps) == WINDOW_STEPS
    kernels = [event for event in found if event["cat"] == "kernel"]
    launched = {e["args"]["correlation"] for e in found if e["cat"] == "cuda_runtime"}
    first = [event for event in kernels if event["args"]["correlation"] not in launched]
    assert len(first) > 100
    assert max(event["ts"] for event in kernels) > max(e["ts"] + e["dur"] for e in steps) + 1e6


def test_a_window_that_waited_for_the_device_shows_the_launch_of_every_kernel():
    found = events(KINDS["item_never"], "drained")
    launched = {e["args"]["correlation"] for e in found if e["cat"] == "cuda_runtime"}
    assert {e["args"]["correlation"] for e in found if e["cat"] == "kernel"} <= launched


@pytest.mark.parametrize(("name", "calls"), [("launch_bound_calls", True), ("launch_bound_nothing", False)])
def test_a_profiler_without_the_device_shows_no_kernel_and_says_so(name, calls, tmp_path):
    kind = KINDS[name]
    found = events(kind, "drained")
    assert not [event for event in found if event["cat"] in ("kernel", "gpu_memcpy")]
    assert bool([event for event in found if event["cat"] == "cuda_runtime"]) == calls
    (rank,) = read_run(write_run(tmp_path / "run", kind.loop, recorded(kind.loop, "drained"))).ranks
    ((status, _),) = rank.windows
    assert status.kernels == 0
    assert rank.meta.device_name.startswith("NVIDIA H100")


def test_annotations_are_repeated_on_the_device_where_the_kind_has_it():
    where = {"cat": ("gpu_user_annotation",)}
    assert len(marks(events(KINDS["item_every_10"], "drained", **where))) == WINDOW_STEPS
    assert not events(KINDS["item_every_50"], "drained", **where)


def test_every_rank_waits_for_the_late_one():
    kind = KINDS["late_by_input"]
    ranks = recorded(kind.loop, None)
    lengths = [sorted(device_steps_ns(rank)[10:])[100] / MS for rank in ranks]
    assert lengths == pytest.approx([34.0, 34.0, 34.0], rel=0.02)


class _Device:
    """The device of a simulated rank, as capture's clock sees it."""

    def __init__(self, marks):
        self.marks, self.now = marks, 0

    def in_use(self):
        return True

    def is_capturing(self):
        return False

    def current(self):
        return 0

    def event(self):
        return _Event(self)


class _Event:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.reached_ns = self.device.marks[self.device.now].reached_ns

    def query(self):
        return self.reached_ns <= self.device.marks[self.device.now].end_ns

    def elapsed_time(self, end):
        return (end.reached_ns - self.reached_ns) / MS


@pytest.mark.parametrize("name", ["item_every_step", "item_every_10", "launch_bound", "hidden_wait"])
def test_device_records_are_those_of_captures_own_clock(name):
    marks = recorded(KINDS[name].loop, None)[0].marks
    device, records = _Device(marks), []
    clock = DeviceClock(records.append, StepTracker(lambda _record: None), device)
    Patches().hang(clock.hang)
    for number in range(len(marks)):
        device.now = number
        clock.step_started(number)
        clock.step_ended(number, 0)
    wanted = [(flags, length, number) for _, flags, _, _, length, number in device_records(marks)]
    assert [(flags, length, number) for _, flags, _, _, length, number in records] == wanted


def test_steps_without_a_mark_of_their_own_are_in_the_next_record():
    """A host 100 steps ahead: of 200 marks the first 63 fit, and the next one once the first was reached."""
    marks = []
    for number in range(200):
        work = Work("kernel", "kernel", "", 0, 7, end=(number + 1) * 20 * MS)
        marks.append(Mark(number, number * 2 * MS, number * 2 * MS + MS, work))
    found = list(device_records([*marks, Mark(200, 4000 * MS, 4000 * MS, None)]))
    assert all(kind == EventKind.DEVICE for kind, *_ in found)
    spans = [name or 1 for _, _, name, _, _, _ in found]
    assert max(spans) > 1
    assert all(length == span * 20 * MS for span, (_, _, _, _, length, _) in zip(spans, found, strict=True))


def test_the_window_is_where_the_recording_says(tmp_path):
    kind = KINDS["item_every_10"]
    (rank,) = read_run(write_run(tmp_path / "run", kind.loop, recorded(kind.loop, "queued"))).ranks
    ((status, _),) = rank.windows
    assert (status.first_step, status.last_step) == (WINDOW_FIRST, WINDOW_FIRST + WINDOW_STEPS - 1)
    assert status.kernels > 0
