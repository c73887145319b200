"""What every rule keeps, tried on the tables of cases that the tests of a family give."""

from dataclasses import dataclass

from profilerkit.rules.api import Fired, Passed
from tests.recipes import STEP_NS, replace
from tests.rules import contract
from tests.rules.contract import RULE


def check(code, known, **options):
    return replace(RULE[code], **options).check(known)


def ended(code, known, **options):
    return type(check(code, known, **options))


def finding(code, known, **options):
    result = check(code, known, **options)
    assert isinstance(result, Fired), result
    (only,) = result.findings
    return only


@dataclass(frozen=True)
class Cases:
    """Tables by rule code.

    Attributes:
        fires: facts that fire.
        passes: facts that pass.
        missing: facts that lack the rule's signal.
        not_applicable: facts of a run that the rule is not about.
        thresholds: (code, option) to facts just inside and just outside of it.
        untried: options that are no threshold, and are tried by a test of their own.
        observations: rules without a saving.
        timed: rules whose cause is timed by itself: how much the steps vary says nothing of it.
    """

    fires: dict
    passes: dict
    missing: dict
    not_applicable: dict
    thresholds: dict
    untried: frozenset = frozenset()
    observations: frozenset = frozenset()
    timed: frozenset = frozenset()


class Promises:
    """A subclass whose name begins with Test, and that has ``cases``, is collected with all of these tests."""

    def test_every_rule_has_a_case_of_each_kind(self):
        assert set(self.cases.fires) == set(self.cases.passes)
        assert set(self.cases.fires) <= set(self.cases.missing) | set(self.cases.not_applicable)

    def test_the_rules_fire_and_say_what_was_seen_what_to_do_and_how_to_check_it(self):
        for code, known in self.cases.fires.items():
            contract.fires(code, known)

    def test_the_rules_pass_with_the_number_that_says_so(self):
        for code, known in self.cases.passes.items():
            contract.passes(code, known)

    def test_the_rules_abstain_without_their_signal_and_say_how_to_record_it(self):
        for code, known in self.cases.missing.items():
            contract.abstains(code, known)

    def test_the_rules_are_not_about_runs_without_their_subject(self):
        for code, known in self.cases.not_applicable.items():
            contract.is_not_applicable(code, known)

    def test_every_threshold_lies_where_it_says(self):
        for (code, option), (inside, outside) in self.cases.thresholds.items():
            assert ended(code, inside) is Fired, (code, option)
            assert ended(code, outside) is Passed, (code, option)

    def test_every_threshold_is_tried(self):
        assert set(self.cases.thresholds) | set(self.cases.untried) == contract.options(self.cases.fires)

    def test_no_rule_speaks_within_the_noise_of_the_step_time(self):
        for code, known in self.cases.fires.items():
            if code not in self.cases.observations | self.cases.timed:
                assert ended(code, replace(known, step_error_ns=0.5 * STEP_NS)) is Passed, code

    def test_a_saving_goes_with_a_bound_and_an_observation_has_neither(self):
        for code, known in self.cases.fires.items():
            for found in check(code, known).findings:
                assert (found.saving is None) == (found.bound is None) == (code in self.cases.observations), code
