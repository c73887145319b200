"""ME002: the device's memory is split into pieces that cannot be used."""

from profilerkit.model.finding import Confidence, Evidence, Fix
from profilerkit.rules.api import Facts, Fired, MissingData, NotApplicable, Passed, Result, Rule, fired
from profilerkit.rules.memory.room import grows_segments, with_setting
from profilerkit.units import format_bytes, format_ratio

_NO_ALLOCATOR = MissingData(
    "the allocator's memory was not recorded", "profilerkit.profile(...), or torch.profiler: profile_memory=True"
)
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
    Sources: https://pytorch.org/docs/stable/notes/cuda.html
    """

    code = "ME002"
    summary = "The device's memory is split into pieces that cannot be used"
    reads_logs = True

    split_ratio: float = 0.20  #: free pieces / reserved memory
    #: Idle / reserved memory at the peak: reserved is twice what is allocated (TraceML's warning).
    idle_ratio: float = 0.50
    #: Of the device's memory, below which what is reserved does not matter (TraceML's warning).
    reserved_ratio: float = 0.30

    def check(self, facts: Facts) -> Result:
        failed = _failed(facts)
        if failed is not None:
            return failed
        memory, allocator = facts.memory, facts.memory_use.allocator
        idle = memory.fragmentation_ratio if memory.place == "device" else None
        split = allocator.split_ratio if allocator else None
        reserved = memory.peak_reserved_bytes if idle is not None else allocator.reserved_bytes if allocator else None
        if reserved is None or (idle is None and split is None):
            if memory.peak_reserved_bytes is not None:
                return _UNKNOWN_SIZE
            return NotApplicable("no device: there is no caching allocator") if facts.mode == "cpu" else _NO_ALLOCATOR
        taken = reserved / memory.capacity_bytes if memory.capacity_bytes else None
        if taken is not None and taken < self.reserved_ratio:
            return Passed(f"only {format_ratio(taken)} of the device's memory is reserved")
        large_split = split if split is not None and split > self.split_ratio else None
        large_idle = idle if idle is not None and idle >= self.idle_ratio else None
        if large_split is None and large_idle is None:
            seen = max(value for value in (split, idle) if value is not None)
            return Passed(f"{format_ratio(seen)} of the reserved memory is in pieces that nothing uses")
        worst, whole = max(large_split or 0.0, large_idle or 0.0), format_bytes(reserved)
        sampled, samples = "torch's allocator, sampled", allocator.samples if allocator else None
        of_split = "Free pieces between blocks in use, of the reserved memory"
        of_idle = "Reserved memory that is idle at the peak"
        return _fired(
            facts,
            f"{format_ratio(worst)} of {whole} reserved memory is in pieces that nothing uses",
            facts.evidence(of_split, large_split, "ratio", sampled, n=samples),
            facts.evidence(of_idle, large_idle, "ratio", "[memory] instants", "derived", n=None),
            facts.evidence("Reserved memory", reserved, "bytes", "torch's allocator", n=None),
            at_most="medium",
        )


def _failed(facts: Facts) -> Fired | None:
    """Report a request that failed although there was as much idle and free memory; ``None`` without one."""
    oom = facts.memory_use.oom
    if oom is None or oom.limit != "device" or not oom.requested_bytes:
        return None
    if oom.reserved_bytes is None or oom.allocated_bytes is None:
        return None
    idle, free = oom.reserved_bytes - oom.allocated_bytes, oom.free_bytes or 0
    if idle + free < oom.requested_bytes or not idle:
        return None
    also = f" and {format_bytes(free)} free" if idle < oom.requested_bytes else ""
    origin = "the error and torch's allocator"
    return _fired(
        facts,
        f"A request of {format_bytes(oom.requested_bytes)} failed beside {format_bytes(idle)} in idle pieces{also}",
        Evidence("Request that failed", oom.requested_bytes, "bytes", "measured", origin),
        Evidence("Reserved and not in use then", idle, "bytes", "measured", origin),
        Evidence("Free on the device then", oom.free_bytes, "bytes", "measured", origin),
        at_most="high",
    )


def _fired(facts: Facts, title: str, *evidence: Evidence, at_most: Confidence) -> Fired:
    return fired(
        facts,
        bound=None,
        title=title,
        why="A piece between two blocks in use serves only requests that fit into it, and is not given back.",
        evidence=evidence,
        at_most=at_most,
        fix=_fix(facts),
        confirm="The free pieces must shrink, and what is reserved with them.",
    )


def _fix(facts: Facts) -> Fix:
    if not grows_segments(facts):
        text = "Allocator segments fixed → expandable: free pieces then join instead of staying apart."
        return with_setting(facts, text, "expandable_segments:True")
    text = "Segments are expandable already: keep shapes fixed, and collect the cache from 80 % of the device on."
    return with_setting(facts, text, "garbage_collection_threshold:0.8")
