"""How the training thread was fed in the steady window, as far as its trace shows."""

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.facts import BEFORE_THE_COPY, InputFacts
from profilerkit.analysis.feeding import dominant_frames
from profilerkit.analysis.host import HostNames
from profilerkit.analysis.intervals import I64, Spans, covered, intersect
from profilerkit.analysis.partition import Partition
from profilerkit.trace.columns import TraceColumns


def input_facts(columns: TraceColumns, names: HostNames, parts: Partition, window: Spans) -> InputFacts | None:
    """Facts of the fetches that start in ``window``; ``None`` where neither an event nor a batch copy shows any."""
    rows = parts.fed.rows[covered(window, columns.ts_ns[parts.fed.rows])]
    if not len(rows):
        return _inferred(parts, window)
    # A loader's own events count its fetches; frames around them tell the same again.
    marked = names.loader[columns.name[rows]]
    counted = rows[marked] if marked.any() else rows[~_nested(columns, rows)]
    longest = counted[columns.dur_ns[counted].argmax()]
    own = names.multi_process[columns.name[rows]], names.single_process[columns.name[rows]]
    frames, frames_ratio = dominant_frames(columns, names, parts.fed, window)
    segments = parts.fed.segments
    held = intersect(window, Spans(segments.start, segments.end)).total_ns
    return InputFacts(
        cpu_ratio=None,
        fetches=len(counted),
        single_process=bool(own[1].any()) if own[0].any() or own[1].any() else None,
        source="derived",
        origin=columns.strings[columns.name[longest]],
        longest_ns=(int(columns.ts_ns[longest]), int(columns.ts_ns[longest] + columns.dur_ns[longest])),
        held_ratio=held / window.total_ns,
        frames=frames,
        frames_ratio=frames_ratio if frames else None,
    )


def _nested(columns: TraceColumns, rows: I64) -> npt.NDArray[np.bool_]:
    """``(n,)`` which of ``rows``, sorted by start, begin inside an earlier one."""
    end = np.maximum.accumulate(columns.ts_ns[rows] + columns.dur_ns[rows])
    nested: npt.NDArray[np.bool_] = np.r_[False, columns.ts_ns[rows][1:] < end[:-1]]
    return nested


def _inferred(parts: Partition, window: Spans) -> InputFacts | None:
    start, end = parts.lead_in.start, parts.lead_in.end
    inside = covered(window, start)
    if not inside.any():
        return None
    longest = int(np.flatnonzero(inside)[(end - start)[inside].argmax()])
    return InputFacts(
        cpu_ratio=None,
        fetches=int(inside.sum()),
        single_process=None,
        source="derived",
        origin=BEFORE_THE_COPY,
        longest_ns=(int(start[longest]), int(end[longest])),
    )
