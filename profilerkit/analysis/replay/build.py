"""The replay graph of a trace: host time in pieces, device work with its edges, waits, and the marks of the steps."""

import msgspec
import numpy as np

from profilerkit.analysis.device.copies import are_pageable
from profilerkit.analysis.device.roofline import Roofline, slow_math
from profilerkit.analysis.host.activity import HostActivity
from profilerkit.analysis.host.names import HostNames
from profilerkit.analysis.intervals import I64, Segments, Spans, paint, union, with_label
from profilerkit.analysis.parts import LEAVES, leaf
from profilerkit.analysis.replay.device_side import FEWEST_STEPS, Device, Scope, device_of, edges_of, scope_of
from profilerkit.analysis.replay.graph import F64, Bools, Graph, Shape, Traced
from profilerkit.analysis.replay.waits import Issue, Joins, joins_of, stream_waits
from profilerkit.analysis.steps.phases import nodes_of
from profilerkit.analysis.trace_view import TraceView
from profilerkit.trace.columns import Category, TraceColumns

#: Getting a batch that is there takes no longer than this; what is beyond is waiting for the workers (a choice: a queue
#: and a tensor in shared memory take 50 to 200 µs).
LONGEST_HANDOVER_NS = 200_000
#: Share of the steps from which such waits say that the workers do not keep up; less is a hiccup (the least that rules
#: speak of).
SMALLEST_WAIT = 0.02

#: The label of time in which the host waited; it is no part.
_WAITING = len(LEAVES)


class Fetches(msgspec.Struct, frozen=True):
    """When the main thread got its batches, ``(n_fetches,)`` int64 ns.

    Attributes:
        start: when it asked, ``end`` when it had the batch.
        asked: when waiting for worker processes began; ``end`` where it did not wait.
        waited: bool, whether it waited for worker processes.
    """

    start: I64
    end: I64
    asked: I64
    waited: Bools


def fetches_of(columns: TraceColumns, names: HostNames, host: HostActivity, scope: Scope) -> Fetches:
    """The fetches that end within the steps; none where no event shows them."""
    rows = host.thread(host.main).fed.rows if host.main >= 0 else np.zeros(0, np.int64)
    rows = rows[(columns.ts_ns[rows] >= scope.start_ns) & (columns.end_ns[rows] <= scope.end_ns)]
    spans = union(columns.ts_ns[rows], columns.end_ns[rows])
    parallel = np.sort(columns.ts_ns[rows[names.multi_process[columns.name[rows]]]])
    by_workers = np.searchsorted(parallel, spans.end) > np.searchsorted(parallel, spans.start)
    length = spans.end - spans.start
    handover = min(int(length[by_workers].min(initial=LONGEST_HANDOVER_NS)), LONGEST_HANDOVER_NS)
    waited = by_workers & (length > handover + LONGEST_HANDOVER_NS)
    waited &= length[waited].sum() >= SMALLEST_WAIT * (scope.end_ns - scope.start_ns)
    return Fetches(spans.start, spans.end, np.where(waited, spans.start + handover, spans.end), waited)


class Pieces(msgspec.Struct, frozen=True):
    """The host's time between points by cause; arrays as in ``Graph``."""

    host_ns: F64
    point: I64
    leaf: I64
    ns: F64


def pieces_of(points: I64, waiting: Spans, did: list[Segments]) -> Pieces:
    """Cut what was done at the points, without what was waiting.

    Args:
        points: ``(n_points,)`` moments, sorted and distinct.
        waiting: when the host waited.
        did: what it did beside, in layers that cover all of the time.
    """
    told = paint(Spans(points[:-1], points[1:]), [with_label(waiting, _WAITING), *did])
    works = (told.label != _WAITING) & (told.label >= 0)
    point = np.searchsorted(points, told.start[works], side="right")
    ns = (told.end - told.start)[works].astype(np.float64)
    host = np.bincount(point, weights=ns, minlength=len(points)).astype(np.float64)
    return Pieces(host, point, told.label[works], ns)


def did_by_others(host: HostActivity, points: I64, thread: I64) -> list[Segments]:
    """What threads beside the main one did before the points that they come to.

    Forward and backward threads hand over to each other and never run at the same time, so that their time is one line.

    Args:
        host: the threads.
        points: ``(n_points,)`` moments, sorted.
        thread: ``(n_points,)`` the thread of each, -1 for the main one.
    """
    layers = []
    for key in np.unique(thread[thread >= 0]).tolist():
        if key != host.main:
            own = np.flatnonzero(thread[1:] == key)
            layers.append(host.did(points[own], points[own + 1], key))
    return layers


_NONE = np.zeros(0, np.int64)


class Built(msgspec.Struct, frozen=True):
    """A graph, what it must reproduce, and how many steps are judged in all."""

    graph: Graph
    traced: Traced
    of: int


def build(seen: TraceView) -> Built | None:
    """The graph of the replayed steps; ``None`` without a judged step, or without a thread to follow."""
    columns = seen.columns
    starts = np.sort(columns.ts_ns[seen.ran]) if seen.on_gpu else _NONE
    scope = scope_of(seen.steps.by_host, starts, seen.most_events)
    if scope is None or seen.host.main < 0:
        return None
    device = device_of(columns, seen.ran if seen.on_gpu else np.zeros_like(seen.ran), seen.launches, scope)
    issue = Issue(device)
    edges = edges_of(device, stream_waits(columns, device, issue, scope))
    main = seen.host.did(scope.edge[:1], scope.edge[-1:], seen.host.main)
    joins = joins_of(columns, seen.names, device, issue, scope, main.only(leaf("over.python")))
    fetches = fetches_of(columns, seen.names, seen.host, scope)
    points = np.unique(np.concatenate([device.anchor, joins.at, fetches.end, scope.edge]))
    pieces = _pieces(seen, device, joins, fetches, points, main)
    ready = fetches.waited
    shape = Shape(
        n_points=len(points),
        marks=np.searchsorted(points, scope.edge),
        judged=_settled(scope, device),
        number=scope.number,
        point=np.searchsorted(points, device.anchor),
        stream=device.stream,
        wait_event=edges.wait_event,
        wait_for=edges.wait_for,
        join_point=np.searchsorted(points, joins.at),
        join_event=joins.event,
        join_kind=joins.kind,
        ready_point=np.searchsorted(points, fetches.end[ready]),
    )
    graph = Graph(
        shape=shape,
        host_ns=pieces.host_ns,
        piece_point=pieces.point,
        piece_leaf=pieces.leaf,
        piece_ns=pieces.ns,
        issue_ns=edges.issue_ns,
        gap_ns=edges.gap_ns,
        dur_ns=(device.end - device.start).astype(np.float64),
        least_ns=_least_ns(seen.roof, device),
        leaf=_event_leaves(seen, device),
        bytes=columns.bytes[device.row],
        fp32=_fp32(seen, device),
        chained=seen.kinds.pointwise[columns.name[device.row]],
        staged=_staged(columns, device),
        node=nodes_of(columns, device.call),
        wait_ns=edges.wait_ns,
        join_ns=joins.ns,
        ready_ns=(fetches.end[ready] - scope.start_ns).astype(np.float64),
        fetch_point=np.searchsorted(points, fetches.end),
        fetch_ns=(fetches.end - fetches.start).astype(np.float64),
        issue_typical_ns=edges.latency_ns,
    )
    return Built(graph, _traced(scope, device), scope.of)


def _settled(scope: Scope, device: Device) -> Bools:
    """The judged steps that begin when what was issued before the recording is done, if enough of them do.

    In which order that work was issued, and what it waited for, nobody recorded.
    """
    before = device.end[~device.issued]
    settled: Bools = scope.judged & (scope.edge[:-1] >= int(before.max(initial=0)))
    return settled if settled.sum() >= FEWEST_STEPS else scope.judged


def _pieces(seen: TraceView, device: Device, joins: Joins, fetches: Fetches, points: I64, main: Segments) -> Pieces:
    """The host's time by cause; without a device it is the partition itself."""
    waiting = union(np.r_[joins.begun, fetches.asked], np.r_[joins.until, fetches.end])
    if not seen.on_gpu:
        return pieces_of(points, waiting, [seen.parts.segments])
    thread = np.full(len(points), -1, dtype=np.int64)
    known = device.call >= 0
    thread[np.searchsorted(points, device.anchor[known])] = seen.columns.thread[device.call[known]]
    return pieces_of(points, waiting, [*did_by_others(seen.host, points, thread), main])


def _traced(scope: Scope, device: Device) -> Traced:
    host = (scope.edge - scope.start_ns).astype(np.float64)
    done = np.maximum.accumulate(device.end)
    issued = np.searchsorted(device.anchor, scope.edge, side="left") - 1
    if not len(device):
        return Traced(host, host)
    ended = np.where(issued >= 0, done[np.maximum(issued, 0)] - scope.start_ns, 0)
    return Traced(host, np.maximum(host, ended.astype(np.float64)))


def _event_leaves(seen: TraceView, device: Device) -> I64:
    """What each event counts as: kernels by their roof, collectives, copies by where they go."""
    columns, rows = seen.columns, device.row
    out = seen.leaves[rows].copy()
    out[seen.kinds.communication[columns.name[rows]] & (columns.category[rows] == Category.KERNEL)] = leaf("comm.other")
    copied = seen.parts.copied(rows)
    out = np.where(copied >= 0, copied, out)
    out[out < 0] = leaf("compute.membw")
    return out


def _places(roof: Roofline, device: Device) -> tuple[I64, Bools]:
    """``(n_events,)`` place of each event among the judged kernels, and whether it is there."""
    if not len(roof.rows):
        return np.zeros(len(device), np.int64), np.zeros(len(device), np.bool_)
    at = np.minimum(np.searchsorted(roof.rows, device.row), len(roof.rows) - 1)
    return at, roof.rows[at] == device.row


def _least_ns(roof: Roofline, device: Device) -> F64:
    """The time the bytes alone take; 0 where they are not known."""
    least = np.zeros(len(device))
    if roof.spec is None or not roof.spec.hbm_gb_per_s:
        return least
    at, known = _places(roof, device)
    moved = roof.bytes[at[known]]
    least[known] = np.where(np.isfinite(moved), moved / roof.spec.hbm_gb_per_s, 0.0)
    held: F64 = np.minimum(least, device.end - device.start)
    return held


def _fp32(seen: TraceView, device: Device) -> Bools:
    """Matrix kernels that a lower precision makes faster."""
    at, known = _places(seen.roof, device)
    if not len(seen.roof.rows):
        return known
    slow = slow_math(seen.columns, seen.kinds, seen.roof, seen.steps.judged_events(seen.columns, seen.launches))
    return known & slow.chosen[at]


def _staged(columns: TraceColumns, device: Device) -> Bools:
    staged: Bools = are_pageable(columns, device.row) & (columns.category[device.row] == Category.MEMCPY)
    return staged
