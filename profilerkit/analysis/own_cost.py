"""What the recording itself cost the run, and what it gave up to cost no more."""

from collections.abc import Iterable

import numpy as np

from profilerkit.analysis.events import EVENT_DTYPE
from profilerkit.model.run import CaptureCost
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.reader import RankRecord
from profilerkit.units import format_ratio


def capture_cost(record: RankRecord | None, step_ns: int) -> CaptureCost | None:
    """What recording this rank cost; ``None`` without a run directory that says so. A step takes ``step_ns``."""
    meta, end = (record.meta, record.end) if record else (None, None)
    if record is None or meta is None or meta.own_cost is None:
        return None
    closed_ns = end.closed_perf_ns if end else None
    return CaptureCost(
        per_step_ns=meta.self_ns_per_step,
        start_ns=meta.own_cost.start_ns,
        close_ns=closed_ns - end.end_perf_ns if end and closed_ns is not None else None,
        windows_ns=_paused_ns(record, step_ns),
    )


def _paused_ns(record: RankRecord, step_ns: int) -> int | None:
    """Time the loop stood still for trace windows; ``None`` without a window.

    Each took that much longer than the steps traced in it, and than the one before them in which torch got ready.
    """
    events = np.frombuffer(record.events, dtype=EVENT_DTYPE)
    windows = events[events["kind"] == EventKind.WINDOW]
    if not len(windows):
        return None
    traced_ns = {
        status.first_step: status.end_perf_ns - status.start_perf_ns
        for status, _ in record.windows
        if status.start_perf_ns is not None and status.end_perf_ns is not None
    }
    spans = zip(windows["value"].tolist(), windows["dur"].tolist(), strict=True)
    return sum(int(max(0, dur_ns - traced_ns[first] - step_ns)) for first, dur_ns in spans if first in traced_ns)


def budget_notes(records: Iterable[RankRecord]) -> list[str]:
    """What was turned off because recording cost too much; equal sentences of several ranks once."""
    notes: list[str] = []
    for record in records:
        own = record.meta.own_cost if record.meta else None
        if own is None:
            continue
        notes += [_sentence(text) for text in own.turned_off]
        if own.is_exceeded:
            notes.append(
                f"Recording every step cost more than its budget of {format_ratio(own.budget_ratio)}, even with parts "
                "of it turned off; light=False records trace windows alone."
            )
    return list(dict.fromkeys(notes))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
