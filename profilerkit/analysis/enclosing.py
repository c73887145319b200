"""Which event of a thread was running at given instants."""

import numpy as np

from profilerkit.analysis.intervals import I64, innermost_owner
from profilerkit.trace.columns import I32, TraceColumns


def innermost_at(columns: TraceColumns, rows: I64, thread: I32, ts_ns: I64) -> I64:
    """The innermost of the events ``rows`` that runs on ``thread`` at each instant, -1 for none.

    Events that cover none of the instants are left out first: a few instants among many events cost two searches.

    Args:
        columns: the trace.
        rows: events, each thread's nested.
        thread: ``(n_instants,)``.
        ts_ns: ``(n_instants,)``.
    """
    out = np.full(len(ts_ns), -1, dtype=np.int64)
    asked = np.lexsort((ts_ns, thread))
    rows = rows[np.isin(columns.thread[rows], thread)]
    rows = rows[np.argsort(columns.thread[rows], kind="stable")]
    for number in np.unique(thread):
        instants = asked[slice(*np.searchsorted(thread[asked], [number, number + 1]))]
        own = rows[slice(*np.searchsorted(columns.thread[rows], [number, number + 1]))]
        start, end, at = columns.ts_ns[own], columns.end_ns[own], ts_ns[instants]
        covers = np.searchsorted(at, end) > np.searchsorted(at, start)
        owned = innermost_owner(start[covers], end[covers], own[covers])
        if not len(owned):
            continue
        found = np.searchsorted(owned.start, at, side="right") - 1
        inside = (found >= 0) & (at < owned.end[np.maximum(found, 0)])
        out[instants[inside]] = owned.label[found[inside]]
    return out
