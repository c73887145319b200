"""The wall clock of a rank: every nanosecond of it in exactly one entry, and how long training stands still."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, Literal

import msgspec
import numpy as np

from profilerkit.analysis.events import EVENT_DTYPE, NOT_TRAINING, Events, Timed, fetches_here, is_whole, joined, timed
from profilerkit.analysis.host.lines import HotLine, line_within
from profilerkit.analysis.host.names import is_feeding_phase, phase_leaf
from profilerkit.analysis.intervals import (
    Segments,
    Spans,
    between,
    covered,
    index_at,
    innermost_owner,
    paint,
    positive,
    rows_of,
    subtract,
    union,
    with_label,
)
from profilerkit.analysis.stats import median
from profilerkit.analysis.steps.log import DeviceTime, StepLog, exposed, starving
from profilerkit.model.ledger import ENTRIES, Ledger, LedgerEntry, LedgerSource
from profilerkit.model.step import LEAVES
from profilerkit.rundir.layout import OFF_BY_SETTINGS, EventFlag, EventKind
from profilerkit.rundir.reader import RankRecord
from profilerkit.rundir.sampled import StartUp
from profilerkit.trace.columns import I64, Bools

#: Ledger entry of a named phase by its leaf; others are phases.
_PHASE_ENTRIES = {"other.ckpt": "checkpoint", "other.eval": "evaluation", "other.log": "logging"}


class Records(msgspec.Struct, frozen=True):
    """What the training thread did, by kind."""

    steps: Timed
    fetches: Timed
    kinds: Mapping[EventKind, Timed]
    #: Named and inferred phases by ledger entry; those named for getting a batch are under ``step.input``.
    phases: Mapping[str, Timed]
    exports: Timed  #: when a window's trace was stopped and written
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
    stops = [status.end_perf_ns for status, _ in record.windows if status.end_perf_ns is not None]
    start = np.array(sorted(stops), dtype=np.int64)
    after = index_at(Spans(windows.start, windows.end), start)
    start, after = start[after >= 0], after[after >= 0]
    return Records(
        steps=timed(events[kind == EventKind.STEP]),
        fetches=timed(events[(kind == EventKind.WAIT) & own & ((events["flags"] & NOT_TRAINING) == 0)]),
        kinds={wanted: timed(events[(kind == wanted) & own & is_whole(record, wanted)]) for wanted in _KINDS},
        phases=_phases(events[(kind == EventKind.PHASE) & own], record.names),
        exports=Timed(start, windows.end[after], np.zeros(len(start), dtype=np.int64)),
        begin_ns=min(record.meta.anchor_perf_ns, first) if record.meta else first,
        end_ns=max(record.end.end_perf_ns, last) if record.end else heard,
    )


def _phases(events: Events, names: Mapping[int, str]) -> dict[str, Timed]:
    by_entry: dict[str, list[int]] = {}
    for name_id in np.unique(events["name"]).tolist():
        name = names.get(name_id, "phase")
        entry = "step.input" if is_feeding_phase(name) else _PHASE_ENTRIES.get(LEAVES[phase_leaf(name)], "phases")
        by_entry.setdefault(entry, []).append(name_id)
    return {entry: timed(events[np.isin(events["name"], ids)]) for entry, ids in by_entry.items()}


def owners(parts: Sequence[Timed], label: int = 0) -> Segments:
    """Of nested intervals the innermost owns the instant; each part has the next label, of which lower ones win.

    Intervals that overlap with no other one need no sweep; they are nearly all.

    >>> outer, inner = (Timed(*(np.array([value]) for value in edges)) for edges in ((0, 9, 0), (2, 4, 0)))
    >>> owned = owners([inner, outer])
    >>> list(zip(owned.start.tolist(), owned.end.tolist(), owned.label.tolist()))
    [(0, 2, 1), (2, 4, 0), (4, 9, 1)]
    """
    start, end = (np.concatenate([getattr(timed, name) for timed in parts]) for name in ("start", "end"))
    labels = np.repeat(label + np.arange(len(parts)), [len(timed) for timed in parts])
    order = np.argsort(start, kind="stable")
    order = order[end[order] > start[order]]
    start, end, labels = start[order], end[order], labels[order]
    if not len(start):
        return Segments(start, end, labels)
    reach = np.maximum.accumulate(end)
    alone = np.r_[True, start[1:] >= reach[:-1]] & np.r_[start[1:] >= end[:-1], True]
    nested = innermost_owner(start[~alone], end[~alone], labels[~alone])
    start, end = np.r_[start[alone], nested.start], np.r_[end[alone], nested.end]
    labels = np.r_[labels[alone], nested.label]
    order = np.argsort(start, kind="stable")
    return Segments(start[order], end[order], labels[order])


def occurrences(timed: Timed, records: Records) -> int:
    """How many there are; those between which nothing trains count as one, such as the files of one checkpoint."""
    trained = joined([records.steps, records.kinds[EventKind.BACKWARD], records.kinds[EventKind.OPTIMIZER]]).start
    return len(np.unique(np.searchsorted(trained, union(timed.start, timed.end).start)))


def excess(per_step: Sequence[I64], rows: Bools, usual: Bools) -> I64:
    """``(n_parts,)`` ns by which the chosen steps exceed as many usual ones, taken from the parts that grew.

    The sum is the excess over the median usual step; 0 without any. ``per_step`` has ``(n_steps,)`` ns of each part.

    >>> per_step = [np.array([70, 10, 10, 10]), np.array([30, 20, 20, 20])]
    >>> excess(per_step, np.array([True, False, False, False]), np.array([False, True, True, True])).tolist()
    [60, 10]
    """
    count = int(rows.sum())
    if not count or not usual.any():
        return np.zeros(len(per_step), dtype=np.int64)
    spent = np.array([part[rows].sum() for part in per_step])
    expected = np.rint([count * np.median(part[usual]) for part in per_step]).astype(np.int64)
    grown = np.maximum(spent - expected, 0)
    total = int(spent.sum()) - round(count * float(np.median(sum(part[usual] for part in per_step))))
    parts = grown.tolist()
    whole = sum(parts)
    total = max(min(total, whole), 0)
    # In proportion to what grew, to the nanosecond; products of whole numbers may exceed 64 bits.
    reached = [0, *(total * until // max(whole, 1) for until in accumulate(parts))]
    return np.array([after - before for before, after in pairwise(reached)], dtype=np.int64)


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
    *("profiler", "warm.compile", "checkpoint", "start.batch", "between.epoch", "evaluation", "logging"),
    "phases",
)
#: What else of a step nothing records: its work ahead of the backward pass, where a fetch tells that from the wait or
#: not, and the rest.
_UNRECORDED = ("step.forward", "step.unfed", "step.rest")
_IN_STEPS = (*_PARTS, *_UNRECORDED, "step.device")
#: The order in which what the host did claims the time in which its device may have stood still, as in the steps.
_CLAIMS = tuple(dict.fromkeys((*_ASIDE, "step.input", "step.gc", "between.uncounted", "unexplained", *ENTRIES)))
_NAMES = tuple(ENTRIES)
_ROW = {entry: row for row, entry in enumerate(_NAMES)}
_STEP = len(_ASIDE)  #: label of a step, behind those of ``_ASIDE``
#: Entries that follow from more than the records of that kind alone.
_DERIVED = (
    *("start.data", "start.model", "start.before", "start.inside", "warm.steps"),
    *(*_UNRECORDED, "step.device", "profiler"),
)
_COUNTED = ("warm.compile", "checkpoint", "evaluation", "logging", "phases")
_EDGE = EventFlag.FIRST | EventFlag.LAST


class Account(msgspec.Struct, frozen=True):
    """What a rank's time went to, step by step."""

    records: Records
    aside: dict[str, Timed]  #: intervals by the entries that own their time whatever happens inside it
    loader_seen: bool  #: a fetch that feeds the training was recorded
    #: Entry to ``(n_steps + 2,)`` ns: ahead of the steps, of each step up to the next one, and behind them.
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
    """The wall clock of one rank; ``None`` where it left no records of its training, or was asked for none."""
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
    left = positive(np.array([low]), np.array([high]))
    if start_up is None:
        return {"start.before": left.total_ns}
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
    spent = {}
    for entry, intervals in found.items():
        edges = np.array(intervals, dtype=np.int64).reshape(-1, 2)
        rest = subtract(left, union(edges[:, 0], edges[:, 1]))
        spent[entry] = left.total_ns - rest.total_ns
        left = rest
    return {**spent, "start.before": left.total_ns}


def _aside(records: Records, edges: Timed) -> dict[str, Timed]:
    """Intervals by the entries of ``_ASIDE``; ``edges`` are the first and last fetches of the training's epochs."""
    phases, kinds = records.phases, records.kinds
    is_first = edges.has(EventFlag.FIRST) & np.isin(edges.start, records.fetches.start[:1])

    def named(entry: str, *others: Timed) -> Timed:
        return joined([*others, *([phases[entry]] if entry in phases else [])])

    return {
        "profiler": records.exports,
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
    """Return ``Account.by_step`` by the host's clock: each step from its start to the next one's."""
    starts = log.start if log is not None else np.empty(0, dtype=np.int64)
    begin, end, count = records.begin_ns, records.end_ns, len(starts)
    last = max(int(records.steps.end.max(initial=begin)), int(starts.max(initial=begin)))
    owned = owners([*(aside[entry] for entry in _ASIDE), records.steps])
    steps, is_aside = rows_of(owned, owned.label == _STEP), owned.label < _STEP
    kinds = [fed, *(joined([records.kinds[kind] for kind in kinds]) for kinds in _PARTS.values() if kinds)]
    layers = [
        rows_of(owned, is_aside),
        owners(kinds, _STEP),
        with_label(_ahead(records), _STEP + len(_PARTS)),
    ]
    # What has no label, -1, is the last of the names.
    names = (*_ASIDE, *_PARTS, "step.forward" if len(fed) else "step.unfed", "step.rest")
    rows, training = np.array([_ROW[name] for name in names]), [_ROW[name] for name in _TRAINING]
    begun = records.steps.start.min(initial=end)
    nothing = np.zeros(count + 2, dtype=np.int64)
    spent = dict.fromkeys(ENTRIES, nothing)
    for window in _blocks(np.concatenate([[begin, last, end], starts, steps.start, steps.end]), begin, end):
        low, high = int(window.start[0]), int(window.end[-1])
        pieces = paint(window, [between(layer, low, high) for layer in layers])
        stepping = between(steps, low, high)
        entries = rows[pieces.label]
        is_behind = (pieces.start >= last) & bool(count)
        outside = ~covered(stepping, pieces.start) & ((pieces.label < 0) | (pieces.label >= _STEP))
        trains = outside & np.isin(entries, training)
        entries[outside] = _ROW["unexplained"]
        entries[outside & is_behind & (not lost)] = _ROW["end"]
        entries[trains] = _ROW["between.uncounted"]
        entries[outside & (pieces.start < begun)] = _ROW["start.inside"]
        at = np.where(is_behind, count + 1, np.searchsorted(starts, pieces.start, side="right"))
        for row in np.flatnonzero(np.bincount(entries)).tolist():
            name, chosen = _NAMES[row], entries == row
            if spent[name] is nothing:
                spent[name] = nothing.copy()
            np.add.at(spent[name], at[chosen], (pieces.end - pieces.start)[chosen])
    return spent


#: Spans that are cut into pieces at once, so that a long run takes no more memory than its steps do.
_BLOCK = 100_000


def _blocks(instants: I64, begin: int, end: int) -> Iterator[Spans]:
    """From each instant to the next, in blocks."""
    edges = np.sort(np.clip(instants, begin, end))
    edges = edges[np.r_[True, edges[1:] != edges[:-1]]]
    for first in range(0, len(edges) - 1, _BLOCK):
        block = edges[first : first + _BLOCK + 1]
        yield Spans(block[:-1], block[1:])


def _of_the_device(by_step: Mapping[str, I64], log: StepLog, device: DeviceTime, end_ns: int) -> dict[str, I64]:
    """The same by the device's clock: what the host did counts as far as the device may have stood still for it."""
    host = sum(by_step.values(), np.zeros(len(log.start) + 2, dtype=np.int64))[1:]
    starts = log.start[0] + np.r_[0, np.cumsum(host)]
    ends = np.r_[starts[0], np.clip(device.end, starts[1:-1], end_ns), end_ns]
    time, room = np.diff(ends), np.maximum(starts[1:] - ends[:-1], 0)
    # The steps' own law, and what lies between them where records were lost.
    most = np.maximum(log.room + host[:-1] - (log.stop - log.start), 0)
    room[:-1] = np.minimum(room[:-1], most)
    claims = {entry: by_step[entry][1:] for entry in _CLAIMS}
    claims["step.input"] = np.r_[starving(claims["step.input"][:-1], device), claims["step.input"][-1:]]
    held = exposed(claims, room)
    held["step.device"] = time - sum(held.values())
    return {
        entry: np.r_[times[:1], held[entry]] if times[1:].any() or held[entry].any() else times
        for entry, times in by_step.items()
    }


def _set_apart(spent: dict[str, int], found: Account, log: StepLog) -> None:
    """Book apart what the first steps and the profiled ones take beyond a usual one."""
    steps = found.records.steps
    if log.device is not None:
        steps = Timed(steps.start, np.maximum(steps.end, log.device.end), steps.flags)
    first, steady = np.array([value == "warmup" for value in log.state], dtype=np.bool_), log.steady
    windows, touched = found.records.kinds[EventKind.WINDOW], np.zeros(len(steps), dtype=np.bool_)
    low = np.searchsorted(steps.end, windows.start, side="right")
    high = np.searchsorted(steps.start, windows.end, side="left")
    for begin, stop in zip(low.tolist(), high.tolist(), strict=True):
        touched[begin : stop + 1 if stop > begin else begin] = True  # the step behind it too
    per_step = [found.by_step[entry][1:-1] for entry in _IN_STEPS]
    for entry, rows in (("warm.steps", first), ("profiler", touched & ~first)):
        more = excess(per_step, rows, steady & ~first & ~touched)
        spent[entry] += int(more.sum())
        for name, time_ns in zip(_IN_STEPS, more.tolist(), strict=True):
            spent[name] -= time_ns


PauseKind = Literal["checkpoint", "evaluation", "logging"]


class Pause(msgspec.Struct, frozen=True):
    """What training stands still for, from the first judged step to the end of the last step."""

    kind: PauseKind
    count: int
    run_count: int  #: how often in the whole run, the start of it and what lies behind the last step among it
    time_ns: int
    share: float  #: of the time in question, the writing of traces left out
    steps: int
    steps_apart: float | None = None  #: from one to the next, the median; ``None`` for a single one
    inferred: bool = False  #: nobody named all of them; passes that train nothing show evaluation as well
    batches: float | None = None  #: that an evaluation reads from loaders, on average; ``None`` where it reads none
    records_graphs: bool = False  #: autograd records the operators of evaluations, which nothing needs
    line: HotLine | None = None  #: of the user's that holds most of them; ``None`` where sampled stacks do not tell

    @property
    def each_ns(self) -> float:
        """Mean length of one."""
        return self.time_ns / max(self.count, 1)


_PAUSES: tuple[PauseKind, ...] = ("checkpoint", "evaluation", "logging")


def pauses(record: RankRecord, log: StepLog, found: Account | None) -> tuple[Pause, ...]:
    """What the records of one rank tell, longest in all first; of pauses in each other the inner one counts."""
    if found is None or not len(found.records.steps):
        return ()
    records, first = found.records, int(log.steady.argmax())
    low, high = int(log.start[first]), int(records.steps.end.max())
    judged = {entry: int(times[first + 1 : -1].sum()) for entry, times in found.by_step.items()}
    whole = sum(judged.values()) - judged["profiler"]
    told = {kind: found.aside[kind] for kind in _PAUSES if judged[kind] > 0}
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
