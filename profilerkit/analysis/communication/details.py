"""What the collectives of one trace are made of: contention, the wrapper around the model, the backward passes."""

import re

import numpy as np

from profilerkit.analysis.communication.log import CollectiveLog
from profilerkit.analysis.communication.passes import accumulating, accumulation, alone_ns, backward_compute, passes_of
from profilerkit.analysis.communication.records import CollectiveWork, Contention, Engine, ReducerWork
from profilerkit.analysis.communication.table import TRANSFER_LEAVES, Split, second_gathers, traffic, transfers_of
from profilerkit.analysis.device.kernels import in_use, matching
from profilerkit.analysis.enclosing import launching_operators
from profilerkit.analysis.intervals import (
    EMPTY,
    I64,
    Mask,
    Spans,
    covered,
    index_at,
    intersect,
    subtract,
    time_within,
    union,
)
from profilerkit.analysis.partition import Partition
from profilerkit.analysis.parts import WAITS, leaf
from profilerkit.analysis.steps.find import TraceSteps
from profilerkit.analysis.trace_view import TraceView
from profilerkit.model.change import revise
from profilerkit.trace.columns import Category, TraceColumns, TraceMeta

#: Calls that a name with a shape needs alone, so that their median is no accident (a choice).
FEWEST_ALONE = 3
#: Share of a call beside a collective from which it counts as overlapped (a choice).
OVERLAPPED_RATIO = 0.5
#: Shorter kernels are all latency: beside a collective they wait for it, they do not share multiprocessors
#: and bandwidth with it (TraceLens' bound of a short kernel).
SHORTEST_NS = 10_000


def contention(
    columns: TraceColumns, launches: I64, kernels: I64, window: Spans, transfers: Spans
) -> Contention | None:
    """How long kernels take beside ``transfers`` and alone; ``None`` where none with shapes was seen in both places.

    Args:
        columns: the trace.
        launches: ``(n_events,)`` launching runtime row of each device event, -1 for none.
        kernels: rows of the kernels that compute, of the judged steps.
        window: the judged steps.
        transfers: when collectives ran.
    """
    beside = time_within(transfers, columns.ts_ns[kernels], columns.end_ns[kernels])
    beside_ns = int(columns.dur_ns[kernels[beside >= OVERLAPPED_RATIO * columns.dur_ns[kernels]]].sum())
    kernels = kernels[columns.dur_ns[kernels] >= SHORTEST_NS]
    operators = launching_operators(columns, launches, kernels)
    shape = np.where(operators >= 0, columns.input_dims[operators], -1)
    kernels, shape = kernels[shape >= 0], shape[shape >= 0]
    if not len(kernels) or not len(transfers):
        return None
    start, end = columns.ts_ns[kernels], columns.end_ns[kernels]
    beside = time_within(transfers, start, end)
    length = end - start
    which = np.unique(columns.name[kernels] * np.int64(shape.max() + 1) + shape, return_inverse=True)[1]
    order = np.argsort(which, kind="stable")
    edges = np.cumsum(np.bincount(which))[:-1]
    groups, compared, usual_ns, taken_ns = 0, 0, 0.0, 0.0
    for own in np.split(order, edges):
        alone, shared = length[own[beside[own] == 0]], length[own[beside[own] >= OVERLAPPED_RATIO * length[own]]]
        if len(alone) < FEWEST_ALONE or not len(shared):
            continue
        groups, compared = groups + 1, compared + len(shared)
        usual_ns += len(shared) * float(np.median(alone))
        taken_ns += float(shared.sum())
    if not groups:
        return None
    count = max(len(window), 1)
    return Contention(groups, compared, usual_ns / count, max(taken_ns - usual_ns, 0.0) / count, beside_ns / count)


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


#: Up to this size a collective takes as long as an empty one (the latency floor was measured with half of it).
TINY_BYTES = 64_000
#: A longer pause between two collectives is more than calling the next one (a choice).
LONGEST_CALL_NS = 1_000_000


def collective_work_of(view: TraceView, log: CollectiveLog | None) -> CollectiveWork:
    """What the communication in the steady steps is made of, from the trace's collectives."""
    columns, launches, steps, parts = view.columns, view.launches, view.steps, view.parts
    communicates, device = view.kinds.communication, view.device_rows
    window = steps.steady
    working = columns.is_a(Category.CPU_OP) if device is None else device & (columns.category == Category.KERNEL)
    work = working & ~communicates[columns.name]
    compute = union(columns.ts_ns[work], columns.end_ns[work])
    collective_work = CollectiveWork(
        step_ns=window.total_ns / max(len(window), 1),
        reducer=reducer_work(columns, launches, steps, device),
        engine=engine_of(columns, log, window, compute) if device is not None else None,
    )
    if log is None or not covered(window, log.start).any():
        return collective_work
    transfers = union(log.start, log.end)
    backward = backward_compute(columns, launches, work, on_device=device is not None)
    passes, groups = passes_of(columns, steps.by_host.steady), None
    if passes.count == 1 and (found := accumulating(columns, steps.by_host.steady, window)) is not None:
        passes, groups = passes_of(columns, found[0]), found[1]
    split = Split.unknown(len(log))
    judged = np.flatnonzero(work & covered(window, columns.ts_ns))
    collective_work = revise(
        collective_work,
        backward_alone_ns=None if backward is None else alone_ns(backward, window, transfers),
        passes=passes.count,
        before_backward_ratio=passes.before,
        accumulation=accumulation(log, window, _exposed(parts, window), split, passes.count, passes.reductions, groups),
        contention=contention(columns, launches, judged, window, transfers) if device is not None else None,
        burst_ns=burst_ns(log, window, compute),
    )
    return _with_traffic(collective_work, log, window, parts, split, columns.meta)


def divided_work(
    collective_work: CollectiveWork,
    log: CollectiveLog,
    window: Spans,
    parts: Partition,
    split: Split,
    meta: TraceMeta,
    floor_ns: int,
) -> CollectiveWork:
    """The same with waiting for other ranks left out of the transfers.

    Args:
        collective_work: of the trace alone.
        log: its collectives.
        window: the judged steps.
        parts: the partition with waiting and transfer told apart.
        split: how each collective divides.
        meta: what the trace says of its process groups.
        floor_ns: how long a transfer of next to nothing takes in this run.
    """
    known = collective_work.accumulation
    if known is not None:
        exposed = _exposed(parts, window)
        known = accumulation(log, window, exposed, split, known.passes, known.reductions, known.groups)
    collective_work = revise(collective_work, accumulation=known, floor_ns=floor_ns)
    return _with_traffic(collective_work, log, window, parts, split, meta)


def _exposed(parts: Partition, window: Spans) -> Spans:
    return intersect(window, parts.segments.only(*TRANSFER_LEAVES))


def _with_traffic(
    collective_work: CollectiveWork, log: CollectiveLog, window: Spans, parts: Partition, split: Split, meta: TraceMeta
) -> CollectiveWork:
    exposed, count = _exposed(parts, window), max(len(window), 1)
    start, end = transfers_of(log, split)
    judged = covered(window, log.start)
    moving = intersect(window, union(start[judged], end[judged])) if judged.any() else EMPTY
    # What ended before anybody waited for it has time to spare: only the others are waited for longer.
    awaited = judged & covered(exposed, end - 1)
    waits = parts.segments.only(*(leaf(name) for name in WAITS)) if log.on_host else EMPTY
    gathered_ns, gathered_exposed_ns = second_gathers(log, window, exposed, split)
    return revise(
        collective_work,
        second_gathers_ns=gathered_ns,
        second_gathers_exposed_ns=gathered_exposed_ns,
        traffic=traffic(log, window, exposed, split, meta.groups),
        exposed_ns=exposed.total_ns / count,
        transfer_ns=moving.total_ns / count,
        under_input_ns=intersect(union(start[awaited], end[awaited]), waits).total_ns / count,
    )


def burst_ns(log: CollectiveLog, window: Spans, working: Spans) -> float:
    """Time of bursts of tiny collectives beyond the first of each, ns per judged step: what joining them would save.

    The calls between them count, and the waits for the other ranks at each; what computes beside them does not, nor the
    first one of each burst, at which a late rank is waited for however many follow. 0 where collectives run on a
    device, which starts the next one while the host goes on.

    Args:
        log: the collectives of the trace.
        window: the judged steps.
        working: when operators that are no collectives run.
    """
    if not log.on_host or not len(window):
        return 0.0
    tiny = (log.bytes >= 0) & (log.bytes <= TINY_BYTES) & log.joint & covered(window, log.start)
    step = index_at(window, log.start)
    soon = (step[1:] == step[:-1]) & (log.start[1:] - log.end[:-1] < LONGEST_CALL_NS)
    follows = tiny[1:] & tiny[:-1] & soon
    edges = np.flatnonzero(np.diff(np.r_[False, follows, False].astype(np.int8)))
    first, last = edges[::2], edges[1::2]
    if not len(first):
        return 0.0
    spans = intersect(window, union(log.start[first], log.end[last]))
    kept = intersect(window, union(log.start[first], log.end[first]))
    return subtract(subtract(spans, kept), working).total_ns / len(window)
