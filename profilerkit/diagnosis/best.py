"""The finding with the largest expected saving for each bound, and what all findings price."""

from collections.abc import Sequence

import msgspec

from profilerkit.analysis.facts import Facts
from profilerkit.diagnosis.refusal import unexplained_share
from profilerkit.diagnosis.waterfall import waterfall
from profilerkit.model.change import revise
from profilerkit.model.finding import Bound, Finding, Outcome, Saving
from profilerkit.model.step import PARTS
from profilerkit.model.verdict import BOUND_FAMILY
from profilerkit.rules.parts import PARTS_OF_RULE
from profilerkit.rules.rule import SMALLEST_SAVING

#: A contender is named from this expected saving.
CONTENDER_SAVING = 0.05


class Best(msgspec.Struct, frozen=True):
    """The finding with the largest expected saving for one bound.

    Attributes:
        saving: its own, or what the fixes of this bound save together.
        aside: its outcome, where it is suppressed.
        fixes: how many fixes ``saving`` takes.
    """

    bound: Bound
    rule: str
    finding: Finding
    saving: Saving
    aside: Outcome | None = None
    fixes: int = 1

    @property
    def expected(self) -> float:
        """Return the expected saving, share of the step."""
        return self.saving.expected


def best_per_bound(outcomes: Sequence[Outcome], *, suppressed: bool = False) -> dict[Bound, Best]:
    """For every bound with a saving the finding that is expected to save most; one with a fix goes first.

    Those that were set aside are among them only where ``suppressed`` is asked for.
    """
    best: dict[Bound, Best] = {}
    for outcome in outcomes:
        for finding in (*outcome.findings, *(outcome.suppressed if suppressed else ())):
            if finding.bound is None or finding.saving is None:
                continue
            known = best.get(finding.bound)
            better = known is None or (finding.saving.expected, finding.fix is not None) > (
                known.expected,
                known.finding.fix is not None,
            )
            if better:
                aside = outcome if outcome.suppressed else None
                best[finding.bound] = Best(finding.bound, outcome.rule, finding, finding.saving, aside)
    return best


def joined(facts: Facts, outcomes: Sequence[Outcome], best: dict[Bound, Best]) -> dict[Bound, Best]:
    """``best`` with what all fixes of a bound save together, where the replay tells and it is more than the best one.

    Waiting for a batch and copying it are one cause in two parts: neither alone says how much it holds.
    """
    return {bound: _joined(facts, outcomes, entry) for bound, entry in best.items()}


def _joined(facts: Facts, outcomes: Sequence[Outcome], best: Best) -> Best:
    own = [
        revise(row, findings=tuple(f for f in row.findings if f.bound == best.bound and _is_replayed(f)))
        for row in outcomes
    ]
    if sum(bool(row.findings) for row in own) < 2:
        return best
    together = waterfall(facts, own)
    if together is None or not together.fixes or together.fixes[-1].saving < best.expected + SMALLEST_SAVING:
        return best
    rules = {fix.rule for fix in together.fixes}
    savings = [f.saving for row in own if row.rule in rules for f in row.findings if f.saving is not None]
    expected = together.fixes[-1].saving
    most = 1.0 - (together.floor_ns or 0.0) / together.now_ns
    saving = Saving(
        low=max(saving.low for saving in savings),
        expected=expected,
        high=max(min(sum(saving.high for saving in savings), most), expected),
        method="replay",
    )
    return revise(best, saving=saving, fixes=len(together.fixes))


def _is_replayed(finding: Finding) -> bool:
    return finding.saving is not None and finding.saving.method == "replay"


def best_fix(outcomes: Sequence[Outcome], best: Best) -> Saving:
    """What the best fix for a bound saves: where its best finding leaves the fix to other rules, the best of theirs."""
    if best.finding.fix is not None or best.fixes > 1:
        return best.saving
    fixed = [
        finding.saving
        for outcome in outcomes
        for finding in outcome.findings
        if finding.bound == best.bound and finding.saving is not None and finding.fix is not None
    ]
    return max(fixed, key=lambda saving: saving.expected, default=best.saving)


def priced(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Parts whose cost a finding is about that has a saving worth naming, or one that a probe proved to be less.

    And those whose own rule the user silenced.
    """
    out: list[str] = []
    for outcome in outcomes:
        own = PARTS_OF_RULE.get(outcome.rule)
        out += own if own and outcome.status in ("off", "suppressed") else ()
        for finding in (*outcome.findings, *outcome.suppressed):
            is_worth_it = finding.saving is not None and finding.saving.expected >= CONTENDER_SAVING
            if finding.bound and (is_worth_it or finding.predicted is not None):
                # A rule of another package says with its bound alone what it is about.
                family = BOUND_FAMILY[finding.bound]
                out += own if own is not None else [name for name, (known, _) in PARTS.items() if known == family]
    return tuple(out)


def largest_unpriced(facts: Facts, priced: Sequence[str]) -> tuple[str, float]:
    """The largest part outside the kernels that no finding prices, and its share; none that later steps do without."""
    others = [part for part in facts.parts if not part.part.startswith("compute.") and part.part not in priced]
    parts = [part for part in others if part.part != "warm.load" and not facts.is_of_one_step(part.part)]
    shares = {part.part: unexplained_share(facts) if part.part == "idle.unknown" else part.share for part in parts}
    largest = max(shares, key=lambda name: shares[name], default="")
    return largest, shares.get(largest, 0.0)


def is_contradicted(outcomes: Sequence[Outcome]) -> bool:
    """Whether a probe measured another saving than some finding predicted: then something here is not understood."""
    return any(finding.predicted is not None for outcome in outcomes for finding in outcome.findings)


def most_suppressed(outcomes: Sequence[Outcome]) -> float:
    """Return the largest expected saving among the findings that were set aside; 0 without any."""
    savings = [finding.saving for outcome in outcomes for finding in outcome.suppressed]
    return max((saving.expected for saving in savings if saving is not None), default=0.0)
