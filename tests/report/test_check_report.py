"""Every page holds what scripts/check_report asks of it, and each check finds what is planted."""

import runpy
import sys
from pathlib import Path

import pytest
from report_check import axe as axe_core
from report_check.checks import DARK, MODES, MOST_BYTES, NARROW, PAPER, PHONE, WIDE, problems, source_problems
from report_check.chromium import CHROMIUM, Mode, browser

from profilerkit import api
from profilerkit.model.change import revise
from profilerkit.report import html
from tests.report.samples import SAMPLES
from tests.report.test_diff import hostile
from tests.report.test_loader_chart import waiting
from tests.report.test_median_step import with_step

ROOT = Path(__file__).parents[2]
SCRIPT, REPORTS = ROOT / "scripts" / "check_report", ROOT / "reports" / "samples"

#: Parts whose labels have room beside each other on a page of 414 pixels.
LABELLED = ("input.wait", "over.launch")

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@pytest.fixture(scope="module")
def page():
    with browser() as tab:
        yield tab


@pytest.fixture(scope="module")
def axe():
    return axe_core.load()


@pytest.fixture
def without_axe():
    return axe_core.Axe("", "not wanted here")


@pytest.fixture
def written(tmp_path):
    def write(text):
        (tmp_path / "report.html").write_text(text, encoding="utf-8")
        return tmp_path / "report.html"

    return write


def as_it_must_be(page, file, axe):
    """Nothing is wrong with the page; where axe is missing the test does not pass, although the rest holds."""
    assert problems(page, file, axe) == []
    if axe.missing:
        pytest.skip(f"the rest holds, but axe was not asked: {axe.missing}")


def test_where_axe_is_missing_no_page_passes(page, without_axe, written):
    text = html.render(SAMPLES["empty"]())
    with pytest.raises(pytest.skip.Exception, match="axe was not asked: not wanted here"):
        as_it_must_be(page, written(text), without_axe)
    with pytest.raises(AssertionError, match="2 elements are h1"):
        as_it_must_be(page, written(text.replace("</main>", "<h1>x</h1></main>")), without_axe)


@pytest.mark.parametrize(
    ("name", "explorer"),
    [("input_bound", False), ("hostile", True), ("lengths_only", False), ("inconclusive", False), ("empty", False)],
)
def test_a_page_is_as_it_must_be_in_every_window(name, explorer, page, axe, written):
    as_it_must_be(page, written(html.render(SAMPLES[name]())), axe)


def test_a_small_phone_is_among_the_windows(page, without_axe, written):
    assert PHONE in MODES
    text = html.render(SAMPLES["empty"]()).replace("</main>", "<div style='width:380px'>x</div></main>")
    assert problems(page, written(text), without_axe, modes=[NARROW]) == []
    found = problems(page, written(text), without_axe, modes=[PHONE])
    assert any("px wide in a window of 360 px" in line for line in found), found


def test_paper_is_among_the_windows_and_nobody_opens_a_box_on_it(page, without_axe, written):
    assert PAPER in MODES
    text = html.render(SAMPLES["input_bound"]())
    assert problems(page, written(text), without_axe, modes=[PAPER]) == []
    wide = text.replace("</main>", "<div style='width:700px'>x</div></main>")
    found = problems(page, written(wide), without_axe, modes=[WIDE, PAPER])
    assert [line for line in found if "px wide" in line] == [
        "688 px, paper: the page is 700 px wide in a window of 688 px"
    ]
    folded = text.replace("details::details-content", "details::x-content")
    assert any(
        line.startswith("688 px, paper: folded: details")
        for line in problems(page, written(folded), without_axe, modes=[PAPER])
    )


def test_the_widest_tables_fit_on_paper(page, without_axe, written):
    file = written(html.render(api.load(REPORTS / "simulated_ranks.json")))
    assert problems(page, file, without_axe, modes=[PAPER]) == []


def test_of_the_gaps_a_phone_names_the_longest_alone(page, without_axe, written):
    report = with_step()
    first, last = (revise(gap, part=part) for gap, part in zip(report.median_step.gaps, LABELLED, strict=True))
    file = written(html.render(revise(report, median_step=revise(report.median_step, gaps=(first, last)))))
    shown = "[...document.querySelectorAll('#median-step .label')].filter(at => at.checkVisibility()).length"
    for mode, count in ((WIDE, 2), (NARROW, 2), (PHONE, 1)):
        page.open(file, mode)
        assert page.evaluate(shown) == count
        assert not [line for line in problems(page, file, without_axe, modes=[mode]) if "median-step" in line]


@pytest.mark.parametrize("high_ms", [10, 99])
def test_the_ticks_below_a_figure_have_room_on_a_small_phone(high_ms, page, without_axe, written):
    file = written(html.render(waiting([high_ms] * 20)))
    page.open(file, PHONE)
    assert page.evaluate("Boolean(document.querySelector('#loader-wait .ticks-x span:nth-child(2)'))")
    assert problems(page, file, without_axe, modes=[PHONE]) == []


def with_long_labels():
    """Gaps with the longest labels that are drawn, at both ends and in the middle of the step."""
    report = with_step()
    step = report.median_step
    wide = revise(step.gaps[0], start_ns=0, end_ns=step.time_ns // 2, part="input.prep", part_ns=step.time_ns // 3)
    return revise(report, median_step=revise(step, gaps=(wide,)))


@pytest.mark.parametrize("width", [360, 320])
def test_labels_of_the_median_step_stay_in_the_box_of_a_phone(width, page, without_axe, written):
    file = written(html.render(with_long_labels()))
    page.open(file, Mode(width, 740, "light"))
    label, box = page.evaluate(
        "['#median-step .label','#median-step .box'].map(at => document.querySelector(at).getBoundingClientRect())"
        ".map(({left, right}) => [left, right])"
    )
    assert box[0] - 1 <= label[0] < label[1] <= box[1] + 1


def test_a_comparison_is_as_it_must_be_in_every_window(page, axe, written):
    as_it_must_be(page, written(html.render_diff(hostile())), axe)


def test_axe_sees_text_that_cannot_be_read(page, axe, written):
    if axe.missing:
        pytest.skip(f"axe not checked: {axe.missing}")
    planted = '<p style="color:#777;background:#888">faint</p></main>'
    text = html.render(SAMPLES["empty"]()).replace("</main>", planted)
    assert any("axe color-contrast" in line for line in problems(page, written(text), axe, modes=[WIDE]))


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ("<script>document.title='owned'</script>", "Content Security Policy"),
        ("<p onclick='1'>x</p>", "an attribute runs script: p"),
        ("<img alt='' src='data:,'>", "an element that no report has: img"),
        ("<p style='background:url(http://a.example/b)'>x</p>", "Content Security Policy"),
        ("<link rel='stylesheet' href='beside.css'>", "an element that no report has: link"),
        ("<p>\u202egnp.exe</p>", "a control character is shown: p"),
        ("<h1>x</h1>", "2 elements are h1"),
        ("<p>it waits 40\u00a0ms</p>", "a number leads to no evidence: it waits 40 ms"),
        ("<p>rank 3 waits 55–65 % of step 17</p>", "a number leads to no evidence: rank 3 waits 55–65 % of step 17"),
        ("<a href='#nowhere'>x</a>", "a link leads to nothing: #nowhere"),
        ("<p id='run'>x</p>", "1 ids are not unique"),
        ("<dl><dd>–</dd></dl>", "a cell says nothing: dd"),
        ("<section></section>", "nothing is in section"),
        ("<div style='width:500px'>x</div>", "px wide in a window of 420 px"),
        ("<p style='width:40px;overflow:hidden;white-space:nowrap'>far too long for it</p>", "cut off: "),
        ("<p>below</p><p style='margin-top:-1.5em'>above</p>", "one over the other: "),
    ],
)
def test_what_is_planted_is_found(planted, said, page, without_axe, written):
    text = html.render(SAMPLES["empty"]())
    found = problems(page, written(text.replace("</main>", f"{planted}</main>")), without_axe, modes=[NARROW])
    assert any(said in line for line in found), found
    assert problems(page, written(text), without_axe, modes=[NARROW]) == []


def test_names_with_digits_and_rows_of_numbers_need_no_link(page, without_axe, written):
    planted = "<p>FP32 on sm_90, ranks 0 and 3 in steps 3 to 5, 2026-11-22T19:51, torch 2.13.0</p>"
    planted += "<dl class='facts'><div><dt>Read</dt><dd>40 ms</dd></div></dl><table><tr><td>40 ms</td></tr></table>"
    text = html.render(SAMPLES["empty"]()).replace("</main>", f"{planted}</main>")
    assert problems(page, written(text), without_axe, modes=[WIDE]) == []


@pytest.mark.parametrize("address", ["beside.css", "https://a.example/b.css"])
def test_what_a_page_without_a_policy_asks_for_is_heard(address, page, without_axe, written):
    text = html.render(SAMPLES["empty"]()).replace("Content-Security-Policy", "x-nothing")
    planted = f"<style>p{{background:url({address})}}</style></head>"
    found = problems(page, written(text.replace("</head>", planted)), without_axe, modes=[WIDE])
    assert any("the page asked for " in line and address in line for line in found), found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('lang="en"', "", "the page has no lang"),
        ("<footer>", "<div>", "the landmark footer is missing"),
        ("default-src &#39;none&#39;", "default-src *", "the policy allows default-src *"),
        ("script-src ", "script-src 'unsafe-inline' ", "the policy allows script-src 'unsafe-inline'"),
        (
            '<p class="consequence">',
            f'<p class="consequence">{"word " * 61}',
            "words of prose on the first screen (not counted: cards, tables, tiles, captions)",
        ),
        ("prefers-color-scheme:dark", "prefers-color-scheme:none", "light and dark do not differ"),
    ],
)
def test_what_is_taken_away_is_missed(old, new, said, page, without_axe, written):
    text = html.render(SAMPLES["empty"]())
    assert old in text
    found = problems(page, written(text.replace(old, new, 1)), without_axe, modes=[WIDE, DARK])
    assert any(said in line for line in found), found


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ('<a href="https://a.example/">x</a>', "an attribute names a host"),
        ("<img src='//a.example/b.png'>", "an attribute names a host"),
        ("<style>@import 'a.css'</style>", "the style sheet asks for a file"),
        ("<style>p{background:url(a.png)}</style>", "the style sheet asks for a file"),
        ("x" * MOST_BYTES, "bytes without the figures' script"),
    ],
)
def test_the_file_alone_shows_what_it_would_ask_for(planted, said):
    text = html.render(SAMPLES["empty"]())
    assert list(source_problems(text)) == []
    assert any(said in line for line in source_problems(text + planted))


def test_without_axe_the_script_says_so_and_does_not_pass(written, monkeypatch, capsys):
    monkeypatch.setattr(axe_core.shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["check_report", str(written(html.render(SAMPLES["empty"]())))])
    assert runpy.run_path(str(SCRIPT))["main"]() == 3
    assert "axe not checked: npm is not installed" in capsys.readouterr().out
