"""Why the device was idle, what alone kept it from computing, and what the host was late with behind that."""

import msgspec
import numpy as np

from profilerkit.analysis.host.activity import HostActivity
from profilerkit.analysis.host.names import QUIET_NS
from profilerkit.analysis.intervals import NO_SEGMENTS, Segments, Spans, positive, with_label
from profilerkit.model.step import LEAVES, leaf
from profilerkit.trace.columns import I64, Bools, TraceColumns

#: Launches of real traces take 2 to 20 µs; one this long waited for something else that held the device.
LATE_LAUNCH_NS = 1_000_000
#: A kernel that starts later than this after its launch call returned waited for something the trace does not show
#: (another stream's event, a peer, a sampled-away kernel): real launch latencies stay below a few milliseconds.
LONGEST_LAUNCH_NS = 10_000_000

_BEFORE_ALL, _AFTER_ALL = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Issued:
    """When the host had issued each of the device's events, and from which thread."""

    def __init__(self, columns: TraceColumns, device: I64, launches: I64, main: int) -> None:
        """Put the events in order.

        Of events that start together the one issued last comes first: the others were ready before it.
        """
        call = launches[device]
        known = np.maximum(call, 0)
        issued = np.where(call >= 0, columns.end_ns[known], _BEFORE_ALL)
        began = np.where(call >= 0, columns.ts_ns[known], 0)
        order = np.lexsort((-began, -issued, columns.ts_ns[device]))
        self.rows: I64 = device[order]
        self.start: I64 = columns.ts_ns[self.rows]
        self._call = call[order]
        # What a graph launch runs after its first kernel the host has no part in any more.
        _, first, which = np.unique(self._call, return_index=True, return_inverse=True)
        is_first: Bools = (self.start == self.start[first][which.ravel()]) | (self._call < 0)
        self._at = np.where(is_first, issued[order], _BEFORE_ALL)
        self._thread = np.where(self._call >= 0, columns.thread[np.maximum(self._call, 0)], main)
        self._main = main
        linked = self.start[self._call >= 0]
        self.first_ns = int(linked.min()) if len(linked) else _AFTER_ALL

    def next(self, instants: I64) -> tuple[I64, I64, I64]:
        """The first event that starts at or after each instant: its place in ``rows``, when it was issued, by whom.

        Where there is none, its place is ``len(rows)``. Without one, or without its launch, it counts as issued after
        all else by the main thread, so that the time before it is the host's.
        """
        place = np.searchsorted(self.start, instants, side="left")
        linked = place < len(self.rows)
        linked[linked] = self._call[place[linked]] >= 0
        at, thread = np.full(len(place), _AFTER_ALL), np.full(len(place), self._main)
        at[linked], thread[linked] = self._at[place[linked]], self._thread[place[linked]]
        return place, at, thread


def attribute(gaps: Spans, issued: Issued, host: HostActivity) -> Segments:
    """Label idle time.

    A gap ends when a device event starts. Until that event's launch call returned, the gap belongs to the host; after
    that it is launch latency. The device does nothing else meanwhile, so no other stream can be what the event waited
    for. A gap that no event ends is the main thread's. Before the first event whose launch was recorded the device may
    still do what was launched earlier: a late launch there tells nothing.
    """
    if not len(gaps):
        return NO_SEGMENTS
    _, at, thread = issued.next(gaps.end)
    host_end = np.clip(at, gaps.start, gaps.end)
    latency = gaps.end - host_end
    believable = latency <= np.where(gaps.end > issued.first_ns, LONGEST_LAUNCH_NS, LATE_LAUNCH_NS)
    parts = ((believable, "over.launch"), (~believable, "idle.unknown"))
    pieces = [with_label(positive(host_end[rows], gaps.end[rows]), leaf(part)) for rows, part in parts]
    for key in np.unique(thread).tolist():
        own = thread == key
        pieces.append(host.label(gaps.start[own], host_end[own], key))
    return in_order(pieces)


def in_order(pieces: list[Segments]) -> Segments:
    """Disjoint segments of several lists, sorted."""
    start, end, label = (np.concatenate([getattr(one, name) for one in pieces]) for name in ("start", "end", "label"))
    order = np.argsort(start, kind="stable")
    return Segments(start[order], end[order], label[order])


# The breakdown gives an instant to what the device did. What one fix recovers follows from what was ready when: work
# starts when the last of its launch, its transfers and its stream's earlier work is there (the last-arriver rule).

#: Work that starts within this time after a transfer on another stream ended, issued long before, is taken to have
#: waited for it where the trace does not record which stream waits for which (HTA calls gaps below 30 µs kernel waits).
RELEASE_NS = 30_000

#: What the host does when it waits for the device itself: for its queue, or for the copy it is in.
_WAITS_FOR_DEVICE = np.array([name.startswith("sync.") or name in ("input.h2d", "mem.offload") for name in LEAVES])


class Held(msgspec.Struct, frozen=True):
    """What kept the device from computing."""

    alone: Segments  #: time that one part recovers when it alone is removed, by part
    #: Time in which the host had not issued the next work either while the device communicated or copied, by what the
    #: host did: a fix of it shows only once the transfer is gone as well.
    hidden: Segments


def releases(
    columns: TraceColumns, idle: Segments, exposed: Segments, transfers: I64, issued: Issued, host: HostActivity
) -> Held:
    """Who held the device, from what it waited for last.

    An idle device waits for the host alone. While a transfer runs, the next work waits for the transfer from when the
    host has issued it, if it starts as the transfer ends; before that for both. Where it starts beside the transfer it
    never waited for that: exposed is not blocking. A host of which nothing was recorded meanwhile, and that issues the
    next work right after the transfer, waited for it too.
    """
    if not len(exposed):
        return Held(idle, NO_SEGMENTS)
    place, at, thread = issued.next(exposed.end)
    late = np.where(place < len(issued.rows), np.clip(at, exposed.start, exposed.end), exposed.start)
    ends, awaited = _ended(columns, exposed, transfers, issued, place)
    alone, hidden = [idle, _pick(late, exposed.end, exposed.label, awaited)], []
    for key in np.unique(thread).tolist():
        own = (thread == key) & (late > exposed.start)
        told = host.label(exposed.start[own], late[own], key)
        under = np.searchsorted(exposed.start, told.start, side="right") - 1
        # A host that waits for the device waits for the transfer.
        soon = (at - exposed.end)[under] <= QUIET_NS
        blocked = _WAITS_FOR_DEVICE[told.label] | ((told.label == leaf("idle.unknown")) & soon & ends[under])
        alone.append(_pick(told.start, told.end, exposed.label[under], blocked))
        alone.append(_pick(told.start, told.end, told.label, ~blocked & ~ends[under]))
        hidden.append(_pick(told.start, told.end, told.label, ~blocked & ends[under]))
    return Held(in_order(alone), in_order(hidden))


def _ended(columns: TraceColumns, exposed: Segments, transfers: I64, issued: Issued, place: I64) -> tuple[Bools, Bools]:
    """Whether a transfer ended with each piece of ``exposed``, and whether the work at ``place`` waited for that."""
    end = columns.ts_ns[transfers] + columns.dur_ns[transfers]
    order = np.lexsort((columns.dur_ns[transfers], end))
    last = order[np.searchsorted(end[order], exposed.end, side="right") - 1]
    ends = end[last] == exposed.end
    known = place < len(issued.rows)
    following = issued.rows[np.minimum(place, len(issued.rows) - 1)]
    awaited = ends & ~(known & (columns.ts_ns[following] - exposed.end > RELEASE_NS))
    if columns.stream_waits:
        pairs = zip(columns.stream[following].tolist(), columns.stream[transfers[last]].tolist(), strict=True)
        related = np.array([mine == other or (mine, other) in columns.stream_waits for mine, other in pairs])
        awaited &= related | ~known
    return ends, awaited


def _pick(start: I64, end: I64, label: I64, rows: Bools) -> Segments:
    keep = rows & (end > start)
    return Segments(start[keep], end[keep], label[keep])
