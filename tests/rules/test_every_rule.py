"""No rule without cases: each file of tests names its own, and together they name all."""

import re

import pytest

from profilerkit.capture.changes import SETTINGS
from profilerkit.model.change import revise
from profilerkit.model.step import WHOLE_TRACE
from profilerkit.rules import RULES
from profilerkit.rules.runner import run_rules
from tests.recipes import replace
from tests.rules.tables import tables


def pairs(cases):
    """The rules and facts of a table by code, or of a list of both."""
    return [entry[:2] for entry in (cases.items() if isinstance(cases, dict) else cases)]


def codes(cases):
    """The rules of a table."""
    return {code for code, _ in pairs(cases)}


@pytest.mark.parametrize("kind", ["fires", "passes"])
def test_every_rule_fires_on_some_facts_and_passes_on_others(kind):
    tried = [codes(table) for table in tables(kind)]
    assert set().union(*tried) == {rule.code for rule in RULES}


#: Rules about how steps differ, which one recording as a whole cannot show.
AMONG_STEPS = ("ME004", "RU003", "RU004")


@pytest.mark.parametrize(("code", "known"), [case for table in tables("fires") for case in pairs(table)])
def test_where_nothing_marks_a_step_no_finding_says_of_which_step_it_is(code, known):
    whole = replace(known, steps=revise(known.steps, found_by=WHOLE_TRACE))
    findings = [finding for outcome in run_rules(whole, RULES, select=[code]) for finding in outcome.findings]
    words = [word for found in findings for word in (found.title, found.why, *(row.label for row in found.evidence))]
    assert code in AMONG_STEPS or not [word for word in words if re.search(r"\b(?:the|per|every|mean) step\b", word)]


def test_what_rules_propose_is_what_their_settings_take():
    cases = [case for table in tables("fires") for case in pairs(table)]
    outcomes = [outcome for code, known in cases for outcome in run_rules(known, RULES, select=[code])]
    changes = [
        change for outcome in outcomes for found in outcome.findings if found.fix for change in found.fix.changes
    ]
    tried = {change.setting for change in changes if change.setting in SETTINGS}
    assert len(tried) > 12, tried
    wrong = {
        change.setting: SETTINGS[change.setting].instead_of(change.proposed)
        for change in changes
        if change.setting in tried
    }
    assert not any(wrong.values()), wrong
