"""Files in the format of traces that hold no events of a profiler."""

import json

import pytest

from profilerkit.api import analyze
from profilerkit.errors import UnreadableInputError
from profilerkit.model.finding import in_order


def hook(number, cat="forward", **fields):
    event = {"name": "Linear", "ph": "X", "ts": 1000 * number, "dur": 900, "pid": 1, "tid": 0, **fields}
    return event | ({"cat": cat} if cat else {})


def report_of(tmp_path, events, **fields):
    path = tmp_path / "hooks.json"
    path.write_text(json.dumps({"traceEvents": events, **fields}))
    return analyze(path)


@pytest.mark.parametrize(
    ("cats", "said"),
    [
        (("forward",), "category “forward”"),
        (("forward", "backward"), "categories “forward”, “backward”"),
        (("a", "b", "c", "d", "e"), "“c” and 2 more"),
        (("FEE",), "“FEE”"),
        (("",), "its events have no category"),
    ],
)
def test_a_file_without_events_of_a_profiler_is_called_that(tmp_path, cats, said):
    report = report_of(tmp_path, [hook(number, cats[number % len(cats)]) for number in range(20)])
    assert report.verdict.bound == "inconclusive"
    assert report.verdict.headline.startswith("This file holds no events of a profiler: its events ")
    assert said in report.verdict.headline
    assert report.cost is None
    assert not report.breakdown
    assert not list(in_order(report.outcomes))


def test_nobody_is_told_to_switch_on_what_was_never_used(tmp_path):
    report = report_of(tmp_path, [hook(number) for number in range(20)])
    assert {outcome.status for outcome in report.outcomes} == {"not_applicable"}
    signals = [f"{signal.reason} {signal.hint}" for signal in report.trust.signals]
    assert "ProfilerActivity" not in "".join([*signals, report.verdict.refuted_by, report.verdict.consequence])


def test_one_operator_makes_it_a_recording_of_a_profiler(tmp_path):
    report = report_of(tmp_path, [hook(1), hook(2, "cpu_op")])
    assert "no events of a profiler" not in report.verdict.headline


def test_a_trace_of_torch_that_holds_nothing_is_no_tool_s(tmp_path):
    frame = {"name": "PyTorch Profiler (0)", "ph": "X", "cat": "Trace", "ts": 0, "dur": 9, "pid": "Spans", "tid": "x"}
    report = report_of(tmp_path, [frame])
    assert "no events of a profiler" not in report.verdict.headline


@pytest.mark.parametrize("phases", ["BE", "be"])
def test_begin_and_end_events_alone_are_of_another_tool(tmp_path, phases):
    with pytest.raises(UnreadableInputError) as refused:
        report_of(tmp_path, [{"name": "a", "ph": phase, "ts": 1, "pid": 1, "tid": 1} for phase in phases])
    assert "begin and end events" in refused.value.cause


@pytest.mark.parametrize("text", ["[[1, 2, 3], [[4, 5], [6, 7]]]", "[ [17, 0, [3, 0], 512] ]"])
def test_a_memory_timeline_is_no_trace(tmp_path, text):
    path = tmp_path / "timeline.json"
    path.write_text(text)
    with pytest.raises(UnreadableInputError) as refused:
        analyze(path)
    assert "memory timeline" in refused.value.cause
