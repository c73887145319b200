"""An allocator's history to its peak, what was in use at it, and the requests that failed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.model.change import revise
from profilerkit.model.snapshot import FailedRequest, LiveAtPeak, MemorySnapshot
from profilerkit.trace.logs import AllocatorEvent, Block, DeviceHistory, SnapshotLog

#: Lines of Python told of what was live, and requests that failed.
MOST_LINES, MOST_FAILED = 10, 10

_IN_USE = {"alloc": 1, "free_completed": -1}
_RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
#: Paths of code that is not the user's own.
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/torch/", "<")

#: Sizes of a damaged snapshot may add up to more than fits into 64 bits.
_LARGEST = 1 << 60


def memory_snapshots(log: SnapshotLog) -> tuple[MemorySnapshot, ...]:
    """What a snapshot says of each of its devices."""
    return tuple(_snapshot(log.origin, device) for device in log.devices)


def _snapshot(origin: str, device: DeviceHistory) -> MemorySnapshot:
    used = [block for segment in device.segments for block in segment.blocks if block.in_use]
    reserved = _total(segment.total_bytes for segment in device.segments)
    in_use = _total(block.bytes for block in used)
    free = [
        sum(block.bytes for block in segment.blocks if not block.in_use)
        for segment in device.segments
        if any(block.in_use for block in segment.blocks)
    ]
    known = MemorySnapshot(
        origin=origin,
        device=device.device,
        in_use_bytes=in_use,
        reserved_bytes=reserved,
        idle_bytes=max(reserved - in_use, 0),
        split_bytes=_total(free),
        events=len(device.events),
        live=_by_line([(block.bytes, block.frames) for block in used], in_use),
    )
    return _with_history(known, device.events, used) if device.events else known


@dataclass(frozen=True, slots=True)
class _Level:
    """Bytes before the first event, and ``(n_events,)`` int64 after each."""

    start: int
    after: I64


def _level(events: Sequence[AllocatorEvent], signs: dict[str, int], end: int) -> _Level:
    """The bytes over the history, counted back from what the snapshot holds at its end.

    Three events of +4, +2 and -4 that end with 5 bytes began with 3: 7, 9, 5. What would begin below zero begins at
    the least that stays above it: the history and the end then disagree.
    """
    change = np.array([signs.get(event.action, 0) * event.bytes for event in events], dtype=np.float64)
    grown = np.cumsum(change)
    start = max(end - float(grown[-1]), -float(min(grown.min(), 0.0)), 0.0)
    return _Level(round(min(start, _LARGEST)), np.rint(np.clip(start + grown, 0.0, _LARGEST)).astype(np.int64))


def _with_history(known: MemorySnapshot, events: Sequence[AllocatorEvent], used: Sequence[Block]) -> MemorySnapshot:
    in_use = _level(events, _IN_USE, known.in_use_bytes)
    reserved = _level(events, _RESERVED, known.reserved_bytes)
    top = int(in_use.after.argmax())
    peak = int(in_use.after[top])
    if in_use.start > peak:
        top, peak = -1, in_use.start
    times = [event.time_ns for event in events if event.time_ns is not None]
    return revise(
        known,
        start_in_use_bytes=in_use.start,
        peak_bytes=peak,
        reserved_at_peak_bytes=int(reserved.after[top]) if top >= 0 else reserved.start,
        peak_reserved_bytes=max(reserved.start, int(reserved.after.max())),
        length_ns=max(times) - min(times) if times else None,
        live=_by_line(_live_at(events, top, used), peak),
        failed=tuple(
            FailedRequest(
                requested_bytes=event.bytes,
                free_bytes=event.free_bytes,
                in_use_bytes=int(in_use.after[row]),
                reserved_bytes=int(reserved.after[row]),
                frames=event.frames,
            )
            for row, event in enumerate(events)
            if event.action == "oom"
        )[:MOST_FAILED],
    )


def _live_at(events: Sequence[AllocatorEvent], top: int, used: Sequence[Block]) -> list[tuple[int, tuple[str, ...]]]:
    """Size and stack of what was in use after event ``top``, as far as it is known who asked for it.

    Known are the requests in the history up to then, and what is older than the history and still there at its end.
    """
    live: dict[int, tuple[int, tuple[str, ...]]] = {}
    asked = {event.address for event in events if event.action == "alloc"}
    freed = {event.address for event in events if event.action == "free_completed"}
    for event in events[: top + 1]:
        if event.action == "alloc":
            live[event.address] = (event.bytes, event.frames)
        elif event.action == "free_completed":
            live.pop(event.address, None)
    older = [block for block in used if block.address not in asked and block.address not in freed]
    return [*live.values(), *((block.bytes, block.frames) for block in older)]


def _by_line(blocks: Sequence[tuple[int, tuple[str, ...]]], total: int) -> tuple[LiveAtPeak, ...]:
    """The blocks by the line that asked for them, largest first; what is not known of ``total`` has no line."""
    sizes: dict[str | None, tuple[int, int]] = {}
    for size, frames in blocks:
        line = own_line(frames)
        count, known = sizes.get(line, (0, 0))
        sizes[line] = (count + 1, known + size)
    told = [LiveAtPeak(line=line, count=count, bytes=size) for line, (count, size) in sizes.items() if line is not None]
    told.sort(key=lambda row: -row.bytes)
    shown = told[:MOST_LINES]
    rest = total - sum(row.bytes for row in shown)
    if rest <= 0:
        return tuple(shown)
    others = sum(row.count for row in told[MOST_LINES:]) + sizes.get(None, (0, 0))[0]
    return (*shown, LiveAtPeak(line=None, count=others, bytes=rest))


def _total(sizes: Iterable[int]) -> int:
    return min(sum(sizes), _LARGEST)


def own_line(frames: Sequence[str]) -> str | None:
    """The innermost line outside of libraries, else the innermost one; ``None`` without any."""
    own = (frame for frame in frames if not any(part in frame for part in _LIBRARIES))
    return next(own, next(iter(frames), None))
