"""Markdown of real traces, and of a report in which everything was found: small, and no sentence is cut."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

from profilerkit import analyze
from profilerkit.model.change import revise
from profilerkit.model.finding import Fix
from profilerkit.report import markdown
from profilerkit.report.markdown_text import prose
from profilerkit.report.redaction import redacted
from profilerkit.report.view import build
from profilerkit.rundir.identity import Identity
from tests.report.samples import SAMPLES

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
SETS = json.loads((SHARED / "MANIFEST.json").read_text("utf-8"))["sets"] if SHARED.is_dir() else {}
KINETO = [name for name, entry in SETS.items() if {file["format"] for file in entry["files"]} == {"kineto"}]

LONG_FIX = "Set `num_workers` to 8 where the loader is made, keep `pin_memory=True`, and record the run again. " * 5


def everything_found():
    """Forty findings whose fixes take five sentences each."""
    report = SAMPLES["input_bound"]()
    fired = [outcome for outcome in report.outcomes if outcome.findings]
    many = []
    for number in range(40):
        outcome = fired[number % len(fired)]
        finding = revise(outcome.findings[0], title=f"Finding {number} of forty", fix=Fix(text=LONG_FIX.strip()))
        many.append(revise(outcome, rule=f"XX{number:03d}", findings=(finding,)))
    return revise(report, outcomes=(*many, *report.outcomes[len(fired) :]))


@cache
def real(name):
    paths = [SHARED / file["file"] for file in SETS[name]["files"]]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        pytest.skip(f"not there: {', '.join(missing)}")
    return redacted(analyze(*paths), Identity())


def check(report):
    text, view = markdown.render(report), build(report)
    assert len(text.encode()) <= 6_000
    assert text.startswith(f"{markdown.MARKER}\n**")
    assert "Made by profilerkit" in text
    for sentence in (view.headline, view.consequence, *(part for c in view.changes for part in (c.title, c.fix))):
        assert prose(sentence, 10_000) in text
    known = {prose(card.title, 10_000) for card in view.cards}
    others = re.findall(
        r"^\| [^ ]+ (.*) \w+ \| [^|]* \|$",
        text.partition("<summary>Other findings")[2].partition("</details>")[0],
        re.M,
    )
    assert set(others) <= known
    return others


def test_a_report_in_which_everything_was_found_loses_rows_and_no_sentence():
    others = check(everything_found())
    assert 0 < len(others) < 37
    assert re.search(r"^\d+ more, left out for want of room\.$", markdown.render(everything_found()), re.M)


@pytest.mark.shared_traces
@pytest.mark.skipif(not KINETO, reason="no real traces beside the repository")
@pytest.mark.parametrize("name", KINETO)
def test_a_real_trace_fits_whole(name):
    check(real(name))
