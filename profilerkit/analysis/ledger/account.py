"""The wall clock of a rank as a partition: every nanosecond of it in exactly one entry."""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec
import numpy as np

from profilerkit.analysis.events import Timed, joined
from profilerkit.analysis.intervals import (
    I64,
    Segments,
    Spans,
    covered,
    paint,
    positive,
    subtract,
    union,
    with_label,
)
from profilerkit.analysis.ledger.records import Records, excess, labelled, occurrences, owners, read_records, step_kinds
from profilerkit.analysis.steps.device_time import DeviceTime
from profilerkit.analysis.steps.log import StepLog, exposed, starving
from profilerkit.model.ledger import ENTRIES, Ledger, LedgerEntry, LedgerSource
from profilerkit.rundir.layout import OFF_BY_SETTINGS, EventFlag, EventKind
from profilerkit.rundir.reader import RankRecord
from profilerkit.rundir.sampled import StartUp

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
#: What else of a step nothing records: its work ahead of the backward pass, where a fetch tells that from the wait or
#: not, and the rest.
_UNRECORDED = ("step.forward", "step.unfed", "step.rest")
_IN_STEPS = (*_PARTS, *_UNRECORDED, "step.device")
#: The order in which what the host did claims the time in which its device may have stood still, as in the steps.
_CLAIMS = tuple(dict.fromkeys((*_ASIDE, "step.input", "step.gc", "between.uncounted", "unexplained", *ENTRIES)))
_ROW = {entry: row for row, entry in enumerate(ENTRIES)}
#: Label of a step, behind those of ``_ASIDE``.
_STEP = len(_ASIDE)
#: Entries that follow from more than the records of that kind alone.
_DERIVED = (
    *("start.data", "start.model", "start.before", "start.inside", "warm.steps"),
    *(*_UNRECORDED, "step.device", "profiler"),
)
_COUNTED = ("warm.compile", "checkpoint", "evaluation", "logging", "phases")
_EDGE = EventFlag.FIRST | EventFlag.LAST


class Account(msgspec.Struct, frozen=True):
    """What a rank's time went to, step by step.

    Attributes:
        records: what the training thread did.
        aside: intervals by the entries that own their time whatever happens inside it.
        loader_seen: a fetch that feeds the training was recorded.
        by_step: entry to ``(n_steps + 2,)`` ns: ahead of the steps, of each step up to the next one, and behind them.
    """

    records: Records
    aside: dict[str, Timed]
    loader_seen: bool
    by_step: dict[str, I64]


def account(record: RankRecord, log: StepLog | None) -> Account | None:
    """What a rank's time went to: its device's, where that has a clock; ``None`` without records of its training."""
    records, end = read_records(record), record.end
    if records is None:
        return None
    fetches = records.fetches
    fed = joined([fetches, *(timed for entry, timed in records.phases.items() if entry == "step.input")])
    aside = _aside(records, fetches.where(fetches.has(_EDGE)))
    lost = end is None or bool(end.switched_off_because or end.stopped_because or end.dropped_records)
    by_step = _by_step(records, log, aside, fed, lost=lost)
    if log is not None and log.device is not None:
        by_step = _of_the_device(by_step, log, log.device, records.end_ns)
    return Account(records, aside, bool(len(fed)), by_step)


def rank_ledger(record: RankRecord, log: StepLog | None, found: Account | None) -> Ledger | None:
    """The wall clock of one rank; ``None`` where it left no records of its training, or was asked for none.

    Args:
        record: what it left.
        log: its steps; ``None`` without any.
        found: what its time went to.
    """
    light = record.meta.features.get("light") if record.meta else None
    if found is None or (light is not None and not light.on and light.reason == OFF_BY_SETTINGS):
        return None
    records, aside = found.records, found.aside
    started = record.meta.process_start_perf_ns if record.meta else None
    low = records.begin_ns if started is None else min(started, records.begin_ns)
    spent = {entry: int(times.sum()) for entry, times in found.by_step.items()}
    start_up = record.meta.start_up if record.meta and started is not None else None
    spent |= _before_recording(start_up, low, records.begin_ns)
    if log is not None and len(records.steps):
        _set_apart(spent, found, log)
    wall = records.end_ns - low
    if sum(spent.values()) != wall or min(spent.values()) < 0:
        raise AssertionError(f"entries of {sum(spent.values())} ns in a wall clock of {wall} ns")
    counted = {**{entry: aside[entry] for entry in _COUNTED}, "profiler": records.kinds[EventKind.WINDOW]}
    counts = {entry: occurrences(timed, records) for entry, timed in counted.items()}
    inferred = {entry for entry, timed in counted.items() if timed.has(EventFlag.INFERRED).any()}
    return Ledger(
        rank=record.rank,
        wall_ns=wall,
        from_process_start=started is not None,
        to_last_record=record.end is None,
        loader_seen=found.loader_seen,
        steps=len(records.steps),
        unexplained_ns=spent["unexplained"],
        entries=_entries(spent, wall, counts, inferred, start_up.packages if start_up else {}),
    )


def _entries(
    spent: Mapping[str, int],
    wall: int,
    counts: Mapping[str, int],
    inferred: Collection[str],
    packages: Mapping[str, int],
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
        for entry in ENTRIES
        if (time_ns := spent.get(entry, 0))
    )


def _before_recording(start_up: StartUp | None, low: int, high: int) -> dict[str, int]:
    """What came before the recording, from ``low`` to ``high``: entry to ns.

    Imports own their time, then CUDA, then a model. From the end of Python's start, of the imports or of a model, the
    latest of them, to the first loader the data set is made, or what else it takes to make that loader.
    """
    spent = {}
    left = positive(np.array([low]), np.array([high]))
    for entry, intervals in _before(start_up, low).items() if start_up else ():
        edges = np.array(intervals, dtype=np.int64).reshape(-1, 2)
        rest = subtract(left, union(edges[:, 0], edges[:, 1]))
        spent[entry] = left.total_ns - rest.total_ns
        left = rest
    return {**spent, "start.before": left.total_ns}


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


def _by_step(
    records: Records, log: StepLog | None, aside: dict[str, Timed], fed: Timed, *, lost: bool
) -> dict[str, I64]:
    """Return ``Account.by_step`` by the host's clock: each step from its start to the next one's.

    Args:
        records: the records.
        log: the steps; ``None`` without any.
        aside: intervals by the entries of ``_ASIDE``.
        fed: fetches that feed the training.
        lost: records may be missing behind the last one.
    """
    starts = log.start if log is not None else np.empty(0, dtype=np.int64)
    begin, end, count = records.begin_ns, records.end_ns, len(starts)
    last = max(int(records.steps.end.max(initial=begin)), int(starts.max(initial=begin)))
    owned = owners([*(labelled(aside[entry], n) for n, entry in enumerate(_ASIDE)), labelled(records.steps, _STEP)])
    mine, is_aside = owned.only(_STEP), owned.label < _STEP
    kinds = [fed, *(joined([records.kinds[kind] for kind in kinds]) for kinds in _PARTS.values() if kinds)]
    layers = [
        Segments(owned.start[is_aside], owned.end[is_aside], owned.label[is_aside]),
        owners([labelled(timed, _STEP + number) for number, timed in enumerate(kinds)]),
        with_label(_ahead(records), _STEP + len(_PARTS)),
    ]
    edges = np.unique(np.clip(np.concatenate([[begin, last, end], starts, mine.start, mine.end]), begin, end))
    pieces = paint(Spans(edges[:-1], edges[1:]), layers)
    # What has no label, -1, is the last of the names.
    names = (*_ASIDE, *_PARTS, "step.forward" if len(fed) else "step.unfed", "step.rest")
    entries = np.array([_ROW[name] for name in names])[pieces.label]
    is_behind = (pieces.start >= last) & bool(count)
    outside = ~covered(mine, pieces.start) & ((pieces.label < 0) | (pieces.label >= _STEP))
    trains = outside & np.isin(entries, [_ROW[name] for name in _TRAINING])
    entries[outside] = _ROW["unexplained"]
    entries[outside & is_behind & (not lost)] = _ROW["end"]
    entries[trains] = _ROW["between.uncounted"]
    entries[outside & (pieces.start < records.steps.start.min(initial=end))] = _ROW["start.inside"]
    at = np.where(is_behind, count + 1, np.searchsorted(starts, pieces.start, side="right"))
    spent = np.zeros((len(ENTRIES), count + 2), dtype=np.int64)
    np.add.at(spent, (entries, at), pieces.end - pieces.start)
    return dict(zip(ENTRIES, spent, strict=True))


def _of_the_device(by_step: Mapping[str, I64], log: StepLog, device: DeviceTime, end_ns: int) -> dict[str, I64]:
    """Return the same by the device's clock: each step from the end of the one before it to its own end there.

    What the host did counts as far as the device may have stood still for it. The rest of the step is the device's.
    """
    host = sum(by_step.values(), np.zeros(len(log.start) + 2, dtype=np.int64))[1:]
    starts = log.start[0] + np.r_[0, np.cumsum(host)]
    ends = np.r_[starts[0], np.clip(device.end, starts[1:-1], end_ns), end_ns]
    time, room = np.diff(ends), np.maximum(starts[1:] - ends[:-1], 0)
    # The steps' own law, and what lies between them where records were lost; a probe's steps are a probe's throughout.
    most = np.maximum(log.room + host[:-1] - (log.stop - log.start), 0)
    room[:-1] = np.where([state == "probe" for state in log.state], room[:-1], np.minimum(room[:-1], most))
    claims = {entry: by_step[entry][1:] for entry in _CLAIMS}
    claims["step.input"] = np.r_[starving(claims["step.input"][:-1], device), claims["step.input"][-1:]]
    held = exposed(claims, room)
    held["step.device"] = time - sum(held.values())
    return {entry: np.r_[times[:1], held[entry]] for entry, times in by_step.items()}


def _set_apart(spent: dict[str, int], found: Account, log: StepLog) -> None:
    """Book apart what the first steps and the profiled ones take beyond a usual one."""
    steps, own = found.records.steps, found.records.own
    if log.device is not None:
        steps = Timed(steps.start, np.maximum(steps.end, log.device.end[own]), steps.flags)
    state = tuple(value for value, is_own in zip(log.state, own, strict=True) if is_own)
    kinds = step_kinds(steps, found.records.kinds[EventKind.WINDOW], state)
    per_step = np.stack([found.by_step[entry][1:-1][own] for entry in _IN_STEPS])
    for entry, rows in (("warm.steps", kinds.first), ("profiler", kinds.profiled)):
        more = excess(per_step, rows, kinds.usual)
        spent[entry] += int(more.sum())
        for name, time_ns in zip(_IN_STEPS, more.tolist(), strict=True):
            spent[name] -= time_ns
