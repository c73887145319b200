"""The phases of a step as the program itself names them, and how long the device waits for the host in each."""

import numpy as np

from profilerkit.analysis.host.backward import backward_nodes
from profilerkit.analysis.host.host_facts import PhaseFacts
from profilerkit.analysis.host.names import phase_names
from profilerkit.analysis.host.recording import HOST_PARTS
from profilerkit.analysis.intervals import I64, Segments, Spans, intersect, subtract, union
from profilerkit.analysis.leaves import leaf
from profilerkit.trace.classify import Phase
from profilerkit.trace.columns import Category, TraceColumns

#: In this order: what lies in two of them, as torch's own backward pass in a range around all, is the first one's.
_SHOWN: tuple[Phase, ...] = ("optimizer", "zero_grad", "backward", "loss", "forward")


def phase_rows(columns: TraceColumns, phase: Phase) -> I64:
    """Rows of the ranges that the program named for a phase of its step."""
    return np.flatnonzero(phase_names(columns, phase)[columns.name] & (columns.category == Category.ANNOTATION))


def phase_facts(columns: TraceColumns, optimizer: I64, segments: Segments, window: Spans) -> tuple[PhaseFacts, ...]:
    """How long the device waits for the host in each phase of the mean steady step; empty without any that is known.

    Args:
        columns: the trace.
        optimizer: rows of the optimizer steps.
        segments: the partition.
        window: the steady steps.
    """
    idle = intersect(window, segments.only(*(leaf(part) for part in HOST_PARTS)))
    found = []
    for phase in _SHOWN:
        rows = optimizer if phase == "optimizer" else phase_rows(columns, phase)
        if phase == "backward":
            rows = np.r_[rows, backward_nodes(columns)]
        spans = union(columns.ts_ns[rows], columns.end_ns[rows])
        if len(spans):
            waited = intersect(idle, spans)
            found.append(PhaseFacts(name=phase, idle_ns=waited.total_ns / max(len(window), 1)))
            idle = subtract(idle, spans)
    return tuple(found)
