"""Build the replay graph of a trace: host time, device work, who waits for whom, and the marks of the steps."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np

from profilerkit.analysis.device.copies import are_pageable
from profilerkit.analysis.device.kernels import named
from profilerkit.analysis.device.roofline import Roofline, slow_math
from profilerkit.analysis.host.activity import HostActivity
from profilerkit.analysis.host.names import BLOCKING_CALL_NS, HostNames
from profilerkit.analysis.intervals import Segments, Spans, paint, union, with_label
from profilerkit.analysis.partition import TraceView
from profilerkit.analysis.replay.device_side import FEWEST_STEPS, Device, Scope, device_of, edges_of, scope_of
from profilerkit.analysis.replay.graph import Graph, Replayed, Shape, Wait
from profilerkit.analysis.steps.phases import nodes_of
from profilerkit.model.step import LEAVES, leaf
from profilerkit.trace.columns import F64, I64, Bools, Category, TraceColumns

_STREAM_WAIT = re.compile(r"^(?:cuda|hip|cu)StreamWaitEvent")
_WHOLE_DEVICE = re.compile(r"^(?:(?:cuda|hip)DeviceSynchronize|cuCtxSynchronize)")
#: Memory goes back to the driver once the device is done with it (CUDA runtime API, cudaFree).
_FREES = re.compile(r"^(?:cuda|hip)Free(?!Async|Host)|^cuMem(?:Unmap|Free)(?!Async|Host)")
#: A launch this much longer than the shortest ones, and this long, waited for room in the queue.
_QUEUED_RATIO, _QUEUED_NS, _SHORT_QUANTILE = 3.0, 20_000, 0.02
#: Launches that must have waited for the event at one distance before them, and what part of those that waited they
#: must be, before that distance is taken for the queue's depth; and how far others may be from it (choices).
_FEWEST_QUEUED, _ONE_DEPTH, _DEPTH_SPREAD = 8, 0.3, 0.1
#: No queue is as shallow (a choice; CUDA's takes about a thousand launches): there launches are slow of themselves.
_LEAST_DEPTH = 16
#: Every so many launches are held to the depth of the queue beside those that waited: a step is long against that.
_QUEUE_STRIDE = 8
#: A stretch without a host event this long that ends this soon after the device waited for it (choices: by chance one
#: in ten such stretches would).
_LONG_QUIET_NS, _UNSEEN_NS = 100_000, 10_000
_MOST_STREAMS = 8  #: streams of which a wait of the whole device is told, the newest first
_RECENT = 64  #: events back among which the streams in use are looked for


class Joins(msgspec.Struct, frozen=True):
    """Waits of the host, arrays ``(n_joins,)``, int64; times in ns."""

    at: I64  #: when the call returned
    begun: I64  #: when it was made
    event: I64  #: the event waited for
    kind: I64  #: values of ``Wait``
    until: I64  #: when the waiting itself was over; ``begun`` where nobody waited


class Issue:
    """The streams of a device in the order of issue, to ask what was the newest at some moment."""

    def __init__(self, device: Device) -> None:
        # Lists: thousands of single questions, which arrays answer ten times more slowly.
        self.anchor: list[int] = device.anchor.tolist()
        self.end: list[int] = device.end.tolist()
        self.stream: list[int] = device.stream.tolist()
        self.streams = range(max(self.stream, default=-1) + 1)
        self._own: list[list[int]] = [[] for _ in self.streams]
        for event, stream in enumerate(self.stream):
            self._own[stream].append(event)

    def by(self, moment: int) -> int:
        """How many events had been issued."""
        return bisect_right(self.anchor, moment)

    def newest(self, stream: int, before: int, ended_by: int) -> int:
        """The last of the first ``before`` events on a stream that had ended by a moment; -1 without one."""
        own = self._own[stream]
        for place in range(bisect_left(own, before) - 1, -1, -1):
            if self.end[own[place]] <= ended_by:
                return own[place]
        return -1


class _Call(NamedTuple):
    """A call in which the host waits, and the events it waits for; times int ns. There may be ten thousand."""

    begun: int
    at: int
    targets: tuple[int, ...]
    kind: int


def stream_waits(columns: TraceColumns, device: Device, issue: Issue, scope: Scope) -> list[tuple[int, int]]:
    """Pairs of events: the first issued after a stream was told to wait, and the newest then of the stream it awaits.

    Which stream is awaited the trace says where it holds ``cuda_sync`` rows; else it is the one that was last given
    work. What had not ended when the waiting event began was not what it waited for.
    """
    inside = (columns.ts_ns >= scope.start_ns) & (columns.end_ns <= scope.end_ns)
    calls = np.flatnonzero(named(columns, _STREAM_WAIT, Category.RUNTIME) & inside)
    pairs = []
    dense, first = np.unique(device.stream, return_index=True)
    numbers = dict(zip(columns.stream[device.row[first]].tolist(), dense.tolist(), strict=True))
    awaits: dict[int, set[int]] = {}
    for waiting, awaited in columns.stream_waits:
        if waiting in numbers and awaited in numbers:
            awaits.setdefault(numbers[waiting], set()).add(numbers[awaited])
    for moment in np.sort(columns.ts_ns[calls]).tolist():
        issued = issue.by(moment)
        if issued >= len(issue.anchor):
            continue
        waiting, begun = issue.stream[issued], int(device.start[issued])
        others = awaits.get(waiting) or set(issue.stream[max(issued - _RECENT, 0) : issued]) - {waiting}
        found = [event for stream in others if (event := issue.newest(stream, issued, begun)) >= 0]
        if found:
            pairs += [(issued, event) for event in (found if waiting in awaits else [max(found)])]
    return pairs


def joins_of(seen: TraceView, device: Device, issue: Issue, scope: Scope, quiet: Spans) -> Joins:
    """Every call in which the host waits for the device, or would if it were quicker; and waits that no call shows.

    What a call takes beside waiting is the same whether it waits or not. Work that was issued too late is not meant;
    who waited for an event before need not wait for it again.
    """
    calls = [
        *_copies(seen.columns, device, scope),
        *_syncs(seen.columns, seen.names, device, issue, scope),
        *_queue(seen.columns, device),
        *_unseen(issue, quiet),
        *_end(device, issue, scope),
    ]
    starts, ends, anchor, queue = device.start.tolist(), issue.end, issue.anchor, int(Wait.QUEUE)
    out: list[tuple[int, int, int, int, int]] = []
    waited_for: set[int] = set()
    for begun_ns, at_ns, asked, kind_of in sorted(calls, key=attrgetter("at")):
        targets = [target for target in asked if target >= 0 and anchor[target] < at_ns]
        moments = starts if kind_of == queue else ends
        if kind_of != queue:
            targets = [target for target in targets if target not in waited_for]
            waited_for.update(targets)
        latest = min(max([begun_ns, *(moments[target] for target in targets)]), at_ns)
        out.extend((at_ns, begun_ns, target, kind_of, latest) for target in targets)
    return Joins(*np.array(out, dtype=np.int64).reshape(-1, 5).T)


def _copies(columns: TraceColumns, device: Device, scope: Scope) -> Iterator[_Call]:
    events = np.flatnonzero(device.held)
    rows = device.call[events]
    events, rows = (values[columns.ts_ns[rows] >= scope.start_ns] for values in (events, rows))
    times = zip(columns.ts_ns[rows].tolist(), columns.end_ns[rows].tolist(), strict=True)
    for event, (begun, at) in zip(events.tolist(), times, strict=True):
        yield _Call(begun, at, (event,), int(Wait.COPY))


def _syncs(columns: TraceColumns, names: HostNames, device: Device, issue: Issue, scope: Scope) -> Iterator[_Call]:
    frees, whole = (named(columns, pattern, Category.RUNTIME) for pattern in (_FREES, _WHOLE_DEVICE))
    wanted = (names.sync_call[columns.name] | frees) & (columns.category == Category.RUNTIME)
    rows = np.flatnonzero(wanted & (columns.ts_ns >= scope.start_ns) & (columns.end_ns <= scope.end_ns))
    rows = rows[~np.isin(rows, device.call[device.held])]
    rows = rows[~_told_by_copies(columns, device, rows) | (frees | whole)[rows]]
    found = (values[rows].tolist() for values in (columns.ts_ns, columns.end_ns, frees, whole))
    for begun, at, is_freeing, is_whole in zip(*found, strict=True):
        if is_freeing or is_whole:
            issued = issue.by(begun)
            targets = tuple(issue.newest(stream, issued, at) for stream in issue.streams[:_MOST_STREAMS])
        else:
            targets = (_awaited(issue, begun, at),)
        yield _Call(begun, at, targets, int(Wait.ALLOCATOR if is_freeing else Wait.SYNC))


def _told_by_copies(columns: TraceColumns, device: Device, rows: I64) -> Bools:
    """``(n,)`` calls right after a copy that was waited for in its own call: nothing is left to wait for."""
    issued = np.searchsorted(device.anchor, columns.ts_ns[rows], side="right")
    if not len(device):
        return np.zeros(len(rows), dtype=np.bool_)
    last = np.maximum(issued - 1, 0)
    told: Bools = (issued > 0) & device.held[last] & device.issued[last]
    told &= columns.end_ns[np.maximum(device.call[last], 0)] <= columns.ts_ns[rows]
    return told


def _awaited(issue: Issue, begun: int, at: int) -> int:
    """The event a call waited for: what ended last before it returned, else the newest of the stream in use."""
    issued = issue.by(begun)
    if not issued:
        return -1
    own = issue.newest(issue.stream[issued - 1], issued, at)
    if at - begun < BLOCKING_CALL_NS or (own >= 0 and issue.end[own] > begun):
        return own
    others = [issue.newest(stream, issued, at) for stream in issue.streams]
    return max(others, key=lambda event: issue.end[event] if event >= 0 else -1, default=-1)


def _queue(columns: TraceColumns, device: Device) -> list[_Call]:
    """Launches that waited for room in the queue, and others that would; none where no depth of a queue shows."""
    rows = np.flatnonzero(device.issued & (device.call >= 0) & ~device.held)
    calls, first = np.unique(device.call[rows], return_index=True)
    events = rows[first]
    length = columns.dur_ns[calls]
    if not len(calls):
        return []
    long = length > max(_QUEUED_RATIO * float(np.quantile(length, _SHORT_QUANTILE)), _QUEUED_NS)
    by_start = np.argsort(device.start, kind="stable")
    place = np.searchsorted(device.start[by_start], columns.end_ns[calls[long]], side="right") - 1
    depth = events[long] - by_start[np.maximum(place, 0)]
    depths, times = np.unique(depth[(depth >= _LEAST_DEPTH) & (place >= 0)], return_counts=True)
    if not len(depths) or times.max() < max(_FEWEST_QUEUED, _ONE_DEPTH * long.sum()):
        return []
    usual = int(depths[times.argmax()])
    awaited = events - usual
    # Of what was issued before the recording the order is not known: there the event that began tells more.
    close = np.abs(depth - usual) <= max(_DEPTH_SPREAD * usual, 4)
    awaited[np.flatnonzero(long)[close]] = (events[long] - depth)[close]
    chosen = (awaited >= 0) & (long | (np.arange(len(calls)) % _QUEUE_STRIDE == 0))
    chosen &= device.start[np.maximum(awaited, 0)] <= columns.end_ns[calls]
    times = zip(columns.ts_ns[calls[chosen]].tolist(), columns.end_ns[calls[chosen]].tolist(), strict=True)
    pairs = zip(times, awaited[chosen].tolist(), strict=True)
    return [_Call(begun, at, (event,), int(Wait.QUEUE)) for (begun, at), event in pairs]


def _unseen(issue: Issue, quiet: Spans) -> Iterator[_Call]:
    """Long stretches without a host event that end just as all issued work does: the host waited for it."""
    done = list(accumulate(issue.end, max))
    for begun, at in zip(quiet.start.tolist(), quiet.end.tolist(), strict=True):
        issued = issue.by(begun)
        if at - begun < _LONG_QUIET_NS or not issued:
            continue
        if begun < done[issued - 1] <= at <= done[issued - 1] + _UNSEEN_NS:
            yield _Call(begun, at, (issue.end.index(done[issued - 1]),), int(Wait.SYNC))


def _end(device: Device, issue: Issue, scope: Scope) -> list[_Call]:
    """What the last step lasts for, where nothing follows it: from when the host had nothing left to issue."""
    if not scope.ends_when_done or not len(device):
        return []
    newest = tuple(issue.newest(stream, len(device), scope.end_ns) for stream in issue.streams)
    return [_Call(issue.anchor[-1] + 1, scope.end_ns, newest, int(Wait.END))]


#: Getting a batch that is there takes no longer than this; what is beyond is waiting for the workers (a choice: a queue
#: and a tensor in shared memory take 50 to 200 µs).
LONGEST_HANDOVER_NS = 200_000
#: Share of the steps from which such waits say that the workers do not keep up; less is a hiccup (the least that rules
#: speak of).
SMALLEST_WAIT = 0.02

_WAITING = len(LEAVES)  #: the label of time in which the host waited; it is no part


class Fetches(msgspec.Struct, frozen=True):
    """When the main thread got its batches, ``(n_fetches,)`` int64 ns."""

    start: I64  #: when it asked, ``end`` when it had the batch
    end: I64
    asked: I64  #: when waiting for worker processes began; ``end`` where it did not wait
    waited: Bools  #: bool, whether it waited for worker processes


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


_NONE = np.zeros(0, np.int64)


class Built(msgspec.Struct, frozen=True):
    """A graph, what it must reproduce, and how many steps are judged in all."""

    graph: Graph
    traced: Replayed
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
    joins = joins_of(seen, device, issue, scope, main.only(leaf("over.python")))
    fetches = fetches_of(columns, seen.names, seen.host, scope)
    points = np.unique(np.concatenate([device.anchor, joins.at, fetches.end, scope.edge]))
    piece_point, piece_leaf, piece_ns = _pieces(seen, device, joins, fetches, points, main)
    ready = fetches.waited
    # The judged steps that begin when what was issued before the recording is done, if enough of them do.
    settled = scope.judged & (scope.edge[:-1] >= int(device.end[~device.issued].max(initial=0)))
    shape = Shape(
        n_points=len(points),
        marks=np.searchsorted(points, scope.edge),
        judged=settled if settled.sum() >= FEWEST_STEPS else scope.judged,
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
        host_ns=np.bincount(piece_point, weights=piece_ns, minlength=len(points)).astype(np.float64),
        piece_point=piece_point,
        piece_leaf=piece_leaf,
        piece_ns=piece_ns,
        issue_ns=edges.issue_ns,
        gap_ns=edges.gap_ns,
        dur_ns=(device.end - device.start).astype(np.float64),
        least_ns=_least_ns(seen.roof, device),
        leaf=_event_leaves(seen, device),
        bytes=columns.bytes[device.row],
        fp32=_fp32(seen, device),
        chained=seen.kinds.pointwise[columns.name[device.row]],
        staged=are_pageable(columns, device.row) & (columns.category[device.row] == Category.MEMCPY),
        node=nodes_of(columns, device.call),
        wait_ns=edges.wait_ns,
        join_ns=(joins.at - joins.until).astype(np.float64),
        ready_ns=(fetches.end[ready] - scope.start_ns).astype(np.float64),
        fetch_point=np.searchsorted(points, fetches.end),
        fetch_ns=(fetches.end - fetches.start).astype(np.float64),
        issue_typical_ns=edges.latency_ns,
    )
    return Built(graph, _traced(scope, device), scope.of)


def _pieces(
    seen: TraceView, device: Device, joins: Joins, fetches: Fetches, points: I64, main: Segments
) -> tuple[I64, I64, F64]:
    """The host's time between points by cause, without waiting: point, leaf and ns, as in ``Graph``.

    Forward and backward threads hand over to each other and never run at the same time, so that their time is one line.
    Without a device it is the partition itself.
    """
    waiting = union(np.r_[joins.begun, fetches.asked], np.r_[joins.until, fetches.end])
    thread = np.full(len(points), -1, dtype=np.int64)
    known = device.call >= 0
    thread[np.searchsorted(points, device.anchor[known])] = seen.columns.thread[device.call[known]]
    layers = [with_label(waiting, _WAITING)]
    for key in np.unique(thread[(thread >= 0) & (thread != seen.host.main)]).tolist():
        own = np.flatnonzero(thread[1:] == key)
        layers.append(seen.host.did(points[own], points[own + 1], key))
    layers.append(main if seen.on_gpu else seen.parts.segments)
    told = paint(Spans(points[:-1], points[1:]), layers)
    works = (told.label != _WAITING) & (told.label >= 0)
    point = np.searchsorted(points, told.start[works], side="right")
    return point, told.label[works], (told.end - told.start)[works].astype(np.float64)


def _traced(scope: Scope, device: Device) -> Replayed:
    host = (scope.edge - scope.start_ns).astype(np.float64)
    done = np.maximum.accumulate(device.end)
    issued = np.searchsorted(device.anchor, scope.edge, side="left") - 1
    if not len(device):
        return Replayed(host, host)
    ended = np.where(issued >= 0, done[np.maximum(issued, 0)] - scope.start_ns, 0)
    return Replayed(host, np.maximum(host, ended.astype(np.float64)))


def _event_leaves(seen: TraceView, device: Device) -> I64:
    """What each event counts as: kernels by their roof, collectives, copies by where they go."""
    columns, rows = seen.columns, device.row
    out = seen.leaves[rows].astype(np.int64)
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
    at, known = _places(seen.roof, device)
    if not len(seen.roof.rows):
        return known
    slow = slow_math(seen.columns, seen.kinds, seen.roof, seen.judged)
    return known & slow.chosen[at]
