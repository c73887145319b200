"""Time that goes over whole embedding tables of which a step looks up few rows."""

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.costs.arguments import Arguments, Shape
from profilerkit.analysis.costs.operators import distinct_calls, understood
from profilerkit.analysis.device.kernels import self_times
from profilerkit.analysis.intervals import I64, Spans, covered
from profilerkit.analysis.kernel_losses.records import DenseTables
from profilerkit.trace.columns import Category, TraceColumns

_LOOKS_UP = ("aten::embedding", "aten::_embedding_bag", "aten::embedding_bag", "aten::index_select")
_DENSE_BACKWARD = ("aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward")
#: A step that looks up more of a table's rows than this gains little (a choice).
_FEW_ROWS = 0.5


def dense_tables(
    columns: TraceColumns,
    math: npt.NDArray[np.bool_],
    issuing: Spans,
    rows: I64,
    time_ns: npt.NDArray[np.float64],
    window_ns: int,
) -> DenseTables | None:
    """What dense gradients of large tables take; ``None`` where none is made, or shapes were not recorded.

    A table that a matrix product reads as well is tied to the output layer, whose gradient is dense.

    Args:
        columns: the trace.
        math: ``(n_strings,)`` names of matrix products.
        issuing: when the host issued the steady steps.
        rows: ``(n,)`` the operator behind each piece of time, -1 for none.
        time_ns: ``(n,)`` how long it took.
        window_ns: of the steady steps.
    """
    asked = _looked_up(columns, issuing)
    if not asked:
        return None
    calls, member = distinct_calls(columns, rows)
    spent = np.bincount(member, weights=time_ns, minlength=len(calls)).tolist()
    held: dict[Shape, float] = defaultdict(float)
    backward: dict[Shape, float] = defaultdict(float)
    tied: set[Shape] = set()
    for index, name, passed in understood(columns, calls, member):
        shapes = [tensor.shape for tensor in passed.tensors if tensor]
        if name in _DENSE_BACKWARD and shapes:
            table = max((table for table in asked if table[1] == shapes[0][-1]), default=(0, 0))
            backward[table] += spent[index]
        elif math[calls[index, 0]]:
            tied |= {table for table in asked if table in shapes or table[::-1] in shapes}
        elif name not in _LOOKS_UP:
            for table in asked:
                held[table] += spent[index] * _part(passed, table)
    few = [table for table in asked if table in backward and table not in tied and asked[table] < _FEW_ROWS * table[0]]
    if not few:
        return None
    time = {table: backward[table] + held[table] for table in few}
    most = max(few, key=lambda table: time[table])
    return DenseTables(
        count=len(few),
        rows=most[0],
        width=most[1],
        looked_up=asked[most],
        share=sum(time.values()) / max(window_ns, 1),
        unused_share=sum((1.0 - asked[table] / table[0]) * time[table] for table in few) / max(window_ns, 1),
    )


def host_tables(columns: TraceColumns, math: npt.NDArray[np.bool_], window: Spans) -> DenseTables | None:
    """The same of a run without a device: operators take the time, each without those inside it."""
    rows = np.flatnonzero((columns.category == Category.CPU_OP) & covered(window, columns.ts_ns))
    return dense_tables(columns, math, window, rows, self_times(columns, rows).astype(np.float64), window.total_ns)


def _looked_up(columns: TraceColumns, issuing: Spans) -> dict[Shape, float]:
    """Shape of each table to the rows that a step looks up at most."""
    names = [at for at, text in enumerate(columns.strings) if text in _LOOKS_UP[:2]]
    chosen = np.isin(columns.name, names) & (columns.category == Category.CPU_OP) & covered(issuing, columns.ts_ns)
    calls, member = distinct_calls(columns, np.flatnonzero(chosen))
    often = np.bincount(member, minlength=len(calls))
    asked: dict[Shape, float] = defaultdict(float)
    for index, _, passed in understood(columns, calls, member):
        table, indices = (*passed.tensors, None, None)[:2]
        if table and indices and len(table.shape) == 2:
            asked[table.shape] += indices.elements * int(often[index]) / max(len(issuing), 1)
    return asked


def _part(passed: Arguments, table: Shape) -> float:
    """Share of a call's first argument, a tensor or a list of them, that has the shape of the table."""
    first = passed.tensors[0] if passed.tensors else None
    if first is not None:
        return float(first.shape == table)
    elements = passed.lists.get(0, 0)
    return table[0] * table[1] / elements if elements >= table[0] * table[1] else 0.0
