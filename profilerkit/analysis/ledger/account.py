"""The wall clock of a rank as a partition: every nanosecond of it in exactly one entry."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from profilerkit.analysis.events import Timed, joined
from profilerkit.analysis.intervals import I64, Segments, Spans, paint, positive, subtract, union, with_label
from profilerkit.analysis.ledger.excess import excess, step_kinds
from profilerkit.analysis.ledger.records import (
    Records,
    complement,
    labelled,
    occurrences,
    owners,
    read_records,
    time_in,
)
from profilerkit.model.ledger import ENTRIES, Ledger, LedgerEntry, LedgerSource
from profilerkit.model.step import StepState
from profilerkit.rundir.layout import OFF_BY_SETTINGS, EventFlag, EventKind
from profilerkit.rundir.reader import RankRecord
from profilerkit.rundir.start_up import StartUp

_PARTS: Final = {
    "step.input": (),
    "step.gc": (EventKind.GC,),
    "step.sync": (EventKind.SYNC,),
    "step.copy": (EventKind.COPY,),
    "step.comm": (EventKind.COLLECTIVE,),
    "step.optimizer": (EventKind.OPTIMIZER,),
    "step.backward": (EventKind.BACKWARD,),
}
#: Of the parts of a step those that show training where no step was counted.
_TRAINING = ("step.input", "step.backward", "step.optimizer")
#: What owns its time whatever happens inside it, innermost first where two have the same extent.
_ASIDE = (
    *("profiler", "probes", "warm.compile", "checkpoint", "start.batch", "between.epoch", "evaluation", "logging"),
    "phases",
)
#: Entries that follow from more than the records of that kind alone.
_DERIVED = (
    *("start.data", "start.model", "start.before", "start.inside", "warm.steps", "step.forward", "step.unfed"),
    *("step.rest", "profiler"),
)
_COUNTED = ("warm.compile", "checkpoint", "evaluation", "logging", "phases")
_EDGE = EventFlag.FIRST | EventFlag.LAST


@dataclass(slots=True)
class _Account:
    """What has been booked so far: ns per entry."""

    spent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENTRIES, 0))

    def add(self, entry: str, time_ns: int | I64) -> None:
        self.spent[entry] += int(np.sum(time_ns))


def rank_ledger(record: RankRecord, state: tuple[StepState, ...]) -> Ledger | None:
    """The wall clock of one rank; ``None`` where it left no records of its training.

    Args:
        record: what it left.
        state: of each of its steps, by start, why it is in or out of the steady window; empty without steps.
    """
    light = record.meta.features.get("light") if record.meta else None
    records = read_records(record) if light is None or light.on or light.reason != OFF_BY_SETTINGS else None
    if records is None:
        return None
    if len(state) == len(records.own):
        state = tuple(value for value, own in zip(state, records.own, strict=True) if own)
    started = record.meta.process_start_perf_ns if record.meta else None
    low = records.begin_ns if started is None else min(started, records.begin_ns)
    account, fetches = _Account(), records.fetches
    fed = joined([fetches, *(timed for entry, timed in records.phases.items() if entry == "step.input")])
    start_up = record.meta.start_up if record.meta and started is not None else None
    _book_before(account, start_up, low, records.begin_ns)
    aside = _aside(records, fetches.where(fetches.has(_EDGE)))
    owned = _owned(records, aside)
    parts = _parts(records, fed)
    _book_steps(account, records, owned, parts, state, "step.forward" if len(fed) else "step.unfed")
    end = record.end
    lost = end is None or bool(end.switched_off_because or end.stopped_because or end.dropped_records)
    _book_rest(account, records, complement(owned, records.begin_ns, records.end_ns), parts, lost=lost)
    for number, entry in enumerate(_ASIDE):
        account.add(entry, time_in(owned, number, Spans(owned.start[:1], owned.end[-1:])))
    wall = records.end_ns - low
    if sum(account.spent.values()) != wall or min(account.spent.values()) < 0:
        raise AssertionError(f"entries of {sum(account.spent.values())} ns in a wall clock of {wall} ns")
    counted = {**{entry: aside[entry] for entry in _COUNTED}, "profiler": records.kinds[EventKind.WINDOW]}
    counts = {entry: occurrences(timed, records) for entry, timed in counted.items()}
    inferred = {entry for entry, timed in counted.items() if timed.has(EventFlag.INFERRED).any()}
    return Ledger(
        rank=record.rank,
        wall_ns=wall,
        from_process_start=started is not None,
        to_last_record=record.end is None,
        loader_seen=bool(len(fed)),
        steps=len(records.steps),
        unexplained_ns=account.spent["unexplained"],
        entries=_entries(account, wall, counts, inferred, start_up.packages if start_up else {}),
    )


def _entries(
    account: _Account, wall: int, counts: Mapping[str, int], inferred: Collection[str], packages: Mapping[str, int]
) -> tuple[LedgerEntry, ...]:
    def source(entry: str) -> LedgerSource:
        if entry == "evaluation" and entry in inferred:
            return "inferred"
        return "derived" if entry in _DERIVED or ENTRIES[entry][0] in ("end", "unexplained") else "measured"

    return tuple(
        LedgerEntry(
            entry=entry,
            stage=ENTRIES[entry][0],
            time_ns=time_ns,
            share=time_ns / wall if wall else 0.0,
            source=source(entry),
            count=counts.get(entry),
            largest=tuple(packages.items()) if entry == "start.import" else (),
        )
        for entry, time_ns in account.spent.items()
        if time_ns
    )


def _book_before(account: _Account, start_up: StartUp | None, low: int, high: int) -> None:
    """Book what came before the recording, from ``low`` to ``high``: imports own their time, then CUDA, then a model.

    From the end of Python's start, of the imports or of a model, the latest of them, to the first loader the data set
    is made, or what else it takes to make that loader.
    """
    left = positive(np.array([low]), np.array([high]))
    for entry, intervals in _before(start_up, low).items() if start_up else ():
        edges = np.array(intervals, dtype=np.int64).reshape(-1, 2)
        rest = subtract(left, union(edges[:, 0], edges[:, 1]))
        account.add(entry, left.total_ns - rest.total_ns)
        left = rest
    account.add("start.before", left.total_ns)


def _before(start_up: StartUp, low: int) -> dict[str, list[tuple[int, int]]]:
    """Intervals before the recording by entry, those first that own what several have; they may overlap."""
    own, model, device = ([found] if found else [] for found in (start_up.own, start_up.model, start_up.device))
    found = {
        "profiler.start": own,
        "start.import": list(start_up.imports),
        "start.device": device,
        "start.model": model,
        "start.python": [(low, start_up.python_end_ns)],
    }
    if start_up.loader_ns is not None:
        ends = [end for _, end in (*start_up.imports, *model, *own) if end <= start_up.loader_ns]
        found["start.data"] = [(max([start_up.python_end_ns, *ends]), start_up.loader_ns)]
    return found


def _aside(records: Records, edges: Timed) -> dict[str, Timed]:
    """Intervals by the entries of ``_ASIDE``; ``edges`` are the first and last fetches of the training's epochs."""
    phases, kinds = records.phases, records.kinds
    is_first = edges.has(EventFlag.FIRST) & np.isin(edges.start, records.fetches.start[:1])

    def named(entry: str, *others: Timed) -> Timed:
        return joined([*others, *([phases[entry]] if entry in phases else [])])

    return {
        "profiler": records.exports,
        "probes": records.probes,
        "warm.compile": kinds[EventKind.COMPILE],
        "checkpoint": named("checkpoint", kinds[EventKind.SAVE]),
        "start.batch": edges.where(is_first),
        "between.epoch": edges.where(~is_first),
        "evaluation": named("evaluation"),
        "logging": named("logging"),
        "phases": named("phases"),
    }


def _owned(records: Records, aside: dict[str, Timed]) -> Segments:
    """Whose each instant of the recording is: an index in ``_ASIDE``, or behind those a step."""
    steps = (records.steps, np.arange(len(_ASIDE), len(_ASIDE) + len(records.steps)))
    found = owners([*(labelled(aside[entry], number) for number, entry in enumerate(_ASIDE)), steps])
    start, end = np.maximum(found.start, records.begin_ns), np.minimum(found.end, records.end_ns)
    keep = end > start
    return Segments(start[keep], end[keep], found.label[keep])


def _parts(records: Records, fed: Timed) -> Segments:
    """What happened inside the steps: an index in ``_PARTS``, of nested records the innermost."""
    by_kind = [joined([records.kinds[kind] for kind in kinds]) for kinds in _PARTS.values()]
    return owners([labelled(timed, number) for number, timed in enumerate([fed, *by_kind[1:]])])


def _ahead(records: Records) -> Spans:
    """From the start of a step, or the end of what trained in it before, to the beginning of a backward pass."""
    backward, optimizer = records.kinds[EventKind.BACKWARD], records.kinds[EventKind.OPTIMIZER]
    before = np.sort(np.concatenate([records.steps.start, backward.end, optimizer.end]), kind="stable")
    if not len(before):
        return Spans(before, before)
    index = np.searchsorted(before, backward.start, side="right") - 1
    start, end = before[np.maximum(index, 0)], backward.start
    keep = (index >= 0) & (end > start) & np.r_[True, start[1:] >= end[:-1]]
    return Spans(start[keep], end[keep])


def _book_steps(
    account: _Account, records: Records, owned: Segments, parts: Segments, state: tuple[StepState, ...], ahead: str
) -> None:
    """Book what the steps own, and apart what the first ones and the profiled ones take beyond a usual one."""
    mine = owned.label >= len(_ASIDE)
    if not mine.any():
        return
    steps = Spans(owned.start[mine], owned.end[mine])
    pieces = paint(steps, [with_label(_ahead(records), 0)])
    spans = Spans(pieces.start, pieces.end)
    row = (owned.label[mine] - len(_ASIDE))[np.searchsorted(steps.start, spans.start, side="right") - 1]
    names = (*_PARTS, ahead, "step.rest")
    times = np.stack([time_in(parts, number, spans) for number in range(len(_PARTS))])
    left = spans.end - spans.start - times.sum(axis=0)
    is_ahead = pieces.label == 0
    times = np.vstack([times, np.where(is_ahead, left, 0), np.where(is_ahead, 0, left)])
    per_step = np.zeros((len(names), len(records.steps)), dtype=np.int64)
    for number in range(len(names)):
        np.add.at(per_step[number], row, times[number])
    kinds = step_kinds(records.steps, records.kinds[EventKind.WINDOW], state)
    for entry, rows in (("warm.steps", kinds.first), ("profiler", kinds.profiled)):
        more = excess(per_step, rows, kinds.usual)
        account.add(entry, more)
        for number, name in enumerate(names):
            account.add(name, -more[number])
    for number, name in enumerate(names):
        account.add(name, per_step[number])


def _book_rest(account: _Account, records: Records, rest: Spans, parts: Segments, *, lost: bool) -> None:
    """Book what neither a step nor a record that stands aside owns, by where it lies.

    Args:
        account: to book on.
        records: the records.
        rest: what is left of the recording.
        parts: what happened inside of steps, and of training outside of them.
        lost: records may be missing behind the last one.
    """
    if not len(records.steps):
        account.add("start.inside", rest.end - rest.start)
        return
    first, last = int(records.steps.start.min()), int(records.steps.end.max())
    early = rest.start < first
    account.add("start.inside", (rest.end - rest.start)[early])
    behind = Spans(rest.start[~early], rest.end[~early])
    training = sum(time_in(parts, number, behind) for number, name in enumerate(_PARTS) if name in _TRAINING)
    account.add("between.uncounted", training)
    left = behind.end - behind.start - training
    tail = behind.start >= last
    account.add("unexplained", left[~tail])
    account.add("unexplained" if lost else "end", left[tail])
