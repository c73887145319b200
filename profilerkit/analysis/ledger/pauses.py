"""How long training stands still for checkpoints, evaluation and logging, spread over all steps of a recorded run."""

import numpy as np

from profilerkit.analysis.events import EVENT_DTYPE, Timed, fetches_here, timed
from profilerkit.analysis.host.lines import line_within
from profilerkit.analysis.intervals import covered, union
from profilerkit.analysis.ledger.account import Account
from profilerkit.analysis.ledger.pause import Pause, PauseKind
from profilerkit.analysis.ledger.records import occurrences
from profilerkit.analysis.stats import median
from profilerkit.analysis.steps.log import StepLog
from profilerkit.rundir.layout import EventFlag
from profilerkit.rundir.reader import RankRecord

_KINDS: tuple[PauseKind, ...] = ("checkpoint", "evaluation", "logging")


def pauses(record: RankRecord, log: StepLog, found: Account | None) -> tuple[Pause, ...]:
    """What the records of one rank tell, longest in all first; empty where training never stood still.

    ``found`` is what its time went to.

    Of pauses in each other the inner one counts. What lies behind the last step is no pause: training had ended.
    """
    if found is None or not len(found.records.steps):
        return ()
    records, first = found.records, int(log.steady.argmax())
    low, high = int(log.start[first]), int(records.steps.end.max())
    judged = {entry: int(times[first + 1 : -1].sum()) for entry, times in found.by_step.items()}
    whole = sum(judged.values()) - judged["profiler"]
    told = {kind: found.aside[kind] for kind in _KINDS if judged[kind] > 0}
    begun = {kind: timed.where((timed.end > low) & (timed.start < high)) for kind, timed in told.items()}
    read = _read(record, begun["evaluation"]) if "evaluation" in begun else (None, False)
    return tuple(
        Pause(
            kind=kind,
            count=occurrences(begun[kind], records),
            run_count=occurrences(told[kind], records),
            time_ns=judged[kind],
            share=judged[kind] / whole,
            steps=len(log.start) - first,
            steps_apart=_steps_apart(begun[kind], log),
            batches=read[0] if kind == "evaluation" else None,
            records_graphs=kind == "evaluation" and read[1],
            inferred=kind == "evaluation" and bool(begun[kind].has(EventFlag.INFERRED).any()),
            line=line_within(record.stacks, union(begun[kind].start, begun[kind].end)),
        )
        for kind in sorted(told, key=lambda kind: -judged[kind])
    )


def _read(record: RankRecord, phases: Timed) -> tuple[float | None, bool]:
    """Batches of each evaluation, and whether autograd works between most of them; the first follows the training."""
    events = np.frombuffer(record.events, dtype=EVENT_DTYPE)
    fetches = timed(events[fetches_here(events)])
    inside = fetches.where(covered(union(phases.start, phases.end), fetches.start))
    batches = int((~inside.has(EventFlag.LAST)).sum())
    if not batches or not len(phases):
        return None, False
    later = inside.where(~inside.has(EventFlag.FIRST))
    return batches / len(phases), bool(len(later)) and 2 * int(later.has(EventFlag.GRAPHS).sum()) > len(later)


def _steps_apart(timed: Timed, log: StepLog) -> float | None:
    """Median distance between the steps in which they begin; ``None`` for a single step."""
    began = union(timed.start, timed.end).start
    at = np.unique(log.index[np.maximum(np.searchsorted(log.start, began, side="right") - 1, 0)])
    return median(np.diff(at)) if len(at) > 1 else None
