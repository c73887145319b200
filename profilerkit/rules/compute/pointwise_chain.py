"""CP004 (R17): chains of pointwise kernels move the same tensors again and again."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.whatif import fused_chain, saving
from profilerkit.model.finding import Evidence, Fix
from profilerkit.rules.rule import Fired, Passed, Result, Rule, finding_for, no_device_events
from profilerkit.units import format_ratio, format_value


@dataclass(frozen=True)
class PointwiseChain(Rule):
    """Bandwidth-bound pointwise and norm chains (R17).

    Claim: Chains of pointwise kernels read and write the same tensors again and again.
    Evidence: Runs of at least three fusible kernels of at least 10 µs on one stream, without the optimizer's; their
        time share, length, and the rate at which they move the bytes that shapes ask for.
    Threshold: 20 % of the step in such chains. Where shapes tell the bytes, half of the memory's bandwidth.
    Fix: torch.compile, which fuses a chain into one kernel; fused norms and activations; 16-bit activations.
    Saving: Bound: share × (1 - 2 / (length + 1)), read once and write once. Expected: 0.6 of the bound, a guess until
        calibrated.
    Traps: Dynamic shapes and graph breaks end a chain early. A run that is bound by matrix math gains nothing from
        compiling. The first compiled step takes up to minutes.
    Confidence: Medium with recorded shapes; low without, because the bytes moved are not known.
    """

    code: ClassVar[str] = "CP004"
    name: ClassVar[str] = "pointwise_chain"
    family: ClassVar[str] = "compute"
    summary: ClassVar[str] = "Chains of pointwise kernels move the same tensors again and again"

    smallest_share: float = 0.20
    bandwidth_ratio: float = 0.50
    #: Part of the bound that fusion reaches (R17's guess).
    reached_ratio: float = 0.6

    def check(self, facts: Facts) -> Result:
        """Fires when long pointwise chains own ``smallest_share`` of the step."""
        if facts.chains is None:
            return no_device_events(facts, "no device events: operator names do not tell bandwidth on a CPU")
        chains = facts.chains
        if chains.share < self.smallest_share:
            return Passed(f"chains of pointwise kernels take {format_ratio(chains.share)} of the step")
        if chains.memory_ratio is not None and chains.memory_ratio < self.bandwidth_ratio:
            return Passed(f"chains move bytes at {format_ratio(chains.memory_ratio)} of the memory's bandwidth")
        bound = fused_chain(chains.share, chains.mean_length)
        expected = self.reached_ratio * bound
        if not self.worth_saying(facts, expected):
            return Passed("the chains are too short for fusion to matter")
        finding = finding_for(
            facts,
            bound="memory-bound",
            title=f"Chains of pointwise kernels take {format_ratio(chains.share)} of the step",
            why=f"{format_value(chains.mean_length, 'kernels')} in a row, on average, each read what the one before "
            "wrote to device memory.",
            evidence=(
                Evidence(
                    label="Chains, share of the step",
                    value=chains.share,
                    unit="ratio",
                    source="measured",
                    origin="kernels in launch order per stream",
                    n=facts.steps.steady,
                ),
                Evidence(
                    label="Chains per step",
                    value=chains.chains_per_step,
                    unit="count",
                    source="measured",
                    origin="kernels in launch order per stream",
                    n=facts.steps.steady,
                ),
                Evidence(
                    label="Mean chain length",
                    value=chains.mean_length,
                    unit="kernels",
                    source="measured",
                    origin=" → ".join(name[:60] for name in chains.example[:3]),
                ),
            ),
            at_most="medium" if _shapes_known(facts) else "low",
            detail="bandwidth",
            saving=saving(expected, bound),
            fix=Fix(
                text="Compile the model: torch.compile fuses each chain into one kernel.",
                code="model = torch.compile(model)",
            ),
            confirm="The chain must appear as one triton kernel; compare step time after the first ten steps.",
        )
        return Fired((finding,))


def _shapes_known(facts: Facts) -> bool:
    """Whether shapes and peaks, not names, tell that most of the kernels are bound by memory."""
    return facts.compute is not None and (facts.compute.by_shape_ratio or 0.0) > 0.5
