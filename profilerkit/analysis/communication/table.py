"""The collectives of the judged steps: a row per name, type and group size, their exposed time and transfers."""

from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.analysis.communication.log import KINDS, CollectiveLog
from profilerkit.analysis.communication.parallelism import dimension_of
from profilerkit.analysis.communication.records import SizeClass, Traffic
from profilerkit.analysis.communication.registry import UNKNOWN, bus_factor
from profilerkit.analysis.intervals import I64, Mask, Spans, covered, index_at, intersect, subtract, union
from profilerkit.analysis.parts import leaf
from profilerkit.analysis.trace_view import TraceView
from profilerkit.model.communication import ParallelName
from profilerkit.model.report import Collective
from profilerkit.trace.columns import Category, ProcessGroup

#: Rows kept: the rest of the names took less time.
MOST_ROWS = 20


class Split(msgspec.Struct, frozen=True):
    """How each collective of a log divides, ``(n,)``.

    Attributes:
        wait: int64 ns until the last member had arrived, -1 where the collective was not matched.
        transfer: int64 ns from then until the first member left, -1 where unmatched or where members are missing.
        members: int64, how many ranks were matched, 0 where none.
    """

    wait: I64
    transfer: I64
    members: I64

    @classmethod
    def unknown(cls, count: int) -> "Split":
        """Nothing was matched."""
        return cls(np.full(count, -1, np.int64), np.full(count, -1, np.int64), np.zeros(count, np.int64))


def collective_table(
    log: CollectiveLog, judged: Mask, exposed: Spans, split: Split | None = None
) -> tuple[Collective, ...]:
    """The collectives in ``judged`` grouped by name, type and group size, most time first.

    Args:
        log: the trace's collectives.
        judged: ``(n,)`` which of them count.
        exposed: when communication ran that nothing hid.
        split: what waiting and transfer took, where ranks were matched.
    """
    rows = np.flatnonzero(judged)
    if not len(rows):
        return ()
    split = split or Split.unknown(len(log))
    size = np.where(log.size >= 0, log.size, np.where(split.transfer >= 0, split.members, -1))
    keys = np.stack([log.title, log.dtype, size, log.kind], axis=1)[rows].astype(np.int64)
    found, which = np.unique(keys, axis=0, return_inverse=True)
    which = which.ravel()
    time = np.zeros(len(found), dtype=np.int64)
    np.add.at(time, which, (log.end - log.start)[rows])
    most = np.argsort(-time, kind="stable")[:MOST_ROWS].tolist()
    return tuple(_table_row(log, rows[which == index], size, exposed, split) for index in most)


def _table_row(log: CollectiveLog, rows: I64, size: I64, exposed: Spans, split: Split) -> Collective:
    first = int(rows[0])
    time = (log.end - log.start)[rows]
    kind, members = KINDS[log.kind[first]], int(size[first]) if size[first] >= 0 else None
    sized = (log.bytes[rows] >= 0).all()
    matched = split.wait[rows] >= 0
    whole = (split.transfer[rows] >= 0).all()
    algorithm, bus = _bandwidths(log, rows, kind, members, split)
    spans = union(log.start[rows], log.end[rows])
    return Collective(
        name=log.names[log.title[first]],
        count=len(rows),
        total_ns=int(time.sum()),
        exposed_ns=intersect(exposed, spans).total_ns,
        bytes=int(log.bytes[rows].sum()) if sized else None,
        bytes_source=("measured" if log.measured[rows].all() else "derived") if sized else None,
        dtype=log.names[log.dtype[first]] if log.dtype[first] >= 0 else None,
        group_size=members,
        kind=kind,
        matched=int(matched.sum()) if matched.any() else None,
        wait_ns=int(split.wait[rows].sum()) if whole else None,
        transfer_ns=int(time.sum() - split.wait[rows].sum()) if whole else None,
        algorithm_bytes_per_s=algorithm,
        bus_bytes_per_s=bus,
        bandwidth_is_bound=algorithm is not None and not (split.transfer[rows] > 0).any(),
    )


def _bandwidths(
    log: CollectiveLog, rows: I64, kind: str, members: int | None, split: Split
) -> tuple[float | None, float | None]:
    """Algorithm and bus bandwidth, bytes/s: over the transfers where they are known, else over the whole events.

    Whole events include waiting for other ranks, so that the bandwidth is a lower bound then.
    """
    known = split.transfer[rows] > 0
    chosen = rows[known] if known.any() else rows
    chosen = chosen[log.bytes[chosen] > 0]
    time = split.transfer[chosen] if known.any() else (log.end - log.start)[chosen]
    factor = bus_factor(kind, members)
    if not len(chosen) or not time.sum():
        return None, None
    algorithm = float(log.bytes[chosen].sum()) / (float(time.sum()) * 1e-9)
    return algorithm, algorithm * factor if factor is not None else None


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
#: A collective that takes longer than this multiple of the median of its kind has probably waited for a rank.
UNUSUAL = 1.5
#: The leaves of exposed communication.
EXPOSED = tuple(leaf(name) for name in ("comm.bw", "comm.lat", "comm.skew", "comm.other"))


def comm_facts(view: TraceView, log: CollectiveLog | None) -> CommFacts | None:
    """Communication in the steady steps, from the trace's collectives; ``None`` when none was seen.

    What hides it is compute kernels: a copy or a memset beside a collective does no work of the step's.
    On a CPU-only trace the transfers are the ``gloo:*`` spans, and operators of the training's threads hide them.
    """
    columns, window, parts, communicates = view.columns, view.window, view.parts, view.kinds.communication
    device = view.device_rows
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


#: From here on a collective shows the bandwidth of the links.
LARGE_COLLECTIVE_BYTES = 64_000_000
#: Exposed communication that is not known to be waiting for another rank.
TRANSFER = ("comm.bw", "comm.lat", "comm.other")
TRANSFER_LEAVES = tuple(leaf(name) for name in TRANSFER)

_SIZES: tuple[SizeClass, ...] = ("small", "middle", "large")
_UNKNOWN_SIZE = -1


def transfers_of(log: CollectiveLog, split: Split) -> tuple[I64, I64]:
    """``(n,)`` when each collective moves data, ns: from the last arrival where that is known, else from its start."""
    return log.start + np.maximum(split.wait, 0), log.end


def traffic(
    log: CollectiveLog, window: Spans, exposed: Spans, split: Split, groups: Sequence[ProcessGroup]
) -> tuple[Traffic, ...]:
    """One record per kind, dimension, type, group size and size class, most transfer time first.

    Args:
        log: the trace's collectives.
        window: the judged steps.
        exposed: exposed communication that is not known to be waiting.
        split: what waiting and transfer took, where ranks were matched.
        groups: the process groups whose descriptions tell what they divide.
    """
    rows = np.flatnonzero(covered(window, log.start))
    if not len(rows):
        return ()
    dimensions = _dimensions(log, groups)
    names: list[ParallelName | None] = list(dict.fromkeys((None, *dimensions)))
    dimension = np.array([names.index(found) for found in dimensions], dtype=np.int64)[log.channel]
    edges = np.array([SMALL_COLLECTIVE_BYTES, LARGE_COLLECTIVE_BYTES])
    size = np.where(log.bytes >= 0, np.searchsorted(edges, log.bytes, side="right"), _UNKNOWN_SIZE)
    keys = np.stack([log.kind, dimension, log.dtype, log.size, size], axis=1)[rows].astype(np.int64)
    found, which = np.unique(keys, axis=0, return_inverse=True)
    which = which.ravel()
    out = [
        _traffic_row(log, rows[which == index], names[key[1]], key[4], window, exposed, split)
        for index, key in enumerate(found.tolist())
    ]
    return tuple(sorted(out, key=lambda row: -row.transfer_ns))


def second_gathers(log: CollectiveLog, window: Spans, exposed: Spans, split: Split) -> tuple[float, float]:
    """Transfer and exposed time of the later half of each step's all-gathers, ns per step.

    Where parameters are gathered twice the second time is in the backward pass, after all of the first.
    """
    rows = np.flatnonzero(log.is_a("all_gather"))
    step = index_at(window, log.start[rows])
    later = [own[len(own) - len(own) // 2 :] for n in range(len(window)) if len(own := rows[step == n])]
    if not later:
        return 0.0, 0.0
    start, end = transfers_of(log, split)
    chosen = np.concatenate(later)
    spans = intersect(window, union(start[chosen], end[chosen]))
    return spans.total_ns / len(window), intersect(exposed, spans).total_ns / len(window)


def _dimensions(log: CollectiveLog, groups: Sequence[ProcessGroup]) -> list[ParallelName | None]:
    """Per channel what its process group divides."""
    told = {group.name: dimension_of(group) for group in groups if group.size > 1}
    return [told.get(channel.group) for channel in log.channels]


def _traffic_row(
    log: CollectiveLog,
    rows: I64,
    dimension: ParallelName | None,
    size: int,
    window: Spans,
    exposed: Spans,
    split: Split,
) -> Traffic:
    first, count = int(rows[0]), max(len(window), 1)
    start, end = transfers_of(log, split)
    spans = intersect(window, union(start[rows], end[rows]))
    sized = size != _UNKNOWN_SIZE
    members = int(log.size[first]) if log.size[first] > 0 else None
    return Traffic(
        kind=KINDS[log.kind[first]],
        dimension=dimension,
        dtype=log.names[log.dtype[first]] if log.dtype[first] >= 0 else None,
        group_size=members,
        size=_SIZES[size] if sized else None,
        per_step=len(rows) / count,
        bytes_per_step=float(log.bytes[rows].sum()) / count if sized else None,
        transfer_ns=spans.total_ns / count,
        exposed_ns=intersect(exposed, spans).total_ns / count,
        median_ns=float(np.median((end - start)[rows])),
        bus_bytes_per_s=_bus(log, rows, members, split) if sized else None,
    )


def _bus(log: CollectiveLog, rows: I64, members: int | None, split: Split) -> float | None:
    """Bus bandwidth over the transfers whose waiting is known, bytes/s; ``None`` without any."""
    rows = rows[split.transfer[rows] > 0]
    factor = bus_factor(KINDS[log.kind[rows[0]]], members) if len(rows) else None
    if factor is None:
        return None
    return factor * float(log.bytes[rows].sum()) / (float(split.transfer[rows].sum()) * 1e-9)
