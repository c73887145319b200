"""The median step as lanes in cells of equal length with its gaps, and the longest events of it and of the slowest."""

from array import array

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.host.names import backward_threads
from profilerkit.analysis.intervals import (
    Segments,
    Spans,
    innermost_owner,
    latest_end_owner,
    paint,
    rows_of,
    subtract,
    time_within,
    union,
)
from profilerkit.analysis.partition import Partition, TraceView, leaf_ns
from profilerkit.analysis.steps.find import TraceSteps
from profilerkit.model import revise
from profilerkit.model.events import CELLS, EventTrack, Gap, Lane, LaneKind, MedianStep, StepEvents, Track, TrackKind
from profilerkit.model.step import LEAVES, PARTS, WAITS, Family, leaf, leaf_times
from profilerkit.trace.columns import I64, Category, TraceColumns

MOST_STREAMS, MOST_THREADS = 6, 4  #: more lanes than this are not read beside each other (a choice)
_NAME_LIMIT = 60  #: longest name of a lane that is kept

FAMILIES: tuple[Family, ...] = tuple(dict.fromkeys(family for family, _ in PARTS.values()))
FAMILY: I64 = np.array([FAMILIES.index(PARTS[name][0]) for name in LEAVES], dtype=np.int64)
#: A host thread that waits for the device does no work of its own.
ON_HOST: I64 = np.where([name.startswith("sync.") for name in LEAVES], FAMILIES.index("other"), FAMILY)
_WAITS: I64 = np.array([leaf(name) for name in WAITS], dtype=np.int64)


class StepLanes(msgspec.Struct, frozen=True):
    """What the events of one step show; the judged device is ``idle`` in these spans, ``None`` without a device."""

    row: int
    idle: Spans | None
    lanes: tuple[Lane, ...]
    streams_left_out: int
    threads_left_out: int


def step_lanes(seen: TraceView) -> StepLanes | None:
    """The lanes of the steady step whose time is closest to the median; ``None`` without a steady step."""
    row = median_row(seen.steps)
    if row is None:
        return None
    step = Spans(seen.steps.start[row : row + 1], seen.steps.end[row : row + 1])
    threads, threads_left_out = _threads(seen, step)
    if not seen.on_gpu:
        return StepLanes(row, None, threads if len(threads) > 1 else (), 0, threads_left_out)
    rows = inside(seen.columns, seen.ran, step)
    streams, streams_left_out = _streams(seen, rows, step)
    idle = subtract(step, union(seen.columns.ts_ns[rows], seen.columns.end_ns[rows]))
    return StepLanes(row, idle, (*streams, *threads), streams_left_out, threads_left_out)


def median_row(steps: TraceSteps) -> int | None:
    """Position of the first steady step closest to their median; ``None`` where none has a length."""
    rows = np.flatnonzero(steps.judged & (steps.end > steps.start))
    if not len(rows):
        return None
    time = (steps.end - steps.start)[rows]
    return int(rows[np.abs(time - np.median(time)).argmin()])


def lane_of(name: str, kind: LaneKind, did: Segments, step: Spans, family: I64 = FAMILY) -> Lane:
    """Labelled time as a lane."""
    start, end = int(step.start[0]), int(step.end[0])
    edges = start + (end - start) * np.arange(CELLS + 1, dtype=np.int64) // CELLS
    tracks = []
    known = did.label >= 0
    of = family[np.maximum(did.label, 0)]
    for position, name_of_family in enumerate(FAMILIES):
        own = known & (of == position)
        filled = time_within(Spans(did.start[own], did.end[own]), edges[:-1], edges[1:])
        total = int(filled.sum())
        if total:
            levels = np.ceil(255 * filled / np.maximum(np.diff(edges), 1))
            tracks.append(Track(family=name_of_family, time_ns=total, levels=levels.astype(np.uint8).tobytes()))
    return Lane(name=name[:_NAME_LIMIT], kind=kind, tracks=tuple(tracks))


def inside(columns: TraceColumns, chosen: npt.NDArray[np.bool_], step: Spans) -> I64:
    """Rows of the chosen events that reach into the step."""
    return np.flatnonzero(chosen & (columns.ts_ns < step.end[0]) & (columns.end_ns > step.start[0]))


def time_by(key: npt.NDArray[np.signedinteger], columns: TraceColumns, rows: I64, step: Spans) -> I64:
    """Time in the step of the rows with each value of ``key``, which is not negative; nested time counts twice."""
    inside = np.minimum(columns.end_ns[rows], step.end[0]) - np.maximum(columns.ts_ns[rows], step.start[0])
    time = np.zeros(int(key.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(time, key, inside)
    return time


def _streams(seen: TraceView, rows: I64, step: Spans) -> tuple[tuple[Lane, ...], int]:
    """The busiest streams, and how many others there are; ``rows`` are the device's events in the step."""
    columns = seen.columns
    streams, which = np.unique(columns.stream[rows], return_inverse=True)
    busiest = np.argsort(-time_by(which, columns, rows, step), kind="stable")
    leaves = device_leaves(seen, rows)
    lanes = []
    for place in busiest[:MOST_STREAMS].tolist():
        own = which == place
        did = latest_end_owner(columns.ts_ns[rows[own]], columns.end_ns[rows[own]], leaves[own])
        name = f"Stream {streams[place]}" if streams[place] >= 0 else "Device"
        lanes.append(lane_of(name, "stream", did, step))
    return tuple(lanes), len(streams) - len(lanes)


def device_leaves(seen: TraceView, rows: I64) -> I64:
    """``(n,)`` leaf of each of the device's events ``rows``, as the partition has it."""
    columns = seen.columns
    kernel = columns.category[rows] == Category.KERNEL
    copied = seen.parts.copied(rows)
    copied[copied < 0] = leaf("compute.membw")
    computed = np.where(seen.kinds.communication[columns.name[rows]], leaf("comm.other"), seen.leaves[rows])
    leaves: I64 = np.where(kernel, computed, copied)
    return leaves


def _threads(seen: TraceView, step: Spans) -> tuple[tuple[Lane, ...], int]:
    """The loader and the busiest host threads, and how many threads are left out."""
    columns, main = seen.columns, seen.host.main
    communicates = (columns.category == Category.ANNOTATION) & seen.kinds.communication[columns.name]
    works = columns.is_a(Category.CPU_OP, Category.RUNTIME) | communicates
    rows = inside(columns, works, step)
    busiest = _busiest(seen, rows, step)
    lanes: list[Lane] = []
    for key, name in busiest[:MOST_THREADS]:
        did = did_by_thread(seen, key, rows[columns.thread[rows] == key], step)
        if key == main and seen.on_gpu:
            waits = np.isin(did.label, _WAITS)
            lanes.append(lane_of("Loader", "loader", rows_of(did, waits), step))
            did = rows_of(did, ~waits)
        lanes.append(lane_of(name, "thread", did, step, ON_HOST))
    return tuple(lane for lane in lanes if lane.tracks), max(len(busiest) - MOST_THREADS, 0)


def _busiest(seen: TraceView, rows: I64, step: Spans) -> list[tuple[int, str]]:
    """Threads and what they are called: the main one, those of the backward pass, then by their time in the step."""
    columns, main = seen.columns, seen.host.main
    time = time_by(columns.thread[rows], columns, rows, step)
    backward = backward_threads(columns, seen.names, main).tolist()
    busiest = sorted(np.flatnonzero(time).tolist(), key=lambda key: (key != main, key not in backward, -time[key]))
    names = {key: f"Backward {number}" if number > 1 else "Backward" for number, key in enumerate(backward, 1)}
    names.setdefault(main, "Main thread")
    return [(key, names.get(key, f"Thread {columns.threads[key][1]}")) for key in busiest]


def did_by_thread(seen: TraceView, key: int, rows: I64, step: Spans) -> Segments:
    """What one thread did in the step, -1 for nothing; without a device its operators, ``rows``, compute."""
    columns = seen.columns
    *upper, dispatch = seen.host.thread(key).layers
    if not seen.on_gpu:
        communicates = seen.kinds.communication[columns.name[rows]]
        leaves = np.where(communicates, leaf("comm.other"), seen.leaves[rows])
        dispatch = innermost_owner(columns.ts_ns[rows], columns.end_ns[rows], leaves)
    return paint(step, [*upper, dispatch])


MOST_GAPS = 20  #: gaps that are told one by one (a choice)
#: What computes where the main thread is treated as the device; all else keeps it from that.
_COMPUTES = np.array([PARTS[name][0] in ("compute", "memory") for name in LEAVES])


def median_step(found: StepLanes, steps: TraceSteps, parts: Partition, rank: int | None) -> MedianStep:
    """Return the median step of a trace, ``rank``'s, with its longest gaps."""
    step = Spans(steps.start[found.row : found.row + 1], steps.end[found.row : found.row + 1])
    # The partition is cut where steps meet.
    first, after = np.searchsorted(parts.segments.start, [step.start[0], step.end[0]])
    did = rows_of(parts.segments, slice(int(first), int(after)))
    waits = ~_COMPUTES[did.label]
    idle = found.idle if found.idle is not None else union(did.start[waits], did.end[waits])
    per_gap = leaf_ns(paint(idle, [did]), idle)
    longest = np.argsort(idle.start - idle.end, kind="stable")[:MOST_GAPS]
    start = int(step.start[0])
    return MedianStep(
        step=int(steps.index[found.row]),
        rank=rank,
        of=int(steps.judged.sum()),
        mode=parts.mode,
        time_ns=step.total_ns,
        idle_ns=idle.total_ns,
        causes=dict(sorted(leaf_times(per_gap.sum(axis=0)).items(), key=lambda cause: -cause[1])),
        gaps=tuple(
            Gap(
                start_ns=int(idle.start[row]) - start,
                end_ns=int(idle.end[row]) - start,
                part=LEAVES[int(per_gap[row].argmax())],
                part_ns=int(per_gap[row].max()),
            )
            for row in longest.tolist()
        ),
        gap_count=len(idle),
        lanes=(lane_of("Step", "step", did, step), *found.lanes),
        streams_left_out=found.streams_left_out,
        threads_left_out=found.threads_left_out,
    )


#: Events kept of a step by what they are: Python functions are long, and would leave out every kernel beside them (a
#: choice: two steps take at most 200 kB of a page).
MOST_EVENTS: dict[str, int] = {"device": 5_000, "thread": 3_500, "python": 1_500}
_MOST_CAUSES = 2_000
_MOST_STREAMS, _MOST_THREADS = 8, 8  #: more tracks are not read beside each other (a choice)
#: Nested deeper than that is left out.
_MOST_ROWS = 16
_EVENT_NAME_LIMIT = 600
_HOST = (Category.CPU_OP, Category.RUNTIME, Category.ANNOTATION, Category.OVERHEAD, Category.PYTHON)


class _Track(msgspec.Struct, frozen=True):
    """Events under one heading: ``(4, n)`` start, duration, name and family; negative names are leaves from -1 down."""

    label: str
    kind: TrackKind
    events: I64


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
    ran = inside(seen.columns, seen.ran, step) if seen.on_gpu else np.empty(0, np.int64)
    tracks = [_causes(seen, ran, step), *_longest([*_stream_tracks(seen, ran), *_thread_tracks(seen, step)])]
    shown, headings, above, left_out = [], [], 0, len(ran) + len(_on_host(seen, step))
    for track in tracks:
        rows = _rows(track)
        known = np.flatnonzero(rows >= 0)
        if not len(known):
            continue
        count = int(rows.max()) + 1
        headings.append(EventTrack(name=track.label[:_EVENT_NAME_LIMIT], kind=track.kind, rows=count))
        order = known[np.lexsort((track.events[0, known], rows[known]))]
        shown.append(np.vstack([track.events[:, order], rows[order] + above]))
        above += count
        left_out -= len(order) if track.kind != "cause" else 0
    start, dur, name, family, placed = np.concatenate(shown, axis=1)
    used, position = np.unique(name, return_inverse=True)
    texts = [LEAVES[-1 - key] if key < 0 else seen.columns.strings[key][:_EVENT_NAME_LIMIT] for key in used.tolist()]
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
        left_out=left_out,
    )


def _array(values: I64) -> "array[int]":
    return array("q", values.astype(np.int64).tobytes())


def _causes(seen: TraceView, ran: I64, step: Spans) -> _Track:
    """What each idle time of the device was attributed to; without a device the whole partition."""
    idle = subtract(step, union(seen.columns.ts_ns[ran], seen.columns.end_ns[ran])) if seen.on_gpu else step
    found = paint(idle, [seen.parts.segments])
    longest = np.sort(np.argsort(found.start - found.end, kind="stable")[:_MOST_CAUSES])
    start, end, label = found.start[longest], found.end[longest], found.label[longest]
    events = np.stack([start, end - start, -1 - label, FAMILY[label]])
    return _Track("Idle, by cause" if seen.on_gpu else "Step, by cause", "cause", events)


def _stream_tracks(seen: TraceView, ran: I64) -> list[_Track]:
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
    rows = inside(columns, columns.is_a(*_HOST), step)
    around = (columns.ts_ns[rows] <= step.start[0]) & (columns.end_ns[rows] >= step.end[0])
    chosen: I64 = rows[~(around & (columns.category[rows] == Category.PYTHON))]
    return chosen


def _thread_tracks(seen: TraceView, step: Spans) -> list[_Track]:
    """Operators, ranges and calls of each thread, and its Python functions beside them."""
    columns = seen.columns
    rows = _on_host(seen, step)
    tracks = []
    for key, name in _busiest(seen, rows, step)[:_MOST_THREADS]:
        own = rows[columns.thread[rows] == key]
        python = columns.category[own] == Category.PYTHON
        did = did_by_thread(seen, key, own[columns.category[own] == Category.CPU_OP], step)
        at = np.searchsorted(did.start, np.maximum(columns.ts_ns[own], step.start[0]), side="right") - 1
        known = (at >= 0) & (did.label[at] >= 0) if len(did) else np.zeros(len(own), dtype=bool)
        family = np.full(len(own), FAMILIES.index("overhead"), dtype=np.int64)
        family[known] = ON_HOST[did.label[at[known]]]
        tracks.append(_track(seen, name, "thread", own[~python], family[~python]))
        tracks.append(_track(seen, f"{name}, Python", "python", own[python], family[python]))
    return tracks


def _track(seen: TraceView, label: str, kind: TrackKind, rows: I64, family: I64) -> _Track:
    columns = seen.columns
    return _Track(label, kind, np.stack([columns.ts_ns[rows], columns.dur_ns[rows], columns.name[rows], family]))


def _longest(tracks: list[_Track]) -> list[_Track]:
    """The tracks with the longest events of each sort, those of Python functions last."""
    chosen = []
    for sort, most in MOST_EVENTS.items():
        alike = [track for track in tracks if sort == (track.kind if track.kind in MOST_EVENTS else "device")]
        dur = np.concatenate([np.empty(0, np.int64), *(track.events[1] for track in alike)])
        keep = np.zeros(len(dur), dtype=bool)
        keep[np.argsort(-dur, kind="stable")[:most]] = True
        masks = np.split(keep, np.cumsum([track.events.shape[1] for track in alike])[:-1])
        chosen += [revise(track, events=track.events[:, mask]) for track, mask in zip(alike, masks, strict=False)]
    return chosen


def _rows(track: _Track) -> I64:
    """The first free row of each event, what is nested under what holds it; -1 beyond ``_MOST_ROWS``."""
    rows = np.full(track.events.shape[1], -1, dtype=np.int64)
    ends: list[int] = []
    order = np.lexsort((-track.events[1], track.events[0]))
    for place, start, dur in zip(order.tolist(), *track.events[:2, order].tolist(), strict=True):
        row = next((row for row, end in enumerate(ends) if end <= start), len(ends))
        if row == len(ends) and row < _MOST_ROWS:
            ends.append(0)
        if row < _MOST_ROWS:
            ends[row] = start + dur
            rows[place] = row
    return rows
