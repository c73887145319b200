"""CP004: chains of pointwise kernels move the same tensors again and again."""

from profilerkit.analysis.whatif import fused_chain
from profilerkit.model.finding import Evidence, Fix, SettingChange
from profilerkit.rules.api import Facts, Passed, Result, Rule, fired, no_device, saving
from profilerkit.rules.evidence import kernel_share
from profilerkit.units import format_ratio, format_value


class PointwiseChain(Rule, frozen=True):
    """Find chains of three or more pointwise kernels and reductions that take {smallest_share} of the step.

    Why it costs: Each kernel reads and writes the whole tensor. One fused kernel reads and writes it once.

    Example:
        x = torch.randn(4, 4)
        y = F.gelu(x * 2.0 + 1.0) * x
    Use instead:
        @torch.compile
        def fused(x):
            return F.gelu(x * 2.0 + 1.0) * x
    How it is measured: Kernels of 10 µs and more that torch.compile fuses, in a row on one stream, make a chain. Where
        shapes are known they must move bytes at {bandwidth_ratio} of the memory's rate. The saving is {reached_ratio}
        of share × (1 - 2 / (length + 1)), a guess. Compiling a GPT on an H200 saved 21 % where 14 % were predicted.
    When it is wrong: Dynamic shapes and graph breaks end a chain early. The first compiled step can take minutes.
        Confidence is low without shapes.
    Sources: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "CP004"
    summary = "Chains of pointwise kernels move the same tensors again and again"

    smallest_share: float = 0.20
    bandwidth_ratio: float = 0.50
    reached_ratio: float = 0.6  #: part of the bound that fusion reaches

    def check(self, facts: Facts) -> Result:
        if facts.chains is None:
            return no_device(facts, "no device events: operator names do not show bandwidth on a CPU")
        chains = facts.chains
        if chains.share < self.smallest_share:
            return Passed(f"chains of pointwise kernels take {format_ratio(chains.share)} of the step")
        if chains.memory_ratio is not None and chains.memory_ratio < self.bandwidth_ratio:
            return Passed(f"chains move bytes at {format_ratio(chains.memory_ratio)} of the memory's bandwidth")
        bound = fused_chain(chains.share, chains.mean_length)
        expected = self.reached_ratio * bound
        if not self.worth_saying(facts, expected):
            return Passed("the chains are too short for fusion to matter")
        origin, steps = "kernels in launch order per stream", facts.steps.steady
        example = " → ".join(name[:60] for name in chains.example[:3])
        return fired(
            facts,
            bound="memory-bound",
            title=f"Chains of pointwise kernels take {format_ratio(chains.share)} of the step",
            why=f"{format_value(chains.mean_length, 'kernels')} in a row, on average, each read what the one before "
            "wrote to device memory.",
            evidence=(
                kernel_share("Chains", chains.share, origin, steps),
                Evidence("Chains per step", chains.chains_per_step, "count", "measured", origin, n=steps),
                Evidence("Mean chain length", chains.mean_length, "kernels", "measured", example),
            ),
            at_most="medium" if (facts.compute is not None and (facts.compute.by_shape_ratio or 0.0) > 0.5) else "low",
            detail="bandwidth",
            saving=saving(expected, bound),
            fix=Fix(
                text="Compile the model: torch.compile fuses each chain into one kernel.",
                code="model = torch.compile(model)",
                changes=(SettingChange("compile", "off", "default"),),
            ),
            confirm="The chain must appear as one triton kernel; compare step time after the first ten steps.",
        )
