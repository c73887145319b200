"""Findings that a user set aside: the run is bound as it was, and nobody is advised to change it."""

from datetime import date

import pytest

from profilerkit.config import Settings, Suppression
from profilerkit.diagnosis.verdict import diagnose
from profilerkit.errors import UsageError
from profilerkit.model import revise
from profilerkit.model.finding import Fix, in_order
from profilerkit.report import html, markdown, terminal
from profilerkit.report.json import load
from profilerkit.report.json import render as render_json
from profilerkit.rules import RULES
from profilerkit.rules.api import Fired, Passed
from profilerkit.rules.runner import in_force, run_rules
from tests.recipes import facts
from tests.report import samples
from tests.report.pages import spaces
from tests.rules.test_runner import finding, rule

KNOWN = Suppression(rule="AA001", reason="the storage is a mock", until=date(2026, 12, 31))
WAITING = {"input.wait": 0.4}


def suppressed(of, *codes):
    entries = [Suppression(rule=code, reason=f"we know of {code}") for code in codes]
    return run_rules(of, RULES, suppress=entries)


def test_a_suppressed_finding_is_kept_apart_with_its_reason_and_severity():
    (outcome,) = run_rules(facts(), (rule("AA001", Fired((finding(0.2),))),), suppress=(KNOWN,))
    assert (outcome.status, outcome.findings) == ("suppressed", ())
    assert outcome.reason == "the storage is a mock (until 2026-12-31)"
    assert [(found.saving.expected, found.severity) for found in outcome.suppressed] == [(0.2, "high")]


def test_only_what_a_rule_finds_can_be_suppressed():
    rules = (rule("AA001", Passed("fine")), rule("AA002", Fired((finding(),))))
    passed, fired = run_rules(facts(), rules, suppress=(KNOWN,))
    assert (passed.status, passed.reason, passed.suppressed) == ("passed", "fine", ())
    assert (fired.status, fired.suppressed) == ("fired", ())


def test_a_rule_that_is_off_stays_off():
    (outcome,) = run_rules(facts(), (rule("AA001", Fired((finding(),))),), ignore=("AA",), suppress=(KNOWN,))
    assert outcome.status == "off"


@pytest.mark.parametrize(("today", "holds"), [(date(2026, 12, 31), True), (date(2027, 1, 1), False)])
def test_a_suppression_holds_through_its_last_day_and_its_end_is_said(today, holds):
    active, notes = in_force((KNOWN,), (rule("AA001", Passed("")),), today)
    assert bool(active) == holds
    said = () if holds else ("The suppression of AA001 ended on 2026-12-31: the storage is a mock",)
    assert notes == said


def test_a_suppression_names_a_rule_by_code_or_name_in_any_case():
    entries = [Suppression(rule=name, reason="x") for name in ("in001", "Starved_Device")]
    assert [entry.rule for entry in in_force(entries, RULES, date.today())[0]] == ["IN001", "IN001"]
    with pytest.raises(UsageError) as caught:
        in_force([Suppression(rule="IN0001", reason="x")], RULES, date.today())
    assert caught.value.hint == "did you mean IN001?"


@pytest.mark.parametrize("wait", [0.4, 0.91])
def test_a_suppressed_finding_names_the_bound_without_its_saving(wait):
    known = facts({"input.wait": wait})
    heard = diagnose(known, run_rules(known, RULES))
    verdict = diagnose(known, suppressed(known, "IN001", "IN002", "IN003"))
    assert (verdict.bound, verdict.detail, verdict.headline) == ("input-bound", heard.detail, heard.headline)
    assert (verdict.share, verdict.confidence) == (heard.share, heard.confidence)
    assert (heard.saving is None, verdict.saving is None) == (False, True)
    said = "Suppressed findings aside, no fix that is known here reaches 5 % of the step."
    assert verdict.consequence.startswith(f"Its finding IN001 is suppressed. {said}")
    assert "suppressed" not in heard.consequence


def test_a_suppressed_bound_that_is_not_the_largest_is_ruled_out_with_its_finding():
    known = facts({"input.wait": 0.3, "over.dispatch": 0.4})
    verdict = diagnose(known, suppressed(known, "IN001"))
    assert verdict.bound == "overhead-bound"
    assert "is suppressed" not in verdict.consequence
    (out,) = [row for row in verdict.ruled_out if row.bound == "input-bound"]
    assert out.saving is None
    assert out.reason == "waiting for data takes 30 % of the step; what IN001 found was suppressed"


def test_a_fix_of_the_same_bound_that_is_not_suppressed_is_still_advised():
    known = facts(WAITING)
    fixed = revise(finding(0.1), fix=Fix(text="do less"))
    rules = (rule("AA001", Fired((finding(0.3),))), rule("AA002", Fired((fixed,))))
    verdict = diagnose(known, run_rules(known, rules, suppress=(KNOWN,)))
    assert (verdict.bound, verdict.saving.expected) == ("overhead-bound", 0.1)
    assert verdict.consequence.startswith("Its finding AA001 is suppressed. ")
    assert "The best fix saves up to 99 % (10 % expected)" in verdict.consequence


def test_a_balanced_headline_names_the_suppressed_findings():
    known = facts({"input.prep": 0.15, "idle.unknown": 0.24, "other.log": 0.15})
    verdict = diagnose(known, suppressed(known, "IN001"))
    assert verdict.bound == "balanced"
    assert verdict.headline.startswith("Suppressed findings aside, no fix saves 5 % of the ")
    assert len(verdict.headline.split()) <= 14


def test_what_is_left_to_change_contends_with_a_suppressed_bound():
    known = facts({"input.wait": 0.6, "over.dispatch": 0.2})
    verdict = diagnose(known, suppressed(known, "IN001"))
    assert (verdict.bound, verdict.saving, verdict.contenders) == ("input-bound", None, ("overhead-bound",))
    assert "Suppressed findings aside, the best fix is expected to save 20 % of the step." in verdict.consequence


@pytest.fixture
def report():
    known = facts(WAITING)
    outcomes = suppressed(known, "IN001")
    return revise(samples.balanced(), outcomes=outcomes, verdict=diagnose(known, outcomes))


def test_every_format_shows_the_reason_and_what_was_found(report):
    (outcome,) = [outcome for outcome in report.outcomes if outcome.rule == "IN001"]
    expected = f"{100 * outcome.suppressed[0].saving.expected:.0f} %"
    shown = f"Suppressed: IN001 (saves {expected}): we know of IN001."
    assert report.verdict.bound == "input-bound"
    lines = terminal.render(report).splitlines()
    # Why the verdict's own finding is no advice is said on the first screen.
    assert shown in lines
    assert shown in markdown.render(report)
    page = spaces(html.render(report))
    assert shown in page
    assert f"Found: {outcome.suppressed[0].title}" in page
    assert load(render_json(report)).outcomes == report.outcomes


def test_suppressed_findings_are_no_findings_of_the_report(report):
    assert "IN001" not in [outcome.rule for outcome, _ in in_order(report.outcomes)]


def test_a_hostile_reason_is_text():
    known = facts(WAITING)
    entry = Suppression(rule="IN001", reason=samples.HOSTILE)
    hostile = revise(samples.balanced(), outcomes=run_rules(known, RULES, suppress=[entry]))
    assert "<script>alert" not in html.render(hostile)
    assert "<script>" not in markdown.render(hostile)
    assert "\x1b" not in terminal.render(hostile)


def test_without_any_nothing_is_suppressed():
    assert Settings().suppress == ()
