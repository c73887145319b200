"""The collectives of the judged steps by kind, group, type and size, with what they transfer and what is exposed."""

from collections.abc import Sequence

import numpy as np

from profilerkit.analysis.communication.comm_facts import SMALL_COLLECTIVE_BYTES
from profilerkit.analysis.communication.log import KINDS, CollectiveLog
from profilerkit.analysis.communication.parallelism import dimension_of
from profilerkit.analysis.communication.registry import bus_factor
from profilerkit.analysis.communication.table import Split
from profilerkit.analysis.communication.wire import SizeClass, Traffic
from profilerkit.analysis.intervals import I64, Spans, covered, index_at, intersect, union
from profilerkit.analysis.leaves import leaf
from profilerkit.model.communication import ParallelName
from profilerkit.trace.columns import ProcessGroup

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
        _row(log, rows[which == index], names[key[1]], key[4], window, exposed, split)
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


def _row(
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
