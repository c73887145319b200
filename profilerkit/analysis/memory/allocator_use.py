"""How torch's allocator used what it took from the device, from its samples in the judged steps."""

from collections.abc import Mapping, Sequence

import numpy as np

from profilerkit.analysis.memory.use import AllocatorUse
from profilerkit.analysis.stats import median
from profilerkit.analysis.steps.log import StepLog
from profilerkit.rundir.sampled import AllocatorSample, Sample

#: Share of the samples, those with most allocated, that stand for the peaks of the steps: a sample each second falls
#: anywhere in a step (a choice).
NEAR_THE_PEAK = 0.25


def allocator_use(samples: Sequence[Sample], log: StepLog) -> AllocatorUse | None:
    """What the samples taken in the judged steps say; ``None`` where there is none, or the allocator keeps no count.

    The asynchronous backend of CUDA (``backend:cudaMallocAsync``) reports zeros.
    """
    low, high = log.window
    inside = [known for sample in samples if (known := sample.allocator) and low <= sample.t_ns < high]
    seen = sorted((known for known in inside if known.reserved_bytes), key=lambda known: known.allocated_bytes or 0)
    if not seen:
        return None
    near = seen[-max(round(NEAR_THE_PEAK * len(seen)), 1) :]
    split = [ratio for known in near if (ratio := _split_ratio(known)) is not None]
    allocated, requested = seen[-1].allocated_bytes, seen[-1].requested_bytes
    rounding = None if not allocated or requested is None else max(allocated - requested, 0)
    retries = [known.alloc_retries for known in seen if known.alloc_retries is not None]
    return AllocatorUse(
        samples=len(seen),
        allocated_bytes=_largest([(known.allocated_bytes, known.allocated_peak_bytes) for known in seen]),
        reserved_bytes=_largest([(known.reserved_bytes, known.reserved_peak_bytes) for known in seen]),
        split_ratio=median(np.array(split)) if split else None,
        rounding_bytes=rounding,
        rounding_ratio=None if rounding is None or not allocated else rounding / allocated,
        retries=max(retries) - min(retries) if retries else None,
    )


def allocator_settings(environment: Mapping[str, str]) -> str:
    """What the environment asks of the allocator, empty for nothing; the name without CUDA, of torch 2.9, wins."""
    return environment.get("PYTORCH_ALLOC_CONF") or environment.get("PYTORCH_CUDA_ALLOC_CONF") or ""


def _split_ratio(known: AllocatorSample) -> float | None:
    if known.inactive_split_bytes is None or not known.reserved_bytes:
        return None
    return known.inactive_split_bytes / known.reserved_bytes


def _largest(pairs: Sequence[tuple[int | None, int | None]]) -> int | None:
    """The largest number told, of the moment or of a peak."""
    return max((value for pair in pairs for value in pair if value is not None), default=None)
