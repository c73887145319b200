"""What the host's samples tell of each step: waiting of the training thread for a processor, and computing."""

from collections.abc import Callable, Sequence

import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.rundir.sampled import HostSample, Sample


def queued_per_step(samples: Sequence[Sample], start: I64, time: I64) -> I64:
    """``(n_steps,)`` int64 ns in which the training thread was ready and waited for a processor, as ``per_step``.

    A thread that waited 20 % of one second and 40 % of the next:

    >>> host = [HostSample(), HostSample(thread_queue_ratio=0.2), HostSample(thread_queue_ratio=0.4)]
    >>> samples = [Sample(t_ns=at * 10**9, host=record) for at, record in enumerate(host)]
    >>> queued_per_step(samples, np.array([0, 500, 1900]) * 10**6, np.array([500, 1000, 200]) * 10**6).tolist()
    [100000000, 300000000, -1]
    """
    return per_step(samples, start, time, lambda host: host.thread_queue_ratio)


def computed_per_step(samples: Sequence[Sample], start: I64, time: I64) -> I64:
    """``(n_steps,)`` int64 ns of CPU time of the process, as ``per_step``."""
    return per_step(samples, start, time, lambda host: host.process_cpu_cores)


def per_step(samples: Sequence[Sample], start: I64, time: I64, of: Callable[[HostSample], float | None]) -> I64:
    """``(n_steps,)`` int64 ns, derived: what the kernel counted between two samples, spread evenly over that time.

    -1 for a step that is not wholly between two samples that tell it.

    Args:
        samples: in their order.
        start: starts of the steps on the samples' clock, ``(n_steps,)`` int64 ns, ascending.
        time: start to next start.
        of: share of the time since the sample before.
    """
    told = [(sample.t_ns, of(sample.host)) for sample in samples if sample.host is not None]
    queued = np.full(len(start), -1, dtype=np.int64)
    if len(told) < 2:
        return queued
    at = np.array([t_ns for t_ns, _ in told], dtype=np.int64)
    ratio = np.array([np.nan if value is None else value for _, value in told], dtype=np.float64)
    # What was counted up to each sample; the ratio of a sample is about the time since the one before.
    known = np.nan_to_num(ratio[1:])
    counted = np.concatenate([[0.0], np.cumsum(known * np.diff(at))])
    silent = np.concatenate([[0], np.cumsum(np.isnan(ratio[1:]))])
    end = start + time
    first = np.searchsorted(at, start, side="right") - 1
    last = np.searchsorted(at, end, side="left")
    inside = (first >= 0) & (last < len(at))
    heard = inside.copy()
    heard[inside] = silent[last[inside]] == silent[first[inside]]
    between = np.interp(end, at, counted) - np.interp(start, at, counted)
    queued[heard] = np.rint(between[heard]).astype(np.int64)
    return queued
