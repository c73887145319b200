"""Two recordings with one step, or none, on each side: differences are told, without an interval."""

import math

import pytest
from msgspec.structs import replace

from profilerkit.compare import compare
from profilerkit.compare.verdict import VISIBLE_RATIO
from profilerkit.model.step import WHOLE_TRACE, DeviceWindow, Rank
from profilerkit.report import html, markdown, terminal
from tests.comparisons import MS, report_of


def single(step_ms, *, found_by="ProfilerStep", window_ms=None, stretch_ms=None, **run):
    """A report of one step, or of a trace without steps."""
    report = report_of([round(step_ms * MS)], kind="trace", **run)
    window = None
    if window_ms is not None:
        stretch_ns = None if stretch_ms is None else round(stretch_ms * MS)
        rest = dict.fromkeys(
            ("busy_ns", "idle_ns", "compute_ns", "comm_ns", "exposed_comm_ns", "copy_ns", "exposed_copy_ns"), 0
        )
        window = DeviceWindow(window_ns=round(window_ms * MS), stretch_ns=stretch_ns, **rest)
    rank = Rank(rank=0, origin="a", breakdown=report.breakdown, busy_ratio=None, step_ns=None, device_window=window)
    return replace(report, steps=replace(report.steps, found_by=found_by), ranks=(rank,))


def whole(window_ms, stretch_ms=None, **more):
    return single(900, found_by=WHOLE_TRACE, window_ms=window_ms, stretch_ms=stretch_ms, **more)


def changes(diff):
    return [(row.span, round(row.change, 4), row.is_visible) for row in diff.spans]


def test_of_traces_without_steps_the_device_is_compared_as_a_whole_and_up_to_its_first_pause():
    diff = compare(whole(300, 240), whole(299.4, 170.4))
    assert diff.verdict == "no real change"
    assert diff.step is None
    assert changes(diff) == [("device", -0.002, False), ("stretch", -0.29, True)]
    assert diff.headline == (
        "No real change: the device's whole span 300 ms → 299 ms (−0.2 %), its kernels up to the first pause "
        "240 ms → 170 ms (−29 %); one of each, so no interval"
    )
    assert any("Nothing marks steps in this trace" in note for note in diff.notes)
    assert any("does not mark a step" in note for note in diff.notes)


def test_every_form_has_the_spans_and_says_that_they_have_no_interval():
    diff = compare(whole(300, 240), whole(299.4, 170.4))
    for text in (terminal.render(diff, width=100), markdown.render(diff), html.render(diff)):
        assert "−29 %" in text.replace("\N{NO-BREAK SPACE}", " ")
        assert "no interval" in text
        assert "no real change" in text


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("times", "verdict"), [(0.99, "no real change"), (1.01, "not comparable")])
def test_one_step_of_each_is_told_and_judged_only_where_nothing_changed(sign, times, verdict):
    edge = math.exp(sign * times * math.log1p(VISIBLE_RATIO))
    diff = compare(single(100), single(100 * edge))
    assert diff.verdict == verdict
    assert changes(diff) == [("step", round(edge - 1, 4), verdict == "not comparable")]
    assert "the one step 100 ms →" in diff.headline


def test_a_trace_without_a_device_is_compared_as_a_whole():
    diff = compare(single(900, found_by=WHOLE_TRACE), single(930, found_by=WHOLE_TRACE))
    assert changes(diff) == [("trace", 0.0333, False)]


def test_a_device_that_never_pauses_has_no_first_stretch():
    assert [row.span for row in compare(whole(300), whole(299, 170)).spans] == ["device"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (single(100), report_of(kind="trace")),
        (single(100), whole(100)),
        (single(100, world_size=1), single(100, world_size=2)),
        (single(0), single(100)),
    ],
    ids=["many steps after", "no steps after", "another world", "no time"],
)
def test_what_is_not_alike_has_no_spans(before, after):
    diff = compare(before, after)
    assert diff.verdict == "not comparable"
    assert diff.spans == ()
    assert diff.headline.startswith("Not comparable: ")
