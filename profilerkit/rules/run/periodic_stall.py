"""RU001 (R54, R55): training stops at intervals for checkpoints, evaluation, or something unnamed."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.facts import Facts, Stall
from profilerkit.analysis.whatif import saving
from profilerkit.model.finding import Confidence, Evidence, Finding, Fix
from profilerkit.model.step import PARTS
from profilerkit.rules.rule import Fired, MissingData, Passed, Result, Rule, finding_for, record_longer, worth_saying
from profilerkit.units import format_ns, format_ratio

_FIX = {
    "checkpoint": Fix(
        text="Write checkpoints from a background thread instead of in the loop, or half as often.",
        code="torch.distributed.checkpoint.async_save(state, checkpoint_id=path)",
    ),
    "evaluation": Fix(text="Evaluate half as often, or on another device."),
    "logging": Fix(text="Log half as often, or from a background thread."),
    "compile": Fix(
        text="Compile once for all shapes: mark the sizes that change as dynamic, or pad batches to a few sizes.",
        code="torch.compile(model, dynamic=True)",
    ),
}


@dataclass(frozen=True)
class PeriodicStall(Rule):
    """Periodic stalls (R54, R55).

    Claim: Training stops at intervals: for checkpoints, evaluation, logging, or something that has no name.
    Evidence: Named phases inside the loop, amortised over the steady steps; without names, steps that are longer at a
        regular distance, and the part that grew in them.
    Threshold: 2 % of the steady time.
    Fix: Checkpoints from a background thread; evaluation and logging less often; unnamed stalls: name them first.
    Saving: Bound: the amortised share. Expected: nine tenths of it for checkpoints (a staging copy stays), half of it
        where the work can only be made rarer.
    Traps: A window of ten traced steps seldom holds one: this needs the step timers of the whole run. Of steps that
        accumulate gradients the one that applies them is longer: that is no stall.
    Confidence: High for named phases, medium for unnamed ones.
    """

    code: ClassVar[str] = "RU001"
    name: ClassVar[str] = "periodic_stall"
    family: ClassVar[str] = "run"
    summary: ClassVar[str] = "Training stops at intervals"

    smallest_share: float = 0.02
    #: Part of a checkpoint that leaves the loop when it is written in the background.
    background_ratio: float = 0.9
    #: Part that is saved when the work is done half as often.
    rarer_ratio: float = 0.5
    #: Steps needed before the absence of a stall means anything.
    fewest_steps: int = 20

    def check(self, facts: Facts) -> Result:
        """Fires once per kind of stall that reaches ``smallest_share``."""
        large = [stall for stall in facts.stalls if stall.share >= self.smallest_share]
        findings = tuple(self._finding(facts, stall) for stall in large if worth_saying(facts, self._expected(stall)))
        if findings:
            return Fired(findings)
        if not facts.stalls and facts.steps.count < self.fewest_steps:
            return MissingData(
                f"{facts.steps.count} steps are too few to see a period",
                record_longer(facts, f"{self.fewest_steps} steps"),
            )
        if large:
            most = max(stall.share for stall in large)
            return Passed(f"the largest stall costs {format_ratio(most)} of the run: a fix saves too little to tell")
        return Passed(f"no stall recurs that costs {format_ratio(self.smallest_share)} of the run")

    def _expected(self, stall: Stall) -> float:
        return stall.share * (self.background_ratio if stall.kind == "checkpoint" else self.rarer_ratio)

    def _finding(self, facts: Facts, stall: Stall) -> Finding:
        every = _how_often(stall)
        label = "Something unnamed" if stall.kind == "unnamed" else _label(stall.kind)
        at_most: Confidence = "high" if stall.source == "measured" else "medium"
        unnamed = Fix(
            text="Name what runs there, then move it off the loop or make it rarer.",
            code='with prof.phase("evaluation"):\n    ...',
        )
        return finding_for(
            facts,
            bound="overhead-bound",
            title=f"{label} stops training for {format_ns(stall.excess_ns)} {every}",
            why=f"Spread over all steady steps that is {format_ratio(stall.share)} of the time.{_grown(stall)}",
            evidence=(
                Evidence(
                    label=f"{label}, time per occurrence",
                    value=stall.excess_ns,
                    unit="ns",
                    source=stall.source,
                    origin="named phase" if stall.part else "length of the steps",
                    n=stall.count,
                    rank=facts.rank.rank,
                    steps=stall.steps,
                ),
                Evidence(
                    label=f"{label}, share of the steady time",
                    value=stall.share,
                    unit="ratio",
                    source=stall.source,
                    origin="step timers",
                    n=facts.steps.steady,
                    rank=facts.rank.rank,
                ),
            ),
            at_most=at_most,
            detail=stall.kind if stall.kind in ("checkpoint", "evaluation", "compile") else "python",
            saving=saving(facts, self._expected(stall), stall.share),
            fix=_FIX.get(stall.kind, unnamed),
            confirm="The long steps must be gone from the per-step figure.",
        )


def _grown(stall: Stall) -> str:
    """Where the extra time of longer steps goes, as a sentence; empty where it is not known or in the stall's name."""
    if stall.grew is None or stall.coverage is None or stall.part is not None:
        return ""
    return f" {format_ratio(stall.coverage)} of it is in one part: {PARTS[stall.grew][1].lower()}."


def _how_often(stall: Stall) -> str:
    if stall.period == 1:
        return "in every step"
    return f"every {stall.period} steps" if stall.period else "once" if stall.count == 1 else f"{stall.count} times"


def _label(kind: str) -> str:
    """The name of a phase at the start of a headline, which has room for six words of it."""
    words = kind.split()
    text = " ".join(words[:6])[:40].rstrip()
    return text[:1].upper() + text[1:] + ("" if text == " ".join(words) else "…")
