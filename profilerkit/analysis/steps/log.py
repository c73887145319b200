"""Every step of a rank as its timers and the device's clock saw it: waits, phases, stalls, and the loop's stages."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np

from profilerkit.analysis.events import EVENT_DTYPE, NOT_A_WAIT, Events, skipped_batches, spans_of, trains
from profilerkit.analysis.host.names import is_feeding_phase, phase_leaf
from profilerkit.analysis.intervals import Spans, innermost_owner, subtract
from profilerkit.analysis.stats import median
from profilerkit.analysis.steps import find
from profilerkit.analysis.steps.find import in_step, spent_in
from profilerkit.analysis.steps.series import (
    STALL_KINDS,
    Stall,
    StepSeries,
    regular_distance,
    unnamed_stalls,
    with_watched,
)
from profilerkit.analysis.steps.trend import FEWEST_TO_TELL, warmup_length
from profilerkit.model import revise
from profilerkit.model.step import LEAVES, StepState
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.reader import RankRecord
from profilerkit.trace.columns import I8, I64, Bools

#: The device's clock is used where it tells the time of this share of the steps (a choice: most of them).
LEAST_TOLD = 0.5
#: So many steps that the device was sure to work through tell what its work of a step usually takes (a choice).
FEWEST_FULL = 3
#: A device that may have stood still for less of a step than this worked through it: no saving below 5 % is named.
FULL_RATIO = 0.05
#: Steps between which the two clocks drift apart by less than matters: 1e-5 (a usual quartz) of 200 steps is 0.2 %.
_BLOCK = 200
#: From one block to the next the clocks drift apart by less than this ratio (a choice: ten times a usual quartz).
_DRIFT = 1e-4
#: A device ends its last step within so long of the host (a choice: much longer than any queue).
_LONGEST_QUEUE_NS = 60_000_000_000


class DeviceTime(msgspec.Struct, frozen=True):
    """What the device's clock says of the steps of a rank; arrays are ``(n_steps,)`` int64 ns."""

    time: I64  #: from the end of the step before to the end of the step on the device; -1 where not recorded
    #: How much of that the device may have stood still, at most: what the host took for the step beyond the work that
    #: the device had queued as the step began. After the host has ended a step nothing holds it up.
    idle: I64
    lag: I64  #: how long after the host the device came to the end of the step, at least; -1 where not known
    #: When the device came to the end of the step on the host's clock, at least, ascending. Behind the last step with a
    #: record each one takes what the device usually works on a step.
    end: I64
    #: How much of it the device stood still while the host waited for a batch, as its clock measured; -1 where no wait
    #: was marked.
    starved: I64

    @property
    def full(self) -> Bools:
        """``(n_steps,)`` steps that the device worked through."""
        found: Bools = (self.time > 0) & (self.idle <= FULL_RATIO * self.time)
        return found

    @property
    def saw_waits(self) -> bool:
        """Whether waits for batches were marked, or no step but the worked-through ones left room for any."""
        return bool((self.starved >= 0).any() or self.full[self.time > 0].all())

    @property
    def work_ns(self) -> float | None:
        """Median time of the steps that the device worked through, ns; ``None`` where they are too few."""
        known = self.time[self.full]
        return median(known) if len(known) >= FEWEST_FULL else None


def device_time(events: Events, index: I64, start: I64, stop: I64, *, has_clock: bool) -> DeviceTime | None:
    """The device's time of the steps; ``None`` where its clock was off, or tells of too few of them.

    Where it was on, ``has_clock``, any number is enough, even none: the device had not ended the others. What lies
    between two steps belongs to the one before, as on the host: a record of no step is added to it. What lies behind
    the last one does not: a loop that just stops leaves a step there that never ended.
    """
    rows = events[events["kind"] == EventKind.DEVICE]
    # A record that is much longer than the run is no step's of it.
    rows = rows[(rows["dur"] >= 0) & (rows["dur"] <= 2 * (stop[-1] - start[0]) + _LONGEST_QUEUE_NS)]
    is_starved = (rows["flags"] & EventFlag.STARVED) != 0
    of, spans = _spanned(index, rows[rows["name"] > 0])
    if not has_clock and np.count_nonzero(of >= 0) < max(LEAST_TOLD * len(index), 1):
        return None
    if not (of >= 0).any():
        unknown = np.full(len(index), -1, dtype=np.int64)
        return DeviceTime(unknown, stop - start, unknown, stop, unknown)
    waits, gaps = rows[is_starved], rows[~is_starved & (rows["name"] == 0) & (rows["value"] < index[-1])]
    starved, marked = _added_up(index, waits["value"] + 1, waits["dur"])
    more = starved + _added_up(index, gaps["value"], gaps["dur"])[0]
    behind = (of >= 0) & ((spans["flags"][of] & EventFlag.CAUGHT_UP) == 0)
    even = np.where(of >= 0, spans["dur"][of] // np.maximum(spans["name"][of].astype(np.int64), 1), -1)
    told = DeviceTime(*_timed(even, more, behind, start, stop), stop, starved)
    if (spans["name"] > 1).any():
        parts = _parts_by_host(of, spans, stop - start, told.work_ns or 0.0)
        told = DeviceTime(*_timed(parts, more, behind, start, stop), stop, starved)
    told = revise(told, end=_ends(told.lag, stop, round(told.work_ns or 0.0)))
    return revise(told, idle=np.maximum(told.idle, starved), starved=np.where(marked, starved, -1))


def _ends(lag: I64, stop: I64, work_ns: int) -> I64:
    """``DeviceTime.end`` from the lags.

    >>> _ends(np.array([-1, 30, 40, -1, -1]), np.array([10, 20, 30, 40, 200]), 20).tolist()
    [10, 50, 70, 90, 200]
    """
    rows = np.arange(len(stop))
    last = np.maximum.accumulate(np.where(lag >= 0, rows, -1))
    queued = np.where(last >= 0, (stop + lag)[last] + work_ns * (rows - last), stop)
    return np.maximum.accumulate(np.maximum(stop, queued))


def _timed(parts: I64, more: I64, behind: Bools, start: I64, stop: I64) -> tuple[I64, I64, I64]:
    """Time, idle and lag of ``DeviceTime``: by each step's part of its record, -1 without, and what it has ``more``."""
    time = np.where(parts >= 0, parts + more, -1)
    lag = _lag(time, behind, stop)
    queued = np.r_[0, np.maximum(lag[:-1], 0)]
    idle = np.maximum(stop - start - queued, 0)
    return time, np.where(time < 0, idle, np.minimum(idle, time)), lag


def _spanned(index: I64, rows: Events) -> tuple[I64, Events]:
    """``(n_steps,)`` which of the rows, which are returned by their value, spans each step; -1 where none does.

    A record's name says how many steps it spans, its value the last one.
    """
    rows = rows[np.argsort(rows["value"], kind="stable")]
    if not len(rows):
        return np.full(len(index), -1, dtype=np.int64), rows
    of = np.minimum(np.searchsorted(rows["value"], index), len(rows) - 1)
    inside = (index <= rows["value"][of]) & (index > rows["value"][of] - rows["name"][of].astype(np.int64))
    return np.where(inside, of, -1), rows


def _parts_by_host(of: I64, spans: Events, host: I64, work_ns: float) -> I64:
    """``(n_steps,)`` ns: of its record each step has the work of a step, and of the rest in proportion to its host."""
    record = np.maximum(of, 0)
    span = np.maximum(spans["name"].astype(np.float64), 1.0)
    rest = np.maximum(spans["dur"] - span * work_ns, 0.0)
    longer = np.where(of >= 0, np.maximum(host - work_ns, 0.0), 0.0)
    most = np.bincount(record, weights=longer, minlength=len(spans))
    share = np.where(most[record] > 0, longer / np.maximum(most[record], 1.0), 1.0 / span[record])
    parts = (spans["dur"] - rest)[record] / span[record] + rest[record] * share
    return np.where(of >= 0, np.rint(parts), -1).astype(np.int64)


def _added_up(index: I64, number: I64, values: I64) -> tuple[I64, Bools]:
    """``(n_steps,)`` sums of the ``values`` of each step by its ``number``, and which of the steps have one."""
    at = np.minimum(np.searchsorted(index, number), len(index) - 1)
    known = index[at] == number
    sums, has = np.zeros(len(index), dtype=np.int64), np.zeros(len(index), dtype=np.bool_)
    np.add.at(sums, at[known], values[known])
    has[at[known]] = True
    return sums, has


def _lag(time: I64, behind: Bools, stop: I64) -> I64:
    """``(n_steps,)`` ns from the host's to the device's end of each step, the least that the records allow; or -1.

    The device cannot end a step before the host issued all of it. Where it still worked on the step before as the host
    ended the next, ``behind``, it was later than that.
    """
    lag = np.full(len(time), -1, dtype=np.int64)
    for first in range(0, len(time), _BLOCK):
        rows = np.arange(first, min(first + _BLOCK, len(time)))
        for part in np.split(rows, np.flatnonzero(time[rows] < 0)):
            done = part[time[part] >= 0]
            if not len(done):
                continue
            passed = np.cumsum(time[done])
            held = int((stop[done] - passed + np.where(behind[done], time[done], 0)).max())
            if before := done[0]:  # the device ends nothing before what it had queued
                held = max(held, int(stop[before - 1] + max(lag[before - 1] - round(_DRIFT * passed[-1]), 0)))
            lag[done] = passed + held - stop[done]
    return lag


_WAIT, _BACKWARD, _OPTIMIZER = range(3)
_TIMED = {"backward": _BACKWARD, "optimizer": _OPTIMIZER}
#: What lies between two of them: from the batch to the backward pass, and from the optimizer step to the next batch.
_BETWEEN = {"forward": (_WAIT, _BACKWARD), "after": (_OPTIMIZER, _WAIT)}
#: All other code of the loop. Without a loader that is what follows the optimizer step, and the forward pass after it.
_LOOP = "loop"


def stage_times(events: Events, waits: Spans, start: I64, stop: I64, steady: Bools) -> Mapping[str, I64]:
    """``(n_steps,)`` host's ns of each stage; empty where a steady step has no backward pass: not all were timed."""
    here = trains(events, backward=True)
    backward, optimizer = (
        spans_of(events[here & (events["kind"] == kind)]) for kind in (EventKind.BACKWARD, EventKind.OPTIMIZER)
    )
    # A closure runs the backward pass in the optimizer step, and may fetch a batch.
    known = [waits, subtract(backward, waits), subtract(subtract(optimizer, backward), waits)]
    between, before, after = _between(known, int(start[0]), int(stop[-1]))
    found = {name: known[label] for name, label in _TIMED.items()}
    left = np.ones(len(between), dtype=bool)
    for name, (first, then) in _BETWEEN.items():
        chosen = (before == first) & (after == then)
        found[name] = Spans(between.start[chosen], between.end[chosen])
        left &= ~chosen
    found[_LOOP] = Spans(between.start[left], between.end[left])
    times = {name: spent_in(spans, start, stop) for name, spans in found.items()}
    return times if (times["backward"][steady] > 0).all() else {}


def _between(known: Sequence[Spans], start_ns: int, stop_ns: int) -> tuple[Spans, I8, I8]:
    """What lies between spans that do not overlap, and whose are those before and after it; -1 for none."""
    begin, end = (np.concatenate([getattr(spans, edge) for spans in known]) for edge in ("start", "end"))
    order = np.argsort(begin, kind="stable")
    owner = np.repeat(np.arange(len(known), dtype=np.int8), [len(spans) for spans in known])[order]
    low, high = np.r_[start_ns, end[order]], np.r_[begin[order], stop_ns]
    none = np.int8(-1)
    before = np.where(low < start_ns, none, np.r_[none, owner])
    after = np.where(high > stop_ns, none, np.r_[owner, none])
    low, high = np.maximum(low, start_ns, out=low), np.minimum(high, stop_ns, out=high)
    keep = high > low
    return Spans(low[keep], high[keep]), before[keep], after[keep]


class StepLog(msgspec.Struct, frozen=True, dict=True):
    """Every step of a rank as its timers saw it; arrays are ``(n_steps,)`` int64 ns, CPU times -1 if not measured."""

    index: I64
    start: I64  #: on the ``perf_counter_ns`` clock
    stop: I64
    time: I64  #: what the step took: on the device where its clock was recorded, else from ``start`` to ``stop``
    #: What the device's clock says of the steps; ``None`` where it was off, or tells of too few.
    device: DeviceTime | None
    #: Time of each step in which the device may have stood still: what the host did in the rest of it cost nothing. All
    #: of the step where no device's clock tells.
    room: I64
    state: tuple[StepState, ...]
    wait: I64  #: time in which the training thread waited for a batch, on the host
    wait_cpu: I64  #: CPU time of that thread during the wait
    wait_queue: I64  #: time of the wait in which the thread was ready to run and got no processor
    phases: Mapping[str, I64]
    inferred_phases: frozenset[str]  #: leaf names of which nobody named all of the time
    collect: I64
    sync: I64  #: time in calls that waited for the device
    compiling: I64
    optimizes: Bools
    inferred: bool
    #: At least one fetch was recorded, in the steady window where there is one: a loader that was read before the
    #: training, or long ago, feeds none of its steps.
    waits_seen: bool
    fetches: int
    stalls: tuple[Stall, ...]
    stages: Mapping[str, I64]  #: stage of the loop to the host's time; empty where not all were timed

    @cached_property
    def steady(self) -> Bools:
        """``(n_steps,)`` mask of the judged steps."""
        return np.array([state == "steady" for state in self.state], dtype=bool)

    @property
    def window(self) -> tuple[int, int]:
        """Start of the first judged step and end of the last one, ns; of all steps where none is judged."""
        rows = np.flatnonzero(self.steady) if self.steady.any() else np.arange(len(self.start))
        return int(self.start[rows[0]]), int(self.stop[rows[-1]])

    def spent(self, wait_part: str) -> dict[str, I64]:
        """Leaf to the host's time per step in the order in which they claim it; of a wait what starved."""
        return {wait_part: starving(self.wait, self.device), **self.phases, "over.gc": self.collect}

    @property
    def ahead_ns(self) -> int | None:
        """How long after the host the device ends a judged step, median, at least; ``None`` without its clock."""
        if self.device is None:
            return None
        known = self.device.lag[self.steady & (self.device.lag >= 0)]
        return round(median(known)) if len(known) else None


def exposed(spent: Mapping[str, I64], room: I64) -> dict[str, I64]:
    """``spent`` as far as each fits into what is left of ``(n_steps,)`` ``room``, the first ones first.

    >>> held = exposed({"input.wait": np.array([5, 5]), "over.gc": np.array([3, 3])}, np.array([9, 6]))
    >>> {name: value.tolist() for name, value in held.items()}
    {'input.wait': [5, 5], 'over.gc': [3, 1]}
    """
    out = {}
    for name, values in spent.items():
        out[name] = values
        if values.any():
            out[name] = np.minimum(values, room)
            room = room - out[name]
    return out


def log_of(record: RankRecord) -> StepLog | None:
    """The log of a rank's records; ``None`` when no step was recorded."""
    clock = record.meta.features.get("device_clock") if record.meta else None
    return read_log(record.events, record.names, has_clock=clock is not None and clock.on)


def read_log(records: bytes, names: Mapping[int, str], *, has_clock: bool = False) -> StepLog | None:
    """Records of ``events.bin`` to a log; ``None`` when no step was recorded. ``has_clock`` as in ``device_time``."""
    events = np.frombuffer(records, dtype=EVENT_DTYPE)
    steps = events[events["kind"] == EventKind.STEP]
    if not len(steps):
        return None
    steps = steps[np.argsort(steps["start"], kind="stable")]
    index = steps["value"].astype(np.int64)
    start = steps["start"].astype(np.int64)
    end = start + steps["dur"]
    stop = np.r_[start[1:], end[-1]].astype(np.int64)
    inferred = bool((steps["flags"] & EventFlag.INFERRED).any())
    del steps  # of a long run each copy of its records takes as much as all arrays together
    lost = np.r_[np.diff(index) > 1, False]  # the records of what comes next: a disk did not take them
    stop[lost] = end[lost]
    time, room = _judged_time(start, stop, device := device_time(events, index, start, stop, has_clock=has_clock))
    waits = events[(events["kind"] == EventKind.WAIT) & ((events["flags"] & NOT_A_WAIT) == 0)]
    named, names = with_watched(events[events["kind"] == EventKind.PHASE], events, names)
    named, feeding = _split_phases(named, names)
    waits = _outermost(np.concatenate([waits, feeding]) if len(feeding) else waits)
    wait = spent_in(Spans(waits["start"], waits["start"] + np.maximum(waits["dur"], 0)), start, stop)
    cpu_ns, queue_ns = waits["value"], (waits["name"].astype(np.int64) - 1) * 1000
    # What happens inside something else is counted once: a fetch beats the phase around it, both beat a collection.
    waited = spans_of(waits)
    phases = _phases(named, names, waited, start, stop)
    collections = subtract(spans_of(events[events["kind"] == EventKind.GC]), waited)
    collect = spent_in(subtract(collections, spans_of(named)), start, stop)
    state = _states(events, start, stop, time, device)
    steady = np.array([value == "steady" for value in state], dtype=bool)
    held = exposed({"input.wait": starving(wait, device), **phases}, room)
    stepped = in_step(events["start"][events["kind"] == EventKind.OPTIMIZER], start, stop)
    optimizes = np.isin(np.arange(len(index)), stepped)
    series = StepSeries(index, time, steady, optimizes, {"over.gc": collect})
    in_steady = waits[np.isin(in_step(waits["start"], start, stop), np.flatnonzero(steady))]
    return StepLog(
        index=index,
        start=start,
        stop=stop,
        time=time,
        device=device,
        room=room,
        state=state,
        wait=wait,
        wait_cpu=_known_per_step(waits, cpu_ns, start, stop),
        wait_queue=_known_per_step(waits, queue_ns, start, stop),
        phases=phases,
        inferred_phases=_inferred(named, names),
        collect=collect,
        sync=spent_in(spans_of(events[events["kind"] == EventKind.SYNC]), start, stop),
        compiling=spent_in(subtract(spans_of(events[events["kind"] == EventKind.COMPILE]), waited), start, stop),
        optimizes=optimizes,
        inferred=inferred,
        waits_seen=bool(len(in_steady if steady.any() else waits)),
        fetches=len(in_steady),
        stalls=(
            *_named_stalls(named, names, index, start, stop, steady, time, room - held["input.wait"]),
            *unnamed_stalls(series, time - sum(held.values())),
        ),
        stages=stage_times(events, waited, start, stop, steady),
    )


def starving(wait: I64, device: DeviceTime | None) -> I64:
    """``(n_steps,)`` ns of the ``wait`` of each step in which the device stood still, where its clock measured that."""
    if device is None:
        return wait
    return np.where(device.starved < 0, wait, np.minimum(wait, device.starved))


def _judged_time(start: I64, stop: I64, device: DeviceTime | None) -> tuple[I64, I64]:
    """``(n_steps,)`` ns that each step took, and in which of it the device may have stood still."""
    time = stop - start
    if device is None:
        return time, time
    shown = device.time >= 0
    usual = np.where(shown, device.time, device.idle) - round(device.work_ns or 0.0)
    return np.where(shown, device.time, time), np.where(device.full, 0, np.clip(usual, 0, device.idle))


def _split_phases(phases: Events, names: Mapping[int, str]) -> tuple[Events, Events]:
    """Phases, and apart those named for getting a batch, as waits whose CPU time is not known."""
    feeds = [name_id for name_id, name in names.items() if is_feeding_phase(name)]
    feeding = np.isin(phases["name"], np.array(feeds, dtype=np.int64))
    waits = phases[feeding].copy()
    waits["value"], waits["name"] = -1, 0
    return phases[~feeding], waits


def _outermost(waits: Events) -> Events:
    """The waits that lie in no other one, by start; of two with the same extent the first."""
    end = waits["start"] + waits["dur"]
    order = np.lexsort((-end, waits["start"]))
    end = end[order]
    inside = np.zeros(len(waits), dtype=bool)
    inside[1:] = end[1:] <= np.maximum.accumulate(end)[:-1]
    return waits[order[~inside]]


def _known_per_step(waits: Events, spent: I64, start: I64, stop: I64) -> I64:
    """What was ``spent`` in the waits of each step; -1 where that of one of them is negative: not measured."""
    out = np.zeros(len(start), dtype=np.int64)
    step = in_step(waits["start"], start, stop)
    np.add.at(out, step[step >= 0], np.maximum(spent, 0)[step >= 0])
    unknown = step[(step >= 0) & (spent < 0)]
    out[unknown] = -1
    return out


def _phases(phases: Events, names: Mapping[int, str], waited: Spans, start: I64, stop: I64) -> dict[str, I64]:
    """Leaf name to ns per step; of nested phases the inner one owns the time."""
    ids, which = np.unique(phases["name"], return_inverse=True)
    leaves = np.array([phase_leaf(names.get(name_id, "phase")) for name_id in ids.tolist()], dtype=np.int64)
    owned = innermost_owner(phases["start"], phases["start"] + phases["dur"], leaves[which])
    used = sorted(set(leaves.tolist()))
    return {LEAVES[value]: spent_in(subtract(owned.only(value), waited), start, stop) for value in used}


def _inferred(phases: Events, names: Mapping[int, str]) -> frozenset[str]:
    found = np.unique(phases["name"][(phases["flags"] & EventFlag.INFERRED) != 0])
    return frozenset(LEAVES[phase_leaf(names.get(int(name_id), "phase"))] for name_id in found)


def _states(events: Events, start: I64, stop: I64, time: I64, device: DeviceTime | None) -> tuple[StepState, ...]:
    """Out of the steady window: the first step, leading slow ones, those disturbed, the one after.

    So are iterations of a loader before the training, whose batches were dropped, and steps that a device's clock does
    not show where it shows most. A window disturbs the steps that the device was at, maybe some behind the host.
    """
    state = np.full(len(start), find.STEADY)
    behind = 0 if device is None else np.maximum(device.lag, 0)
    for event in events[np.isin(events["kind"], (EventKind.WINDOW, EventKind.INSERTED))]:
        touched = np.flatnonzero((start < event["start"] + event["dur"]) & (stop + behind > event["start"]))
        if len(touched):
            state[touched[0] : touched[-1] + 2] = find.DISTURBED
    rows = np.arange(len(start))
    shown = np.ones(len(start), dtype=bool) if device is None else device.time >= 0
    dropped = skipped_batches(events)
    if dropped is not None and (start >= dropped.end_ns).sum() >= find.FEWEST_STEPS:
        state[start < dropped.end_ns] = find.WARMUP
        rows = rows[start >= dropped.end_ns]
    calm = rows[state[rows] == find.STEADY]  # a window's opening is no warm-up of the program's
    leading = calm if len(calm) >= FEWEST_TO_TELL else rows
    told = leading[shown[leading]]
    warm = told[: warmup_length(time[told])].max(initial=int(rows[0]) if len(rows) else 0)
    state[leading[leading <= warm]] = find.WARMUP
    if np.count_nonzero(shown & (state == find.STEADY)) < find.FEWEST_STEPS:
        state[state == find.DISTURBED] = find.STEADY
    state[(state == find.STEADY) & ~shown] = find.CUT
    if not (state == find.STEADY).any():
        state[shown] = find.STEADY
    return find.in_words(state)


def _named_stalls(
    phases: Events,
    names: Mapping[int, str],
    index: I64,
    start: I64,
    stop: I64,
    steady: Bools,
    time: I64,
    room: I64,
) -> list[Stall]:
    """Named phases in steady steps, such as checkpoints, as far as they fit into the ``room`` of each step."""
    out = []
    total = max(int(time[steady].sum()), 1)
    for name_id in np.unique(phases["name"]):
        chosen = phases[phases["name"] == name_id]
        step = in_step(chosen["start"], start, stop)
        keep = (step >= 0) & steady[np.maximum(step, 0)]
        where = np.unique(step[keep])
        if not len(where):
            continue
        name = names.get(int(name_id), "phase")
        part = LEAVES[phase_leaf(name)]
        per_step = np.zeros(len(start), dtype=np.int64)
        np.add.at(per_step, step[keep], chosen["dur"][keep])
        spent = np.minimum(per_step, room)
        room = room - spent
        out.append(
            Stall(
                kind=STALL_KINDS.get(part, re.sub(r"\s+", " ", name)),
                part=part,
                count=len(where),
                period=regular_distance(index[where]),
                excess_ns=float(spent.sum()) / len(where),
                share=float(spent.sum()) / total,
                source="derived" if (chosen["flags"] & EventFlag.INFERRED).any() else "measured",
                steps=(int(index[where[0]]), int(index[where[-1]])),
            )
        )
    return out
