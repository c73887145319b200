"""How long training stands still for checkpoints, evaluation and logging, spread over all steps of a recorded run."""

from typing import Literal

import msgspec
import numpy as np

from profilerkit.analysis.events import EVENT_DTYPE, Timed, fetches_here, timed
from profilerkit.analysis.host.lines import HotLine, line_within
from profilerkit.analysis.intervals import covered, union
from profilerkit.analysis.stats import median
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.steps.wall_clock import Account, occurrences
from profilerkit.rundir.layout import EventFlag
from profilerkit.rundir.reader import RankRecord

PauseKind = Literal["checkpoint", "evaluation", "logging"]


class Pause(msgspec.Struct, frozen=True):
    """What training stands still for, from the first judged step to the end of the last step.

    Attributes:
        run_count: how often in the whole run, the start of it and what lies behind the last step among it.
        share: of the time in question, the writing of traces left out.
        steps_apart: from one to the next, the median; ``None`` for a single one.
        batches: that an evaluation reads from loaders, on average; ``None`` where it reads none.
        records_graphs: autograd records the operators of evaluations, which nothing needs.
        inferred: nobody named all of them; passes that train nothing show evaluation as well.
        line: of the user's that holds most of them; ``None`` where sampled stacks do not tell.
    """

    kind: PauseKind
    count: int
    run_count: int
    time_ns: int
    share: float
    steps: int
    steps_apart: float | None = None
    inferred: bool = False
    batches: float | None = None
    records_graphs: bool = False
    line: HotLine | None = None

    @property
    def each_ns(self) -> float:
        """Mean length of one."""
        return self.time_ns / max(self.count, 1)


_KINDS: tuple[PauseKind, ...] = ("checkpoint", "evaluation", "logging")


def pauses(record: RankRecord, log: StepLog, found: Account | None) -> tuple[Pause, ...]:
    """What the records of one rank tell, longest in all first; of pauses in each other the inner one counts."""
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
