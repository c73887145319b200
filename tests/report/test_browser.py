"""The page in a real browser: the figure is drawn, nothing is fetched, hostile names run nothing."""

import re
import shutil
import subprocess
from html import unescape

import pytest

from profilerkit.report import html
from tests.report.samples import SAMPLES

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=10000",
    "--window-size=1280,900",
    "--dump-dom",
)

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


def opened(text, tmp_path):
    """The document after its scripts ran, and what the page wrote to the console."""
    page = tmp_path / "report.html"
    page.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def title_of(text):
    return unescape(re.search(r"<title>(.*?)</title>", text, re.DOTALL).group(1))


@pytest.mark.parametrize("name", ["input_bound", "lengths_only", "hostile"])
def test_the_figure_is_drawn_and_the_console_is_silent(name, tmp_path):
    text = html.render(SAMPLES[name]())
    dom, console = opened(text, tmp_path)
    assert console == []
    assert re.search(r'<svg[^>]*class="main-svg"', dom)
    assert re.search(r'id="strip"[^>]*style="display: none', dom)
    assert title_of(dom) == title_of(text)
    assert "onerror=" not in re.sub(r"&lt;.*?&gt;", "", re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL))


def test_a_script_that_got_into_the_page_is_still_refused(tmp_path):
    text = html.render(SAMPLES["balanced"]()).replace("</main>", "<script>document.title='owned'</script></main>")
    dom, console = opened(text, tmp_path)
    assert "<title>owned" not in dom
    assert any("Content Security Policy" in line for line in console)
