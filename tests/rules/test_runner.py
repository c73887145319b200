import math
import re
from typing import ClassVar

import numpy as np
import pytest

from profilerkit.model import revise
from profilerkit.model.finding import Evidence, Finding, Saving, Throughput
from profilerkit.rules import RULES, runner
from profilerkit.rules.api import Fired, MissingData, NotApplicable, Passed, Rule
from profilerkit.rules.runner import run_rules, severity
from tests.recipes import facts

EVIDENCE = Evidence(label="share", value=0.5, unit="ratio", source="measured", origin="a recipe")


def finding(expected=0.2, confidence="high", evidence=1):
    saving = None if expected is None else Saving(low=0.0, expected=expected, high=1.0, method="analytic")
    claim = {"title": "it is slow", "bound": "overhead-bound", "why": "because"}
    return Finding(**claim, confidence=confidence, evidence=(EVIDENCE,) * evidence, saving=saving)


def gaining(*ends, kind=Saving):
    """A finding whose saving or throughput has these ends."""
    gain = kind(**dict(zip(("low", "expected", "high"), ends, strict=True)), method="analytic")
    return revise(finding(None), **{"saving" if kind is Saving else "throughput": gain})


def rule(number, result):
    """A rule that ends in ``result``, or raises it."""

    class Scripted(Rule, frozen=True):
        code: ClassVar[str] = number
        name: ClassVar[str] = "scripted_state"
        family: ClassVar[str] = "run"
        summary: ClassVar[str] = "a scripted rule"

        def check(self, facts):
            if isinstance(result, BaseException):
                raise result
            return result

    return Scripted()


def statuses(outcomes):
    return {outcome.rule: outcome.status for outcome in outcomes}


def test_every_ending_of_a_rule_is_an_outcome_with_its_reason():
    rules = (
        rule("AA001", Fired((finding(),))),
        rule("AA002", Passed("2 % only")),
        rule("AA003", NotApplicable("no such thing")),
        rule("AA004", MissingData("not recorded", "record it")),
    )
    fired, passed, not_applicable, missing = run_rules(facts(), rules)
    assert (fired.status, fired.reason, len(fired.findings)) == ("fired", None, 1)
    assert (passed.status, passed.reason) == ("passed", "2 % only")
    assert (not_applicable.status, not_applicable.reason) == ("not_applicable", "no such thing")
    assert (missing.status, missing.reason, missing.hint) == ("missing_data", "not recorded", "record it")
    assert (passed.name, passed.summary) == ("scripted_state", "a scripted rule")


BROKEN = [
    ZeroDivisionError("by zero"),
    SystemExit(0),
    None,
    "nonsense",
    Fired(()),
    Fired(("x",)),
    Fired((finding(confidence="very"),)),
    Fired((revise(finding(), title=3),)),
    Fired((revise(finding(), evidence=(revise(EVIDENCE, value=np.float32(0.5)),)),)),
    Passed(3),
    Fired((gaining(0.0, 5.0, 7.0),)),
    Fired((gaining(0.0, 0.5, 1.1),)),
    Fired((gaining(-0.1, 0.5, 1.0),)),
    Fired((gaining(0.3, 0.2, 0.4),)),
    Fired((gaining(0.1, 0.5, 0.4),)),
    Fired((gaining(0.0, math.nan, 1.0),)),
    Fired((gaining(0.0, 0.5, math.inf, kind=Throughput),)),
]


@pytest.mark.parametrize("broken", BROKEN, ids=range(len(BROKEN)))
def test_one_broken_rule_is_an_error_and_the_others_still_run(broken):
    rules = (rule("AA001", Passed("fine")), rule("AA002", broken), rule("AA003", Fired((finding(),))))
    outcomes = run_rules(facts(), rules)
    assert statuses(outcomes) == {"AA001": "passed", "AA002": "error", "AA003": "fired"}
    assert outcomes[1].reason
    if isinstance(broken, ZeroDivisionError):
        assert re.fullmatch(rf"line \d+ of {re.escape(__name__)} raised ZeroDivisionError: by zero", outcomes[1].reason)


@pytest.mark.parametrize(
    "whole",
    [
        Fired([finding()]),
        Fired((gaining(0.0, 0.0, 0.0),)),
        Fired((gaining(0.1 + 0.2, 0.3, 1.0 + 1e-15),)),
        Fired((gaining(0.0, 1.5, 3.0, kind=Throughput),)),
    ],
    ids=range(4),
)
def test_a_finding_at_the_edge_of_what_can_be_is_one(whole):
    (outcome,) = run_rules(facts(), (rule("AA001", whole),))
    assert (outcome.status, type(outcome.findings)) == ("fired", tuple)


def test_a_rule_without_a_page_is_broken():
    broken = rule("AA001", Fired((finding(),)))
    type(broken).__doc__ = 3
    (outcome, other) = run_rules(facts(), (broken, rule("AA002", Fired((finding(),)))))
    assert (outcome.status, other.status) == ("error", "fired")


def test_where_the_replay_fails_the_savings_of_the_rules_stay_and_say_so(monkeypatch):
    def failing(facts, outcomes):
        raise KeyError("comm")

    monkeypatch.setattr(runner, "with_replay", failing)
    (outcome,) = run_rules(facts(), (rule("AA001", Fired((finding(), finding(None)))),))
    saved, unsaved = outcome.findings
    assert (saved.saving.expected, saved.why) == (0.2, "because The replay of the fix failed (KeyError: 'comm').")
    assert unsaved.why == "because"


def test_an_interrupt_is_no_broken_rule():
    class Interrupted(Rule, frozen=True):
        code: ClassVar[str] = "AA001"
        name: ClassVar[str] = "x"
        family: ClassVar[str] = "run"
        summary: ClassVar[str] = "x"

        def check(self, facts):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_rules(facts(), (Interrupted(),))


@pytest.mark.parametrize(
    ("select", "ignore", "run"),
    [
        ((), (), {"AA001", "AA002", "BB001"}),
        (("AA",), (), {"AA001", "AA002"}),
        (("BB001", "AA002"), (), {"AA002", "BB001"}),
        ((), ("AA",), {"BB001"}),
        (("AA",), ("AA001",), {"AA002"}),
        (("ZZ",), (), set()),
    ],
)
def test_rules_that_are_not_selected_or_are_ignored_are_off(select, ignore, run):
    rules = [rule(code, Passed("fine")) for code in ("AA001", "AA002", "BB001")]
    outcomes = run_rules(facts(), rules, select=select, ignore=ignore)
    assert {outcome.rule for outcome in outcomes if outcome.status == "passed"} == run
    assert {outcome.status for outcome in outcomes if outcome.rule not in run} <= {"off"}
    assert len(outcomes) == 3


def test_a_rule_that_is_off_is_not_run():
    outcomes = run_rules(facts(), (rule("AA001", RuntimeError("ran")),), ignore=("AA",))
    assert statuses(outcomes) == {"AA001": "off"}


def test_evidence_is_numbered_across_the_report():
    rules = (
        rule("AA001", Fired((finding(evidence=2), finding(evidence=1)))),
        rule("AA002", Passed("fine")),
        rule("AA003", Fired((finding(evidence=2),))),
    )
    numbers = [
        entry.id for outcome in run_rules(facts(), rules) for found in outcome.findings for entry in found.evidence
    ]
    assert numbers == ["E1", "E2", "E3", "E4", "E5"]


@pytest.mark.parametrize(
    ("expected", "confidence", "result"),
    [
        (0.10, "high", "high"),
        (0.0999, "high", "medium"),
        (0.03, "high", "medium"),
        (0.0299, "high", "low"),
        (0.1334, "medium", "high"),
        (0.1333, "medium", "medium"),
        (0.0401, "medium", "medium"),
        (0.0399, "medium", "low"),
        (0.2501, "low", "high"),
        (0.2499, "low", "medium"),
        (0.0749, "low", "low"),
        (None, "high", "info"),
    ],
)
def test_severity_is_the_saving_weighted_by_the_confidence(expected, confidence, result):
    assert severity(finding(expected, confidence)) == result
    (outcome,) = run_rules(facts(), (rule("AA001", Fired((finding(expected, confidence),))),))
    assert outcome.findings[0].severity == result


def test_the_built_in_rules_have_one_outcome_each_in_their_order():
    assert [outcome.rule for outcome in run_rules(facts(), RULES)] == [entry.code for entry in RULES]


def test_a_finding_without_evidence_cannot_be_built():
    with pytest.raises(ValueError, match="without evidence"):
        finding(evidence=0)


def test_evidence_is_numbered_in_the_order_in_which_a_report_shows_it():
    small, large = rule("AA001", Fired((finding(0.1, evidence=2),))), rule("AA002", Fired((finding(0.3, evidence=2),)))
    outcomes = run_rules(facts(), (small, large))
    numbers = {outcome.rule: [entry.id for entry in outcome.findings[0].evidence] for outcome in outcomes}
    assert numbers == {"AA001": ["E3", "E4"], "AA002": ["E1", "E2"]}
