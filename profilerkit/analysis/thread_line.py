"""The threads of a trace one after another on a number line, so that one search serves all of them."""

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.intervals import I64, Spans, union
from profilerkit.trace.columns import TraceColumns


class ThreadLine(msgspec.Struct, frozen=True):
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
