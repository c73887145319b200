"""What the wrapper around a model costs beside its collectives: DDP's reducer, DataParallel, gloo beside a device."""

import re

import numpy as np

from profilerkit.analysis.communication.log import CollectiveLog
from profilerkit.analysis.communication.wire import Engine, ReducerWork
from profilerkit.analysis.device.kernels import in_use, matching
from profilerkit.analysis.intervals import I64, Mask, Spans, covered, intersect, subtract, union
from profilerkit.analysis.steps.find import TraceSteps
from profilerkit.trace.columns import Category, TraceColumns

#: Events of DDP's reducer (torch 2.13, reducer.cpp).
_SEARCH = re.compile(r"^torch\.distributed\.ddp\.reducer::search_unused_parameters$")
_COPY_BACK = re.compile(r"^torch\.distributed\.ddp\.reducer::copy_bucket_to_grad$")
_FILL = re.compile(r"^torch::distributed::reducer::mul_out$")
#: torch/nn/parallel/data_parallel.py names its forward pass so, and moves parameters and batches by these functions.
_DATA_PARALLEL = re.compile(r"^DataParallel\.forward$")
_MOVES = re.compile(r"^(?:Broadcast|Scatter|Gather|ReduceAddCoalesced)(?:Backward)?$")
_GLOO = re.compile(r"^gloo:")
_OF_GLOO = "gloo"


def reducer_work(columns: TraceColumns, launches: I64, steps: TraceSteps, device: Mask | None) -> ReducerWork | None:
    """What DDP's reducer did in the judged steps beside reducing; ``None`` without an event of it.

    Args:
        columns: the trace.
        launches: ``(n_events,)`` launching runtime row of each device event, -1 for none.
        steps: of the trace.
        device: ``(n_events,)`` events of the judged device; ``None`` on a CPU-only trace.
    """
    window, issuing = steps.steady, steps.by_host.steady
    searches, copies, fills = (_judged(columns, name, issuing) for name in (_SEARCH, _COPY_BACK, _FILL))
    if not (len(searches) or len(copies) or len(fills)):
        return None
    count = max(len(window), 1)
    searching, copying, filling = (_spans(columns, rows) for rows in (searches, copies, fills))
    if device is not None:
        searching = subtract(searching, _spans(columns, np.flatnonzero(device)))
        copying, filling = (_spans(columns, _launched_in(columns, launches, rows, device)) for rows in (copies, fills))
    return ReducerWork(
        searches=len(searches) / count,
        search_ns=intersect(window, searching).total_ns / count,
        copies=len(copies) / count,
        copy_ns=intersect(window, copying).total_ns / count,
        fill_ns=intersect(window, filling).total_ns / count,
    )


def engine_of(columns: TraceColumns, log: CollectiveLog | None, window: Spans, compute: Spans) -> Engine | None:
    """DataParallel, or gloo that reduces for a device: what their transfers expose; ``None`` without either.

    Only for traces with device events.

    Args:
        columns: the trace.
        log: the collectives that ran on the device.
        window: the judged steps.
        compute: when the device computed.
    """
    count = max(len(window), 1)
    gloo = _judged(columns, _GLOO, window)
    if len(_judged(columns, _DATA_PARALLEL, window)):
        moves = _spans(columns, _judged(columns, _MOVES, window))
        own = union(log.start, log.end) if log is not None else moves
        spans = union(np.r_[moves.start, own.start], np.r_[moves.end, own.end])
        return Engine("DataParallel", subtract(intersect(window, spans), compute).total_ns / count)
    # Beside another back-end gloo moves what lies on the host.
    if len(gloo) and log is None and (columns.meta.backend or _OF_GLOO) == _OF_GLOO:
        return Engine("gloo", subtract(intersect(window, _spans(columns, gloo)), compute).total_ns / count)
    return None


def _judged(columns: TraceColumns, pattern: re.Pattern[str], window: Spans) -> I64:
    """Host events of a name that start in the judged steps."""
    named = matching(columns, in_use(columns), pattern)[columns.name]
    rows = np.flatnonzero(named & columns.is_a(Category.CPU_OP, Category.ANNOTATION))
    return rows[covered(window, columns.ts_ns[rows])]


def _spans(columns: TraceColumns, rows: I64) -> Spans:
    return union(columns.ts_ns[rows], columns.end_ns[rows])


def _launched_in(columns: TraceColumns, launches: I64, rows: I64, device: Mask) -> I64:
    """Device events whose launch lies in one of the host events ``rows``, on its thread."""
    linked = np.flatnonzero(device & (launches >= 0))
    calls = launches[linked]
    own = np.zeros(len(linked), dtype=np.bool_)
    for thread in np.unique(columns.thread[rows]).tolist():
        mine = np.flatnonzero(columns.thread[calls] == thread)
        spans = _spans(columns, rows[columns.thread[rows] == thread])
        own[mine] = covered(spans, columns.ts_ns[calls[mine]])
    return linked[own]
