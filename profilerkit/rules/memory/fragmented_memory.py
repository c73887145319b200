"""ME002: the device's memory is split into pieces that cannot be used."""

from profilerkit.rules.api import (
    Confidence,
    Evidence,
    Facts,
    Finding,
    Fired,
    Fix,
    MissingData,
    Passed,
    Result,
    Rule,
    finding_for,
)
from profilerkit.rules.memory.room import grows_segments, no_allocator, with_setting
from profilerkit.units import format_bytes, format_ratio

_UNKNOWN_SIZE = MissingData(
    "how large the device is was not recorded, and a small idle part of it does not matter",
    "nvidia-smi --query-gpu=timestamp,index,memory.used,memory.total --format=csv -l 1, beside the snapshot",
)


class FragmentedMemory(Rule, frozen=True):
    """Find reserved memory with {split_ratio} in unused pieces, or {idle_ratio} idle at the peak.

    Why it costs: A large request fails although the sum of the free pieces would be enough. The free room could hold a
        larger batch.

    Example:
        $ python train.py

    Use instead:
        $ PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py

    How it is measured: Samples of the allocator near the peak count if {reserved_ratio} of the device is reserved. A
        failed request always counts if as much memory was idle. No time is saved.

    When it is wrong: Reserved memory after a peak is a harmless cache. One sample a second can fall anywhere in a step.

    Sources:
        https://pytorch.org/docs/stable/notes/cuda.html
    """

    code = "ME002"
    summary = "The device's memory is split into pieces that cannot be used"
    reads_logs = True

    #: Free pieces / reserved memory.
    split_ratio: float = 0.20
    #: Idle / reserved memory at the peak: reserved is twice what is allocated (TraceML's warning).
    idle_ratio: float = 0.50
    #: Of the device's memory, below which what is reserved does not matter (TraceML's warning).
    reserved_ratio: float = 0.30

    def check(self, facts: Facts) -> Result:
        """Fires for a failure that free pieces explain, else when much of a well filled device lies in them."""
        failed = self._failed(facts)
        if failed is not None:
            return Fired((failed,))
        memory, allocator = facts.memory, facts.memory_use.allocator
        idle = memory.fragmentation_ratio if memory.place == "device" else None
        split = allocator.split_ratio if allocator else None
        reserved = memory.peak_reserved_bytes if idle is not None else allocator.reserved_bytes if allocator else None
        if reserved is None or (idle is None and split is None):
            return _UNKNOWN_SIZE if memory.peak_reserved_bytes is not None else no_allocator(facts)
        taken = reserved / memory.capacity_bytes if memory.capacity_bytes else None
        if taken is not None and taken < self.reserved_ratio:
            return Passed(f"only {format_ratio(taken)} of the device's memory is reserved")
        told = []
        if split is not None and allocator is not None and split > self.split_ratio:
            told.append(self._split(facts, split, allocator.samples))
        if idle is not None and idle >= self.idle_ratio:
            told.append(self._idle(facts, idle))
        if told:
            return Fired((self._finding(facts, tuple(told), reserved, "medium"),))
        seen = max(value for value in (split, idle) if value is not None)
        return Passed(f"{format_ratio(seen)} of the reserved memory is in pieces that nothing uses")

    def _failed(self, facts: Facts) -> Finding | None:
        """The finding on a request that failed although there was as much idle and free memory; else ``None``."""
        oom = facts.memory_use.oom
        if oom is None or oom.limit != "device" or not oom.requested_bytes:
            return None
        if oom.reserved_bytes is None or oom.allocated_bytes is None:
            return None
        idle = oom.reserved_bytes - oom.allocated_bytes
        free = oom.free_bytes or 0
        if idle + free < oom.requested_bytes or not idle:
            return None
        entries = [
            Evidence(label, value, "bytes", "measured", "the error and torch's allocator")
            for label, value in (
                ("Request that failed", oom.requested_bytes),
                ("Reserved and not in use then", idle),
                ("Free on the device then", oom.free_bytes),
            )
            if value is not None
        ]
        return self._finding(facts, tuple(entries), oom.reserved_bytes, "high", failed=oom.requested_bytes)

    def _split(self, facts: Facts, ratio: float, samples: int) -> Evidence:
        return facts.evidence(
            "Free pieces between blocks in use, of the reserved memory",
            ratio,
            "ratio",
            "torch's allocator, sampled",
            n=samples,
        )

    def _idle(self, facts: Facts, ratio: float) -> Evidence:
        return facts.evidence(
            "Reserved memory that is idle at the peak", ratio, "ratio", "[memory] instants", "derived", n=None
        )

    def _finding(
        self,
        facts: Facts,
        evidence: tuple[Evidence, ...],
        reserved: int,
        sure: Confidence,
        *,
        failed: int | None = None,
    ) -> Finding:
        if failed is not None:
            beside = format_bytes(evidence[1].value or 0)
            free = f" and {format_bytes(evidence[2].value or 0)} free" if (evidence[1].value or 0) < failed else ""
            title = f"A request of {format_bytes(failed)} failed beside {beside} in idle pieces{free}"
        else:
            worst = max(entry.value or 0.0 for entry in evidence)
            evidence += (facts.evidence("Reserved memory", reserved, "bytes", "torch's allocator", n=None),)
            title = f"{format_ratio(worst)} of {format_bytes(reserved)} reserved memory is in pieces that nothing uses"
        return finding_for(
            facts,
            bound=None,
            title=title,
            why="A piece between two blocks in use serves only requests that fit into it, and is not given back.",
            evidence=evidence,
            at_most=sure,
            fix=_fix(facts),
            confirm="The free pieces must shrink, and what is reserved with them.",
        )


def _fix(facts: Facts) -> Fix:
    if not grows_segments(facts):
        return Fix(
            text="Allocator segments fixed → expandable: free pieces then join instead of staying apart.",
            code=with_setting(facts, "expandable_segments:True"),
        )
    return Fix(
        text="Segments are expandable already: keep shapes fixed, and collect the cache from 80 % of the device on.",
        code=with_setting(facts, "garbage_collection_threshold:0.8"),
    )
