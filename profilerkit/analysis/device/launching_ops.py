"""Which operator launched which device work: the innermost one that was running when the launch was called."""

import numpy as np

from profilerkit.analysis.enclosing import innermost_at
from profilerkit.analysis.intervals import I64
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
    linked = np.flatnonzero(launches[rows] >= 0)
    calls = launches[rows[linked]]
    operators = np.flatnonzero(columns.category == Category.CPU_OP)
    found[linked] = innermost_at(columns, operators, columns.thread[calls], columns.ts_ns[calls])
    return found
