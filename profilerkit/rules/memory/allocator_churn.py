"""ME001 (R25): the step waits for cudaMalloc and cudaFree."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.whatif import saving
from profilerkit.model.finding import Evidence, Fix
from profilerkit.rules.rule import (
    Fired,
    NotApplicable,
    Passed,
    Result,
    Rule,
    each,
    finding_for,
    no_device_events,
    share_evidence,
    worth_saying,
)
from profilerkit.units import format_ns, format_ratio


@dataclass(frozen=True)
class AllocatorChurn(Rule):
    """Allocator misses in steady state (R25).

    Claim: The step waits for cudaMalloc or cudaFree, which the caching allocator should have made rare.
    Evidence: Allocator calls per steady step, and the share of the step in which the device is idle under them.
    Threshold: 1 % of the step, and a saving above the general floor.
    Fix: Let segments grow, keep shapes fixed, lower the peak, and run the largest batch first.
    Saving: Bound: the idle time under the calls. Expected: all of it, because calls that are not made cost nothing; how
        long a free holds the device beyond its call is not known and not counted.
    Traps: Warm-up steps allocate: only steady steps count. Other processes on the device shrink the cache.
    Confidence: High.
    """

    code: ClassVar[str] = "ME001"
    name: ClassVar[str] = "allocator_churn"
    family: ClassVar[str] = "memory"
    summary: ClassVar[str] = "The step waits for cudaMalloc and cudaFree"

    smallest_share: float = 0.01

    def check(self, facts: Facts) -> Result:
        """Fires when allocator calls recur in the steady window and hold the device."""
        if facts.allocator is None:
            return no_device_events(facts, "no device events: there is no device allocator")
        if facts.cold is not None:
            return NotApplicable("the window is dominated by first-use work, which allocates once")
        calls = facts.allocator.calls_per_step
        share = facts.share("mem.alloc")
        if calls == 0 or share < self.smallest_share:
            return Passed(f"{calls:,.1f} allocator calls per step cost {format_ratio(share)} of it")
        if not worth_saying(facts, share):
            return Passed(f"allocator calls cost {format_ratio(share)} of the step")
        finding = finding_for(
            facts,
            bound="memory-bound",
            title=f"Allocator calls hold the device for {format_ns(facts.time_ns('mem.alloc'))} in {each(facts)} step",
            why="Each call goes to the driver, and a free waits for the whole device first.",
            evidence=(
                Evidence(
                    label="Allocator calls per step",
                    value=calls,
                    unit="count",
                    source="measured",
                    origin="cudaMalloc, cudaFree and their kin",
                    n=facts.steps.steady,
                    rank=facts.rank.rank,
                ),
                share_evidence(facts, "Device idle under them, share of the step", "mem.alloc"),
            ),
            at_most="high",
            detail="capacity",
            saving=saving(facts, share, share),
            fix=Fix(
                text="Allocator segments fixed → expandable; if calls remain, lower the peak.",
                code="PYTORCH_ALLOC_CONF=expandable_segments:True",
            ),
            confirm="Allocator calls per step must fall to zero after the first steps.",
        )
        return Fired((finding,))
