"""The finding with the largest expected saving for each bound, and what all findings price."""

from collections.abc import Sequence
from dataclasses import dataclass

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.leaves import WAITS
from profilerkit.model.finding import Bound, Finding, Outcome, Saving
from profilerkit.model.step import PARTS
from profilerkit.model.verdict import BOUND_FAMILY

#: A contender is named from this expected saving (§1.8 of the diagnosis method).
CONTENDER_SAVING = 0.05

#: The parts outside the kernels that the fix of each rule with a bound makes shorter.
_PARTS_OF_RULE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("IN001", "IN002", "IN003", "IN005", "IN006", "IN007", "IN008"), WAITS),
    "IN009": ("input.h2d",),
    "ME001": ("mem.alloc",),
    "CO001": ("comm.bw", "comm.lat", "comm.other"),
    "CO003": ("comm.skew",),
    "CP001": (),
    "CP004": (),
    "OV001": ("over.dispatch", "over.launch", "over.python"),
    "OV002": ("sync.drain", "sync.d2h"),
    "RU001": ("other.ckpt", "other.eval", "other.log", "other.phase", "other.stall"),
}


@dataclass(frozen=True, slots=True)
class Best:
    """The finding with the largest expected saving for one bound."""

    bound: Bound
    finding: Finding
    saving: Saving

    @property
    def expected(self) -> float:
        """The expected saving, share of the step."""
        return self.saving.expected


def best_per_bound(outcomes: Sequence[Outcome]) -> dict[Bound, Best]:
    """For every bound with a saving the finding that is expected to save most; one with a fix goes first."""
    best: dict[Bound, Best] = {}
    for outcome in outcomes:
        for finding in outcome.findings:
            if finding.bound is None or finding.saving is None:
                continue
            known = best.get(finding.bound)
            better = known is None or (finding.saving.expected, finding.fix is not None) > (
                known.expected,
                known.finding.fix is not None,
            )
            if better:
                best[finding.bound] = Best(finding.bound, finding, finding.saving)
    return best


def priced(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Parts whose cost a finding with a saving worth naming is about, or whose own rule the user switched off."""
    out: list[str] = []
    for outcome in outcomes:
        own = _PARTS_OF_RULE.get(outcome.rule)
        out += own if own and outcome.status == "off" else ()
        for finding in outcome.findings:
            if finding.bound and finding.saving and finding.saving.expected >= CONTENDER_SAVING:
                # A rule of another package says with its bound alone what it is about.
                family = BOUND_FAMILY[finding.bound]
                out += own if own is not None else [name for name, (known, _) in PARTS.items() if known == family]
    return tuple(out)


def largest_unpriced(facts: Facts, priced: Sequence[str]) -> tuple[str, float]:
    """The largest part outside the kernels that no finding prices, and its share."""
    parts = [part for part in facts.parts if not part.part.startswith("compute.") and part.part not in priced]
    largest = max(parts, key=lambda part: part.share, default=None)
    return (largest.part, largest.share) if largest else ("", 0.0)
