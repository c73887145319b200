"""The files of a new rule: a check that works, with every place to change named in its page."""

#: What a rule imports: one of the package, and one of a project, which may use the names for plug-ins alone.
IMPORTS_OF_THE_PACKAGE = """\
from profilerkit.rules.api import Facts, Fix, MissingData, Passed, Result, Rule, each, fired, saving
from profilerkit.units import format_ns, format_ratio"""
IMPORTS_OF_A_PROJECT = """from profilerkit.plugin import (
    Facts,
    Fix,
    MissingData,
    Passed,
    Result,
    Rule,
    each,
    fired,
    format_ns,
    format_ratio,
    saving,
)"""

RULE = '''"""$code: $claim_start."""

$imports

#: Parts of the step that the rule is about, as ``report.json`` names them in its breakdown, or a group with its dot.
_PARTS = ("$group",)


class $type_name(Rule, frozen=True):
    """Find steps of which {smallest_share} or more is $what.

    Why it costs: What the device or your training thread cannot do meanwhile.

    Example:
        for batch in loader:
            train_step(batch)
    Use instead:
        for batch in loader:
            train_step(batch)
    How it is measured: The share of $what is summed over steady steps.
        The saving is {removed_ratio} of it, a guess.
    When it is wrong: Name what looks the same and is something else.
    """

    code = "$code"
    summary = "$claim"

    smallest_share: float = 0.05
    #: Part of the share that the fix is taken to remove.
    removed_ratio: float = 0.5

    def check(self, facts: Facts) -> Result:
        if facts.mean_step_ns is None:
            return MissingData("no steady step was timed", "record at least 10 steps: profilerkit.profile(...)")
        share = facts.share(*_PARTS)
        expected = self.removed_ratio * share
        if share < self.smallest_share or not self.worth_saying(facts, expected):
            return Passed(f"$what takes {format_ratio(share)} of the step")
        return fired(
            facts,
            # Without a bound this is an observation: it takes no part in the verdict until it is known to be right.
            bound=None,
            title=f"{format_ns(share * facts.mean_step_ns)} of {each(facts)} is $what",
            why="How the claim follows from the evidence.",
            evidence=(facts.share_evidence("$What, share of the step", *_PARTS),),
            at_most="low",
            saving=saving(expected, share),
            fix=Fix(text="What to change, with the current and the proposed value."),
            confirm="Record again: the share must fall.",
        )
'''

_TESTS = """

def test_it_fires_with_a_saving_below_its_bound():
    result = RULE.check(sharing(0.3))
    assert isinstance(result, Fired)
    (finding,) = result.findings
    assert 0 <= finding.saving.low <= finding.saving.expected <= finding.saving.high <= 0.3
    assert finding.evidence[0].value == pytest.approx(0.3)


@pytest.mark.parametrize(("share", "ending"), [(0.0, Passed), (0.0499, Passed), (0.0501, Fired)])
def test_it_turns_at_its_threshold(share, ending):
    assert isinstance(RULE.check(sharing(share)), ending)


def test_it_abstains_without_a_timed_step():
    result = RULE.check(unknown())
    assert isinstance(result, MissingData)
    assert result.hint
"""

TESTS_OF_THE_PACKAGE = f'''"""$code: $claim_start."""

import pytest

$rule_imports
from tests.recipes import facts

RULE = $type_name()


def sharing(share):
    return facts({{"$part": share}})


def unknown():
    return facts(steps=revise(facts().steps, time_ns=None))


FIRES = {{RULE.code: sharing(0.3)}}
PASSES = {{RULE.code: sharing(0.0)}}
{_TESTS}'''

TESTS_OF_A_PROJECT = f'''"""$code: $claim_start."""

from pathlib import Path

import pytest

from profilerkit.plugin import (
    Facts,
    Fired,
    MissingData,
    Part,
    Passed,
    Rank,
    Steps,
    StepTimes,
    Trust,
    project_rules,
    revise,
)

(RULE,), _ = project_rules(Path(__file__).with_name("$name.py"), [])
STEP_NS = 100_000_000
TIMES = StepTimes(median=STEP_NS, mean=STEP_NS)
STEPS = Steps(count=20, steady=20, dropped={{}}, found_by="ProfilerStep", inferred=False, time_ns=TIMES)


def sharing(share):
    """A run of 20 steps of 100 ms, of which ``share`` is $what and the rest computes."""
    parts = (part("compute.math", "compute", 1 - share), part("$part", "input", share))
    return Facts(
        mode="gpu",
        steps=STEPS,
        step_ns=float(STEP_NS),
        step_error_ns=0.0,
        parts=parts,
        ranks=(Rank(rank=None, origin="trace.json", breakdown=parts, busy_ratio=None, step_ns=STEP_NS),),
        trust=Trust(mode="gpu"),
    )


def part(name, family, share):
    return Part(part=name, family=family, time_ns=round(share * STEP_NS), share=share, source="measured")


def unknown():
    return revise(sharing(0.3), steps=revise(STEPS, time_ns=None))
{_TESTS}'''
