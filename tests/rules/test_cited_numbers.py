"""Each number of a finding's headline has a row of evidence of that finding's own."""

import pytest
from simulator import classes
from simulator.score import job_of, recorded

from profilerkit.report.evidence import Anchors, evidence_row
from profilerkit.report.findings import cards_of
from profilerkit.report.records import EvidenceRow
from profilerkit.report.stated import savings_of
from profilerkit.report.templating import environment
from profilerkit.rules.rule import Fired
from profilerkit.units import format_ns
from tests.recipes import STEP_NS
from tests.rules.contract import RULE
from tests.rules.tables import tables

FIRED = [case for table in tables("fires") for case in (table.items() if isinstance(table, dict) else table)]
#: The report states it, and a headline may call it the whole of a part: 40.0 ms of 100 ms.
STEP = EvidenceRow("E99", "Step time, mean", format_ns(STEP_NS), "", "", "measured", "x")


def uncited(text, rows, stated=()):
    """The text as the page shows it, where a number of it leads to the whole table; empty where none does."""
    shown = str(environment().filters["cited"](text, rows, stated, table="all-of-it", is_finding=True))
    return shown if "#all-of-it" in shown else ""


@pytest.mark.parametrize(("code", "known"), FIRED, ids=[f"{code}-{index}" for index, (code, _) in enumerate(FIRED)])
def test_each_number_of_a_headline_is_in_the_evidence_of_its_rule(code, known):
    result = RULE[code].check(known)
    assert isinstance(result, Fired)
    for found in result.findings:
        anchors, mean_ns = Anchors(), round(known.mean_step_ns) if known.mean_step_ns else None
        entries = (*found.evidence, *savings_of(found, mean_ns))
        rows = tuple(evidence_row(entry, anchors, mean_ns) for entry in entries)
        assert not uncited(found.title, rows, (STEP,))


@pytest.mark.parametrize("code", classes.BY_CODE)
def test_each_number_of_a_headline_is_in_the_evidence_of_a_simulated_run(code):
    _, report = recorded(job_of(code, 100, 200))
    cards, stated = cards_of(report)
    for card in cards:
        assert not uncited(card.title, (*card.evidence, *card.savings), stated), card.rule


def test_a_number_without_a_row_is_found():
    assert uncited("waits 9.00 ms of 100 ms", (), (STEP,)).count("#all-of-it") == 1
