"""How long training stands still for checkpoints, evaluation and logging, spread over all steps of a recorded run."""

import numpy as np

from profilerkit.analysis.events import Timed, joined
from profilerkit.analysis.host.lines import line_within
from profilerkit.analysis.intervals import clip, time_within, union
from profilerkit.analysis.ledger.pause import Pause, PauseKind
from profilerkit.analysis.ledger.records import Records, labelled, occurrences, owners, read_records
from profilerkit.analysis.stats import median
from profilerkit.analysis.steps.log import StepLog
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.reader import RankRecord

_KINDS: tuple[PauseKind, ...] = ("checkpoint", "evaluation", "logging")
#: Label of what is the profiler's own, and no pause of the training's.
_PROFILER = len(_KINDS)


def pauses(record: RankRecord, log: StepLog) -> tuple[Pause, ...]:
    """What the records of one rank tell, longest in all first; empty where training never stood still.

    Of pauses in each other the inner one counts. What lies behind the last step is no pause: training had ended.
    """
    records = read_records(record)
    if records is None or not len(records.steps):
        return ()
    low, high = int(log.start[log.steady][0]), int(records.steps.end.max())
    kinds = _kinds(records)
    owned = owners([labelled(records.exports, _PROFILER), *(labelled(kinds[kind], n) for n, kind in enumerate(_KINDS))])
    whole = high - low - clip(owned.only(_PROFILER), low, high).total_ns
    steps = int(np.count_nonzero(log.start >= low))
    room, times, lines = log.room, [], []
    for label in range(len(_KINDS)):
        spans = clip(owned.only(label), low, high)
        # A device that works on, to the end of what was queued, does not stand still for it.
        spent = spans.total_ns if log.device is None else np.minimum(time_within(spans, log.start, log.stop), room)
        room = room - spent if log.device is not None else room
        times.append(int(np.sum(spent)))
        lines.append(line_within(record.stacks, spans))
    found = [
        Pause(
            kind=kind,
            count=occurrences(_begun(kinds[kind], low, high), records),
            run_count=occurrences(kinds[kind], records),
            time_ns=spent,
            share=spent / whole,
            steps=steps,
            steps_apart=_steps_apart(_begun(kinds[kind], low, high), log),
            inferred=kind == "evaluation" and bool(_begun(kinds[kind], low, high).has(EventFlag.INFERRED).any()),
            line=line,
        )
        for kind, spent, line in zip(_KINDS, times, lines, strict=True)
        if spent > 0
    ]
    return tuple(sorted(found, key=lambda pause: -pause.time_ns))


def _kinds(records: Records) -> dict[str, Timed]:
    """Phases by kind; a save is a checkpoint."""
    found = {kind: [records.phases[kind]] if kind in records.phases else [] for kind in _KINDS}
    found["checkpoint"].append(records.kinds[EventKind.SAVE])
    return {kind: joined(parts) for kind, parts in found.items()}


def _steps_apart(timed: Timed, log: StepLog) -> float | None:
    """Median distance between the steps in which they begin; ``None`` for a single step."""
    began = union(timed.start, timed.end).start
    at = np.unique(log.index[np.maximum(np.searchsorted(log.start, began, side="right") - 1, 0)])
    return median(np.diff(at)) if len(at) > 1 else None


def _begun(timed: Timed, low: int, high: int) -> Timed:
    return timed.where((timed.end > low) & (timed.start < high))
