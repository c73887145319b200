"""The queue between host and device: what had been issued at a moment and was not done."""

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.intervals import I64
from profilerkit.trace.columns import TraceColumns


class Queue:
    """The work of a device in the order in which it was issued."""

    def __init__(self, columns: TraceColumns, rows: I64, launches: I64) -> None:
        """Take the device events ``rows``; one without a launch counts from when it ran."""
        call = launches[rows]
        issued = np.where(call >= 0, columns.ts_ns[np.maximum(call, 0)], columns.ts_ns[rows])
        order = np.argsort(issued, kind="stable")
        self._issued = issued[order]
        self._done = np.maximum.accumulate((columns.ts_ns[rows] + columns.dur_ns[rows])[order])

    def had_work(self, instants: I64) -> npt.NDArray[np.bool_]:
        """``(n,)`` whether work that was issued before each instant ended after it."""
        before = np.searchsorted(self._issued, instants, side="left") - 1
        had: npt.NDArray[np.bool_] = before >= 0
        had[had] = self._done[before[had]] > instants[had]
        return had
