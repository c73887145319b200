"""Memory that a worker process shared as it was forked and copied since, page by page."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from profilerkit.analysis.memory.use import CopiedPages
from profilerkit.analysis.steps.log import StepLog
from profilerkit.rundir.sampled import Sample, WorkerPages


def counted_pages(samples: Sequence[Sample], workers: Collection[int]) -> list[tuple[int, WorkerPages]]:
    """When the pages of a worker were counted, ns, and what was found: of the one that was counted most often.

    Other processes that the training started, such as environments, are none of its ``workers``, by pid.
    """
    every = [(sample.t_ns, pages) for sample in samples if sample.host and (pages := sample.host.worker_pages)]
    seen = [(t_ns, pages) for t_ns, pages in every if pages.pid in workers]
    most = Counter(pages.pid for _, pages in seen).most_common(1)
    return [(t_ns, pages) for t_ns, pages in seen if pages.pid == most[0][0]]


def copied_pages(samples: Sequence[Sample], log: StepLog, workers: Collection[int]) -> CopiedPages | None:
    """What a worker copied since it was forked, or else since the first count; ``None`` where only one is known."""
    counted = counted_pages(samples, workers)
    seen = [*_at_the_fork(samples, counted), *counted]
    if len(seen) < 2:
        return None
    private = np.array([pages.private_bytes for _, pages in seen], dtype=np.int64)
    own = np.array([pages.anonymous_bytes for _, pages in seen], dtype=np.int64)
    # What is new was never shared.
    copied = np.diff(private) - np.maximum(np.diff(own), 0)
    at_ns = np.array([t_ns for t_ns, _ in seen], dtype=np.int64)
    step = np.interp(at_ns, log.start, log.index)
    return CopiedPages(
        counts=len(counted),
        private_bytes=int(private[-1]),
        shared_bytes=max(int(own[-1] - private[-1]), 0),
        copied_bytes=int(copied.sum()),
        at_once_bytes=int(copied.max()),
        first_step=round(float(step[0])),
        last_step=round(float(step[-1])),
    )


def _at_the_fork(
    samples: Sequence[Sample], counted: Sequence[tuple[int, WorkerPages]]
) -> Iterator[tuple[int, WorkerPages]]:
    """The worker's pages as it began: those of the training process, all shared.

    A worker that still shares most of its pages at the first count was forked; of another nobody can tell.
    """
    for t_ns, pages in counted[:1]:
        before = [(sample.t_ns, sample.host) for sample in samples if sample.t_ns < t_ns and sample.host]
        at_ns, host = before[-1] if before else (t_ns, None)
        if host is None or host.process_rss_bytes is None or host.process_file_bytes is None:
            return
        if pages.private_bytes < pages.anonymous_bytes / 2:
            yield at_ns, WorkerPages(pages.pid, host.process_rss_bytes - host.process_file_bytes, 0)
