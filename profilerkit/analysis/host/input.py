"""How the training thread was fed in the steady window, as far as its trace shows."""

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.facts import GAPS, Gap, InputFacts
from profilerkit.analysis.host.feeding import dominant_frames, local_fetches
from profilerkit.analysis.host.names import HostNames
from profilerkit.analysis.intervals import I64, Spans, covered, intersect
from profilerkit.analysis.partition import Partition
from profilerkit.analysis.steps.find import TraceSteps
from profilerkit.trace.columns import TraceColumns


def input_facts(
    columns: TraceColumns, names: HostNames, parts: Partition, steps: TraceSteps, main: int
) -> InputFacts | None:
    """Facts of the fetches in the steady steps; ``None`` where neither an event nor a batch copy shows any."""
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
