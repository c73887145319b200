"""Savings of the same time: one of them stands alone, the others name it."""

import pytest

from profilerkit.api import analyze
from profilerkit.diagnosis.savings import with_overlaps
from profilerkit.model import revise
from profilerkit.model.communication import Communication, LateRank
from profilerkit.model.finding import in_order
from profilerkit.rules import RULES
from profilerkit.rules.runner import run_rules
from tests.recipes import MS, SINGLE, facts, training
from tests.rules.test_rules import FIRES
from tests.test_diagnosis import outcome


def overlapping(shares, *outcomes):
    """Rule to the rule that saves the same time."""
    found = with_overlaps(facts(shares), outcomes)
    return {entry.rule: entry.findings[0].overlaps for entry in found}


def test_other_ways_to_wait_less_for_data_name_the_largest():
    waits = [outcome("input-bound", saving, code=code) for code, saving in (("IN001", 0.1), ("IN003", 0.3))]
    assert overlapping({"input.wait": 0.8}, *waits) == {"IN001": "IN003", "IN003": ""}


def test_of_two_that_save_as_much_the_one_with_a_fix_is_told_whole():
    waits = [outcome("input-bound", 0.3, code=code, fix=code == "IN002") for code in ("IN001", "IN002")]
    (first, second) = with_overlaps(facts({"input.wait": 0.4}), waits)
    assert (first.status, first.findings, second.findings[0].overlaps) == ("passed", (), "")


@pytest.mark.parametrize(("first", "status"), [("IN013", "passed"), ("CO001", "fired")])
def test_the_wait_is_told_by_the_rule_that_knows_the_workers(first, status):
    """IN001 calls it a wait where they call it preparing; of another bound it stays."""
    bound = "input-bound" if first == "IN013" else "comm-bound"
    closer, wait = outcome(bound, 0.3, code=first), outcome("input-bound", 0.2, code="IN001", fix=False)
    closer = revise(closer, findings=(revise(closer.findings[0], detail="prep"),))
    assert with_overlaps(facts({"input.wait": 0.4}), [closer, wait])[1].status == status


def test_copies_are_not_the_wait_for_data():
    found = overlapping(
        {"input.wait": 0.4, "input.h2d": 0.2},
        outcome("input-bound", 0.4, code="IN002"),
        outcome("input-bound", 0.2, code="IN009"),
    )
    assert found == {"IN002": "", "IN009": ""}


@pytest.mark.parametrize(("each", "same"), [(0.10, ""), (0.11, "OV002")])
def test_savings_that_are_more_than_their_parts_take_overlap(each, same):
    syncs = [outcome("overhead-bound", each, code=code) for code in ("OV002", "OV003")]
    assert overlapping({"sync.drain": 0.2}, *syncs) == {"OV002": "", "OV003": same}


@pytest.mark.parametrize(
    ("detail", "first", "same"), [("launch", 0.3, "OV001"), ("launch", 0.19, ""), ("bandwidth", 0.3, "")]
)
def test_a_fused_optimizer_and_a_graph_win_the_same_idle_time(detail, first, same):
    fused = outcome("overhead-bound", 0.1, code="CP006")
    fused = revise(fused, findings=(revise(fused.findings[0], detail=detail),))
    found = overlapping({"over.dispatch": 0.4}, outcome("overhead-bound", first, code="OV001"), fused)
    assert found == {"OV001": "", "CP006": same}


def test_long_stretches_of_python_are_not_the_gaps_between_operators():
    pair = (outcome("overhead-bound", 0.25, code="OV001"), outcome("overhead-bound", 0.15, code="OV005"))
    assert overlapping({"over.python": 0.2, "over.dispatch": 0.2}, *pair) == {"OV001": "", "OV005": ""}


def test_savings_of_more_than_the_step_overlap_whatever_they_are_about():
    found = overlapping(
        {"mem.alloc": 0.7},
        outcome("memory-bound", 0.75, code="ME001"),
        outcome("overhead-bound", 0.3, code="RU005"),
        outcome("overhead-bound", 0.2, code="RU006"),
    )
    assert found == {"ME001": "", "RU005": "ME001", "RU006": ""}


def test_what_makes_a_rank_late_is_the_waiting_of_the_others():
    late = LateRank(
        rank=None,
        origin="trace.json",
        share=1.0,
        last=9,
        of=9,
        cause="input.wait",
        cause_ns=40 * MS,
        waited_ns=40 * MS,
        coverage=1.0,
        few_steps=False,
    )
    known = facts({"input.wait": 0.4}, communication=Communication(matched=9, of=9, late=(late,)))
    outcomes = (outcome("input-bound", 0.4, code="CO003"), outcome("input-bound", 0.3, code="IN002"))
    assert [entry.findings[0].overlaps for entry in with_overlaps(known, outcomes)] == ["", "CO003"]
    assert [entry.findings[0].overlaps for entry in with_overlaps(facts({"input.wait": 0.4}), outcomes)] == ["", ""]


def test_findings_of_different_ranks_are_about_different_time():
    first, second = (outcome("input-bound", 0.3, code="IN002") for _ in range(2))
    second = revise(second, findings=(revise(second.findings[0], rank=3),))
    assert [entry.findings[0].overlaps for entry in with_overlaps(facts({"input.wait": 0.4}), (first, second))] == [
        "",
        "",
    ]


def test_a_loader_without_workers_is_one_cause_with_one_finding():
    known = FIRES["IN002"]
    ran = {entry.rule: entry for entry in run_rules(known, RULES)}
    found = {entry.rule: entry for entry in with_overlaps(known, tuple(ran.values()))}
    assert (ran["IN001"].status, found["IN001"].status, found["IN001"].findings) == ("fired", "passed", ())
    (told,) = found["IN002"].findings
    assert told.overlaps == ""
    labels = [row.label for row in told.evidence]
    assert {row.label for row in ran["IN001"].findings[0].evidence} < {*labels}
    assert len({*labels}) == len(labels)


def test_without_the_rule_that_has_the_fix_the_wait_is_told_all_the_same():
    known = FIRES["IN002"]
    found = {entry.rule: entry for entry in with_overlaps(known, run_rules(known, RULES, ignore=("IN002",)))}
    assert found["IN001"].status == "fired"


def test_the_report_of_a_recording_says_a_wait_for_data_once(tmp_path):
    report = analyze(training(12, fetch=20_000, kernels=100, loader=SINGLE).write(tmp_path / "trace.json"))
    overlaps = {outcome.rule: finding.overlaps for outcome, finding in in_order(report.outcomes)}
    assert (overlaps["IN002"], "IN001" in overlaps) == ("", False)
