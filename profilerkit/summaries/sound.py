"""Whether the arrays of a rank's facts belong together: a summary may have been made by anybody."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from profilerkit.analysis.communication.log import KINDS, CollectiveLog
from profilerkit.analysis.intervals import Segments, Spans
from profilerkit.analysis.parts import LEAVES
from profilerkit.analysis.trace_facts import TraceFacts


def sound(facts: TraceFacts) -> TraceFacts:
    """The facts themselves.

    Raises:
        ValueError: arrays differ in length where they must not, or point beyond what they point into.
    """
    steps, parts = facts.steps, facts.partition
    count = _alike((steps.index, steps.start, steps.end, steps.optimizes))
    if len(steps.state) != count or parts.per_step.shape != (count, len(LEAVES)):
        raise ValueError("its steps do not belong together")
    judged = int(steps.judged.sum())
    if judged != facts.n_steady or _in_order(facts.window) != judged:
        raise ValueError("its judged steps do not match its window")
    for table in (parts.alone, parts.hidden):
        if table is not None and table.shape != parts.per_step.shape:
            raise ValueError("its parts do not belong together")
    _in_order(parts.segments)
    _within(parts.segments.label, len(LEAVES), least=0)
    _in_order(parts.lead_in)
    if facts.collectives is not None:
        _sound_log(facts.collectives)
    return facts


def _sound_log(log: CollectiveLog) -> None:
    _alike((log.start, log.end, log.name, log.kind, log.title, log.dtype, log.channel, log.sequence))
    _alike((log.start, log.bytes, log.measured, log.size))
    _within(log.name, len(log.names), least=0)
    _within(log.title, len(log.names), least=0)
    _within(log.dtype, len(log.names), least=-1)
    _within(log.kind, len(KINDS), least=0)
    _within(log.channel, len(log.channels), least=0)
    if (log.end < log.start).any() or (log.start[1:] < log.start[:-1]).any():
        raise ValueError("its collectives are not in order")


def _alike(arrays: Sequence[Any]) -> int:
    lengths = {array.shape for array in arrays}
    if len(lengths) != 1 or len(next(iter(lengths))) != 1:
        raise ValueError("its arrays differ in length")
    return len(arrays[0])


def _in_order(spans: Spans | Segments) -> int:
    count = _alike((spans.start, spans.end, spans.label) if isinstance(spans, Segments) else (spans.start, spans.end))
    if (spans.end < spans.start).any() or (spans.start[1:] < spans.end[:-1]).any():
        raise ValueError("its intervals are not in order")
    return count


def _within(ids: Any, count: int, *, least: int) -> None:
    if len(ids) and (int(np.min(ids)) < least or int(np.max(ids)) >= count):
        raise ValueError("an array holds an index out of range")
