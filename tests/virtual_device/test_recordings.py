"""What the simulator writes of a loop on an asynchronous device is what capture and Kineto would write."""

import json

import pytest
from device_loops.judge import recorded
from device_loops.kinds import KINDS
from device_loops.program import WINDOW_FIRST, WINDOW_STEPS
from device_loops.recording import device_records, device_steps_ns, trace_of, write_run

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
    host = sorted(mark.now_ns - mark.start_ns for mark in rank.ends[20:60])
    assert host[len(host) // 2] < 2.2 * MS


def test_a_device_that_waits_for_the_host_has_caught_up_at_every_step():
    kind = KINDS["launch_bound"]
    found = [record for record in device_records(recorded(kind.loop, None)[0].marks) if record[2]]
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


@pytest.mark.parametrize("name", ["item_every_10", "graph_replay", "item_never"])
def test_the_clocks_records_add_up_to_the_devices_time_however_far_the_host_is_ahead(name):
    (rank,) = recorded(KINDS[name].loop, None)
    found = [record for record in device_records(rank.marks) if record[0] == EventKind.DEVICE]
    steps = sum(spanned for _, _, spanned, _, _, _ in found)
    assert steps == len(rank.ends) - 1
    assert sum(length for _, _, _, _, length, _ in found) == pytest.approx(sum(device_steps_ns(rank)), abs=1e3)


def test_a_wait_for_a_batch_is_marked_where_the_device_starves():
    (rank,) = recorded(KINDS["input_alone"].loop, None)
    starved = [length for _, flags, _, _, length, _ in device_records(rank.marks) if flags & EventFlag.STARVED]
    assert len(starved) > 0.9 * len(rank.ends)
    assert sorted(starved)[len(starved) // 2] == pytest.approx(24 * MS, rel=0.05)


def test_the_window_is_where_the_recording_says(tmp_path):
    kind = KINDS["item_every_10"]
    (rank,) = read_run(write_run(tmp_path / "run", kind.loop, recorded(kind.loop, "queued"))).ranks
    ((status, _),) = rank.windows
    assert (status.first_step, status.last_step) == (WINDOW_FIRST, WINDOW_FIRST + WINDOW_STEPS - 1)
    assert status.kernels > 0
