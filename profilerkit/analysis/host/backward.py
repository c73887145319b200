"""The nodes of the backward pass, and what they launched."""

import re

import numpy as np

from profilerkit.analysis.device.kernels import in_use, matching
from profilerkit.analysis.intervals import I64, index_at, union
from profilerkit.trace.columns import Category, TraceColumns, kept

#: Autograd runs each node of the backward pass in such an operator.
NODE = re.compile(r"^autograd::engine::evaluate_function")


@kept
def backward_nodes(columns: TraceColumns) -> I64:
    """Rows of the nodes of the backward passes; none where the trace shows no pass."""
    named = matching(columns, in_use(columns), NODE)
    return np.flatnonzero(named[columns.name] & (columns.category == Category.CPU_OP))


def nodes_of(columns: TraceColumns, calls: I64) -> I64:
    """``(n,)`` number of the node of a backward pass in which each of these calls was made, -1 for none.

    Args:
        columns: the trace.
        calls: ``(n,)`` rows of the trace, or -1.
    """
    nodes = backward_nodes(columns)
    number = np.full(len(calls), -1, dtype=np.int64)
    count = 0
    for thread in np.unique(columns.thread[nodes]).tolist():
        rows = nodes[columns.thread[nodes] == thread]
        spans = union(columns.ts_ns[rows], columns.end_ns[rows])
        mine = np.flatnonzero((calls >= 0) & (columns.thread[calls] == thread))
        at = index_at(spans, columns.ts_ns[calls[mine]])
        number[mine] = np.where(at >= 0, at + count, -1)
        count += len(spans)
    return number
