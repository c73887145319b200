"""The timeline that zooms: what its script reads, and what a browser makes of it."""

import base64
import gzip
import json
from array import array

import pytest
from report_check.chromium import CHROMIUM, Mode, browser

import profilerkit
from profilerkit.model import revise
from profilerkit.model.events import EventTrack, StepEvents
from profilerkit.report import html
from profilerkit.report.blocks import Chart, Figure
from profilerkit.report.redaction import redacted_step_events
from profilerkit.report.sections import document
from profilerkit.report.sections.steps import with_events
from profilerkit.rundir.places import Identity
from tests.recipes import training
from tests.report.samples import HOSTILE, MS, input_bound
from tests.report.test_median_step import with_step

FAMILIES = ("compute", "input", "overhead")
DRAWN = """(async () => {
  document.getElementById("timeline").open = true;
  document.getElementById("timeline").scrollIntoView();
  for (let turn = 0; turn < 1500; turn++) {
    if (document.querySelector(".timeline-stage .heatmaplayer image")) return true;
    await new Promise((done) => setTimeout(done, 20));
  }
  return false;
})()"""


def events(**changes):
    """A kernel on a stream between two idle times, and an operator."""
    known = StepEvents(
        step=17,
        time_ns=10 * MS,
        is_median=True,
        mode="gpu",
        tracks=(
            EventTrack(name="Idle, by cause", kind="cause", rows=1),
            EventTrack(name="Stream 7", kind="stream", rows=1),
            EventTrack(name="Main thread", kind="thread", rows=1),
        ),
        names=("input.prep", "gemm", "aten::mm"),
        families=FAMILIES,
        start_ns=array("q", [0, 8 * MS, 2 * MS, MS]),
        dur_ns=array("q", [2 * MS, 2 * MS, 6 * MS, MS]),
        name=array("q", [0, 0, 1, 2]),
        row=array("q", [0, 0, 1, 2]),
        family=array("q", [1, 1, 0, 2]),
        left_out=0,
    )
    return revise(known, **changes)


def figure_of(*steps, report=None):
    page = with_events(document(report or input_bound()), steps)
    (section,) = [section for section in page.sections if section.id == "timeline"]
    return section.blocks[0]


def read(figure):
    return json.loads(gzip.decompress(base64.b64decode(figure.data["packed"])))


def test_without_events_the_page_stays_as_it_is():
    page = document(input_bound())
    assert with_events(page, ()) is page


def test_each_name_is_told_once_and_causes_in_words():
    figure = figure_of(events(), events(is_median=False, step=18, left_out=3))
    data = read(figure)
    assert data["names"] == ["Input wait: preparing samples", "gemm", "aten::mm"]
    assert [step["title"] for step in data["steps"]] == [
        "Median traced step 17, 10.0 ms",
        "Slowest traced step 18, 10.0 ms",
    ]
    assert [step["note"] for step in data["steps"]] == ["", "3 shorter events of this step left out."]


def test_starts_and_rows_are_ways_from_the_one_before():
    (step,) = read(figure_of(events()))["steps"]
    assert step["start"] == [0, 8 * MS, -6 * MS, -MS]
    assert step["row"] == [0, 0, 1, 1]


def test_the_static_figure_stays_for_those_without_script():
    assert isinstance(figure_of(events(), report=with_step()).static, Chart)
    without = figure_of(events())
    assert isinstance(without, Figure)
    assert without.static is None
    assert 'id="step-timeline"' in html.render(input_bound(), [events()])


def test_a_report_of_the_library_has_it_in_its_html_alone(tmp_path):
    path = training().write(tmp_path / "trace.json")
    report = profilerkit.analyze(path)
    assert 'id="step-timeline"' in report.to_html()
    assert 'id="step-timeline"' not in profilerkit.load(_saved(report, tmp_path)).to_html()
    assert "step_events" not in report.to_json()


def _saved(report, place):
    report.to_json(place / "report.json")
    return place / "report.json"


def test_names_lose_homes():
    (shown,) = redacted_step_events(
        [events(names=("input.prep", "/home/alice/train.py(3): main", "aten::mm"))],
        Identity(users=frozenset({"alice"}), hosts=frozenset()),
    )
    assert "alice" not in "".join(shown.names)
    assert shown.names[0] == "input.prep"


def test_ten_thousand_events_take_less_than_110_kb():
    many = 10_000
    numbers = array("q", range(many))
    dur = array("q", (900 + 37 * (n * n % 101) for n in range(many)))
    start = array("q", (1_000 * n for n in range(many)))
    row, name = array("q", [1] * many), array("q", (1 + n % 2 for n in numbers))
    figure = figure_of(events(start_ns=start, dur_ns=dur, row=row, name=name, family=array("q", [0] * many)))
    assert len(figure.data["packed"]) < 110_000


@pytest.fixture(scope="module")
def page():
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with browser() as tab:
        yield tab


def drawn(page, tmp_path, *steps):
    file = tmp_path / "report.html"
    file.write_text(html.render(input_bound(), steps), encoding="utf-8")
    page.open(file, Mode(1280, 900, "light"))
    assert page.evaluate(DRAWN)
    return page


def press(key):
    return f'document.querySelector(".timeline-stage").dispatchEvent(new KeyboardEvent("keydown", {{key: "{key}"}}))'


RANGE = "document.querySelector('.timeline-stage .js-plotly-plot').layout.xaxis.range"
STATUS = "document.querySelector('.timeline-status').textContent"


@pytest.mark.browser
def test_keys_zoom_and_move_and_show_the_whole_step_again(page, tmp_path):
    drawn(page, tmp_path, events())
    assert page.evaluate(RANGE) == [0, 10 * MS]
    page.evaluate(press("+"))
    assert page.evaluate(RANGE) == [2.5 * MS, 7.5 * MS]
    page.evaluate(press("ArrowRight"))
    assert page.evaluate(RANGE) == [3.5 * MS, 8.5 * MS]
    page.evaluate(press("0"))
    assert page.evaluate(RANGE) == [0, 10 * MS]
    assert page.heard().console == []
    assert page.heard().requests == []


@pytest.mark.browser
def test_a_search_counts_what_matches_and_goes_there(page, tmp_path):
    drawn(page, tmp_path, events())
    find = 'document.querySelector(".timeline-tools input")'
    page.evaluate(f'{find}.value = "GEM"; {find}.dispatchEvent(new Event("input"))')
    assert page.evaluate(STATUS) == "1 matching event, 6 ms in all."
    page.evaluate(press("n"))
    assert page.evaluate(STATUS) == "1 of 1: gemm · 6 ms · begins at 2 ms"


@pytest.mark.browser
def test_both_steps_are_shown_on_one_axis(page, tmp_path):
    drawn(page, tmp_path, events(), events(is_median=False, step=18, time_ns=30 * MS))
    page.evaluate(
        'const choice = document.querySelector(".timeline-tools select");'
        'choice.value = "all"; choice.dispatchEvent(new Event("change"))'
    )
    assert page.evaluate(RANGE) == [0, 30 * MS]
    shown = page.evaluate("document.querySelector('.timeline-stage').textContent")
    assert "Median traced step 17" in shown
    assert "Slowest traced step 18" in shown


@pytest.mark.browser
def test_hostile_names_stay_text(page, tmp_path):
    tracks = tuple(revise(track, name=HOSTILE) for track in events().tracks)
    drawn(page, tmp_path, events(names=("input.prep", HOSTILE, HOSTILE), tracks=tracks))
    page.evaluate(press("+"))
    find = 'document.querySelector(".timeline-tools input")'
    page.evaluate(f'{find}.value = "script"; {find}.dispatchEvent(new Event("input"))')
    page.evaluate(press("n"))
    assert "<script>" in page.evaluate(STATUS)
    assert page.evaluate("document.title") != "owned"
    assert page.evaluate("document.querySelectorAll('.timeline-stage :is(img, script, b, a)').length") == 0
    assert page.heard().console == []
