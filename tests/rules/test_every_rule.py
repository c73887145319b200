"""No rule without cases: each file of tests names its own, and together they name all."""

import re

import pytest

from profilerkit.capture.changes import SETTINGS
from profilerkit.model import revise
from profilerkit.model.step import STEP_WORDS, WHOLE_TRACE
from profilerkit.rules import RULES
from profilerkit.rules.docs import thresholds
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
    of_a_step = re.compile(rf"\b(?:{'|'.join(STEP_WORDS)}) step\b")
    assert code in AMONG_STEPS or not [word for word in words if of_a_step.search(word)]


_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_LIMIT = re.compile(rf"\b(?:above|below|least|most|over|than|to|under) (\d[\d.,]*\d|\d|{'|'.join(_WORDS)})\b")


def limits(code, known, option=None, factor=1.0):
    """The numbers that its findings say must be passed, with one threshold changed; none where it fires no more."""
    rule = next(rule for rule in RULES if rule.code == code)
    rule = revise(rule, **{option: getattr(rule, option) * factor}) if option else rule
    findings = [finding for outcome in run_rules(known, (rule,)) for finding in outcome.findings]
    texts = [text for found in findings for text in (found.confirm, found.fix.text if found.fix else "")]
    said = [number for text in texts for number in _LIMIT.findall(text)]
    return {float(_WORDS.index(n) if n in _WORDS else n.replace(",", "")) for n in said}


@pytest.mark.parametrize(("code", "known"), [case for table in tables("fires") for case in pairs(table)])
def test_a_threshold_that_a_finding_names_is_the_one_that_is_set(code, known):
    named = limits(code, known)
    settings = thresholds(next(rule for rule in RULES if rule.code == code))
    numbers = {name: value for name, value in settings.items() if isinstance(value, int | float)}
    # "Below three" names a limit of two.
    repeated = {name: {value, value + 1} & named for name, value in numbers.items()}
    stale = {name: repeated[name] & limits(code, known, name, 0.97) for name in numbers if repeated[name]}
    assert not any(stale.values()), stale


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
