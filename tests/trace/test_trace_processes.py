"""Files that hold several processes."""

import numpy as np
import pytest
from trace_recipes import plain, span, write

from profilerkit.api import analyze
from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import Category
from profilerkit.trace.launches import launch_of
from profilerkit.trace.merged import by_process


def rank(pid, device, *, device_pid=None, late=0, steps=4, marks=True):
    """Steps of 10 ms with an operator, a launch and a kernel 20 µs after it; correlations are the same in each rank."""
    events = []
    for step in range(steps):
        at = 10_000 * (step + 1) + late
        if marks:
            events.append(span(f"ProfilerStep#{step}", cat="user_annotation", ts=at, dur=9_900, pid=pid, tid=pid))
        events.append(span("aten::mm", ts=at + 100, dur=50, pid=pid, tid=pid))
        events.append(
            span("cudaLaunchKernel", cat="cuda_runtime", ts=at + 120, dur=9, pid=pid, tid=pid, correlation=step)
        )
        where = {"pid": device if device_pid is None else device_pid, "tid": 7, "device": device, "stream": 7}
        events.append(span(f"k of {pid}", cat="kernel", ts=at + 140, dur=5_000, correlation=step, **where))
    return events


@pytest.fixture
def parts(tmp_path):
    return lambda events: by_process(read_trace(write(tmp_path, plain(events))))


def kernels(columns):
    return {columns.strings[name] for name in columns.name[columns.category == Category.KERNEL].tolist()}


def lags(columns):
    launches = launch_of(columns)
    work = np.flatnonzero(launches >= 0)
    return set(((columns.ts_ns[work] - columns.ts_ns[launches[work]]) // 1000).tolist()), len(work)


@pytest.mark.parametrize("device_pids", [(0, 1), (0, 0)])
def test_each_process_that_trained_is_a_rank_with_its_own_work(parts, device_pids):
    found = parts([*rank(10, 0, device_pid=device_pids[0]), *rank(20, 1, device_pid=device_pids[1], late=300)])
    assert [kernels(part) for part in found] == [{"k of 10"}, {"k of 20"}]
    assert [lags(part) for part in found] == [({20}, 4), ({20}, 4)]
    assert [(part.meta.rank, part.meta.world_size, part.meta.process) for part in found] == [(0, 2, "10"), (1, 2, "20")]


def test_events_in_the_order_of_time_are_joined_to_the_launches_they_follow(parts):
    events = sorted([*rank(10, 0), *rank(20, 1, late=300)], key=lambda event: event["ts"])
    found = parts(events)
    assert [kernels(part) for part in found] == [{"k of 10"}, {"k of 20"}]
    assert [lags(part) for part in found] == [({20}, 4), ({20}, 4)]


def test_ranks_are_numbered_by_their_devices(parts):
    assert [kernels(part) for part in parts([*rank(10, 5), *rank(20, 3)])] == [{"k of 20"}, {"k of 10"}]


def test_without_devices_that_differ_ranks_are_numbered_by_the_file(parts):
    assert [kernels(part) for part in parts([*rank(20, 0), *rank(10, 0)])] == [{"k of 20"}, {"k of 10"}]


def test_without_marks_of_steps_launches_tell_who_trained(parts):
    found = parts([*rank(10, 0, marks=False), *rank(20, 1, marks=False), span("aten::stack", ts=5, pid=30)])
    assert [kernels(part) for part in found] == [{"k of 10"}, {"k of 20"}]
    assert [part.meta.process for part in found] == ["10", "20"]


def test_a_file_of_one_process_stays_as_it_is(parts):
    (found,) = parts([*rank(10, 0), *rank(10, 1), span("aten::stack", ts=5, pid=30)])
    assert found.meta.process == "10"
    assert found.meta.rank is None
    assert kernels(found) == {"k of 10"}
    assert found.damage.notes == ()


def test_no_event_is_lost_or_read_twice(tmp_path):
    others = [
        span("x", cat="Trace", ts=1, pid="Spans", tid="s"),
        span("y", cat="Trace", ts=99_999, pid="Spans", tid="s"),
    ]
    whole = read_trace(write(tmp_path, plain([others[0], *rank(10, 0), *rank(20, 1), others[1]])))
    assert sum(map(len, by_process(whole))) == len(whole)


def test_a_merged_file_is_reported_as_the_job_that_it_is(tmp_path):
    report = analyze(write(tmp_path, plain([*rank(10, 0), *rank(20, 1, late=300)])))
    assert [entry.rank for entry in report.ranks] == [0, 1]
    assert sum("holds 2 processes that trained" in note for note in report.trust.notes) == 1
