"""The table of collectives: one row per name, type and group size, with what it moved and how long it waited."""

import msgspec
import numpy as np

from profilerkit.analysis.communication.log import KINDS, CollectiveLog
from profilerkit.analysis.communication.registry import bus_factor
from profilerkit.analysis.intervals import I64, Mask, Spans, intersect, union
from profilerkit.model.report import Collective

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
    return tuple(_row(log, rows[which == index], size, exposed, split) for index in most)


def _row(log: CollectiveLog, rows: I64, size: I64, exposed: Spans, split: Split) -> Collective:
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
