"""The records of what memory costs beside its size; ``None`` means not measured."""

import msgspec

from profilerkit.model.oom import OutOfMemory


class ZeroedGradients(msgspec.Struct, frozen=True):
    """Gradients that are filled with zeros instead of dropped, in the steady window.

    Attributes:
        per_step: operators that fill them.
        share: of the window, the time they take the device, or leave it idle.
        added_share: of the window, the time in which backward adds to gradients that are there.
        spared_ratio: share of that adding which dropped gradients would not need: their first one of each step is kept
            as it comes. ``None`` where the operators do not tell how many gradients they fill.
    """

    per_step: float
    share: float
    added_share: float
    spared_ratio: float | None


class Offload(msgspec.Struct, frozen=True):
    """Copies of state that is kept on the host, per steady step.

    ``pageable_ratio`` is the share of their bytes in memory that is not pinned.
    """

    to_device_bytes: float
    to_host_bytes: float
    pageable_ratio: float


class AllocatorUse(msgspec.Struct, frozen=True):
    """What torch's allocator said once per second of the judged steps.

    Attributes:
        samples: how many in the judged steps.
        allocated_bytes: largest peak it told of.
        reserved_bytes: largest peak it told of.
        split_ratio: free pieces between blocks in use / reserved memory, where most is allocated: the median of the
            upper quarter of the samples. Between the steps' peaks free pieces are only waiting for their use.
        rounding_bytes: allocated beyond what was asked for, where most is allocated.
        rounding_ratio: that / allocated.
        retries: allocations of the judged steps that succeeded only after the cache was given back.
    """

    samples: int
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    split_ratio: float | None = None
    rounding_bytes: int | None = None
    rounding_ratio: float | None = None
    retries: int | None = None


class PageFaults(msgspec.Struct, frozen=True):
    """Pages that the training thread got fresh from the system in the judged steps.

    Attributes:
        samples: seconds they were counted in.
        per_step: how many.
        share: of the thread's time, that in the kernel, with as much of its waiting for a processor.
        each_ns: time in the kernel for one of them, whatever else the thread did there.
    """

    samples: int
    per_step: float
    share: float
    each_ns: float


class CopiedPages(msgspec.Struct, frozen=True):
    """Pages that one worker process shared with the process that forked it, and copied.

    Attributes:
        counts: how often its pages were counted.
        private_bytes: the worker's alone at the last count.
        shared_bytes: what it may still copy.
        copied_bytes: between the fork and the last count; where the fork is not known, since the first count.
        at_once_bytes: of that, the most between two counts. One garbage collection writes to every object of Python's.
        first_step: step of the fork or of the first count.
        last_step: step of the last one.
    """

    counts: int
    private_bytes: int
    shared_bytes: int
    copied_bytes: int
    at_once_bytes: int
    first_step: int
    last_step: int


class MemoryUse(msgspec.Struct, frozen=True):
    """What memory costs the judged rank beside its size.

    Attributes:
        zeroed: ``None`` without a trace, or without a call that clears gradients.
        offload: ``None`` without device events, or where nothing is offloaded.
        recomputed_bytes: what the recomputed forward code of a step keeps for its backward pass; it would stay alive
            from the forward pass on if nothing were recomputed. ``None`` without memory instants.
        allocator: ``None`` where it was not sampled in the judged steps.
        allocator_settings: of the environment, empty for torch's own; ``None`` where the environment is not known.
        oom: how the memory of the rank ran out; ``None`` where it did not, or nobody could tell.
        faults: ``None`` where they were not sampled in the judged steps.
        copied: by a loader's worker; ``None`` where its pages were counted once at most.
    """

    zeroed: ZeroedGradients | None = None
    offload: Offload | None = None
    recomputed_bytes: int | None = None
    allocator: AllocatorUse | None = None
    allocator_settings: str | None = None
    oom: OutOfMemory | None = None
    faults: PageFaults | None = None
    copied: CopiedPages | None = None
