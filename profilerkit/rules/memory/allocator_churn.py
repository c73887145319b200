"""ME001 (R25): the step waits for memory to be allocated."""

from dataclasses import dataclass
from typing import ClassVar

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.memory.use import PageFaults
from profilerkit.analysis.whatif import saving
from profilerkit.model.finding import Evidence, Finding, Fix
from profilerkit.rules.memory.room import grows_segments, with_setting
from profilerkit.rules.rule import (
    Fired,
    MissingData,
    NotApplicable,
    Passed,
    Result,
    Rule,
    each,
    evidence_of,
    finding_for,
    no_device_events,
    share_evidence,
)
from profilerkit.units import format_about, format_count, format_ns, format_ratio


@dataclass(frozen=True)
class AllocatorChurn(Rule):
    """Allocator misses in steady state (R25).

    Claim: The step waits for cudaMalloc or cudaFree, which the caching allocator should have made rare; or on a host,
        for pages that are given back to the system and fetched anew.
    Evidence: Allocator calls per steady step, and the share of the step in which the device is idle under them;
        requests that succeeded only after the cache was given back. On a host, page faults of the training thread per
        step, and its time in the kernel.
    Threshold: 1 % of the step, and a saving above the general floor; any such request, as a risk without a saving; on a
        host 4,096 faults a step (16 MiB), of at most 10 µs of the kernel's time each.
    Fix: Let segments grow, keep shapes fixed, lower the peak, and run the largest batch first; on a host, write into
        buffers that are kept.
    Saving: Bound: the idle time under the calls; where memory is given back, also that in which work is issued, because
        such a call waits for the device and leaves its queue empty. Expected: the idle time under the calls. On a
        host, expected: the thread's time in the kernel, with its part of waiting for a processor; bound: that, or all
        operators beside arithmetic, which write the large tensors, if they take more.
    Traps: Warm-up steps allocate: only steady steps count. Other processes on the device shrink the cache. The
        asynchronous backend of CUDA counts no retries. With huge pages faults are few and long, and not told here.
    Confidence: High; medium on a host, where the kernel also does other work for the thread.
    """

    code: ClassVar[str] = "ME001"
    name: ClassVar[str] = "allocator_churn"
    family: ClassVar[str] = "memory"
    summary: ClassVar[str] = "The step waits for memory to be allocated"

    smallest_share: float = 0.01
    #: On a host: fewer pages are those of small tensors, which C's allocator keeps for the most part (a choice).
    fewest_faults: float = 4_096.0
    #: On a host: one took 0.5 to 2 µs on a busy virtual machine; more than this is other work of the kernel (a choice).
    longest_fault_ns: float = 10_000.0
    #: On a host: seconds of samples (a choice).
    fewest_samples: int = 3

    def check(self, facts: Facts) -> Result:
        """Fires when allocator calls recur in the steady window and hold the device."""
        if facts.cold is not None:
            return NotApplicable("the window is dominated by first-use work, which allocates once")
        retries = _retries(facts)
        share = facts.share("mem.alloc")
        calls = facts.allocator.calls_per_step if facts.allocator is not None else 0.0
        if calls and share >= self.smallest_share and self.worth_saying(facts, share):
            return Fired((self._churn(facts, calls, share),))
        if retries:
            return Fired((self._retried(facts, retries),))
        faults = facts.memory_use.faults
        if facts.mode == "cpu" and faults is not None:
            return self._on_host(facts, faults)
        if facts.allocator is None:
            return no_device_events(facts, "no device events: there is no device allocator")
        return Passed(f"{calls:,.1f} allocator calls per step cost {format_ratio(share)} of it")

    def _on_host(self, facts: Facts, faults: PageFaults) -> Result:
        if faults.samples < self.fewest_samples:
            return MissingData(f"{faults.samples} seconds of samples are too few", "let the run go on for some seconds")
        share = min(faults.share, 1.0 - facts.family("input"))
        few = faults.per_step < self.fewest_faults or faults.each_ns > self.longest_fault_ns
        if few or share < self.smallest_share or not self.worth_saying(facts, share):
            count = format_about(faults.per_step)
            return Passed(f"{count} page faults a step, {format_ratio(share)} of the time in the kernel")
        finding = finding_for(
            facts,
            bound="memory-bound",
            title=f"Fresh pages take {format_ns(share * (facts.mean_step_ns or 0.0))} of {each(facts)} step",
            why="Large tensors go back to the system when they are freed: in the next step their pages are fetched and "
            "filled with zeros again.",
            evidence=(
                _of_faults(facts, "Page faults of the training thread, per step", faults.per_step, "count"),
                _of_faults(facts, "Its time in the kernel, with its part of waiting for a processor", share, "ratio"),
            ),
            at_most="medium",
            detail="capacity",
            saving=saving(share, max(share, facts.share("compute.other"))),
            fix=Fix(
                text="Large tensors made anew in every step → written into buffers that are kept; or preload an "
                "allocator that keeps what is freed, such as jemalloc.",
                code="torch.add(a, b, out=buffer)  # or a.add_(b)",
            ),
            confirm="Page faults per step must fall to a few hundred.",
        )
        return Fired((finding,))

    def _churn(self, facts: Facts, calls: float, share: float) -> Finding:
        frees = facts.memory.allocator_frees_per_step or 0.0
        issuing = facts.share("over.dispatch", "over.launch") if frees else 0.0
        return finding_for(
            facts,
            bound="memory-bound",
            title=f"Allocator calls hold the device for {format_ns(facts.time_ns('mem.alloc'))} in {each(facts)} step",
            why="Each call goes to the driver, and a free waits for the whole device first.",
            evidence=(
                evidence_of(facts, "Allocator calls per step", calls, "count", "cudaMalloc, cudaFree and their kin"),
                share_evidence(facts, "Device idle under them, share of the step", "mem.alloc"),
                *_retry_evidence(facts, _retries(facts)),
            ),
            at_most="high",
            detail="capacity",
            saving=saving(share, share + issuing),
            fix=_fix(facts),
            confirm="Allocator calls per step must fall to zero after the first steps.",
        )

    def _retried(self, facts: Facts, retries: int) -> Finding:
        times = "once" if retries == 1 else f"{format_count(retries)} times"
        return finding_for(
            facts,
            bound=None,
            title=f"The allocator gave back its cache {times} to serve a request",
            why="Such a request waits for the device, and the next one may fail: the memory is as good as full.",
            evidence=_retry_evidence(facts, retries),
            at_most="high",
            fix=_fix(facts),
            confirm="No request of the steady steps may need a second try.",
        )


def _retries(facts: Facts) -> int:
    """Requests of the judged steps that needed a second try, by whichever saw more; 0 where neither saw any."""
    sampled = facts.memory_use.allocator.retries if facts.memory_use.allocator else None
    return max(facts.memory.allocator_retries or 0, sampled or 0)


def _retry_evidence(facts: Facts, retries: int) -> tuple[Evidence, ...]:
    if not retries:
        return ()
    is_sampled = retries != facts.memory.allocator_retries
    return (
        evidence_of(
            facts,
            "Requests that succeeded only after the cache was given back",
            retries,
            "count",
            "torch's allocator, sampled" if is_sampled else "order of the calls to the driver",
            "measured" if is_sampled else "derived",
            n=None,
        ),
    )


def _fix(facts: Facts) -> Fix:
    if grows_segments(facts):
        return Fix(
            text="Segments are expandable already: keep shapes fixed, run the largest batch first, lower the peak."
        )
    return Fix(
        text="Allocator segments fixed → expandable; if calls remain, lower the peak.",
        code=with_setting(facts, "expandable_segments:True"),
    )


def _of_faults(facts: Facts, label: str, value: float, unit: str) -> Evidence:
    return evidence_of(
        facts,
        label,
        value,
        unit,
        "/proc/self/task/stat",
        "measured" if unit == "count" else "derived",
        n=facts.memory_use.faults.samples if facts.memory_use.faults else None,
    )
