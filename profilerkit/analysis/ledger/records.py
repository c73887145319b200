"""The records of the training thread as intervals, and what some steps take beyond what a steady one does."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from profilerkit.analysis.events import EVENT_DTYPE, NOT_TRAINING, Events, Timed, is_whole, joined, put_in, timed
from profilerkit.analysis.host.names import is_feeding_phase, phase_leaf
from profilerkit.analysis.intervals import I64, Mask, Segments, innermost_owner, union
from profilerkit.analysis.parts import LEAVES
from profilerkit.model.step import StepState
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.reader import RankRecord

#: Ledger entry of a named phase by its leaf; others are phases.
_PHASE_ENTRIES = {"other.ckpt": "checkpoint", "other.eval": "evaluation", "other.log": "logging"}


class Records(msgspec.Struct, frozen=True):
    """What the training thread did, by kind.

    Attributes:
        steps: one per step.
        fetches: those that feed the training.
        kinds: the other kinds.
        phases: named and inferred phases by ledger entry; those named for getting a batch are under ``step.input``.
        exports: when a window's trace was stopped and written.
        probes: when probes put steps in, or put back what they had changed.
        own: of all STEP records by start, which are the run's own: those of ``steps``.
        begin_ns: start of the recording.
        end_ns: its end, or that of the last record where no end was written.
    """

    steps: Timed
    fetches: Timed
    kinds: Mapping[EventKind, Timed]
    phases: Mapping[str, Timed]
    exports: Timed
    probes: Timed
    own: Mask
    begin_ns: int
    end_ns: int


_KINDS = (
    *(EventKind.BACKWARD, EventKind.OPTIMIZER, EventKind.WINDOW, EventKind.GC, EventKind.SAVE, EventKind.COMPILE),
    *(EventKind.SYNC, EventKind.COPY, EventKind.COLLECTIVE),
)


def read_records(record: RankRecord) -> Records | None:
    """The records of one rank; ``None`` where it left none, or only steps that were inferred from a recorder's dump."""
    events = np.frombuffer(record.events, dtype=EVENT_DTYPE)
    is_inferred = (events["flags"] & EventFlag.INFERRED) != 0
    if not len(events) or (record.meta is None and is_inferred.all()):
        return None
    first, last = int(events["start"].min()), int((events["start"] + events["dur"]).max())
    heard = max([last, *(sample.t_ns for sample in record.samples[-1:])])
    kind = events["kind"]
    own = (events["flags"] & EventFlag.OTHER_THREAD) == 0
    windows = timed(events[kind == EventKind.WINDOW])
    steps, probes = timed(events[kind == EventKind.STEP]), timed(events[kind == EventKind.PROBE])
    kept = ~put_in(events, steps.start)
    return Records(
        steps=steps.where(kept),
        fetches=timed(events[(kind == EventKind.WAIT) & own & ((events["flags"] & NOT_TRAINING) == 0)]),
        kinds={wanted: timed(events[(kind == wanted) & own & is_whole(record, wanted)]) for wanted in _KINDS},
        phases=_phases(events[(kind == EventKind.PHASE) & own], record.names),
        exports=_exports(record, windows),
        probes=probes,
        own=kept,
        begin_ns=min(record.meta.anchor_perf_ns, first) if record.meta else first,
        end_ns=max(record.end.end_perf_ns, last) if record.end else heard,
    )


def _phases(events: Events, names: Mapping[int, str]) -> dict[str, Timed]:
    by_entry: dict[str, list[int]] = {}
    for name_id in np.unique(events["name"]).tolist():
        by_entry.setdefault(_entry_of(names.get(name_id, "phase")), []).append(name_id)
    return {entry: timed(events[np.isin(events["name"], ids)]) for entry, ids in by_entry.items()}


def _entry_of(name: str) -> str:
    return "step.input" if is_feeding_phase(name) else _PHASE_ENTRIES.get(LEAVES[phase_leaf(name)], "phases")


def _exports(record: RankRecord, windows: Timed) -> Timed:
    """From the end of what a window traced to the end of the window."""
    stops = [status.end_perf_ns for status, _ in record.windows if status.end_perf_ns is not None]
    start = np.array(sorted(stops), dtype=np.int64)
    after = np.searchsorted(windows.start, start, side="right") - 1
    inside = (after >= 0) & (start < windows.end[after]) if len(windows) else np.zeros(len(start), dtype=np.bool_)
    start, after = start[inside], after[inside]
    return Timed(start, windows.end[after], np.zeros(len(start), dtype=np.int64))


def owners(parts: Sequence[tuple[Timed, I64]]) -> Segments:
    """Of nested intervals the innermost owns the instant; each comes with its ``(n,)`` labels, of which lower ones win.

    Intervals that overlap with no other one need no sweep; they are nearly all.

    >>> outer, inner = (Timed(*(np.array([value]) for value in edges)) for edges in ((0, 9, 0), (2, 4, 0)))
    >>> owned = owners([(outer, np.array([1])), (inner, np.array([0]))])
    >>> list(zip(owned.start.tolist(), owned.end.tolist(), owned.label.tolist()))
    [(0, 2, 1), (2, 4, 0), (4, 9, 1)]
    """
    start, end = (np.concatenate([getattr(timed, name) for timed, _ in parts]) for name in ("start", "end"))
    label = np.concatenate([labels for _, labels in parts])
    order = np.argsort(start, kind="stable")
    order = order[end[order] > start[order]]
    start, end, label = start[order], end[order], label[order]
    if not len(start):
        return Segments(start, end, label)
    reach = np.maximum.accumulate(end)
    alone = np.r_[True, start[1:] >= reach[:-1]] & np.r_[start[1:] >= end[:-1], True]
    nested = innermost_owner(start[~alone], end[~alone], label[~alone])
    start, end = np.r_[start[alone], nested.start], np.r_[end[alone], nested.end]
    label = np.r_[label[alone], nested.label]
    order = np.argsort(start, kind="stable")
    return Segments(start[order], end[order], label[order])


def labelled(timed: Timed, label: int) -> tuple[Timed, I64]:
    """The intervals with one label for all."""
    return timed, np.full(len(timed), label, dtype=np.int64)


def occurrences(timed: Timed, records: Records) -> int:
    """How many there are; those between which nothing trains count as one, such as the files of one checkpoint."""
    trained = joined([records.steps, records.kinds[EventKind.BACKWARD], records.kinds[EventKind.OPTIMIZER]]).start
    return len(np.unique(np.searchsorted(trained, union(timed.start, timed.end).start)))


class StepKinds(msgspec.Struct, frozen=True):
    """Masks ``(n_steps,)``: the first steps, those a profiler's window touched, and those they are compared with."""

    first: Mask
    profiled: Mask
    usual: Mask


def step_kinds(steps: Timed, windows: Timed, state: tuple[StepState, ...]) -> StepKinds:
    """Which steps are compared with which. A window also disturbs the step behind it."""
    first = np.array([value == "warmup" for value in state], dtype=np.bool_)
    touched = np.zeros(len(steps), dtype=np.bool_)
    low = np.searchsorted(steps.end, windows.start, side="right")
    high = np.searchsorted(steps.start, windows.end, side="left")
    for begin, stop in zip(low.tolist(), high.tolist(), strict=True):
        touched[begin : stop + 1 if stop > begin else begin] = True
    usual = ~first & ~touched & np.array([value == "steady" for value in state], dtype=np.bool_)
    return StepKinds(first=first, profiled=touched & ~first, usual=usual)


def excess(per_step: I64, rows: Mask, usual: Mask) -> I64:
    """``(n_parts,)`` ns by which the chosen steps exceed as many usual ones, taken from the parts that grew.

    The sum is the excess over the median usual step; 0 without any usual step.

    Args:
        per_step: ``(n_parts, n_steps)`` ns; the parts of a step sum to it.
        rows: the steps in question.
        usual: the steps they are compared with.

    >>> per_step = np.array([[70, 10, 10, 10], [30, 20, 20, 20]])
    >>> excess(per_step, np.array([True, False, False, False]), np.array([False, True, True, True])).tolist()
    [60, 10]
    """
    count = int(rows.sum())
    if not count or not usual.any():
        return np.zeros(len(per_step), dtype=np.int64)
    spent = per_step[:, rows].sum(axis=1)
    expected = np.rint(count * np.median(per_step[:, usual], axis=1)).astype(np.int64)
    grown = np.maximum(spent - expected, 0)
    total = int(spent.sum()) - round(count * float(np.median(per_step[:, usual].sum(axis=0))))
    return shared_out(min(total, int(grown.sum())), grown)


def shared_out(total: int, weights: I64) -> I64:
    """``total`` ns in proportion to the weights, none of which is exceeded; it sums to ``total`` exactly.

    >>> shared_out(10, np.array([5, 0, 15])).tolist(), shared_out(-4, np.array([1])).tolist()
    ([2, 0, 8], [0])
    """
    known = [int(weight) for weight in weights]
    whole = sum(known)
    if total <= 0 or not whole:
        return np.zeros(len(known), dtype=np.int64)
    reached = [total * sum(known[: place + 1]) // whole for place in range(len(known))]
    return np.array([after - before for before, after in pairwise([0, *reached])], dtype=np.int64)
