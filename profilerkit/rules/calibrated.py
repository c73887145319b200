"""The intervals of savings by what applied fixes were off, where enough of their kind were applied."""

import math
from collections.abc import Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.whatif import MODEL_ERROR, UNKNOWN_NOISE, Z90, handover_share, made_in_line, relative_error
from profilerkit.model.change import revise
from profilerkit.model.finding import Finding, Method, Outcome, Saving

#: What nine of ten applied fixes stayed within, relative to the predicted saving, and of how many: each was applied in
#: two runs of scripts/benchmark_accuracy (reports/accuracy.json and accuracy_second.json). A third run was judged with
#: what they gave (accuracy_third.json).
WITHIN: dict[Method, tuple[float, int]] = {"replay": (0.12, 13), "analytic": (0.18, 16)}
#: The rules whose fixes were among those, by method. All ran on a CPU. The interval of every other saving rests on a
#: guess, and says so: also that of batches which the training thread makes itself, as none of those loops did, one of
#: which nothing is for certain, as there was none, and that of the first workers where the assumed cost of handing a
#: batch over is larger than those errors: the steps were 37 ms or longer.
RULES: dict[Method, tuple[str, ...]] = {
    "replay": ("IN001", "IN002", "IN003", "IN004", "IN006", "IN008", "OV005", "RU002"),
    "analytic": (
        *("CO001", "CO003", "CO005", "CO007"),
        *("IN005", "IN006", "IN011"),
        "ME001",
        *("OV001", "OV004", "OV006", "OV008"),
        "RU001",
    ),
}

#: Rules that may propose the first workers.
_FIRST_WORKERS = ("IN001", "IN002")


def calibrated(facts: Facts, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes with the intervals of their savings narrowed to what was found; bounds and expectations stay."""
    return [
        revise(entry, findings=tuple(_told(facts, entry.rule, finding) for finding in entry.findings))
        for entry in outcomes
    ]


def _told(facts: Facts, rule: str, finding: Finding) -> Finding:
    saving = finding.saving
    if saving is None or facts.mode == "gpu" or rule not in RULES.get(saving.method, ()):
        return finding
    if not saving.low or (rule == "IN001" and made_in_line(facts)):
        return finding
    within, cases = WITHIN[saving.method]
    if rule in _FIRST_WORKERS and handover_share(facts) > within * saving.expected:
        return finding
    return revise(finding, saving=_narrowed(facts, saving, within, cases))


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
