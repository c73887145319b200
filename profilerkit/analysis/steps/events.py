"""The longest events of the median and of the slowest step, on rows without overlaps, for a timeline that zooms."""

from array import array

import msgspec
import numpy as np

from profilerkit.analysis.host.names import backward_threads
from profilerkit.analysis.intervals import I64, Spans, paint, subtract, union
from profilerkit.analysis.parts import LEAVES
from profilerkit.analysis.steps.lanes import (
    FAMILIES,
    FAMILY,
    ON_HOST,
    device_leaves,
    did_by_thread,
    inside,
    median_row,
    thread_name,
    time_by,
)
from profilerkit.analysis.trace_view import TraceView
from profilerkit.model.events import EventTrack, StepEvents, TrackKind
from profilerkit.trace.columns import Category

#: Events kept of a step by what they are: Python functions are long, and would leave out every kernel beside them (a
#: choice: two steps take at most 200 kB of a page).
MOST_EVENTS: dict[str, int] = {"device": 5_000, "thread": 3_500, "python": 1_500}
_MOST_CAUSES = 2_000
#: More tracks are not read beside each other (a choice).
_MOST_STREAMS, _MOST_THREADS = 8, 8
#: Nested deeper than that is left out.
_MOST_ROWS = 16
_NAME_LIMIT = 600
_HOST = (Category.CPU_OP, Category.RUNTIME, Category.ANNOTATION, Category.OVERHEAD, Category.PYTHON)


class _Track(msgspec.Struct, frozen=True):
    """Events under one heading, arrays of one length; a negative ``name`` is a leaf, counted from -1 downwards."""

    label: str
    kind: TrackKind
    start: I64
    dur: I64
    name: I64
    family: I64


def step_events(seen: TraceView) -> tuple[StepEvents, ...]:
    """The median step, and the slowest judged one where that is another; empty without a steady step."""
    row = median_row(seen.steps)
    if row is None:
        return ()
    length = np.where(seen.steps.judged, seen.steps.end - seen.steps.start, -1)
    slowest = int(length.argmax())
    return (_of_step(seen, row, row), *([_of_step(seen, slowest, row)] if length[slowest] > length[row] else []))


def _of_step(seen: TraceView, row: int, median: int) -> StepEvents:
    steps = seen.steps
    step = Spans(steps.start[row : row + 1], steps.end[row : row + 1])
    ran = inside(seen.columns, np.flatnonzero(seen.ran), step) if seen.on_gpu else np.empty(0, np.int64)
    tracks = [_causes(seen, ran, step)]
    tracks += _longest([*_streams(seen, ran), *_threads(seen, step)])
    kept = [_rows(track) for track in tracks]
    return _record(seen, row, median, kept, len(ran) + len(_on_host(seen, step)))


def _record(seen: TraceView, row: int, median: int, tracks: list[tuple[_Track, I64]], total: int) -> StepEvents:
    """The record of tracks with the row of each event, -1 for none."""
    steps = seen.steps
    shown, headings, above = [], [], 0
    for track, rows in tracks:
        known = np.flatnonzero(rows >= 0)
        if not len(known):
            continue
        count = int(rows.max()) + 1
        headings.append(EventTrack(name=track.label[:_NAME_LIMIT], kind=track.kind, rows=count))
        order = known[np.lexsort((track.start[known], rows[known]))]
        shown.append(
            [*(each[order] for each in (track.start, track.dur, track.name, track.family)), rows[order] + above]
        )
        above += count
    start, dur, name, family, placed = (np.concatenate(each) for each in zip(*shown, strict=True))
    used, position = np.unique(name, return_inverse=True)
    texts = [LEAVES[-1 - key] if key < 0 else seen.columns.strings[key][:_NAME_LIMIT] for key in used.tolist()]
    return StepEvents(
        step=int(steps.index[row]),
        time_ns=int(steps.end[row] - steps.start[row]),
        is_median=row == median,
        mode=seen.parts.mode,
        tracks=tuple(headings),
        names=tuple(texts),
        families=FAMILIES,
        start_ns=_array(start - steps.start[row]),
        dur_ns=_array(dur),
        name=_array(position),
        row=_array(placed),
        family=_array(family),
        left_out=total
        - sum(len(each[0]) for each, heading in zip(shown, headings, strict=True) if heading.kind != "cause"),
    )


def _array(values: I64) -> "array[int]":
    return array("q", values.astype(np.int64).tobytes())


def _causes(seen: TraceView, ran: I64, step: Spans) -> _Track:
    """What each idle time of the device was attributed to; without a device the whole partition."""
    idle = subtract(step, union(seen.columns.ts_ns[ran], seen.columns.end_ns[ran])) if seen.on_gpu else step
    found = paint(idle, [seen.parts.segments])
    longest = np.sort(np.argsort(found.start - found.end, kind="stable")[:_MOST_CAUSES])
    start, end, label = found.start[longest], found.end[longest], found.label[longest]
    return _Track(
        "Idle, by cause" if seen.on_gpu else "Step, by cause", "cause", start, end - start, -1 - label, FAMILY[label]
    )


def _streams(seen: TraceView, ran: I64) -> list[_Track]:
    """Kernels, copies and collectives of each stream."""
    columns = seen.columns
    kernel = columns.category[ran] == Category.KERNEL
    talks = kernel & seen.kinds.communication[columns.name[ran]]
    kinds: tuple[tuple[TrackKind, str, I64], ...] = (
        ("stream", "Stream", kernel & ~talks),
        ("communication", "Collectives, stream", talks),
        ("copies", "Copies, stream", ~kernel),
    )
    family = FAMILY[device_leaves(seen, ran)]
    tracks = []
    for kind, word, chosen in kinds:
        streams, count = np.unique(columns.stream[ran[chosen]], return_counts=True)
        for stream in streams[np.argsort(-count, kind="stable")][:_MOST_STREAMS].tolist():
            own = chosen & (columns.stream[ran] == stream)
            label = f"{word} {stream}" if stream >= 0 else word.removesuffix(", stream").replace("Stream", "Device")
            tracks.append(_track(seen, label, kind, ran[own], family[own]))
    return tracks


def _on_host(seen: TraceView, step: Spans) -> I64:
    """Events of the host in the step; Python functions that hold all of it say nothing about it."""
    columns = seen.columns
    rows = inside(columns, np.flatnonzero(columns.is_a(*_HOST)), step)
    around = (columns.ts_ns[rows] <= step.start[0]) & (columns.end_ns[rows] >= step.end[0])
    chosen: I64 = rows[~(around & (columns.category[rows] == Category.PYTHON))]
    return chosen


def _threads(seen: TraceView, step: Spans) -> list[_Track]:
    """Operators, ranges and calls of each thread, and its Python functions beside them."""
    columns, main = seen.columns, seen.host.main
    rows = _on_host(seen, step)
    time = time_by(columns.thread[rows], columns, rows, step)
    backward = backward_threads(columns, seen.names, main).tolist()
    busiest = sorted(np.flatnonzero(time).tolist(), key=lambda key: (key != main, key not in backward, -time[key]))
    tracks = []
    for key in busiest[:_MOST_THREADS]:
        own = rows[columns.thread[rows] == key]
        python = columns.category[own] == Category.PYTHON
        did = did_by_thread(seen, key, own[columns.category[own] == Category.CPU_OP], step)
        at = np.searchsorted(did.start, np.maximum(columns.ts_ns[own], step.start[0]), side="right") - 1
        known = (at >= 0) & (did.label[at] >= 0) if len(did) else np.zeros(len(own), dtype=bool)
        family = np.full(len(own), FAMILIES.index("overhead"), dtype=np.int64)
        family[known] = ON_HOST[did.label[at[known]]]
        name = thread_name(columns, key, main, backward)
        tracks.append(_track(seen, name, "thread", own[~python], family[~python]))
        tracks.append(_track(seen, f"{name}, Python", "python", own[python], family[python]))
    return tracks


def _track(seen: TraceView, label: str, kind: TrackKind, rows: I64, family: I64) -> _Track:
    columns = seen.columns
    return _Track(label, kind, columns.ts_ns[rows], columns.dur_ns[rows], columns.name[rows].astype(np.int64), family)


def _longest(tracks: list[_Track]) -> list[_Track]:
    """The tracks with the longest events of each sort, those of Python functions last."""
    chosen = []
    for sort, most in MOST_EVENTS.items():
        alike = [track for track in tracks if sort == (track.kind if track.kind in MOST_EVENTS else "device")]
        dur = np.concatenate([np.empty(0, np.int64), *(track.dur for track in alike)])
        keep = np.zeros(len(dur), dtype=bool)
        keep[np.argsort(-dur, kind="stable")[:most]] = True
        for track, mask in zip(
            alike, np.split(keep, np.cumsum([len(track.dur) for track in alike])[:-1]), strict=False
        ):
            arrays = (track.start, track.dur, track.name, track.family)
            chosen.append(_Track(track.label, track.kind, *(each[mask] for each in arrays)))
    return chosen


def _rows(track: _Track) -> tuple[_Track, I64]:
    """The track with the first row of each event that is free where it begins; -1 beyond ``_MOST_ROWS``.

    What is nested lies under what holds it.
    """
    rows = np.full(len(track.start), -1, dtype=np.int64)
    ends: list[int] = []
    order = np.lexsort((-track.dur, track.start))
    for place, start, dur in zip(order.tolist(), track.start[order].tolist(), track.dur[order].tolist(), strict=True):
        row = next((row for row, end in enumerate(ends) if end <= start), len(ends))
        if row == len(ends) and row < _MOST_ROWS:
            ends.append(0)
        if row < _MOST_ROWS:
            ends[row] = start + dur
            rows[place] = row
    return track, rows
