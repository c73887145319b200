"""The threads of a trace one after another on a number line, so that one search serves all of them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.intervals import I64, Spans, union
from profilerkit.trace.columns import TraceColumns

#: How many intervals that ended before an instant are passed over in search of the one around it. Real operators
#: launch after at most a few dozen children; an instant with more of them behind it counts as outside.
_MOST_PASSED = 512


@dataclass(frozen=True, slots=True)
class ThreadLine:
    """Every thread on a stretch of its own.

    Attributes:
        first_ns: start of the trace.
        stretch_ns: more than its length.
    """

    first_ns: int
    stretch_ns: int

    @classmethod
    def of(cls, columns: TraceColumns) -> "ThreadLine | None":
        """The line of a trace; ``None`` for an empty one, or if its threads do not fit into 64 bits."""
        if not len(columns):
            return None
        first, last = int(columns.ts_ns.min()), int(columns.end_ns.max())
        stretch = last - first + 1
        return cls(first, stretch) if stretch < np.iinfo(np.int64).max // (len(columns.threads) + 1) else None

    def place(self, thread: npt.NDArray[np.int32], instants: I64) -> I64:
        """``(n,)`` int64, where instants of threads lie."""
        return thread.astype(np.int64) * self.stretch_ns + (instants - self.first_ns)

    def extents(self, columns: TraceColumns, rows: I64) -> tuple[I64, I64]:
        """``(n,)`` int64, where events start and end."""
        start = self.place(columns.thread[rows], columns.ts_ns[rows])
        return start, start + columns.dur_ns[rows]

    def spans(self, columns: TraceColumns, rows: I64) -> Spans:
        """The union of events."""
        return union(*self.extents(columns, rows))

    def innermost(self, columns: TraceColumns, rows: I64, at: I64) -> I64:
        """Row among ``rows`` of the shortest event around each place ``at``, -1 for none.

        The events of one thread are nested. Of two with the same extent the one that was entered later, with the
        higher external id, is the inner one.
        """
        if not len(rows):
            return np.full(len(at), -1, dtype=np.int64)
        start, end = self.extents(columns, rows)
        order = np.lexsort((columns.external_id[rows], -end, start))
        start, end = start[order], end[order]
        index = _last_open(end, at, np.searchsorted(start, at, side="right") - 1)
        return np.where(index >= 0, rows[order][index], -1)


def _last_open(end: I64, at: I64, index: I64) -> I64:
    """The last interval from ``index`` backwards that has not ended at each place, -1 where all have.

    >>> _last_open(np.array([90, 20, 40]), np.array([15, 25, 35, 95]), np.array([1, 1, 2, 2])).tolist()
    [1, 0, 2, -1]
    """
    reach = np.maximum.accumulate(end)
    index = np.where((index >= 0) & (reach[np.maximum(index, 0)] > at), index, -1)
    for _ in range(_MOST_PASSED):
        ended = (index >= 0) & (end[np.maximum(index, 0)] <= at)
        if not ended.any():
            return index
        index[ended] -= 1
    return np.where((index >= 0) & (end[np.maximum(index, 0)] > at), index, -1)
