"""The page in a real browser: the figure is drawn, nothing is fetched, hostile names run nothing."""

import re
from html import unescape

import pytest
from report_check.checks import READY, WIDE
from report_check.chromium import CHROMIUM, browser

from profilerkit.report import html
from tests.report.samples import SAMPLES

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@pytest.fixture(scope="module")
def page():
    with browser() as tab:
        yield tab


def opened(page, text, tmp_path):
    """The document after its scripts ran, and what the page wrote to the console."""
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8")
    page.open(file, WIDE)
    page.evaluate(READY)
    return page.evaluate("document.documentElement.outerHTML"), page.heard().console


def title_of(text):
    return unescape(re.search(r"<title>(.*?)</title>", text, re.DOTALL).group(1))


@pytest.mark.parametrize("name", ["input_bound", "lengths_only", "hostile"])
def test_the_script_runs_and_the_console_is_silent(name, page, tmp_path):
    text = html.render(SAMPLES[name]())
    dom, console = opened(page, text, tmp_path)
    assert console == []
    assert dom.count('aria-label="Search') == text.count("stacked sort")
    assert title_of(dom) == title_of(text)
    assert "onerror=" not in re.sub(r"&lt;.*?&gt;", "", re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL))


def test_a_script_that_got_into_the_page_is_still_refused(page, tmp_path):
    text = html.render(SAMPLES["balanced"]()).replace("</main>", "<script>document.title='owned'</script></main>")
    dom, console = opened(page, text, tmp_path)
    assert "<title>owned" not in dom
    assert any("Content Security Policy" in line for line in console)
