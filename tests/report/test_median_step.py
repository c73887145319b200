"""The figure of the median step: its finding, its labels, its table, and what a hostile trace makes of it."""

import re

import pytest

from profilerkit.model import revise
from profilerkit.model.events import CELLS, Gap, Lane, MedianStep, Track
from profilerkit.report import html
from profilerkit.report import json as report_json
from profilerkit.report.redaction import redacted
from profilerkit.report.sections.steps import median_step_chart
from profilerkit.rundir.places import Identity
from tests.report.samples import HOSTILE, MS, SAMPLES, input_bound, parts

STEP = 176 * MS


def track(family, start, end, share=1.0):
    """Work between two shares of the step."""
    levels = [round(255 * share) if start <= cell / CELLS < end else 0 for cell in range(CELLS)]
    return Track(family=family, time_ns=round((end - start) * share * STEP), levels=bytes(levels))


def lanes():
    return (
        Lane(name="Step", kind="step", tracks=(track("input", 0, 0.18), track("compute", 0.18, 1))),
        Lane(name="Stream 7", kind="stream", tracks=(track("compute", 0.2, 1, 0.9), track("memory", 0.2, 1, 0.02))),
        Lane(name="Loader", kind="loader", tracks=(track("input", 0, 0.18),)),
        Lane(name="Main thread", kind="thread", tracks=(track("overhead", 0.2, 0.5), track("other", 0.5, 1))),
    )


def gap(start, end, part="input.prep"):
    return Gap(start_ns=round(start * STEP), end_ns=round(end * STEP), part=part, part_ns=round((end - start) * STEP))


def with_step(base=None, **changes):
    known = MedianStep(
        step=17,
        rank=0,
        of=5,
        mode="gpu",
        time_ns=STEP,
        idle_ns=38 * MS,
        causes={"input.prep": 31 * MS, "over.python": 5 * MS, "over.launch": 2 * MS},
        gaps=(gap(0, 0.18), gap(0.9, 0.94, "over.python")),
        gap_count=40,
        lanes=lanes(),
    )
    return revise(base or input_bound(), median_step=revise(known, **changes))


def test_the_title_is_the_finding_with_its_numbers():
    assert median_step_chart(with_step()).title == (
        "In the median traced step (step 17) the device is idle 38.0 ms of 176 ms: "
        "31.0 ms input wait (preparing samples) and 5.00 ms Python between operators"
    )
    never = median_step_chart(with_step(idle_ns=0, causes={}, gaps=(), gap_count=0))
    assert never.title == "In the median traced step (step 17) the device is never idle in the 176 ms"
    host = median_step_chart(with_step(mode="cpu", of=1, causes={"over.python": 38 * MS}))
    assert host.title == (
        "In the one traced step (step 17) nothing is computed for 38.0 ms of 176 ms: 38.0 ms Python between operators"
    )


def test_the_caption_says_whose_step_how_many_and_what_is_left_out():
    caption = median_step_chart(with_step(streams_left_out=3, threads_left_out=1)).caption
    assert caption.startswith("n 1 of 5 traced steady steps of rank 0: step 17, closest to their median.")
    assert caption.endswith("Less busy and not shown: 3 streams and 1 host thread.")
    assert "pieces of 587 µs" in caption
    assert "not shown" not in median_step_chart(with_step()).caption


def test_the_caption_calls_the_causes_what_the_breakdown_calls_them():
    sources = parts({"input.prep": (31 * MS, "measured"), "over.python": (5 * MS, "derived")})
    for mode in ("gpu", "cpu"):
        caption = median_step_chart(revise(with_step(mode=mode), breakdown=sources)).caption
        assert (
            "The lanes below Step are measured; in the title input wait (preparing samples) is measured and Python "
            "between operators is derived."
        ) in caption
        assert "(derived)" not in caption
    # The breakdown names the part of the loader that the waits are for, and the step may name another.
    moved = revise(with_step(causes={"input.wait": 31 * MS}), breakdown=sources)
    assert "in the title input wait is measured." in median_step_chart(moved).caption
    unsaid = median_step_chart(revise(with_step(), breakdown=())).caption
    assert "input wait (preparing samples) is derived" in unsaid
    assert "The lanes below Step are measured." in median_step_chart(with_step(causes={})).caption


def test_every_lane_has_a_tick_and_every_family_a_colour():
    chart = median_step_chart(with_step())
    assert [tick.label for tick in chart.y.ticks] == ["Step", "Stream 7", "Loader", "Main thread"]
    assert [round(tick.at) for tick in chart.y.ticks] == sorted(
        (round(tick.at) for tick in chart.y.ticks), reverse=True
    )
    assert {family for family, _ in chart.legend} == {"input", "compute", "memory", "overhead", "other"}
    assert [tick.label for tick in chart.x.ticks] == ["0 ms", "50 ms", "100 ms", "150 ms"]


def test_a_family_is_painted_over_the_whole_stack_that_it_is_part_of():
    chart = median_step_chart(with_step())
    step = [shape for shape in chart.shapes if shape.title.startswith("Step: ")]
    assert [shape.colour for shape in step] == ["compute", "input"]
    assert step[1].path.endswith("z")
    assert "H18" in step[1].path


def test_labels_name_the_longest_gaps_and_never_meet():
    chart = median_step_chart(with_step())
    assert [label.text for label in chart.labels] == ["Input wait: preparing samples, 31.7 ms"]
    apart = median_step_chart(with_step(gaps=(gap(0, 0.18, "input.wait"), gap(0.9, 0.94, "over.launch"))))
    assert [label.text for label in apart.labels] == ["Input wait, 31.7 ms", "Kernel launch, 7.04 ms"]
    mixed = revise(gap(0.2, 0.4), part_ns=20 * MS)
    (label,) = median_step_chart(with_step(gaps=(mixed,))).labels
    assert label.text == "Input wait, 20.0 ms of 35.2 ms"
    (label,) = median_step_chart(with_step(gaps=(revise(mixed, part="x" * 90),))).labels
    assert len(label.text) == 46
    close = with_step(gaps=(gap(0.5, 0.6), gap(0.62, 0.7), gap(0.75, 0.8)))
    assert len(median_step_chart(close).labels) == 1
    assert median_step_chart(with_step(gaps=(gap(0.5, 0.51),))).labels == ()


def test_the_table_has_the_lanes_the_causes_and_the_gaps():
    table = median_step_chart(with_step()).table
    assert ("Stream 7", "Compute", "127 ms", "72 %") in table.rows
    assert ("Main thread", "Waiting for the device", "88.0 ms", "50 %") in table.rows
    assert ("Device idle", "Python between operators", "5.00 ms", "2.8 %") in table.rows
    assert ("Gap at 0 ns", "Input wait: preparing samples, 31.7 ms of it", "31.7 ms", "18 %") in table.rows
    assert table.more == "38 shorter gaps are left out."


def test_the_page_has_the_figure_and_none_without_a_trace():
    page = html.render(with_step())
    assert 'id="median-step"' in page
    assert "38 shorter gaps are left out." in page
    assert 'id="median-step"' not in html.render(input_bound())


@pytest.mark.parametrize("changes", [{"time_ns": 0}, {"lanes": ()}])
def test_what_cannot_be_drawn_is_left_out(changes):
    assert median_step_chart(with_step(**changes)) is None


def test_hostile_names_stay_text_and_strange_numbers_stay_within_the_box():
    bad = Lane(name=HOSTILE, kind="thread", tracks=(Track(family="other", time_ns=-5, levels=b"\xff" * 5_000),))
    uneven = Lane(
        name="x",
        kind="stream",
        tracks=(
            Track(family="compute", time_ns=1, levels=b"\x01\x02"),
            Track(family="memory", time_ns=1, levels=b""),
        ),
    )
    far = Gap(start_ns=-5 * STEP, end_ns=9 * STEP, part=HOSTILE, part_ns=STEP)
    report = with_step(SAMPLES["hostile"](), lanes=(bad, uneven) * 9, gaps=(far,), causes={HOSTILE: 3 * MS})
    page = html.render(report)
    figure = page[page.index('id="median-step"') : page.index("</figure>", page.index('id="median-step"'))]
    assert "<script" not in figure
    assert "<img" not in figure
    numbers = [
        float(number) for path in re.findall(r' d="([^"]*)"', figure) for number in re.findall(r"-?[\d.]+", path)
    ]
    assert min(numbers) >= -1
    assert max(numbers) <= 100
    assert len(median_step_chart(report).y.ticks) == 12


def test_of_a_long_name_the_ends_are_shown():
    thread = Lane(name="Thread 140234987650128", kind="thread", tracks=(track("overhead", 0, 1),))
    (tick,) = median_step_chart(with_step(lanes=(thread,))).y.ticks
    assert tick.label == "Thread …0128"


def test_it_survives_json_and_redaction():
    report = with_step()
    assert report_json.load(report_json.render(report)).median_step == report.median_step
    assert redacted(report, Identity()).median_step == report.median_step
