"""CP008 (R21): the device is occupied, not used."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.facts import Facts
from profilerkit.model.finding import Evidence
from profilerkit.rules.rule import (
    Fired,
    MissingData,
    NotApplicable,
    Passed,
    Result,
    Rule,
    finding_for,
    part_words,
    share_evidence,
)
from profilerkit.units import format_ratio

_USEFUL = ("compute.math", "compute.membw", "compute.other")


@dataclass(frozen=True)
class HollowUtilisation(Rule):
    """Full utilisation with little useful work (R21).

    Claim: The device is occupied, not used: utilisation reads full while little of the time is useful work.
    Evidence: Utilisation from NVML, or the busy share of a trace; share of the step in kernels that compute or stream.
    Threshold: Utilisation of at least 90 % with useful kernels below half of the step.
    Fix: None of its own: the largest other part (small kernels, communication that spins) has its rule.
    Saving: None of its own.
    Traps: Utilisation counts time in which any kernel ran, not how much of the chip it used. A collective that waits
        for its peers reads as 100 %.
    Confidence: High for the observation.
    """

    code: ClassVar[str] = "CP008"
    name: ClassVar[str] = "hollow_utilisation"
    family: ClassVar[str] = "compute"
    summary: ClassVar[str] = "Utilisation reads full, but little of it is useful work"

    busy_ratio: float = 0.90
    useful_share: float = 0.50

    def check(self, facts: Facts) -> Result:
        """Fires when the device is busy and the useful kernels own less than ``useful_share``."""
        if facts.mode == "cpu":
            return NotApplicable("no device")
        sampled = facts.series("gpu.utilization")
        if facts.device is None:
            return MissingData("no device events were recorded", "record a trace with ProfilerActivity.CUDA")
        utilisation = sampled.mean if sampled else facts.device.busy_ratio
        useful = facts.share(*_USEFUL)
        if utilisation < self.busy_ratio:
            return Passed(f"the device is busy {format_ratio(utilisation)} of the time: nothing is hidden")
        if useful >= self.useful_share:
            return Passed(f"useful kernels take {format_ratio(useful)} of the step")
        filler = max(
            (part for part in facts.parts if part.part not in _USEFUL), key=lambda part: part.share, default=None
        )
        if filler is None:
            return Passed("nothing but useful kernels runs")
        return Fired(
            (
                finding_for(
                    facts,
                    bound=None,
                    title=f"The device reads {format_ratio(utilisation)} busy, but works "
                    f"{format_ratio(useful)} of the time",
                    why=f"The rest is mostly {part_words(filler.part)}, with {format_ratio(filler.share)} of the step.",
                    evidence=(
                        Evidence(
                            label="Utilisation",
                            value=utilisation,
                            unit="ratio",
                            source="measured",
                            origin="NVML" if sampled else "busy share of the trace",
                            n=sampled.n if sampled else facts.steps.steady,
                        ),
                        share_evidence(facts, "Useful kernels, share of the step", *_USEFUL),
                    ),
                    at_most="high",
                ),
            )
        )
