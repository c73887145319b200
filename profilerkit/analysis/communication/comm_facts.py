"""Communication of one rank: how long, how much of it nothing hides, how large."""

import msgspec
import numpy as np

from profilerkit.analysis.communication.log import CollectiveLog
from profilerkit.analysis.communication.registry import UNKNOWN
from profilerkit.analysis.communication.table import collective_table
from profilerkit.analysis.intervals import I64, Mask, Spans, covered, intersect, subtract, union
from profilerkit.analysis.leaves import leaf
from profilerkit.analysis.partition import Partition
from profilerkit.model.report import Collective
from profilerkit.trace.columns import Category, TraceColumns


class CommFacts(msgspec.Struct, frozen=True):
    """Collectives per steady step: total, exposed, and what compute there is to hide behind.

    ``small_ratio`` is the share of their time in collectives below 1 MB, ``None`` without sizes;
    ``unclassified_ratio`` the share of it in events of which the collective is not known; ``surplus_ratio`` what some
    take much beyond the median of their like, as a share of it: probably waiting. ``step_ns`` is the mean traced step.
    """

    step_ns: float
    per_step: float
    total_ns: float
    exposed_ns: float
    alone_compute_ns: float
    small_ratio: float | None
    table: tuple[Collective, ...]
    unclassified_ratio: float | None = None
    surplus_ratio: float = 0.0

    @property
    def overlap_ratio(self) -> float:
        """Hidden / total."""
        return 1.0 - self.exposed_ns / self.total_ns if self.total_ns else 1.0


#: Below this a collective runs at the latency floor of the link, not at its bandwidth.
SMALL_COLLECTIVE_BYTES = 1_000_000
#: A collective that takes longer than this multiple of its like's median has probably waited for a rank.
UNUSUAL = 1.5
#: The leaves of exposed communication.
EXPOSED = tuple(leaf(name) for name in ("comm.bw", "comm.lat", "comm.skew", "comm.other"))


def comm_facts(
    columns: TraceColumns,
    communicates: Mask,
    window: Spans,
    log: CollectiveLog | None,
    parts: Partition,
    *,
    device: Mask | None,
) -> CommFacts | None:
    """Communication inside ``window``; ``None`` when none was seen.

    What hides it is compute kernels: a copy or a memset beside a collective does no work of the step's.
    On a CPU-only trace the transfers are the ``gloo:*`` spans, and operators of the training's threads hide them.

    Args:
        columns: the trace.
        communicates: ``(n_strings,)`` names of communication.
        window: the judged steps.
        log: the trace's collectives.
        parts: the partition, which says when communication was exposed.
        device: ``(n_events,)`` events of the judged device; ``None`` on a CPU-only trace.
    """
    judged = covered(window, log.start) if log is not None else np.zeros(0, dtype=np.bool_)
    if log is None or not judged.any():
        return None
    count = max(len(window), 1)
    working = columns.is_a(Category.CPU_OP) if device is None else device & (columns.category == Category.KERNEL)
    work = working & ~communicates[columns.name]
    transfers = intersect(window, union(log.start[judged], log.end[judged]))
    compute = intersect(window, union(columns.ts_ns[work], columns.end_ns[work]))
    exposed = intersect(transfers, parts.segments.only(*EXPOSED))
    time = (log.end - log.start)[judged]
    sized, small = log.bytes[judged] >= 0, log.bytes[judged] < SMALL_COLLECTIVE_BYTES
    return CommFacts(
        step_ns=window.total_ns / count,
        per_step=int(judged.sum()) / count,
        total_ns=transfers.total_ns / count,
        exposed_ns=exposed.total_ns / count,
        alone_compute_ns=subtract(compute, transfers).total_ns / count,
        small_ratio=float(time[sized & small].sum()) / float(time[sized].sum()) if sized.any() else None,
        table=collective_table(log, judged, exposed),
        unclassified_ratio=float(time[log.is_a(UNKNOWN)[judged]].sum()) / float(time.sum()),
        surplus_ratio=_surplus(log, np.flatnonzero(judged)) / float(time.sum()),
    )


def _surplus(log: CollectiveLog, rows: I64) -> float:
    """Ns by which collectives outlast the median of the same name and size, of those that take ``UNUSUAL`` times it."""
    time = (log.end - log.start)[rows]
    alike = np.unique(np.stack([log.title[rows], log.bytes[rows]], axis=1), axis=0, return_inverse=True)[1].ravel()
    order = np.lexsort((time, alike))
    first, count = np.unique(alike[order], return_index=True, return_counts=True)[1:]
    usual = time[order][first + (count - 1) // 2][alike]
    return float((time - usual)[time > UNUSUAL * usual].sum())
