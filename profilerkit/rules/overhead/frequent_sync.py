"""OV002 (R47): the host waits for the device, and the queue runs dry after each wait."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.whatif import saving
from profilerkit.model.finding import Evidence, Fix
from profilerkit.rules.rule import (
    Fired,
    Passed,
    Result,
    Rule,
    finding_for,
    no_device_events,
    share_evidence,
    worth_saying,
)
from profilerkit.units import format_ns, format_ratio


@dataclass(frozen=True)
class FrequentSync(Rule):
    """Frequent host syncs (R47).

    Claim: The host waits for the device several times a step, and the queue runs dry after each wait.
    Evidence: Blocking calls longer than 10 µs per step; idle time between such a call's return and the next kernel.
    Threshold: More than 2 per step, or 10 % of the step after fewer; and a saving above the general floor.
    Fix: Keep losses and metrics on the device, read them every k steps, avoid boolean-mask indexing.
    Saving: Bound: the drained and read-back time. Expected: min(bound, device idle share, time blocked in the calls):
        without the calls the host runs ahead by what it spent in them, never by more than the device idles.
    Traps: The length of the call is not its cost: the device works meanwhile. When the step is launch-bound, removing
        syncs gains little.
    Confidence: Medium: without the cuda_sync rows a drained queue is inferred from the calls.
    """

    code: ClassVar[str] = "OV002"
    name: ClassVar[str] = "frequent_sync"
    family: ClassVar[str] = "overhead"
    summary: ClassVar[str] = "The host waits for the device several times a step"

    most_per_step: float = 2.0
    #: A single call that drains this much of the step matters as well.
    large_share: float = 0.10

    def check(self, facts: Facts) -> Result:
        """Fires when blocking calls are frequent and leave the device idle."""
        if facts.syncs is None or facts.device is None:
            return no_device_events(facts, "no device events: a CPU has no queue to drain")
        syncs = facts.syncs
        step = facts.mean_step_ns or 1.0
        bound = facts.share("sync.")
        often = syncs.per_step > self.most_per_step
        if not often and bound < self.large_share:
            return Passed(f"{syncs.per_step:,.1f} blocking calls per step")
        expected = min(bound, 1.0 - facts.device.busy_ratio, syncs.blocked_ns / step)
        if not worth_saying(facts, expected):
            return Passed(
                f"{syncs.per_step:,.1f} blocking calls per step leave the device idle for {format_ratio(bound)} of it"
            )
        calls = ", ".join(f"{count} × {name}" for name, count in syncs.culprits)
        finding = finding_for(
            facts,
            bound="overhead-bound",
            title=f"Host syncs drain the queue {syncs.per_step:,.0f} times in every step"
            if often
            else f"A host sync drains the queue for {format_ns(bound * step)} of every step",
            why="After each one the device has nothing to run until the host has issued work again.",
            evidence=(
                Evidence(
                    label="Blocking calls per step",
                    value=syncs.per_step,
                    unit="count",
                    source="measured",
                    origin=calls,
                    n=facts.steps.steady,
                    rank=facts.rank.rank,
                ),
                share_evidence(facts, "Idle after them, share of the step", "sync."),
            ),
            at_most="medium",
            detail="sync",
            saving=saving(facts, expected, bound),
            fix=Fix(
                text="Read values back every 50 steps instead of in each; keep loss.detach() on the device.",
                code='torch.cuda.set_sync_debug_mode("warn")  # names every blocking line',
            ),
            confirm="Blocking calls per step must fall below three."
            if often
            else "The idle time after blocking calls must fall.",
        )
        return Fired((finding,))
