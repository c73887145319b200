"""The intervals of savings by what applied fixes were off, where enough of their kind were applied."""

import math
from collections.abc import Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.whatif import MODEL_ERROR, UNKNOWN_NOISE, Z90, relative_error
from profilerkit.model.change import revise
from profilerkit.model.finding import Finding, Method, Outcome, Saving

#: What nine of ten applied fixes stayed within, relative to the predicted saving, and of how many: those of two runs of
#: scripts/benchmark_accuracy together (reports/accuracy.json and accuracy_second.json); accuracy_third.json was judged
#: with them.
WITHIN: dict[Method, tuple[float, int]] = {"replay": (0.12, 24), "analytic": (0.17, 22)}
#: Families of rules by method of which at least four fixes are among those. The intervals of all others rest on a
#: guess, and say so.
FAMILIES: dict[Method, tuple[str, ...]] = {"replay": ("IN", "OV"), "analytic": ("CO", "OV", "RU")}


def calibrated(facts: Facts, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes with the intervals of their savings narrowed to what was found; bounds and expectations stay."""
    return [
        revise(entry, findings=tuple(_told(facts, entry.rule, finding) for finding in entry.findings))
        for entry in outcomes
    ]


def _told(facts: Facts, rule: str, finding: Finding) -> Finding:
    saving = finding.saving
    if saving is None or not rule.startswith(FAMILIES.get(saving.method, ())):
        return finding
    return revise(finding, saving=_narrowed(facts, saving, *WITHIN[saving.method]))


def _narrowed(facts: Facts, saving: Saving, within: float, cases: int) -> Saving:
    """An interval as wide above the expectation as below it, a share of the step, and never beyond the bound.

    Its half-width is ``within`` of the expectation and the noise of the median step, put together as independent errors
    are. What a rule, or the replay, took off the low end for a reason of its own is taken off here as well.
    """
    expected = saving.expected
    noise = relative_error(facts) if facts.step_error_ns is not None else UNKNOWN_NOISE
    usual = max(expected - Z90 * math.hypot(noise, MODEL_ERROR * expected), 0.0)
    trust = min(saving.low / usual, 1.0) if usual else 1.0
    low = max(expected - math.hypot(Z90 * noise, within * expected), 0.0) * trust
    high = min(saving.high, 2.0 * expected - low)
    return revise(saving, low=low, high=high, bound=saving.most, calibration=f"calibrated on {cases} cases")
