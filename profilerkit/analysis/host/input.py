"""How the training thread was fed in the steady window, and which Python keeps the device waiting."""

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.host.feeding import dominant_frames, local_fetches
from profilerkit.analysis.host.host_facts import PythonFacts
from profilerkit.analysis.host.names import QUIET_NS
from profilerkit.analysis.intervals import I64, Segments, Spans, covered, intersect
from profilerkit.analysis.parts import leaf
from profilerkit.analysis.trace_view import TraceView
from profilerkit.model.finding import Source
from profilerkit.trace.columns import TraceColumns

#: Where a wait for a batch is read from when no event marks it, and the words for it.
Gap = Literal["before the copy", "between steps"]
GAPS: dict[Gap, str] = {
    "before the copy": "the lead-in of the step, up to its batch copy",
    "between steps": "from the end of a step's own range to the next one",
}


class InputFacts(msgspec.Struct, frozen=True):
    """The wait for batches.

    Attributes:
        cpu_ratio: CPU time of the waiting thread / wait; ``None`` when not measured.
        fetches: how many fetches were seen in the steady window.
        single_process: the main process loads the data itself; ``None`` when unknown.
        source: measured by the wrapper's timer, or derived from the trace.
        origin: event name or timer the wait was read from, or the words for ``gap``.
        gap: where the wait was inferred from; ``None`` where an event or a timer marks it.
        longest_ns: start and end of the longest wait, on the recording's clock.
        held_ratio: share of the steady time in which the thread was getting a batch, hidden by the device or not;
            ``None`` when that was not seen.
        frames: of the calls that hold most of the wait the innermost frames, outer first, as the profiler names them;
            empty without Python stacks. Hostile text.
        frames_ratio: share of the wait in the innermost of them; ``None`` without.
        queue_ratio: share of the wait in which the waiting thread was ready to run and got no processor: whatever
            loads the data would wait for one; ``None`` when not measured.
    """

    cpu_ratio: float | None
    fetches: int
    single_process: bool | None
    source: Source
    origin: str
    gap: Gap | None = None
    longest_ns: tuple[int, int] | None = None
    held_ratio: float | None = None
    frames: tuple[str, ...] = ()
    frames_ratio: float | None = None
    queue_ratio: float | None = None


def input_facts(view: TraceView) -> InputFacts | None:
    """Facts of the fetches in the steady steps; ``None`` where neither an event nor a batch copy shows any."""
    columns, names, parts, steps, main = view.columns, view.names, view.parts, view.steps, view.main
    window = steps.by_host.steady
    rows = parts.fed.rows[covered(window, columns.ts_ns[parts.fed.rows])]
    inferred = covered(window, parts.lead_in.start)
    if not len(rows) and not inferred.any():
        return None
    gap: Gap | None = None
    if len(rows):
        # A loader's own events count its fetches; frames around them tell the same again.
        marked = names.loader[columns.name[rows]]
        counted = rows[marked] if marked.any() else rows[~_nested(columns, rows)]
        spans = Spans(columns.ts_ns[counted], columns.ts_ns[counted] + columns.dur_ns[counted])
        origin = columns.strings[columns.name[counted[(spans.end - spans.start).argmax()]]]
        segments, alone = parts.fed.segments, local_fetches(columns, names, parts.fed)
        held = intersect(window, Spans(segments.start, segments.end))
    else:
        spans = Spans(parts.lead_in.start[inferred], parts.lead_in.end[inferred])
        held = alone = intersect(window, spans)
        outside = intersect(held, steps.between).total_ns if steps.between is not None else 0
        gap = "between steps" if outside > held.total_ns / 2 else "before the copy"
        origin = GAPS[gap]
    remote, local = (bool(mask[columns.name[rows]].any()) for mask in (names.multi_process, names.single_process))
    longest = int((spans.end - spans.start).argmax())
    kept = None if remote or local else names.feeds  # of a loader it is known what gets the batch
    frames, frames_ratio = dominant_frames(columns, main, intersect(window, alone), kept)
    return InputFacts(
        cpu_ratio=None,
        fetches=len(spans),
        single_process=local if local or remote else None,
        source="derived",
        origin=origin,
        gap=gap,
        longest_ns=(int(spans.start[longest]), int(spans.end[longest])),
        held_ratio=min(held.total_ns / max(steps.steady.total_ns, 1), 1.0),
        frames=frames,
        frames_ratio=frames_ratio if frames else None,
    )


def _nested(columns: TraceColumns, rows: I64) -> npt.NDArray[np.bool_]:
    """``(n,)`` which of ``rows``, sorted by start, begin inside an earlier one."""
    end = np.maximum.accumulate(columns.ts_ns[rows] + columns.dur_ns[rows])
    nested: npt.NDArray[np.bool_] = np.r_[False, columns.ts_ns[rows][1:] < end[:-1]]
    return nested


def between_ratio(segments: Segments, window: Spans) -> float:
    """Share of the Python in the steady window that lies in gaps of at most 1 ms; 0 without any."""
    python = intersect(window, segments.only(leaf("over.python")))
    length = python.end - python.start
    return float(length[length <= QUIET_NS].sum()) / python.total_ns if python.total_ns else 0.0


def python_facts(view: TraceView) -> PythonFacts | None:
    """Python that lasts longer than 1 ms at a time in the steady window; ``None`` without any."""
    columns, window, main, segments = view.columns, view.window, view.main, view.parts.segments
    python = intersect(window, segments.only(leaf("over.python")))
    long = python.end - python.start > QUIET_NS
    if not long.any():
        return None
    spans = Spans(python.start[long], python.end[long])
    longest = int(np.argmax(spans.end - spans.start))
    frames, ratio = dominant_frames(columns, main, spans)
    return PythonFacts(
        per_step=len(spans) / max(len(window), 1),
        longest_ns=(int(spans.start[longest]), int(spans.end[longest])),
        frames=frames,
        frames_ratio=ratio if frames else None,
    )
