"""What the collectives of one trace are made of: contention, the wrapper around the model, the backward passes."""

import re

import msgspec
import numpy as np

from profilerkit.analysis.communication.log import CollectiveLog
from profilerkit.analysis.communication.table import (
    TRANSFER_LEAVES,
    Accumulation,
    CollectiveWork,
    Contention,
    Engine,
    ReducerWork,
    Split,
    second_gathers_ns,
    traffic,
    transfers_of,
)
from profilerkit.analysis.device.kernels import named
from profilerkit.analysis.device.roofline import Roofline
from profilerkit.analysis.enclosing import innermost_at
from profilerkit.analysis.host.names import main_thread
from profilerkit.analysis.intervals import EMPTY, Spans, covered, index_at, intersect, subtract, time_within, union
from profilerkit.analysis.partition import Partition, TraceView
from profilerkit.analysis.steps.find import TraceSteps
from profilerkit.analysis.steps.phases import NODE, backward_nodes, nodes_of, optimizer_rows
from profilerkit.model import revise
from profilerkit.model.step import WAITS, leaf
from profilerkit.trace.columns import I64, Bools, Category, TraceColumns, TraceMeta

#: The operators that start the reduction of gradients; older traces have only annotations.
_REDUCES = re.compile(r"^c10d::_?(?:all_?reduce|reduce_?scatter)")
_REDUCES_OF_OLD = re.compile(r"^(?:nccl|gloo):_?(?:all_?reduce|reduce_?scatter)")
REDUCTIONS = ("all_reduce", "reduce_scatter")  #: what reduces gradients
_FEWEST_OPERATORS = 2  #: operators of the forward pass between two backward passes; fewer are a hook's


def backward_compute(columns: TraceColumns, launches: I64, work: Bools, *, on_device: bool) -> Spans | None:
    """When the backward passes compute; ``None`` where the trace shows no backward pass."""
    nodes = backward_nodes(columns)
    if not len(nodes):
        return None
    if not on_device:
        return intersect(_spans(columns, nodes), _spans(columns, work & ~named(columns, NODE, Category.CPU_OP)))
    kernels = np.flatnonzero(work)
    kernels = kernels[nodes_of(columns, launches[kernels]) >= 0]
    return _spans(columns, kernels)


class Passes(msgspec.Struct, frozen=True):
    """The backward passes of the judged steps, by what the host issued."""

    count: int | None  #: in the median step; ``None`` where none shows
    reductions: int  #: started in each of several passes; 0 where these are not equally many
    #: Share of all reductions that were started before the first pass of their step: no gradient is in them.
    before: float


def passes_of(columns: TraceColumns, window: Spans) -> Passes:
    """Find the backward passes in ``window``.

    A pass ends where operators outside of it follow, before the next begins: those of the next forward pass. An
    optimizer that steps between two passes makes them training of their own, as of two models: their number is known,
    and no reduction is said to be repeated.
    """
    nodes = backward_nodes(columns)
    if not len(nodes) or not len(window):
        return Passes(None, 0, 0.0)
    backward = _spans(columns, nodes)
    if not len(backward):  # nodes without length
        return Passes(None, 0, 0.0)
    # A pass begins at a node that operators outside of all nodes come before; threads that load data run them anytime.
    outside = (columns.category == Category.CPU_OP) & (columns.thread == main_thread(columns))
    at = np.sort(columns.ts_ns[outside])
    operators = np.searchsorted(at[~covered(backward, at)], backward.start)
    starts = backward.start[np.r_[True, np.diff(operators) >= _FEWEST_OPERATORS]]
    step = index_at(window, starts)
    per_step = np.bincount(step[step >= 0], minlength=len(window))
    passes = int(np.median(per_step))
    reduced = named(columns, _REDUCES, Category.CPU_OP)
    if not reduced.any():
        reduced = named(columns, _REDUCES_OF_OLD, Category.ANNOTATION)
    at = np.sort(columns.ts_ns[reduced])
    first, last = np.full(len(window), np.iinfo(np.int64).max), np.full(len(window), -1)
    np.minimum.at(first, step[step >= 0], starts[step >= 0])
    np.maximum.at(last, step[step >= 0], starts[step >= 0])
    own = index_at(window, at)
    before = float((at[own >= 0] < first[own[own >= 0]]).mean()) if (own >= 0).any() else 0.0
    stepped = columns.ts_ns[optimizer_rows(columns)]
    own = index_at(window, stepped)
    if passes < 2 or not len(at) or (stepped[own >= 0] < last[own[own >= 0]]).any():
        return Passes(passes or None, 0, before)
    ends = np.where(step >= 0, np.minimum(np.r_[starts[1:], window.end[-1]], window.end[step]), starts)
    issued = (np.searchsorted(at, ends) - np.searchsorted(at, starts))[step >= 0]
    equal = len(issued) > 0 and bool((issued == issued[0]).all())
    return Passes(passes, int(issued[0]) if equal else 0, before)


def accumulating(columns: TraceColumns, host: Spans, window: Spans) -> tuple[Spans, Spans] | None:
    """Whole optimizer steps of several steps each, by the host's and by the device's clock.

    A loop that ends a step with each micro-batch steps its optimizer in one of several. ``None`` where an optimizer
    steps in each step, in none, or where no group is whole.
    """
    stepped = index_at(host, columns.ts_ns[optimizer_rows(columns)])
    last = np.unique(stepped[stepped >= 0])
    if len(last) < 2 or len(host) != len(window) or (np.diff(last) < 2).any():
        return None
    first, last = last[:-1] + 1, last[1:]
    whole = host.start[first] >= 0
    for begin, end, at in zip(first.tolist(), last.tolist(), range(len(first)), strict=True):
        whole[at] = bool((host.start[begin + 1 : end + 1] == host.end[begin:end]).all())
    if not whole.any():
        return None
    first, last = first[whole], last[whole]
    return Spans(host.start[first], host.end[last]), Spans(window.start[first], window.end[last])


def accumulation(
    log: CollectiveLog, window: Spans, exposed: Spans, split: Split, found: Passes, groups: Spans | None
) -> Accumulation | None:
    """The reductions that each of several passes repeats; ``None`` where they are not the same in each.

    Each step's reductions fall in order into as many pieces as there are passes, of the same sizes piece by piece.
    Times are those of a step; ``groups`` are the optimizer steps where each has a step for each of its passes.
    """
    passes, reductions = found.count, found.reductions
    if passes is None or passes < 2 or not reductions:
        return None
    rows = np.flatnonzero(log.is_a(*REDUCTIONS))
    window, steps = (window, 1) if groups is None else (groups, passes)
    step = index_at(window, log.start[rows])
    early, last = [], []
    for number in range(len(window)):
        own = rows[step == number]
        pieces = [own[first : first + reductions] for first in range(0, len(own), reductions)]
        if len(own) != passes * reductions or any((log.bytes[p] != log.bytes[pieces[0]]).any() for p in pieces):
            continue
        early.append(own[:-reductions])
        last.append(own[-reductions:])
    if 2 * len(early) <= len(window):
        return None
    start, end = transfers_of(log, split)
    sooner, all_rows = np.concatenate(early), np.concatenate(early + last)
    gone = union(start[sooner], end[sooner])
    return Accumulation(
        passes=passes,
        reductions=reductions,
        early_ns=gone.total_ns / len(early) / steps,
        early_exposed_ns=intersect(exposed, gone).total_ns / len(early) / steps,
        transfer_ns=union(start[all_rows], end[all_rows]).total_ns / len(early) / steps,
        groups=groups,
    )


FEWEST_ALONE = 3  #: calls that a name with a shape needs alone, so that their median is no accident (a choice)
OVERLAPPED_RATIO = 0.5  #: share of a call beside a collective from which it counts as overlapped (a choice)
#: Shorter kernels are all latency: beside a collective they wait for it, they do not share multiprocessors
#: and bandwidth with it (TraceLens' bound of a short kernel).
SHORTEST_NS = 10_000


def contention(
    columns: TraceColumns, roof: Roofline, kernels: I64, window: Spans, transfers: Spans
) -> Contention | None:
    """How long kernels take beside ``transfers`` and alone; ``None`` where none with shapes was seen in both places.

    ``kernels`` are rows of ``roof``.
    """
    beside = time_within(transfers, columns.ts_ns[kernels], columns.end_ns[kernels])
    beside_ns = int(columns.dur_ns[kernels[beside >= OVERLAPPED_RATIO * columns.dur_ns[kernels]]].sum())
    kernels = kernels[columns.dur_ns[kernels] >= SHORTEST_NS]
    operators = roof.operator[np.searchsorted(roof.rows, kernels)]
    shape = np.where(operators >= 0, columns.input_dims[operators], -1)
    kernels, shape = kernels[shape >= 0], shape[shape >= 0]
    if not len(kernels) or not len(transfers):
        return None
    start, end = columns.ts_ns[kernels], columns.end_ns[kernels]
    beside = time_within(transfers, start, end)
    length = end - start
    which = np.unique(columns.name[kernels] * np.int64(shape.max() + 1) + shape, return_inverse=True)[1]
    alone, shared = beside == 0, beside >= OVERLAPPED_RATIO * length
    told = (np.bincount(which, alone) >= FEWEST_ALONE) & (np.bincount(which, shared) > 0)
    if not told.any():
        return None
    rows = np.flatnonzero(told[which])
    rows = rows[np.argsort(which[rows], kind="stable")]
    kinds = np.split(rows, np.flatnonzero(np.diff(which[rows])) + 1)
    usual_ns = float(sum(np.median(length[own[alone[own]]]) * np.count_nonzero(shared[own]) for own in kinds))
    compared, count = rows[shared[rows]], max(len(window), 1)
    longer_ns = max(float(length[compared].sum()) - usual_ns, 0.0)
    return Contention(len(kinds), len(compared), usual_ns / count, longer_ns / count, beside_ns / count)


#: Events of DDP's reducer (torch 2.13, reducer.cpp).
_SEARCH = re.compile(r"^torch\.distributed\.ddp\.reducer::search_unused_parameters$")
_COPY_BACK = re.compile(r"^torch\.distributed\.ddp\.reducer::copy_bucket_to_grad$")
_FILL = re.compile(r"^torch::distributed::reducer::mul_out$")
#: torch/nn/parallel/data_parallel.py names its forward pass so, and moves parameters and batches by these functions.
_DATA_PARALLEL = re.compile(r"^DataParallel\.forward$")
_MOVES = re.compile(r"^(?:Broadcast|Scatter|Gather|ReduceAddCoalesced)(?:Backward)?$")
_GLOO = re.compile(r"^gloo:")
_OF_GLOO = "gloo"


def reducer_work(columns: TraceColumns, launches: I64, steps: TraceSteps, device: Bools | None) -> ReducerWork | None:
    """What DDP's reducer did in the judged steps beside reducing; ``None`` without an event of it."""
    window, issuing = steps.steady, steps.by_host.steady
    searches, copies, fills = (_judged(columns, name, issuing) for name in (_SEARCH, _COPY_BACK, _FILL))
    if not (len(searches) or len(copies) or len(fills)):
        return None
    count = max(len(window), 1)
    searching, copying, filling = (_spans(columns, rows) for rows in (searches, copies, fills))
    if device is not None:
        searching = subtract(searching, _spans(columns, device))
        copying, filling = (_spans(columns, _launched_in(columns, launches, rows, device)) for rows in (copies, fills))
    return ReducerWork(
        searches=len(searches) / count,
        search_ns=intersect(window, searching).total_ns / count,
        copies=len(copies) / count,
        copy_ns=intersect(window, copying).total_ns / count,
        fill_ns=intersect(window, filling).total_ns / count,
    )


def engine_of(columns: TraceColumns, log: CollectiveLog | None, window: Spans, compute: Spans) -> Engine | None:
    """DataParallel, or gloo that reduces for a device: what their transfers expose; ``None`` without either."""
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
    rows = np.flatnonzero(named(columns, pattern, Category.CPU_OP, Category.ANNOTATION))
    return rows[covered(window, columns.ts_ns[rows])]


def _spans(columns: TraceColumns, rows: I64 | Bools) -> Spans:
    rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
    return union(columns.ts_ns[rows], columns.end_ns[rows])


def _launched_in(columns: TraceColumns, launches: I64, rows: I64, device: Bools) -> I64:
    """Device events whose launch lies in one of the host events ``rows``, on its thread."""
    linked = np.flatnonzero(device & (launches >= 0))
    calls = launches[linked]
    return linked[innermost_at(columns, rows, columns.thread[calls], columns.ts_ns[calls]) >= 0]


#: Up to this size a collective takes as long as an empty one (the latency floor was measured with half of it).
TINY_BYTES = 64_000
LONGEST_CALL_NS = 1_000_000  #: a longer pause between two collectives is more than calling the next one (a choice)


def collective_work_of(view: TraceView, log: CollectiveLog | None) -> CollectiveWork:
    """What the communication in the steady steps is made of, from the trace's collectives."""
    columns, launches, steps, parts = view.columns, view.launches, view.steps, view.parts
    communicates, device = view.kinds.communication, view.device_rows
    window = steps.steady
    working = columns.is_a(Category.CPU_OP) if device is None else device & (columns.category == Category.KERNEL)
    work = working & ~communicates[columns.name]
    compute = _spans(columns, work)
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
    judged = np.flatnonzero(work)
    judged = judged[covered(window, columns.ts_ns[judged])]
    collective_work = revise(
        collective_work,
        backward_alone_ns=None
        if backward is None
        else subtract(intersect(window, backward), transfers).total_ns / max(len(window), 1),
        passes=passes.count,
        before_backward_ratio=passes.before,
        accumulation=accumulation(log, window, _exposed(parts, window), split, passes, groups),
        contention=contention(columns, view.roof, judged, window, transfers) if device is not None else None,
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
    """The same with waiting for other ranks left out of the transfers."""
    known = collective_work.accumulation
    if known is not None:
        passes = Passes(known.passes, known.reductions, collective_work.before_backward_ratio)
        known = accumulation(log, window, _exposed(parts, window), split, passes, known.groups)
    revised = revise(collective_work, accumulation=known, floor_ns=floor_ns)
    return _with_traffic(revised, log, window, parts, split, meta)


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
    return revise(
        collective_work,
        second_gathers_exposed_ns=second_gathers_ns(log, window, exposed, split),
        traffic=traffic(log, window, exposed, split, meta.groups),
        exposed_ns=exposed.total_ns / count,
        transfer_ns=moving.total_ns / count,
        under_input_ns=intersect(union(start[awaited], end[awaited]), waits).total_ns / count,
    )


def burst_ns(log: CollectiveLog, window: Spans, working: Spans) -> float:
    """Time of bursts of tiny collectives beyond the first of each, ns per judged step: what joining them would save.

    The calls between them count, and the waits for the other ranks at each, but not what computes beside them, nor the
    first one, at which a late rank is waited for however many follow. 0 on a device, which starts the next one while
    the host goes on.
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
