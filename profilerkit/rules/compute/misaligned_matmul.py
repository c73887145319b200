"""CP002: sizes of matrix products do not fit the granularity of the tensor cores."""

from profilerkit.analysis.device.shape_losses import GRANULE
from profilerkit.rules.api import Facts, Fix, MissingData, NotApplicable, Passed, Result, Rule, fired, no_device, saving
from profilerkit.rules.evidence import kernel_share
from profilerkit.units import format_ratio

_LARGE_SIZE = 512  #: sizes from here on are padded to the large multiple: it adds at most an eighth to them
_LARGE_GRANULE = 64  #: elements of 16 bits in the 128 bytes that NVIDIA prefers from the A100 on


class MisalignedMatmul(Rule, frozen=True):
    """Find 16-bit products whose sizes are not multiples of 8, for {smallest_share} of the step.

    Why it costs: The library pads such sizes, or chooses slower kernels.

    Example:
        head = nn.Linear(64, 50_257, bias=False)
    Use instead:
        head = nn.Linear(64, 50_304, bias=False)
    How it is measured: Recorded shapes give M, N and K, and the least time the device needs. The saving assumes the
        rate of the run's fitting products. If there are too few, it is {reached_ratio} of the excess.
    When it is wrong: cuBLAS handles many odd sizes well, and products close to the peak are left alone. A ragged last
        batch is harmless. Slow products have other causes too.
    Sources: https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html
    """

    code = "CP002"
    summary = "Sizes of matrix products do not fit the tensor cores"

    smallest_share: float = 0.03
    reached_ratio: float = 0.5  #: part of the loss that alignment is held responsible for where no other products tell

    def check(self, facts: Facts) -> Result:
        if facts.kernel_losses is None:
            return no_device(facts, "no device events: there is no tensor core to fit")
        if facts.math is not None and facts.math.compute_major is not None and facts.math.compute_major < 7:
            return NotApplicable("the device has no tensor cores")
        found = facts.kernel_losses.alignment
        if found is None and not facts.kernel_losses.has_shapes:
            return MissingData("the sizes of matrix products were not recorded", "torch.profiler: record_shapes=True")
        if found is None:
            return Passed(f"the sizes of all 16-bit products are multiples of {GRANULE}")
        if found.share < self.smallest_share:
            return Passed(f"16-bit products of odd sizes take {format_ratio(found.share)} of the step")
        if found.lost_share is None:
            return MissingData("the device's peaks are not in the table", "name a known device with --device")
        lost = found.lost_share
        expected = self.reached_ratio * lost
        if found.others_ratio:
            # What goes when these products reach what the others do.
            expected = min(max(found.share - (found.share - lost) / found.others_ratio, 0.0), lost)
        if not self.worth_saying(facts, expected):
            return Passed(f"products of odd sizes lose {format_ratio(lost)} of the step")
        size, n = " × ".join(map(str, found.sizes)), round(found.calls_per_step * facts.steps.steady)
        # The product may be one of attention's, over scores that need not be written.
        of_attention = any({row.queries, row.keys} <= set(found.sizes) for row in facts.kernel_losses.scores)
        first = "Fuse the attention first (CP005): that removes these products. " if of_attention else ""
        peaks = facts.spec.source if facts.spec else "peaks of the device"
        return fired(
            facts,
            bound="compute-bound",
            title=f"Matrix products of odd sizes lose {format_ratio(lost)} of the step",
            why=f"`{found.operator}` multiplies M × N × K = {size}: tensor cores load {GRANULE} elements at a time, "
            "and fall back to slower kernels where rows do not divide.",
            evidence=(
                kernel_share("16-bit products of odd sizes", found.share, f"{found.operator}: {size}", n),
                kernel_share("Time beyond what the shapes need", lost, peaks, source="derived"),
            ),
            at_most="medium",
            detail="alignment",
            saving=saving(expected, lost),
            fix=Fix(text=f"{first}Pad the sizes of the largest: {_padding(found.sizes)}, masked."),
            confirm="The kernels' names must change, and the time of these products fall although they grow.",
        )


def _padding(sizes: tuple[int, int, int]) -> str:
    """Return every odd size, once, with what it is to be padded to.

    >>> _padding((50257, 768, 50257)), _padding((10, 64, 8))
    ('50257 → 50304', '10 → 16')
    """
    odd = dict.fromkeys(size for size in sizes if size % GRANULE)
    granule = {size: _LARGE_GRANULE if size >= _LARGE_SIZE else GRANULE for size in odd}
    return ", ".join(f"{size} → {-(-size // granule[size]) * granule[size]}" for size in odd)
