"""The events of two steps that the timeline shows: which are kept, on which rows, in which colours."""

import pytest

from profilerkit.analysis.steps import lanes as module
from profilerkit.analysis.trace_facts import trace_facts
from tests.recipes import ALL_REDUCE, GEMM, Trace, host_training, training


def steps_of(trace):
    return trace_facts(trace.read(), events=True).step_events


def rows_of(events):
    """The events by track: name, start and end in µs, and which row of the track."""
    above, found = 0, {}
    for track in events.tracks:
        rows = range(above, above + track.rows)
        found[track.name] = [
            (events.names[name], start / 1000, (start + dur) / 1000, row - above)
            for name, start, dur, row in zip(events.name, events.start_ns, events.dur_ns, events.row, strict=True)
            if row in rows
        ]
        above += track.rows
    return found


def families_of(events, name):
    pairs = zip(events.name, events.family, strict=True)
    return {events.families[family] for text, family in pairs if events.names[text] == name}


def test_nothing_is_kept_unless_it_is_asked_for():
    assert trace_facts(training().read()).step_events == ()


def test_a_step_shows_its_kernels_collectives_and_the_cause_of_its_idle_time():
    (median,) = steps_of(training(fetch=500, kernels=2, kernel=100, comm=50))
    assert (median.is_median, median.mode, median.left_out) == (True, "gpu", 0)
    rows = rows_of(median)
    assert rows["Stream 7"] == [(GEMM, 510, 610, 0), (GEMM, 610, 710, 0)]
    assert rows["Collectives, stream 20"] == [(ALL_REDUCE, 710, 760, 0)]
    assert rows["Idle, by cause"][0] == ("input.wait", 0, 500, 0)
    assert families_of(median, "input.wait") == {"input"}
    assert families_of(median, ALL_REDUCE) == {"communication"}
    assert families_of(median, "aten::linear") == {"overhead"}


def test_what_is_nested_lies_under_what_holds_it():
    trace = training(kernels=2)
    for number, step in enumerate([event for event in trace.events if "ProfilerStep" in event["name"]]):
        trace.annotation(f"outer {number}", step["ts"], step["ts"] + 100)
    (median,) = steps_of(trace)
    shown = {name.split()[0]: row for name, _, _, row in rows_of(median)["Main thread"]}
    assert (shown["outer"], shown["aten::linear"], shown["cudaLaunchKernel"]) == (1, 2, 3)


def test_the_slowest_step_stands_beside_the_median():
    trace, at = Trace(), 1_000
    for number, length in enumerate((200, 200, 210, 900, 200, 200)):
        trace.op(at, at + 8)
        trace.kernel(at + 10, at + length, launch=(at + 2, at + 8))
        trace.step(number, at, at + length)
        at += length
    median, slowest = steps_of(trace)
    assert (median.is_median, slowest.is_median) == (True, False)
    assert slowest.time_ns > 4 * median.time_ns


def test_of_many_events_the_longest_of_each_sort_are_kept(monkeypatch):
    trace = training(kernels=3)
    for step in [event for event in trace.events if event["name"].startswith("ProfilerStep")]:
        trace.kernel(step["ts"] + 20, step["ts"] + 21, name="short", stream=9)
        trace.frame("model.py(7): forward", step["ts"] + 1, step["ts"] + 300)
    (whole,) = steps_of(trace)
    monkeypatch.setattr(module, "MOST_EVENTS", {"device": 3, "thread": 1, "python": 1})
    (median,) = steps_of(trace)
    kept = {name for row in rows_of(median).values() for name, *_ in row}
    assert "short" in whole.names
    assert {GEMM, "model.py(7): forward"} < kept
    assert not {"short", "cudaLaunchKernel"} & kept
    assert median.left_out == len(whole.start_ns) - len(median.start_ns) > 0


def test_python_functions_around_the_whole_step_are_left_out():
    trace = training(kernels=3)
    trace.frame("train.py(1): main", 0, 100_000)
    start = next(event["ts"] for event in trace.events if event["name"] == "ProfilerStep#3")
    for step in range(6):
        trace.frame("model.py(7): forward", start - 3 * 310 + step * 310 + 10, start - 3 * 310 + step * 310 + 60)
    (median,) = steps_of(trace)
    assert [name for name, *_ in rows_of(median)["Main thread, Python"]] == ["model.py(7): forward"]


def test_without_a_device_the_operators_and_the_whole_partition_are_shown():
    (median,) = steps_of(host_training(compute=100, fetch=50))
    rows = rows_of(median)
    assert median.mode == "cpu"
    assert next(name for name, *_ in rows["Step, by cause"]).startswith("input.")
    assert "aten::mm" in [name for name, *_ in rows["Main thread"]]


@pytest.mark.parametrize("make", [training, host_training])
def test_every_array_has_an_entry_for_each_event(make):
    for events in steps_of(make(fetch=20)):
        arrays = (events.start_ns, events.dur_ns, events.name, events.row, events.family)
        assert len({len(array) for array in arrays}) == 1
        assert max(events.row) == sum(track.rows for track in events.tracks) - 1
        assert min(events.dur_ns) >= 0
