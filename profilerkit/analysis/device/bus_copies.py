"""Copies over the bus that the rules about pinned batches and about small transfers read."""

from dataclasses import dataclass

import numpy as np

from profilerkit.analysis.device.copies import ELSEWHERE, TO_DEVICE, TO_HOST, busiest_streams, directions
from profilerkit.analysis.device.launching_ops import launching_operators
from profilerkit.analysis.host.names import BATCH_COPY_BYTES
from profilerkit.analysis.intervals import I64, Segments, Spans, intersect, subtract, union
from profilerkit.analysis.leaves import leaf
from profilerkit.trace.columns import Category, TraceColumns

#: A transfer below this many bytes carries a scalar or an index, not data (R48).
SMALL_BYTES = 4096
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class PinnedFacts:
    """Batch copies from pinned memory, at least 64 KiB each, per steady step.

    ``exposed_ns`` is the time in which the device did nothing else; ``in_line_ratio`` the share of their time on the
    stream that computes.
    """

    per_step: float
    bytes_per_step: float
    time_ns: float
    exposed_ns: float
    in_line_ratio: float


@dataclass(frozen=True, slots=True)
class SmallCopyFacts:
    """Transfers below 4 KiB between host and device, per steady step.

    Attributes:
        to_device: count.
        to_host: count.
        exposed_ns: time in which the device ran nothing but such a copy.
        drained_ns: time in which it was idle after one that the host had waited for.
        operators: the operators that issued most of them, and how many of all; hostile text.
    """

    to_device: float
    to_host: float
    exposed_ns: float
    drained_ns: float
    operators: tuple[tuple[str, int], ...]

    @property
    def per_step(self) -> float:
        """Transfers in both directions."""
        return self.to_device + self.to_host


def pinned_copies(columns: TraceColumns, segments: Segments, rows: I64, count: int) -> PinnedFacts:
    """Batch copies from pinned memory among the judged device events ``rows``, per step of ``count``."""
    pinned = np.array(["pinned" in text.lower() for text in columns.strings], dtype=bool)
    chosen = rows[(columns.category[rows] == Category.MEMCPY) & pinned[columns.name[rows]]]
    chosen = chosen[(directions(columns, chosen) == TO_DEVICE) & (columns.bytes[chosen] >= BATCH_COPY_BYTES)]
    spans = union(columns.ts_ns[chosen], columns.end_ns[chosen])
    kernels = rows[columns.category[rows] == Category.KERNEL]
    in_line = np.isin(columns.stream[chosen], busiest_streams(columns, kernels))
    time_ns = int(columns.dur_ns[chosen].sum())
    return PinnedFacts(
        per_step=len(chosen) / count,
        bytes_per_step=float(columns.bytes[chosen].sum()) / count,
        time_ns=time_ns / count,
        exposed_ns=intersect(segments.only(leaf("input.h2d")), spans).total_ns / count,
        in_line_ratio=int(columns.dur_ns[chosen[in_line]].sum()) / time_ns if time_ns else 0.0,
    )


def small_copies(
    columns: TraceColumns, launches: I64, segments: Segments, window: Spans, rows: I64, count: int
) -> SmallCopyFacts:
    """Transfers of a few bytes among the judged device events ``rows``, per step of ``count``.

    Args:
        columns: the trace.
        launches: ``(n_events,)`` int64, row of the launching runtime call, -1 for none.
        segments: the partition.
        window: the steady steps.
        rows: device events of the judged device in the steady window.
        count: steady steps.
    """
    known = (columns.bytes[rows] >= 0) & (columns.bytes[rows] < SMALL_BYTES)
    is_small = (columns.category[rows] == Category.MEMCPY) & known
    is_small[is_small] = directions(columns, rows[is_small]) != ELSEWHERE
    small, others = rows[is_small], rows[~is_small]
    alone = subtract(
        union(columns.ts_ns[small], columns.end_ns[small]), union(columns.ts_ns[others], columns.end_ns[others])
    )
    goes = directions(columns, small)
    drained = intersect(window, segments.only(leaf("sync.drain")))
    order = np.argsort(columns.end_ns[rows], kind="stable")
    last = np.searchsorted(columns.end_ns[rows][order], drained.start, side="right") - 1
    after = (last >= 0) & is_small[order][np.maximum(last, 0)] if len(rows) else np.zeros(len(drained), dtype=bool)
    return SmallCopyFacts(
        to_device=int((goes == TO_DEVICE).sum()) / count,
        to_host=int((goes == TO_HOST).sum()) / count,
        exposed_ns=intersect(window, alone).total_ns / count,
        drained_ns=int((drained.end - drained.start)[after].sum()) / count,
        operators=_operators(columns, launches, small),
    )


def _operators(columns: TraceColumns, launches: I64, rows: I64) -> tuple[tuple[str, int], ...]:
    """The operators that launched most of ``rows``."""
    found = launching_operators(columns, launches, rows)
    names, counts = np.unique(columns.name[found[found >= 0]], return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MOST_NAMED]
    return tuple((columns.strings[names[place]], int(counts[place])) for place in order.tolist())
