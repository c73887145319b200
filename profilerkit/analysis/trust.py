"""What was wrong with traces and records, and what the recording cost the run, in sentences for the report."""

from collections.abc import Iterable, Sequence

import numpy as np

from profilerkit.analysis.events import EVENT_DTYPE
from profilerkit.model.run import CaptureCost
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.reader import RankRecord, named_ranks
from profilerkit.trace.columns import Damage
from profilerkit.units import format_ratio

#: Places and files beyond so many are counted instead of named.
NAMED = 5


def damage_notes(traces: Sequence[tuple[str, Damage]]) -> list[str]:
    """Sentences about the damage of some traces, given with their names; of several traces each sentence names its own.

    >>> damage_notes([("trace.json", Damage(notes=("the compressed data ends early",)))])
    ['The compressed data ends early.']
    """
    several = len(traces) > 1
    notes = []
    for name, damage in traces:
        said = [f"{note[0].upper()}{note[1:]}." for note in damage.notes]
        if several and (counted := _counted(damage)):
            said.insert(0, f"{counted}.")
        notes += [f"{name}: {sentence}" if several else sentence for sentence in said]
    if several and len(notes) > NAMED:
        notes = [*notes[:NAMED], f"{len(notes) - NAMED} more sentences about damaged traces are left out."]
    places = [f"{name}: {place}" if several else place for name, damage in traces for place in damage.samples]
    return notes + [f"Damaged: {place}" for place in places[:NAMED]]


def _counted(damage: Damage) -> str:
    """How much was lost and repaired; empty when nothing was."""
    counts = ((damage.dropped, "dropped"), (damage.repaired, "repaired"))
    said = [f"{count:,} {'event' if count == 1 else 'events'} {what}" for count, what in counts if count]
    return ", ".join([*said, *(["the end is missing"] if damage.truncated else [])])


def record_notes(records: Sequence[RankRecord]) -> list[str]:
    """What was missing or damaged in the ranks' records; each sentence names the ranks it is about."""
    of: dict[str, list[int]] = {}
    for record in records:
        for note in record.notes:
            of.setdefault(note, []).append(record.rank)
    return [f"{named_ranks(ranks)}: {note}" for note, ranks in of.items()]


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
