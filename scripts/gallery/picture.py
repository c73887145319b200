"""The README's picture: the first screen of a sample report, as headless Chromium shows it."""

from pathlib import Path

from report_check.checks import READY
from report_check.chromium import Mode, browser

NAME = "first_screen.png"
#: Of this sample, in a window of this size: on the page of a repository it is shown at about this width.
SAMPLE = "input_bound"
WINDOW = Mode(1000, 760, "light")


def take(reports: Path) -> Path:
    """Write the picture and return where it lies. Raises FileNotFoundError without Chromium or without the report."""
    page = reports / f"{SAMPLE}.html"
    if not page.exists():
        raise FileNotFoundError(f"{page} is not there")
    with browser() as tab:
        tab.open(page, WINDOW)
        tab.evaluate(READY)
        tab.evaluate("document.documentElement.style.scrollbarWidth = 'none'")
        target = reports / NAME
        target.write_bytes(tab.picture())
    return target
