"""Why the device was idle: every gap goes to what the thread that launched the next kernel was doing."""

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.host.activity import HostActivity
from profilerkit.analysis.intervals import I64, NO_SEGMENTS, Segments, Spans, positive, with_label
from profilerkit.analysis.leaves import leaf
from profilerkit.trace.columns import TraceColumns

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

        Args:
            columns: the trace.
            device: rows of the device's events.
            launches: ``(n_events,)`` int64, row of the runtime call that launched an event, -1 for none.
            main: the main thread, -1 if there is none; events without a launch are taken to be its.
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
        self._at = np.where(_is_first(self._call, self.start), issued[order], _BEFORE_ALL)
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


def _is_first(call: I64, start: I64) -> npt.NDArray[np.bool_]:
    """``(n,)`` whether an event is the first of what its call launched; ``start`` is sorted."""
    _, first, which = np.unique(call, return_index=True, return_inverse=True)
    is_first: npt.NDArray[np.bool_] = (start == start[first][which.ravel()]) | (call < 0)
    return is_first


def attribute(gaps: Spans, issued: Issued, host: HostActivity) -> Segments:
    """Label idle time.

    A gap ends when a device event starts. Until that event's launch call returned, the gap belongs to the host; after
    that it is launch latency. The device does nothing else meanwhile, so no other stream can be what the event waited
    for. A gap that no event ends is the main thread's. Before the first event whose launch was recorded the device may
    still do what was launched earlier: a late launch there tells nothing.

    Args:
        gaps: idle intervals of the device, whole where adjacent steps share one.
        issued: the device's events.
        host: what its threads did.
    """
    if not len(gaps):
        return NO_SEGMENTS
    _, at, thread = issued.next(gaps.end)
    host_end = np.clip(at, gaps.start, gaps.end)
    latency = gaps.end - host_end
    believable = latency <= np.where(gaps.end > issued.first_ns, LONGEST_LAUNCH_NS, LATE_LAUNCH_NS)
    pieces = [
        with_label(positive(host_end[rows], gaps.end[rows]), leaf(part))
        for rows, part in ((believable, "over.launch"), (~believable, "idle.unknown"))
    ]
    for key in np.unique(thread).tolist():
        own = thread == key
        pieces.append(host.label(gaps.start[own], host_end[own], key))
    return in_order(pieces)


def in_order(pieces: list[Segments]) -> Segments:
    """Disjoint segments of several lists, sorted."""
    start = np.concatenate([piece.start for piece in pieces])
    order = np.argsort(start, kind="stable")
    return Segments(
        start[order],
        np.concatenate([piece.end for piece in pieces])[order],
        np.concatenate([piece.label for piece in pieces])[order],
    )
