"""One trace to what its collectives are made of, and again once the ranks are matched."""

import numpy as np

from profilerkit.analysis.communication.contention import contention
from profilerkit.analysis.communication.engine import engine_of, reducer_work
from profilerkit.analysis.communication.log import CollectiveLog
from profilerkit.analysis.communication.passes import accumulating, accumulation, alone_ns, backward_compute, passes_of
from profilerkit.analysis.communication.table import TRANSFER_LEAVES, Split, second_gathers, traffic, transfers_of
from profilerkit.analysis.communication.wire import Wire
from profilerkit.analysis.intervals import EMPTY, I64, Mask, Spans, covered, index_at, intersect, subtract, union
from profilerkit.analysis.leaves import WAITS, leaf
from profilerkit.analysis.partition import Partition
from profilerkit.analysis.steps.find import TraceSteps
from profilerkit.model.change import revise
from profilerkit.trace.columns import Category, TraceColumns, TraceMeta

#: Up to this size a collective takes as long as an empty one (the latency floor was measured with half of it).
TINY_BYTES = 64_000
#: A longer pause between two collectives is more than calling the next one (a choice).
LONGEST_CALL_NS = 1_000_000


def wire_facts(
    columns: TraceColumns,
    communicates: Mask,
    launches: I64,
    steps: TraceSteps,
    log: CollectiveLog | None,
    parts: Partition,
    *,
    device: Mask | None,
) -> Wire:
    """What the communication in the steady steps is made of; arguments as of ``comm_facts``.

    Args:
        columns: the trace.
        communicates: ``(n_strings,)`` names of communication.
        launches: ``(n_events,)`` launching runtime row of each device event, -1 for none.
        steps: of the trace.
        log: the trace's collectives.
        parts: the partition, which says when communication was exposed.
        device: ``(n_events,)`` events of the judged device; ``None`` on a CPU-only trace.
    """
    window = steps.steady
    working = columns.is_a(Category.CPU_OP) if device is None else device & (columns.category == Category.KERNEL)
    work = working & ~communicates[columns.name]
    compute = union(columns.ts_ns[work], columns.end_ns[work])
    wire = Wire(
        step_ns=window.total_ns / max(len(window), 1),
        reducer=reducer_work(columns, launches, steps, device),
        engine=engine_of(columns, log, window, compute) if device is not None else None,
    )
    if log is None or not covered(window, log.start).any():
        return wire
    transfers = union(log.start, log.end)
    backward = backward_compute(columns, launches, work, on_device=device is not None)
    passes, groups = passes_of(columns, steps.by_host.steady), None
    if passes.count == 1 and (found := accumulating(columns, steps.by_host.steady, window)) is not None:
        passes, groups = passes_of(columns, found[0]), found[1]
    split = Split.unknown(len(log))
    judged = np.flatnonzero(work & covered(window, columns.ts_ns))
    wire = revise(
        wire,
        backward_alone_ns=None if backward is None else alone_ns(backward, window, transfers),
        passes=passes.count,
        before_backward_ratio=passes.before,
        accumulation=accumulation(log, window, _exposed(parts, window), split, passes.count, passes.reductions, groups),
        contention=contention(columns, launches, judged, window, transfers) if device is not None else None,
        burst_ns=burst_ns(log, window, compute),
    )
    return _with_traffic(wire, log, window, parts, split, columns.meta)


def divided_wire(
    wire: Wire, log: CollectiveLog, window: Spans, parts: Partition, split: Split, meta: TraceMeta, floor_ns: int
) -> Wire:
    """The same with waiting for other ranks left out of the transfers.

    Args:
        wire: of the trace alone.
        log: its collectives.
        window: the judged steps.
        parts: the partition with waiting and transfer told apart.
        split: how each collective divides.
        meta: what the trace says of its process groups.
        floor_ns: how long a transfer of next to nothing takes in this run.
    """
    known = wire.accumulation
    if known is not None:
        exposed = _exposed(parts, window)
        known = accumulation(log, window, exposed, split, known.passes, known.reductions, known.groups)
    wire = revise(wire, accumulation=known, floor_ns=floor_ns)
    return _with_traffic(wire, log, window, parts, split, meta)


def _exposed(parts: Partition, window: Spans) -> Spans:
    return intersect(window, parts.segments.only(*TRANSFER_LEAVES))


def _with_traffic(
    wire: Wire, log: CollectiveLog, window: Spans, parts: Partition, split: Split, meta: TraceMeta
) -> Wire:
    exposed, count = _exposed(parts, window), max(len(window), 1)
    start, end = transfers_of(log, split)
    judged = covered(window, log.start)
    moving = intersect(window, union(start[judged], end[judged])) if judged.any() else EMPTY
    # What ended before anybody waited for it has time to spare: only the others are waited for longer.
    awaited = judged & covered(exposed, end - 1)
    waits = parts.segments.only(*(leaf(name) for name in WAITS)) if log.on_host else EMPTY
    gathered_ns, gathered_exposed_ns = second_gathers(log, window, exposed, split)
    return revise(
        wire,
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
