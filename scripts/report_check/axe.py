"""axe-core, the accessibility checker: fetched by npm into a temporary directory, run inside a page."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from report_check.chromium import Page

VERSION = "4.14.1"
INSTALL_SECONDS = 90


class Axe(NamedTuple):
    """The checker's script, or why there is none: exactly one of the two is not empty."""

    script: str
    missing: str


def load(file: Path | None = None) -> Axe:
    """axe-core from ``file``, or from npm."""
    if file is not None:
        return Axe(file.read_text("utf-8"), "")
    npm = shutil.which("npm")
    if npm is None:
        return Axe("", "npm is not installed")
    with tempfile.TemporaryDirectory() as place:
        options = ["--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=0"]
        try:
            done = subprocess.run(
                [npm, "install", *options, f"axe-core@{VERSION}"],
                cwd=place,
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Axe("", f"npm did not install axe-core in {INSTALL_SECONDS} s")
        script = Path(place, "node_modules", "axe-core", "axe.min.js")
        if done.returncode or not script.is_file():
            said = [line for line in done.stderr.splitlines() if "error" in line.lower()]
            return Axe("", f"npm could not install axe-core ({(said or ['no reason given'])[0].strip()})")
        return Axe(script.read_text("utf-8"), "")


def violations(page: Page, axe: Axe) -> list[str]:
    """One line per rule of axe-core that the page breaks as it stands now: the rule, how often, and where first."""
    page.evaluate(axe.script + "\n;0")
    found: list[dict[str, Any]] = page.evaluate(
        "axe.run(document, {resultTypes: ['violations'], preload: false}).then(r => r.violations.map("
        "v => ({id: v.id, n: v.nodes.length, at: v.nodes[0].target.join(' '), why: v.nodes[0].failureSummary})))"
    )
    return [f"axe {v['id']}, {v['n']} times, first at {v['at']}: {' '.join(v['why'].split())}" for v in found]
