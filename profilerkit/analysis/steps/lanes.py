"""The events of the median step as lanes in cells of equal length, and its gaps with the parts they have."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.host.names import backward_threads
from profilerkit.analysis.intervals import (
    I64,
    Segments,
    Spans,
    innermost_owner,
    latest_end_owner,
    paint,
    subtract,
    union,
)
from profilerkit.analysis.partition import Partition
from profilerkit.analysis.parts import LEAVES, WAITS, leaf, leaf_times
from profilerkit.analysis.steps.find import TraceSteps
from profilerkit.analysis.trace_view import TraceView
from profilerkit.model.events import CELLS, Gap, Lane, LaneKind, MedianStep, Track
from profilerkit.model.step import PARTS, Family
from profilerkit.trace.columns import Category, TraceColumns

#: More lanes than this are not read beside each other (a choice).
MOST_STREAMS, MOST_THREADS = 6, 4
#: Longest name of a lane that is kept.
_NAME_LIMIT = 60

FAMILIES: tuple[Family, ...] = tuple(dict.fromkeys(family for family, _ in PARTS.values()))
FAMILY: I64 = np.array([FAMILIES.index(PARTS[name][0]) for name in LEAVES], dtype=np.int64)
#: A host thread that waits for the device does no work of its own.
ON_HOST: I64 = np.where([name.startswith("sync.") for name in LEAVES], FAMILIES.index("other"), FAMILY)
_WAITS: I64 = np.array([leaf(name) for name in WAITS], dtype=np.int64)


class StepLanes(msgspec.Struct, frozen=True):
    """What the events of one step show.

    Attributes:
        row: its position among the trace's steps.
        idle: when the judged device did nothing in it; ``None`` without a device.
        lanes: streams, the loader, host threads.
        streams_left_out: further streams with work in it.
        threads_left_out: further host threads with work in it.
    """

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
    rows = inside(seen.columns, np.flatnonzero(seen.ran), step)
    streams, streams_left_out = _streams(seen, rows, step)
    idle = subtract(step, union(seen.columns.ts_ns[rows], seen.columns.end_ns[rows]))
    return StepLanes(row, idle, (*streams, *threads), streams_left_out, threads_left_out)


def median_row(steps: TraceSteps) -> int | None:
    """Position of the steady step whose time is closest to the median of them, the first of several.

    ``None`` where no steady step has a length.
    """
    rows = np.flatnonzero(steps.judged & (steps.end > steps.start))
    if not len(rows):
        return None
    time = (steps.end - steps.start)[rows]
    return int(rows[np.abs(time - np.median(time)).argmin()])


def lane_of(name: str, kind: LaneKind, did: Segments, step: Spans, family: I64 = FAMILY) -> Lane:
    """Labelled time as a lane.

    Args:
        name: of the lane.
        kind: of the lane.
        did: disjoint and sorted, labels are leaves; what lies outside of the step does not count.
        step: one span.
        family: ``(n_leaves,)`` position of each leaf's family.
    """
    start, end = int(step.start[0]), int(step.end[0])
    edges = start + (end - start) * np.arange(CELLS + 1, dtype=np.int64) // CELLS
    tracks = []
    known = did.label >= 0
    of = family[np.maximum(did.label, 0)]
    for position, name_of_family in enumerate(FAMILIES):
        own = known & (of == position)
        filled = _filled(Spans(did.start[own], did.end[own]), edges)
        total = int(filled.sum())
        if total:
            levels = np.ceil(255 * filled / np.maximum(np.diff(edges), 1))
            tracks.append(Track(family=name_of_family, time_ns=total, levels=levels.astype(np.uint8).tobytes()))
    return Lane(name=name[:_NAME_LIMIT], kind=kind, tracks=tuple(tracks))


def _filled(spans: Spans, edges: I64) -> I64:
    """``(n_edges - 1,)`` ns of the spans between each two neighbouring edges."""
    if not len(spans):
        return np.zeros(len(edges) - 1, dtype=np.int64)
    until = np.r_[0, np.cumsum(spans.end - spans.start)]
    begun = np.searchsorted(spans.start, edges, side="right")
    beyond = np.maximum(spans.end[np.maximum(begun - 1, 0)] - edges, 0)
    filled: I64 = np.diff(until[begun] - np.where(begun > 0, beyond, 0))
    return filled


def inside(columns: TraceColumns, rows: I64, step: Spans) -> I64:
    """Those of ``rows`` that reach into the step."""
    reach: I64 = rows[(columns.ts_ns[rows] < step.end[0]) & (columns.end_ns[rows] > step.start[0])]
    return reach


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
    rows = inside(columns, np.flatnonzero(works), step)
    time = time_by(columns.thread[rows], columns, rows, step)
    backward = backward_threads(columns, seen.names, main).tolist()
    busiest = sorted(np.flatnonzero(time).tolist(), key=lambda key: (key != main, key not in backward, -time[key]))
    lanes: list[Lane] = []
    for key in busiest[:MOST_THREADS]:
        did = did_by_thread(seen, key, rows[columns.thread[rows] == key], step)
        if key == main and seen.on_gpu:
            waits = np.isin(did.label, _WAITS)
            lanes.append(lane_of("Loader", "loader", _only(did, waits), step))
            did = _only(did, ~waits)
        name = thread_name(columns, key, main, backward)
        lanes.append(lane_of(name, "thread", did, step, ON_HOST))
    return tuple(lane for lane in lanes if lane.tracks), max(len(busiest) - MOST_THREADS, 0)


def thread_name(columns: TraceColumns, key: int, main: int, backward: Sequence[int]) -> str:
    """Return what a thread is called: by what it does, else by its number."""
    number = backward.index(key) + 1 if key in backward else 0
    named = "Main thread" if key == main else f"Thread {columns.threads[key][1]}"
    return named if not number else "Backward" if number == 1 else f"Backward {number}"


def _only(segments: Segments, keep: npt.NDArray[np.bool_]) -> Segments:
    return Segments(segments.start[keep], segments.end[keep], segments.label[keep])


def did_by_thread(seen: TraceView, key: int, rows: I64, step: Spans) -> Segments:
    """What one thread did in the step, -1 for nothing that its events show.

    Without a device its operators, ``rows``, are the computation.
    """
    columns = seen.columns
    *upper, dispatch = seen.host.thread(key).layers
    if not seen.on_gpu:
        communicates = seen.kinds.communication[columns.name[rows]]
        leaves = np.where(communicates, leaf("comm.other"), seen.leaves[rows])
        dispatch = innermost_owner(columns.ts_ns[rows], columns.end_ns[rows], leaves)
    return paint(step, [*upper, dispatch])


#: Gaps that are told one by one (a choice).
MOST_GAPS = 20
#: What computes where the main thread is treated as the device; all else keeps it from that.
_COMPUTES = np.array([PARTS[name][0] in ("compute", "memory") for name in LEAVES])


def median_step(found: StepLanes, steps: TraceSteps, parts: Partition, rank: int | None) -> MedianStep:
    """Return the median step of a trace, ``rank``'s, with its longest gaps."""
    step = Spans(steps.start[found.row : found.row + 1], steps.end[found.row : found.row + 1])
    did = _within(parts.segments, step)
    idle = found.idle if found.idle is not None else _without_computing(did)
    attributed = paint(idle, [did])
    gap = np.searchsorted(idle.start, attributed.start, side="right") - 1
    per_gap = np.zeros((len(idle), len(LEAVES)), dtype=np.int64)
    np.add.at(per_gap, (gap, attributed.label), attributed.end - attributed.start)
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


def _within(segments: Segments, step: Spans) -> Segments:
    """The segments of one step; the partition is cut where steps meet."""
    first, after = np.searchsorted(segments.start, [step.start[0], step.end[0]])
    rows = slice(int(first), int(after))
    return Segments(segments.start[rows], segments.end[rows], segments.label[rows])


def _without_computing(did: Segments) -> Spans:
    idle = ~_COMPUTES[did.label]
    return union(did.start[idle], did.end[idle])
