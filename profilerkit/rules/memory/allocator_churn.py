"""ME001: the step waits for memory to be allocated."""

from collections.abc import Sequence

from profilerkit.analysis.memory.use import PageFaults
from profilerkit.analysis.whatif import saving
from profilerkit.model.finding import Evidence, Fix
from profilerkit.model.memory import MemorySnapshot
from profilerkit.model.step import WHOLE_TRACE
from profilerkit.rules.api import Facts, MissingData, NotApplicable, Passed, Result, Rule, each, fired, no_device, spent
from profilerkit.rules.memory.room import grows_segments, with_setting
from profilerkit.units import format_about, format_count, format_ns, format_ratio


class AllocatorChurn(Rule, frozen=True):
    """Find steps that wait {smallest_share} of their time or more for cudaMalloc, cudaFree or page faults.

    Why it costs: The caching allocator should ask the driver rarely. Each call waits until the device's queue is empty.

    Example:
        for batch in loader:
            train_step(batch)
            torch.cuda.empty_cache()
    Use instead:
        for batch in loader:
            train_step(batch)
    How it is measured: Device idle time under allocator calls in steady steps counts. A request that succeeded only
        after the cache was freed is a risk without a saving. So are {fewest_retaken} segments requested again
        in a snapshot. Where nothing marks a step, {smallest_given_back} of the calls must give memory back. On a CPU,
        {fewest_faults} page faults per step count, if each takes at most {longest_fault_ns} of kernel time.
    When it is wrong: Warm-up steps allocate, so only steady steps count. Other processes on the device shrink the
        cache. The asynchronous backend of CUDA counts no retries.
    Sources: https://pytorch.org/docs/stable/notes/cuda.html
    """

    code = "ME001"
    summary = "The step waits for memory to be allocated"
    reads_logs = True

    smallest_share: float = 0.01
    #: Share of the calls that give memory back, where no step is marked: of a loop that takes it anew it is a half, and
    #: of a start that takes what is kept 0 (a choice).
    smallest_given_back: float = 0.25
    #: On a host: fewer pages are those of small tensors, which C's allocator keeps for the most part (a choice).
    fewest_faults: float = 4_096.0
    #: On a host: one took 0.5 to 2 µs on a busy virtual machine; more than this is other work of the kernel (a choice).
    longest_fault_ns: float = 10_000.0
    fewest_samples: int = 3  #: on a host: seconds of samples (a choice)
    #: In a snapshot's history: a few are those of requests that did not fit at once (a choice).
    fewest_retaken: int = 20

    def check(self, facts: Facts) -> Result:
        if facts.logs is not None and facts.logs.alone:
            return self._in_snapshots(facts, facts.logs.own)
        if facts.cold is not None and facts.cold.dominates:
            return NotApplicable("the window is dominated by first-use work, which allocates once")
        retries = _retries(facts)
        share = facts.share("mem.alloc")
        calls = facts.allocator.calls_per_step if facts.allocator is not None else 0.0
        frees = facts.memory.allocator_frees_per_step
        kept = facts.steps.found_by == WHOLE_TRACE and frees is not None and frees < self.smallest_given_back * calls
        if calls and share >= self.smallest_share and not kept and self.worth_saying(facts, share):
            return self._churn(facts, calls, share)
        if retries:
            times = "once" if retries == 1 else f"{format_count(retries)} times"
            return fired(
                facts,
                bound=None,
                title=f"The allocator gave back its cache {times} to serve a request",
                why="Such a request waits for the device, and the next one may fail: the memory is almost full.",
                evidence=_retry_evidence(facts, retries),
                at_most="high",
                fix=_fix(facts),
                confirm="No request of the steady steps may need a second try.",
            )
        if kept:
            return Passed("nothing marks a step, and most of the memory that was taken was kept: it is taken once")
        faults = facts.memory_use.faults
        if facts.mode == "cpu" and faults is not None:
            return self._on_host(facts, faults)
        if facts.allocator is None:
            return no_device(facts, "no device events: there is no device allocator")
        return Passed(f"{calls:,.1f} allocator calls per step cost {format_ratio(share)} of it")

    def _in_snapshots(self, facts: Facts, snapshots: Sequence[MemorySnapshot]) -> Result:
        known = [(one.retaken, one) for one in snapshots if one.retaken is not None]
        if not known:
            return MissingData("no history of the allocator was recorded", "torch.cuda.memory._record_memory_history()")
        retaken, one = max(known, key=lambda entry: entry[0])
        if retaken < self.fewest_retaken:
            return Passed(f"{retaken} pieces of memory were taken after some had been given back")
        label = "Pieces taken after some were given back"
        text = "Remove torch.cuda.empty_cache() from the loop. Allocator segments fixed → expandable."
        return fired(
            facts,
            bound=None,
            title=f"The allocator took memory from the device {format_count(retaken)} times after giving some back",
            why="Each of these requests waits for the device. The cause is torch.cuda.empty_cache() in a loop, or "
            "a request that did not fit.",
            evidence=(facts.evidence(label, retaken, "count", one.origin, n=one.events),),
            at_most="medium",
            fix=with_setting(facts, text, "expandable_segments:True"),
            confirm="The history of the next run must hold hardly any segments that are given back.",
        )

    def _on_host(self, facts: Facts, faults: PageFaults) -> Result:
        if faults.samples < self.fewest_samples:
            return MissingData(f"{faults.samples} seconds of samples are too few", "let the run go on for some seconds")
        share = min(faults.share, 1.0 - facts.family("input"))
        few = faults.per_step < self.fewest_faults or faults.each_ns > self.longest_fault_ns
        if few or share < self.smallest_share or not self.worth_saying(facts, share):
            count = format_about(faults.per_step)
            return Passed(f"{count} page faults a step, {format_ratio(share)} of the time in the kernel")
        origin, n = "/proc/self/task/stat", faults.samples
        in_kernel = "Its time in the kernel, with its part of waiting for a processor"
        return fired(
            facts,
            bound="memory-bound",
            title=f"Fresh pages take {spent(facts, share)}",
            why="Large tensors go back to the system when they are freed: in the next step their pages are fetched and "
            "filled with zeros again.",
            evidence=(
                facts.evidence("Page faults of the training thread, per step", faults.per_step, "count", origin, n=n),
                facts.evidence(in_kernel, share, "ratio", origin, "derived", n=n),
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

    def _churn(self, facts: Facts, calls: float, share: float) -> Result:
        frees = facts.memory.allocator_frees_per_step or 0.0
        issuing = facts.share("over.dispatch", "over.launch") if frees else 0.0
        return fired(
            facts,
            bound="memory-bound",
            title=f"Allocator calls hold the device for {format_ns(facts.time_ns('mem.alloc'))} in {each(facts)}",
            why="Each call goes to the driver, and a free waits for the whole device first.",
            evidence=(
                facts.evidence("Allocator calls per step", calls, "count", "cudaMalloc, cudaFree and similar calls"),
                facts.share_evidence("Device idle under them, share of the step", "mem.alloc"),
                *_retry_evidence(facts, _retries(facts)),
            ),
            at_most="high",
            detail="capacity",
            saving=saving(share, share + issuing),
            fix=_fix(facts),
            confirm="Allocator calls per step must fall to zero after the first steps.",
        )


def _retries(facts: Facts) -> int:
    """Requests of the judged steps that needed a second try, by whichever saw more; 0 where neither saw any."""
    sampled = facts.memory_use.allocator.retries if facts.memory_use.allocator else None
    return max(facts.memory.allocator_retries or 0, sampled or 0)


def _retry_evidence(facts: Facts, retries: int) -> tuple[Evidence, ...]:
    if not retries:
        return ()
    label = "Requests that succeeded only after the cache was given back"
    if retries != facts.memory.allocator_retries:
        return (facts.evidence(label, retries, "count", "torch's allocator, sampled", n=None),)
    return (facts.evidence(label, retries, "count", "order of the calls to the driver", "derived", n=None),)


def _fix(facts: Facts) -> Fix:
    if grows_segments(facts):
        text = "Segments are expandable already: keep shapes fixed, run the largest batch first, lower the peak."
        return Fix(text=text)
    text = "Allocator segments fixed → expandable; if calls remain, lower the peak."
    return with_setting(facts, text, "expandable_segments:True")
