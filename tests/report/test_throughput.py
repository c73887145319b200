"""A gain in samples per second in every format: named as such, and never as a saving of the step."""

import re

import pytest

from profilerkit.model.change import revise
from profilerkit.model.finding import Throughput
from profilerkit.report import html, markdown, terminal
from profilerkit.report.json import load, render
from tests.report.samples import compute_bound, outcomes, tf32

GAIN = Throughput(low=0.4, expected=0.85, high=1.5, method="analytic")
TOLD = "40–150 % more samples per second (85 % expected)"


def gaining(*others):
    """A report whose finding gains samples per second, after ``others``."""
    found = revise(tf32("E9"), title="The batch is small", saving=None, bound=None, throughput=GAIN)
    return revise(compute_bound(), outcomes=outcomes(*others, found))


@pytest.mark.parametrize("write", [html.render, markdown.render, terminal.render], ids=["html", "markdown", "terminal"])
def test_a_gain_is_told_in_samples_and_not_as_a_saving(write):
    text = re.sub(r"<[^>]+>|\*\*", "", write(gaining())).replace("\N{NO-BREAK SPACE}", " ")
    text = " ".join(text.split())
    assert f"est. {TOLD}" in text.replace("Est.", "est.")
    assert "saving 40" not in text
    assert "no saving can be stated" not in text


def test_a_gain_among_the_other_findings_is_told_in_short():
    savings = [tf32(f"E{number}") for number in range(3)]
    text = " ".join(terminal.render(gaining(*savings), width=200).split())
    assert f"The batch is small, {TOLD}" in text
    assert TOLD in markdown.render(gaining(*savings))


def test_a_gain_survives_the_json():
    report = gaining()
    assert load(render(report)) == report
