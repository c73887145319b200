"""Why the device was idle: every gap goes to what the thread that launched the next kernel was doing."""

import numpy as np

from profilerkit.analysis.host import HostNames, HostThread, drained, host_thread
from profilerkit.analysis.intervals import I64, NO_SEGMENTS, Segments, Spans, paint, with_label
from profilerkit.analysis.leaves import leaf
from profilerkit.trace.columns import TraceColumns

#: A kernel that starts later than this after its launch call returned waited for something the trace does not show
#: (another stream's event, a peer, a sampled-away kernel): real launch latencies stay below a few milliseconds.
LONGEST_LAUNCH_NS = 10_000_000


def attribute(
    columns: TraceColumns, names: HostNames, gaps: Spans, device: I64, launches: I64, copied: I64, main: int
) -> Segments:
    """Label idle time.

    A gap ends when a device event starts. Until that event's launch call returned, the gap belongs to the host
    (instant by instant, the launching thread first, then the main thread: a backward thread is idle while the main
    thread prepares its work); after that it is launch latency.

    Args:
        columns: the trace.
        names: its classified names.
        gaps: idle intervals of the device, whole where adjacent steps share one.
        device: rows of the device's events, sorted by start.
        launches: ``(n_events,)`` int64, row of the runtime call that launched an event, -1 for none.
        copied: ``(n_events,)`` int64, leaf of the copy a runtime row launched, -1 for none.
        main: the main thread, -1 if there is none.
    """
    if not len(gaps):
        return NO_SEGMENTS
    following = np.searchsorted(columns.ts_ns[device], gaps.end, side="left")
    has_next = following < len(device)
    next_row = np.where(has_next, device[np.minimum(following, len(device) - 1)], -1)
    call = np.where(has_next, launches[np.maximum(next_row, 0)], -1)
    call = np.where(next_row >= 0, call, -1)
    thread = np.where(call >= 0, columns.thread[np.maximum(call, 0)], main)
    issued = np.where(call >= 0, columns.end_ns[np.maximum(call, 0)], gaps.end)
    host_end = np.clip(issued, gaps.start, gaps.end)
    believable = gaps.end - host_end <= LONGEST_LAUNCH_NS
    pieces = [
        with_label(_positive(host_end[rows], gaps.end[rows]), leaf(part))
        for rows, part in ((believable, "over.launch"), (~believable, "idle.unknown"))
    ]
    activity: dict[int, HostThread] = {}

    def layers_of(key: int) -> HostThread:
        if key not in activity:
            activity[key] = host_thread(columns, names, key, copied)
        return activity[key]

    for key in np.unique(thread):
        own = thread == key
        start, end = gaps.start[own], host_end[own]
        if key < 0:
            pieces.append(with_label(_positive(start, end), leaf("idle.unknown")))
            continue
        pieces.append(_host_part(start, end, layers_of(int(key)), layers_of(main) if main not in (-1, key) else None))
    return _sorted(pieces)


def _host_part(start: I64, end: I64, thread: HostThread, main: HostThread | None) -> Segments:
    """Layers of the launching thread over those of the main thread over plain Python."""
    *upper, dispatch = thread.layers
    layers = [*upper, drained(thread, start, end), dispatch, *(main.layers if main else ())]
    painted = paint(_positive(start, end), layers)
    label = np.where(painted.label < 0, leaf("over.python"), painted.label)
    return Segments(painted.start, painted.end, label)


def _positive(start: I64, end: I64) -> Spans:
    keep = end > start
    return Spans(start[keep], end[keep])


def _sorted(pieces: list[Segments]) -> Segments:
    start = np.concatenate([piece.start for piece in pieces])
    order = np.argsort(start, kind="stable")
    return Segments(
        start[order],
        np.concatenate([piece.end for piece in pieces])[order],
        np.concatenate([piece.label for piece in pieces])[order],
    )
