"""CP005: attention writes its score matrices to memory."""

from collections.abc import Sequence

from profilerkit.analysis.device.kernel_losses import Scores
from profilerkit.model.finding import Evidence, Fix, Saving
from profilerkit.rules.api import Facts, MissingData, Passed, Result, Rule, fired, no_device, saving
from profilerkit.rules.evidence import kernel_share
from profilerkit.units import format_ratio

_CAUSAL = 0.5  #: a causal fused kernel leaves out half of the products; whether it may is not known


class UnfusedAttention(Rule, frozen=True):
    """Find attention over {fewest_positions} positions or more that runs as separate products and a softmax.

    Why it costs: Scores of n × n are written and read several times. A fused kernel keeps them on the chip.

    Example:
        q = k = v = torch.randn(1, 2, 8, 4)
        scores = q @ k.transpose(-2, -1) / 2.0
        y = scores.softmax(-1) @ v
    Use instead:
        q = k = v = torch.randn(1, 2, 8, 4)
        y = F.scaled_dot_product_attention(q, k, v)
    How it is measured: A product, a softmax and a product over tensors of one shape are found, forward and backward.
        The saving is their time, less the arithmetic at {reached_ratio} of the peak.
    When it is wrong: Code that returns the attention weights cannot be fused. Unusual masks choose slower kernels. No
        saving is given for an unknown device.
    Sources: https://arxiv.org/abs/2205.14135
    """

    code = "CP005"
    summary = "Attention writes its score matrices to memory"

    fewest_positions: int = 512
    reached_ratio: float = 0.5  #: share of the dense peak that fused attention reaches

    def check(self, facts: Facts) -> Result:
        if facts.kernel_losses is None:
            return no_device(facts, "no device events: kernels of a CPU are not distinguished")
        if not facts.kernel_losses.has_shapes:
            return MissingData("the shapes of operators were not recorded", "torch.profiler: record_shapes=True")
        found = [row for row in facts.kernel_losses.scores if row.queries * row.keys >= self.fewest_positions**2]
        if not found:
            return Passed(f"no score matrix of {self.fewest_positions} × {self.fewest_positions} is written")
        share = sum(row.share for row in found)
        peaks = [row.peak_share for row in found if row.peak_share is not None]
        if facts.spec is None:
            between = sum(row.pointwise_share for row in found)
            if not self.worth_saying(facts, between):
                return Passed(f"softmax, masks and copies of attention take {format_ratio(between)} of the step")
            return _finding(facts, found, None)
        if len(peaks) < len(found):
            why = "what the products of attention take at least is not known"
            return MissingData(why, "name a known device with --device")
        least = sum(peaks)
        expected = share - least / self.reached_ratio
        if not self.worth_saying(facts, expected):
            return Passed(f"attention takes {format_ratio(share)} of the step, and fused as much")
        bound = min(share - _CAUSAL * least / facts.spec.achievable_ratio, 1.0)
        return _finding(facts, found, saving(expected, bound))


def _finding(facts: Facts, found: Sequence[Scores], saved: Saving | None) -> Result:
    largest = max(found, key=lambda row: row.share)
    share = min(sum(row.share for row in found), 1.0)
    size, steps = f"{largest.queries} × {largest.keys}", facts.steps.steady
    origin = f"operators over tensors of {largest.matrices} × {size}"
    between = min(sum(row.pointwise_share for row in found), 1.0)
    peak = sum(row.peak_share or 0.0 for row in found) if facts.spec else None
    of_peak, source = "Arithmetic of the products at the dense peak", facts.spec.source if facts.spec else ""
    return fired(
        facts,
        bound="memory-bound",
        title=f"Attention that writes its scores takes {format_ratio(share)} of the step",
        why=f"{largest.matrices} matrices of {size} scores are written by one product, changed by softmax and its "
        "neighbours, and read by the next product.",
        evidence=(
            Evidence("Matrices of scores", largest.matrices, "count", "measured", f"operators over tensors of {size}"),
            kernel_share("Kernels over score matrices", share, origin, steps),
            kernel_share("Softmax, masks and copies", between, "operators between the products", steps),
            Evidence(of_peak, peak, "ratio", "derived", source),
        ),
        at_most="high",
        detail="bandwidth",
        saving=saved,
        fix=Fix(
            text="Attention by separate operators → one fused call; of a Hugging Face model "
            'attn_implementation "eager" → "sdpa".',
            code="out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)",
        ),
        confirm="The softmax kernels over the scores must be gone, and one flash or efficient attention kernel there.",
    )
