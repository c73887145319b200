"""Memory that the training thread gives back to the system and gets anew, from the host's samples."""

from collections.abc import Sequence
from itertools import pairwise

from profilerkit.analysis.memory.use import PageFaults
from profilerkit.analysis.steps.log import StepLog
from profilerkit.rundir.sampled import HostSample, Sample


def page_faults(samples: Sequence[Sample], log: StepLog) -> PageFaults | None:
    """The faults of the judged steps; ``None`` where no sample counts them.

    A sample counts since the one before, so that both must lie in the judged steps.
    """
    low, high = log.window
    seen = [(sample.t_ns, sample.host) for sample in samples if sample.host is not None]
    inside = [host for (before, _), (t_ns, host) in pairwise(seen) if before >= low and t_ns <= high]
    told = [known for host in inside if (known := _told(host)) is not None]
    if not told or not log.steady.any():
        return None
    per_s, in_kernel, share = (sum(column) / len(told) for column in zip(*told, strict=True))
    return PageFaults(
        samples=len(told),
        per_step=per_s * float(log.time[log.steady].mean()) / 1e9,
        share=share,
        each_ns=in_kernel * 1e9 / per_s if per_s else 0.0,
    )


def _told(host: HostSample) -> tuple[float, float, float] | None:
    """Faults per second, share of the time in the kernel, and that with its part of the waiting for a processor."""
    faults, in_kernel, on_core = host.thread_faults_per_s, host.thread_system_ratio, host.thread_cpu_ratio
    if faults is None or in_kernel is None or on_core is None:
        return None
    queued = (host.thread_queue_ratio or 0.0) * in_kernel / on_core if on_core else 0.0
    return faults, in_kernel, min(in_kernel + queued, 1.0)
