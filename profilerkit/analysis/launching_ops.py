"""Which operator launched which device work: the innermost one that was running when the launch was called."""

import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.analysis.thread_line import ThreadLine
from profilerkit.trace.columns import Category, TraceColumns


def launching_operators(columns: TraceColumns, launches: I64, rows: I64) -> I64:
    """Return for each device event in ``rows`` the row of the operator that launched it, -1 for none.

    Time on the launching thread decides, not the ``External id``: several releases wrote ids of two kinds into one
    trace, so that kernels seem to come from views.

    Args:
        columns: the trace.
        launches: ``(n_events,)`` int64, row of the launching runtime call, -1 for none.
        rows: ``(n,)`` int64 device events.
    """
    found = np.full(len(rows), -1, dtype=np.int64)
    line = ThreadLine.of(columns)
    linked = np.flatnonzero(launches[rows] >= 0)
    if line is None or not len(linked):
        return found
    calls = launches[rows[linked]]
    launching = np.zeros(len(columns.threads), dtype=np.bool_)
    launching[columns.thread[calls]] = True
    operators = np.flatnonzero((columns.category == Category.CPU_OP) & launching[columns.thread])
    found[linked] = line.innermost(columns, operators, line.place(columns.thread[calls], columns.ts_ns[calls]))
    return found
