"""Which optimizer steps of a trace end a training step."""

import re

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.device.kernels import in_use, matching
from profilerkit.analysis.host.backward import backward_nodes
from profilerkit.analysis.host.phases import phase_rows
from profilerkit.analysis.intervals import I64
from profilerkit.trace.columns import Category, TraceColumns, kept

_STEP = re.compile(r"^Optimizer\.step#")
_CLASS = re.compile(r"^Optimizer\.step#([^.]{1,60})")
#: What torch's optimizers call, from the way of going over the tensors that they then have.
STYLES = (("fused", "aten::_fused_"), ("foreach", "aten::_foreach_"), ("single", "aten::"))


@kept
def optimizer_rows(columns: TraceColumns) -> I64:
    """The optimizer steps, each once however often it was written, by their end.

    Where torch marks none they are the ranges that the program named for it.
    """
    rows = _marks_of_torch(columns)
    rows = rows if len(rows) else phase_rows(columns, "optimizer")
    rows = rows[np.lexsort((columns.name[rows], columns.ts_ns[rows], columns.end_ns[rows]))]
    keys = np.stack([columns.end_ns[rows], columns.ts_ns[rows], columns.name[rows].astype(np.int64)])
    return rows[np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)]] if len(rows) else rows


def without_closures(columns: TraceColumns, rows: I64, nodes: I64) -> I64:
    """Return the optimizer steps that run no backward pass inside; ``nodes`` are rows of the pass."""
    passes = np.sort(columns.ts_ns[nodes])
    inside = np.searchsorted(passes, columns.end_ns[rows]) > np.searchsorted(passes, columns.ts_ns[rows])
    out: I64 = rows[~inside]
    return out


def largest_class(columns: TraceColumns, rows: I64, time_ns: I64 | npt.NDArray[np.float64]) -> tuple[int, str]:
    """Return the name with most of ``time_ns``, one for each of ``rows``, and its optimizer's class; empty without."""
    name = int(np.bincount(columns.name[rows], weights=time_ns).argmax())
    found = _CLASS.match(columns.strings[name])
    return name, found.group(1) if found else ""


def marked_by_torch(columns: TraceColumns) -> bool:
    """Whether torch marks any optimizer step of a trace."""
    return len(_marks_of_torch(columns)) > 0


def _marks_of_torch(columns: TraceColumns) -> I64:
    marks = matching(columns, in_use(columns), _STEP)
    return np.flatnonzero((columns.category == Category.ANNOTATION) & marks[columns.name])


def step_marks(columns: TraceColumns, fetches: I64) -> I64:
    """Ends of the optimizer steps that end a training step, sorted, ns.

    Several optimizers, also of one class, step once per training step each: an optimizer step belongs to the next one
    when no backward pass lies between them, or no fetch although the same number of optimizer steps follows every
    fetch. Without backward passes and fetches to go by, the names tell: of optimizers that step equally often the one
    that steps last in each round counts.

    Args:
        columns: the trace.
        fetches: starts of the loader's fetches, sorted.
    """
    rows = optimizer_rows(columns)
    passes = np.sort(columns.ts_ns[backward_nodes(columns)])
    ends = columns.end_ns[rows]
    if len(passes):
        last = np.r_[_any_between(passes, ends), True] if len(ends) else np.zeros(0, dtype=bool)
        rows, ends = rows[last], ends[last]
    if _even(ends, fetches):
        last = np.r_[_any_between(fetches, ends), True]
        rows, ends = rows[last], ends[last]
    return np.unique(columns.end_ns[_last_of_cycle(columns, rows)])


def _any_between(instants: I64, ends: I64) -> npt.NDArray[np.bool_]:
    """``(n - 1,)`` whether any instant lies between each end and the next."""
    before = np.searchsorted(instants, ends)
    return before[1:] > before[:-1]


def _even(ends: I64, fetches: I64) -> bool:
    """Whether every fetch but the first and the last is followed by the same number of ends, more than one."""
    counts = np.diff(np.searchsorted(ends, fetches, side="right"))
    return len(counts) >= 2 and counts[0] > 1 and bool((counts == counts[0]).all())


def _last_of_cycle(columns: TraceColumns, rows: I64) -> I64:
    """Of several optimizers that step equally often, the marks of the one that steps last in each round."""
    names, counts = np.unique(columns.name[rows], return_counts=True)
    if len(names) < 2 or (counts != counts[0]).any():
        return rows
    latest = columns.name[rows[columns.ts_ns[rows].argmax()]]
    chosen: I64 = rows[columns.name[rows] == latest]
    return chosen
