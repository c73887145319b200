"""Who waits for whom, as the calls say: streams for streams, and the host for the device."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np

from profilerkit.analysis.device.kernels import in_use, matching
from profilerkit.analysis.host.names import BLOCKING_CALL_NS, HostNames
from profilerkit.analysis.intervals import I64, Spans
from profilerkit.analysis.replay.device_side import Device, Scope
from profilerkit.analysis.replay.graph import F64, Bools, Wait
from profilerkit.trace.columns import Category, TraceColumns

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
#: Streams of which a wait of the whole device is told, the newest first.
_MOST_STREAMS = 8
#: Events back among which the streams in use are looked for.
_RECENT = 64


class Joins(msgspec.Struct, frozen=True):
    """Waits of the host, arrays ``(n_joins,)``.

    Attributes:
        at: int64 ns, when the call returned.
        begun: int64 ns, when it was made.
        event: int64 the event waited for.
        kind: int64 values of ``Wait``.
        ns: float64 from what was waited for to the return.
        until: int64 ns, when the waiting itself was over; ``begun`` where nobody waited.
    """

    at: I64
    begun: I64
    event: I64
    kind: I64
    ns: F64
    until: I64


class Issue:
    """The streams of a device in the order of issue, to ask what was the newest at some moment."""

    def __init__(self, device: Device) -> None:
        # Lists: thousands of single questions, which arrays answer ten times more slowly.
        self.anchor: list[int] = device.anchor.tolist()
        self.end: list[int] = device.end.tolist()
        self.stream: list[int] = device.stream.tolist()
        count = max(self.stream, default=-1) + 1
        self._own: list[list[int]] = [[] for _ in range(count)]
        for event, stream in enumerate(self.stream):
            self._own[stream].append(event)

    @property
    def streams(self) -> range:
        """All of them."""
        return range(len(self._own))

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
    calls = _calls(columns, scope, _STREAM_WAIT)
    if not len(calls):
        return []
    pairs = []
    dense, first = np.unique(device.stream, return_index=True)
    numbers = dict(zip(columns.stream[device.row[first]].tolist(), dense.tolist(), strict=True))
    awaits: dict[int, set[int]] = {}
    for waiting, awaited in columns.stream_waits:
        if waiting in numbers and awaited in numbers:
            awaits.setdefault(numbers[waiting], set()).add(numbers[awaited])
    for moment in columns.ts_ns[calls].tolist():
        issued = issue.by(moment)
        if issued >= len(issue.anchor):
            continue
        waiting, begun = issue.stream[issued], int(device.start[issued])
        others = awaits.get(waiting) or set(issue.stream[max(issued - _RECENT, 0) : issued]) - {waiting}
        found = [event for stream in others if (event := issue.newest(stream, issued, begun)) >= 0]
        if found:
            pairs += [(issued, event) for event in (found if waiting in awaits else [max(found)])]
    return pairs


def joins_of(
    columns: TraceColumns, names: HostNames, device: Device, issue: Issue, scope: Scope, quiet: Spans
) -> Joins:
    """Every call in which the host waits for the device, or would if it were quicker; and waits that no call shows."""
    calls = [*_copies(columns, device, scope), *_syncs(columns, names, device, issue, scope)]
    calls += _queue(columns, device)
    calls += _unseen(issue, quiet)
    calls += _end(device, issue, scope)
    return _joined(device, issue, calls)


def _copies(columns: TraceColumns, device: Device, scope: Scope) -> Iterator[_Call]:
    events = np.flatnonzero(device.held)
    rows = device.call[events]
    events, rows = (values[columns.ts_ns[rows] >= scope.start_ns] for values in (events, rows))
    times = zip(columns.ts_ns[rows].tolist(), columns.end_ns[rows].tolist(), strict=True)
    for event, (begun, at) in zip(events.tolist(), times, strict=True):
        yield _Call(begun, at, (event,), int(Wait.COPY))


def _syncs(columns: TraceColumns, names: HostNames, device: Device, issue: Issue, scope: Scope) -> Iterator[_Call]:
    frees, whole = (matching(columns, in_use(columns), pattern) for pattern in (_FREES, _WHOLE_DEVICE))
    wanted = (names.sync_call | frees)[columns.name] & (columns.category == Category.RUNTIME)
    rows = np.flatnonzero(wanted & (columns.ts_ns >= scope.start_ns) & (columns.end_ns <= scope.end_ns))
    rows = rows[~np.isin(rows, device.call[device.held])]
    rows = rows[~_told_by_copies(columns, device, rows) | (frees | whole)[columns.name[rows]]]
    times = zip(columns.ts_ns[rows].tolist(), columns.end_ns[rows].tolist(), columns.name[rows].tolist(), strict=True)
    is_freeing, is_whole, allocator, sync = frees.tolist(), whole.tolist(), int(Wait.ALLOCATOR), int(Wait.SYNC)
    for begun, at, name in times:
        if is_freeing[name] or is_whole[name]:
            issued = issue.by(begun)
            targets = tuple(issue.newest(stream, issued, at) for stream in issue.streams[:_MOST_STREAMS])
        else:
            targets = (_awaited(issue, begun, at),)
        yield _Call(begun, at, targets, allocator if is_freeing[name] else sync)


def _told_by_copies(columns: TraceColumns, device: Device, rows: I64) -> Bools:
    """``(n,)`` calls right after a copy that was waited for in its own call: nothing is left to wait for.

    Reading a value makes such a pair each time; the first of both says it all.
    """
    issued = np.searchsorted(device.anchor, columns.ts_ns[rows], side="right")
    if not len(device):
        return np.zeros(len(rows), dtype=np.bool_)
    last = np.maximum(issued - 1, 0)
    told: Bools = (issued > 0) & device.held[last] & device.issued[last]
    told &= columns.end_ns[np.maximum(device.call[last], 0)] <= columns.ts_ns[rows]
    return told


def _calls(columns: TraceColumns, scope: Scope, pattern: re.Pattern[str]) -> I64:
    """Runtime calls of a name within the steps, by time."""
    rows = np.flatnonzero(
        (columns.category == Category.RUNTIME) & matching(columns, in_use(columns), pattern)[columns.name]
    )
    rows = rows[(columns.ts_ns[rows] >= scope.start_ns) & (columns.end_ns[rows] <= scope.end_ns)]
    return rows[np.argsort(columns.ts_ns[rows], kind="stable")]


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
    """Long stretches without a host event that end just as all issued work does: the host waited for it.

    It may ask for an event again and again, or the record of its call is lost.
    """
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


def _joined(device: Device, issue: Issue, calls: Iterable[_Call]) -> Joins:
    """The waits as arrays, in order. What a call takes beside waiting is the same whether it waits or not.

    Work that was issued too late is not meant; who waited for an event before need not wait for it again.
    """
    starts, ends, anchor, queue = device.start.tolist(), issue.end, issue.anchor, int(Wait.QUEUE)
    out: list[tuple[int, int, int, int, float, int]] = []
    seen: set[int] = set()
    for begun_ns, at_ns, asked, kind_of in sorted(calls, key=attrgetter("at")):
        targets = [target for target in asked if target >= 0 and anchor[target] < at_ns]
        moments = starts if kind_of == queue else ends
        if kind_of != queue:
            targets = [target for target in targets if target not in seen]
            seen.update(targets)
        latest = begun_ns
        for target in targets:
            latest = max(latest, moments[target])
        latest = min(latest, at_ns)
        ns = float(at_ns - latest)
        out.extend((at_ns, begun_ns, target, kind_of, ns, latest) for target in targets)
    at, begun, event, kind, after_ns, until_ns = zip(*out, strict=True) if out else [()] * 6
    return Joins(
        at=np.array(at, dtype=np.int64),
        begun=np.array(begun, dtype=np.int64),
        event=np.array(event, dtype=np.int64),
        kind=np.array(kind, dtype=np.int64),
        ns=np.array(after_ns, dtype=np.float64),
        until=np.array(until_ns, dtype=np.int64),
    )
