"""Stretches of Python between operators that keep the device waiting, and the functions that hold them."""

import numpy as np

from profilerkit.analysis.host.feeding import dominant_frames
from profilerkit.analysis.host.host_facts import PythonFacts
from profilerkit.analysis.host.names import QUIET_NS
from profilerkit.analysis.intervals import Segments, Spans, intersect
from profilerkit.analysis.leaves import leaf
from profilerkit.trace.columns import TraceColumns


def between_ratio(segments: Segments, window: Spans) -> float:
    """Share of the Python in the steady window that lies in gaps of at most 1 ms; 0 without any."""
    python = intersect(window, segments.only(leaf("over.python")))
    length = python.end - python.start
    return float(length[length <= QUIET_NS].sum()) / python.total_ns if python.total_ns else 0.0


def python_facts(columns: TraceColumns, segments: Segments, window: Spans, main: int) -> PythonFacts | None:
    """Python that lasts longer than 1 ms at a time in the steady window; ``None`` without any.

    Args:
        columns: the trace.
        segments: the partition.
        window: the steady steps.
        main: the thread that runs the loop.
    """
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
