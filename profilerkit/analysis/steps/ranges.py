"""Steps by the program's own ranges, or by operators that repeat, where no profiler and no optimizer marks any."""

import re

import numpy as np

from profilerkit.analysis.device.kernels import device_rows
from profilerkit.analysis.device.launches import launching_rows
from profilerkit.analysis.host.backward import backward_nodes
from profilerkit.analysis.host.names import main_thread
from profilerkit.analysis.intervals import I64
from profilerkit.analysis.steps.optimizer_marks import optimizer_rows
from profilerkit.trace.columns import Category, TraceColumns
from profilerkit.trace.step_ranges import Ranges, StepRanges, each_holds, step_ranges

#: Ranges of torch and its libraries, as they write them.
_LIBRARY = re.compile(
    r"^(?:ProfilerStep#|Optimizer\.|enumerate\(|profilerkit|PyTorch Profiler|nccl:|gloo:|c10d::|autograd::|aten::"
    r"|DistributedDataParallel|FSDP|FullySharded|Torch-Compiled|## Call |TorchDynamo|CompiledFunction|cuda|hip)"
)
#: Turns of operators that are steps, with and without a backward pass in each: layers of one call also repeat, but few
#: models are as many alike with nothing before them and nothing behind (a choice).
_FEWEST_TURNS = (3, 8)


def repeated_ranges(columns: TraceColumns) -> tuple[StepRanges, I64, I64] | None:
    """The repeated ranges that mark steps, with their starts and ends; ``None`` where none do.

    Ranges in turn within another that comes once may be the layers of one call: they count only where each turn runs
    a backward pass.
    """
    rows = _own(columns)
    start, end = columns.ts_ns[rows], columns.end_ns[rows]
    name, thread = columns.name[rows].astype(np.int64), columns.thread[rows].astype(np.int64)
    ranges = Ranges(columns.strings, name, start, end, thread, own=np.ones(len(rows), dtype=np.bool_))
    passes = np.sort(columns.ts_ns[backward_nodes(columns)])
    found = step_ranges(ranges, _issuing(columns), passes) if len(rows) else None
    if found is None or len(found.rows) < 2:
        return None
    at, until = start[found.rows], end[found.rows]
    if ((start < at.min()) & (end >= until.max())).any() and not each_holds(passes, at):
        return None
    return found, at, until


def single_range(columns: TraceColumns) -> int | None:
    """The row of the innermost range with all of forward, backward and the optimizer step; ``None`` without one."""
    rows = _own(columns)
    optimizer = optimizer_rows(columns)
    backward = columns.ts_ns[backward_nodes(columns)]
    operators = columns.ts_ns[(columns.category == Category.CPU_OP) & (columns.thread == main_thread(columns))]
    if not len(optimizer) or not len(backward) or not len(operators):
        return None
    start, end = columns.ts_ns[rows], columns.end_ns[rows]
    holds = (start <= backward.min()) & (end >= columns.end_ns[optimizer].max())
    holds &= np.searchsorted(np.sort(operators), start) < np.searchsorted(np.sort(operators), backward.min())
    rows = rows[holds]
    return int(rows[columns.dur_ns[rows].argmin()]) if len(rows) else None


def repeated_operators(columns: TraceColumns) -> tuple[I64, I64] | None:
    """Start and end of each turn of the main thread's outermost operators, where they repeat from first to last.

    ``None`` where they do not, and where all are of one name.
    """
    rows = np.flatnonzero((columns.category == Category.CPU_OP) & (columns.thread == main_thread(columns)))
    rows = rows[np.lexsort((-columns.dur_ns[rows], columns.ts_ns[rows]))]
    reached = np.maximum.accumulate(np.r_[0, columns.end_ns[rows]])[:-1]
    rows = rows[columns.ts_ns[rows] >= reached]
    name, count = columns.name[rows], len(rows)
    turns = (size for size in range(2, count // min(_FEWEST_TURNS) + 1) if count % size == 0)
    size = next((size for size in turns if (name[size:] == name[:-size]).all()), None)
    if size is None or (name == name[0]).all():
        return None
    start = columns.ts_ns[rows[::size]]
    trains = each_holds(np.sort(columns.ts_ns[backward_nodes(columns)]), start)
    return (start, np.r_[start[1:], columns.end_ns[rows[-1]]]) if len(start) >= _FEWEST_TURNS[not trains] else None


def _own(columns: TraceColumns) -> I64:
    """Ranges of the main thread that the program named itself, by their start."""
    own = np.array([_LIBRARY.match(text) is None for text in columns.strings], dtype=np.bool_)
    mine = (columns.category == Category.ANNOTATION) & own[columns.name] & (columns.thread == main_thread(columns))
    rows: I64 = np.flatnonzero(mine)
    return rows[np.argsort(columns.ts_ns[rows], kind="stable")]


def _issuing(columns: TraceColumns) -> I64:
    """Sorted starts of what issues work: launches, or without a device operators."""
    rows = launching_rows(columns)
    if not device_rows(columns).any():
        rows = np.flatnonzero(columns.category == Category.CPU_OP)
    return np.sort(columns.ts_ns[rows])
