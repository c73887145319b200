"""Gradients that are filled with zeros, and what is kept on the host or made again to save a device's memory."""

import re

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.device.copies import TO_DEVICE, TO_HOST, directions
from profilerkit.analysis.device.kernels import in_use, matching
from profilerkit.analysis.enclosing import ThreadLine
from profilerkit.analysis.intervals import EMPTY, I64, Mask, Spans, covered, index_at, intersect, subtract, union
from profilerkit.analysis.memory.use import Offload, ZeroedGradients
from profilerkit.analysis.steps.find import TraceSteps, in_step
from profilerkit.analysis.steps.phases import reruns
from profilerkit.analysis.trace_view import TraceView
from profilerkit.trace.columns import Category, TraceColumns

#: The optimizer's own annotation, and the frame of a module's method, which has none.
_CLEARS = re.compile(r"^Optimizer\.zero_grad#|\.py\(\d+\): zero_grad$")
_FILLS = re.compile(r"^aten::(?:zero_|_foreach_zero_)$")
_FILLS_MANY = re.compile(r"^aten::_foreach_zero_$")
_ACCUMULATES = re.compile(r"^torch::autograd::AccumulateGrad$")
_ADDS = re.compile(r"^aten::add_$")


def zeroed_gradients(view: TraceView) -> ZeroedGradients | None:
    """What filling the gradients costs in the steady steps; ``None`` where no call clears any there.

    With torch 2.13 dropped gradients leave a call without operators, and backward keeps the first gradient of each
    parameter instead of adding it: both kinds of operators are gone.
    """
    columns, launches, steps, busy, device = view.columns, view.launches, view.steps, view.busy, view.device_rows
    line, window = ThreadLine.of(columns), steps.steady
    if line is None or not len(window):
        return None
    used = in_use(columns)
    inside = covered(steps.by_host.steady, columns.ts_ns)

    def named(pattern: re.Pattern[str], *categories: Category) -> I64:
        rows: I64 = np.flatnonzero(inside & matching(columns, used, pattern)[columns.name] & columns.is_a(*categories))
        return rows

    calls = named(_CLEARS, Category.ANNOTATION, Category.PYTHON)
    if not len(calls):
        return None
    fills = _within(columns, line, named(_FILLS, Category.CPU_OP), calls)
    adds = _within(columns, line, named(_ADDS, Category.CPU_OP), named(_ACCUMULATES, Category.CPU_OP))
    fills = fills[~_nested(columns, line, fills)]
    adds = adds[~_nested(columns, line, adds)]
    length = max(window.total_ns, 1)
    each = not matching(columns, used, _FILLS_MANY)[columns.name[fills]].any()
    filling = _work(columns, line, launches, device, fills, window, busy)
    adding = subtract(_work(columns, line, launches, device, adds, window, busy), filling)
    return ZeroedGradients(
        per_step=len(fills) / len(window),
        share=filling.total_ns / length,
        added_share=adding.total_ns / length,
        spared_ratio=min(len(fills) / len(adds), 1.0) if each and len(adds) else None,
    )


def _within(columns: TraceColumns, line: ThreadLine, rows: I64, around: I64) -> I64:
    """Those of ``rows`` that start within one of ``around`` on its thread."""
    if not len(rows) or not len(around):
        return rows[:0]
    return rows[covered(line.spans(columns, around), line.extents(columns, rows)[0])]


def _nested(columns: TraceColumns, line: ThreadLine, rows: I64) -> Mask:
    """``(n,)`` which of ``rows`` lie in another of them."""
    start, end = line.extents(columns, rows)
    order = np.lexsort((-end, start))
    out = np.zeros(len(rows), dtype=np.bool_)
    out[order[1:]] = end[order[1:]] <= np.maximum.accumulate(end[order])[:-1]
    return out


def _work(
    columns: TraceColumns,
    line: ThreadLine,
    launches: I64,
    device: Mask | None,
    operators: I64,
    window: Spans,
    busy: Spans,
) -> Spans:
    """When the operators run; with a device, when what they launched runs, or nothing while they are issued."""
    if not len(operators):
        return EMPTY
    issuing = intersect(union(columns.ts_ns[operators], columns.end_ns[operators]), window)
    if device is None:
        return issuing
    rows = np.flatnonzero(device & (launches >= 0))
    call = launches[rows]
    mine = rows[covered(line.spans(columns, operators), line.place(columns.thread[call], columns.ts_ns[call]))]
    ran, idle = union(columns.ts_ns[mine], columns.end_ns[mine]), subtract(issuing, busy)
    return intersect(union(np.r_[ran.start, idle.start], np.r_[ran.end, idle.end]), window)


def offloaded(columns: TraceColumns, rows: I64, count: int) -> Offload | None:
    """The offload copies ``rows`` of the steady window, per step of ``count``; ``None`` without any.

    Copies of unknown size count as empty.
    """
    if not len(rows):
        return None
    direction, size = directions(columns, rows), np.maximum(columns.bytes[rows], 0)
    pageable = np.array(["pageable" in columns.strings[name].lower() for name in columns.name[rows].tolist()])
    total = int(size.sum())
    return Offload(
        to_device_bytes=int(size[direction == TO_DEVICE].sum()) / count,
        to_host_bytes=int(size[direction == TO_HOST].sum()) / count,
        pageable_ratio=int(size[pageable].sum()) / total if total else float(pageable.mean()),
    )


def recomputed_bytes(columns: TraceColumns, steps: TraceSteps, on_device: npt.NDArray[np.bool_]) -> int | None:
    """Bytes that the recomputed forward code of a steady step leaves allocated, all its stretches together, mean.

    Backward frees them again before the next stretch is recomputed, so that they are never alive at once. ``None``
    without memory instants.

    Args:
        columns: the trace.
        steps: its steps.
        on_device: ``(n_instants,)`` which memory instants are those of the judged memory.
    """
    instants = columns.memory
    step = in_step(instants.ts_ns, steps.start, steps.end)
    judged = on_device & (step >= 0)
    judged[judged] = steps.judged[step[judged]]
    if not judged.any():
        return None
    found = reruns(columns)
    if found is None or not len(found[1]):
        return 0
    line, again = found
    place = line.place(instants.thread[judged], instants.ts_ns[judged])
    inside = covered(again, place)
    left = np.zeros(len(again), dtype=np.int64)
    np.add.at(left, index_at(again, place[inside]), instants.bytes[judged][inside])
    return int(np.maximum(left, 0).sum()) // max(len(steps.steady), 1)
