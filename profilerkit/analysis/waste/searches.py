"""Operators that try several algorithms and time each, as cuDNN's and MIOpen's benchmark modes do."""

import re

import numpy as np

from profilerkit.analysis.device.kernels import in_use, matching
from profilerkit.analysis.enclosing import innermost_at
from profilerkit.analysis.intervals import I64, index_at, intersect, union
from profilerkit.analysis.kernel_losses.records import Searches
from profilerkit.analysis.waste.judged import Judged
from profilerkit.trace.columns import Category

#: cuDNN's search waits for the whole device before it begins and after the warm-up of each trial, then for the event
#: behind the trial. Older releases of Kineto leave waits for events out. No operator of a model waits for its own
#: kernels, so two trials are no accident.
_WAITS_FOR_EVENT = re.compile(r"^(?:cuda|hip)EventSynchronize|^cuEventSynchronize")
_WAITS_FOR_DEVICE = re.compile(r"^(?:cuda|hip)DeviceSynchronize|^cuCtxSynchronize")
FEWEST_TRIALS = 2


def searches(work: Judged) -> Searches | None:
    """The searches of the steady window; ``None`` where no operator waits for kernels of its own."""
    columns = work.columns
    rows, trials = _trials(work)
    step = index_at(work.issuing, columns.ts_ns[rows])
    computes = np.isin(rows, work.operator[work.kinds.math[work.name]])
    kept = computes & (trials >= FEWEST_TRIALS) & (step >= 0)
    rows, trials, step = rows[kept], trials[kept], step[kept]
    if not len(rows):
        return None
    tried = work.rows[np.isin(work.operator, rows)]
    both: I64 = np.r_[rows, tried]
    took = intersect(work.window, union(columns.ts_ns[both], columns.end_ns[both]))
    shapes = np.unique(np.stack([columns.name[rows], columns.input_dims[rows]]), axis=1)
    most = np.bincount(columns.name[rows], weights=columns.dur_ns[rows])
    return Searches(
        share=took.total_ns / max(work.window.total_ns, 1),
        per_step=len(rows) / work.steps,
        steps=len(np.unique(step)),
        trials=float(trials.mean()),
        shapes=shapes.shape[1] if (columns.input_dims[rows] >= 0).all() else None,
        operator=columns.strings[int(most.argmax())],
    )


def _trials(work: Judged) -> tuple[I64, I64]:
    """Operators that wait for events or the device themselves, and how many trials these waits stand for."""
    columns, used = work.columns, in_use(work.columns)
    events, devices = (matching(columns, used, pattern) for pattern in (_WAITS_FOR_EVENT, _WAITS_FOR_DEVICE))
    calls = np.flatnonzero((columns.category == Category.RUNTIME) & (events | devices)[columns.name])
    operators = np.flatnonzero(columns.category == Category.CPU_OP)
    around = innermost_at(columns, operators, columns.thread[calls], columns.ts_ns[calls])
    calls, around = calls[around >= 0], around[around >= 0]
    rows, member = np.unique(around, return_inverse=True)
    waits = [np.bincount(member[kind[columns.name[calls]]], minlength=len(rows)) for kind in (events, devices)]
    return rows, np.maximum(waits[0], waits[1] - 1)
