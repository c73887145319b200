"""ME009: the allocator rounds requests up noticeably."""

from profilerkit.rules.api import Facts, Fix, MissingData, NotApplicable, Passed, Result, Rule, fired, rows
from profilerkit.units import format_bytes, format_ratio


class RoundedRequests(Rule, frozen=True):
    """Find allocations where rounding adds more than {largest_ratio} of the bytes, and at least {smallest_bytes}.

    Why it costs: The memory lost to rounding could hold a larger batch.

    Example:
        $ PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:1 python train.py
    Use instead:
        $ python train.py
    How it is measured: 1 - requested / allocated bytes, in the sampled second with most memory allocated. No time is
        saved.
    When it is wrong: Every request is rounded to 512 bytes. Many small tensors show a high share and little memory.
    Sources: https://pytorch.org/docs/stable/notes/cuda.html
    """

    code = "ME009"
    summary = "The allocator rounds requests up noticeably"

    largest_ratio: float = 0.10
    smallest_bytes: int = 100_000_000  #: as much as growth must reach to be told; a choice here

    def check(self, facts: Facts) -> Result:
        if facts.mode == "cpu":
            return NotApplicable("no device: there is no caching allocator")
        known = facts.memory_use.allocator
        if known is None or known.rounding_ratio is None or known.rounding_bytes is None:
            return MissingData("what was asked of the allocator was not sampled", "profilerkit.profile(...)")
        if known.rounding_ratio <= self.largest_ratio or known.rounding_bytes < self.smallest_bytes:
            wasted = format_bytes(known.rounding_bytes)
            return Passed(f"rounding takes {format_ratio(known.rounding_ratio)} of what is allocated, {wasted}")
        return fired(
            facts,
            bound=None,
            title=f"Rounding takes {format_bytes(known.rounding_bytes)}, {format_ratio(known.rounding_ratio)} "
            "of what is allocated",
            why="Each request gets a block of the next size that the allocator keeps. The rest of the block is idle.",
            evidence=rows(
                facts,
                "torch's allocator, sampled",
                ("Allocated beyond what was asked for", known.rounding_bytes, "bytes"),
                ("Share of what is allocated", known.rounding_ratio, "ratio"),
                n=None,
            ),
            at_most="high",
            fix=Fix(text="Many small tensors → few large ones: each takes a multiple of 512 bytes."),
            confirm="Allocated and requested bytes must come closer.",
        )
