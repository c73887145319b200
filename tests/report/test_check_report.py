"""Every page holds what scripts/check_report asks of it, and each check finds what is planted."""

import pytest
from report_check import axe as axe_core
from report_check.checks import BRIEF_MODES, NARROW, PHONE, WIDE, problems, source_problems
from report_check.chromium import CHROMIUM, browser

from profilerkit.report import html
from tests.report.samples import SAMPLES
from tests.report.test_diff import faster

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
WITHOUT_AXE = axe_core.Axe("", "not wanted here")


@pytest.fixture(scope="module")
def page():
    with browser() as tab:
        yield tab


@pytest.fixture
def written(tmp_path):
    def write(text):
        (tmp_path / "report.html").write_text(text, encoding="utf-8")
        return tmp_path / "report.html"

    return write


@pytest.mark.parametrize("name", ["input_bound", "hostile", "multi_rank", "inconclusive", "empty"])
def test_a_page_is_as_it_must_be(name, page, written):
    modes = (WIDE, NARROW, PHONE) if name == "input_bound" else BRIEF_MODES
    found = problems(page, written(html.render(SAMPLES[name]())), WITHOUT_AXE, modes=modes)
    # A hostile name is as long as it wants to be, and light alone does not differ from dark.
    passed = ("do not differ", *(("tokens", "printed pages") if name == "hostile" else ()))
    assert [one for one in found if not any(text in one for text in passed)] == []


def test_a_comparison_is_as_it_must_be(page, written):
    assert problems(page, written(html.render(faster())), WITHOUT_AXE, modes=BRIEF_MODES) == []


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ("<p>" + "word " * 100 + "</p>", "tokens above the fold"),
        ("<div style='height:5000px'>x</div>", "screens, more than 5"),
        ("<p style='margin-top:900px'>" + "word " * 1000 + "</p>", "words, more than 900"),
        ("<div style='width:1400px'>x</div>", "px wide in a window"),
        ("<h1>x</h1>", "2 elements are h1"),
        ("<a href='#nowhere'>x</a>", "a link leads to nothing"),
        ("<p onclick='x()'>x</p>", "an attribute runs script"),
        ("<div style='break-after:page'>x</div>" * 9, "printed pages, more than 8"),
        ("<div style='position:relative'><p>lower</p><p style='position:absolute;top:0'>upper</p></div>", "one over"),
    ],
)
def test_what_is_planted_is_found(planted, said, page, written):
    text = html.render(SAMPLES["input_bound"]())
    place = "<nav" if "tokens" in said or "over" in said else "</main>"
    text = text.replace(place, planted + place, 1)
    found = problems(page, written(text), WITHOUT_AXE, modes=[WIDE])
    assert any(said in one for one in found), found


def test_the_source_is_checked_without_a_browser():
    text = html.render(SAMPLES["input_bound"]())
    assert list(source_problems(text)) == []
    assert any("allows" in one for one in source_problems(text.replace("script-src", "script-src https:", 1)))
    assert any("names a host" in one for one in source_problems(text.replace("</main>", "<img src='//x'></main>")))
