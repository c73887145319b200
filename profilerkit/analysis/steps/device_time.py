"""The steps by the device's own clock: how long each took there, and in which of them the host can have held it up."""

import msgspec
import numpy as np

from profilerkit.analysis.events import Events
from profilerkit.analysis.intervals import I64, Mask
from profilerkit.analysis.stats import median
from profilerkit.model.change import revise
from profilerkit.rundir.layout import EventFlag, EventKind

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
    """What the device's clock says of the steps of a rank; arrays are ``(n_steps,)`` int64 ns.

    Attributes:
        time: from the end of the step before to the end of the step on the device; -1 where not recorded.
        idle: how much of that the device may have stood still, at most: what the host took for the step beyond the
            work that the device had queued as the step began. After the host has ended a step nothing holds it up.
        lag: how long after the host the device came to the end of the step, at least; -1 where not known.
        end: when the device came to the end of the step on the host's clock, at least, ascending. Behind the last
            step with a record each one takes what the device usually works on a step.
        starved: how much of it the device stood still while the host waited for a batch, as its clock measured; -1
            where no wait was marked.
    """

    time: I64
    idle: I64
    lag: I64
    end: I64
    starved: I64

    @property
    def full(self) -> Mask:
        """``(n_steps,)`` steps that the device worked through."""
        found: Mask = (self.time > 0) & (self.idle <= FULL_RATIO * self.time)
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


def _timed(parts: I64, more: I64, behind: Mask, start: I64, stop: I64) -> tuple[I64, I64, I64]:
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
    """``(n_steps,)`` ns: of its record each step has the work of a step, and of the rest in proportion to its host.

    A device that stood still did so in the steps in which its host took longer than the work of a step.
    """
    record = np.maximum(of, 0)
    span = np.maximum(spans["name"].astype(np.float64), 1.0)
    rest = np.maximum(spans["dur"] - span * work_ns, 0.0)
    longer = np.where(of >= 0, np.maximum(host - work_ns, 0.0), 0.0)
    most = np.bincount(record, weights=longer, minlength=len(spans))
    share = np.where(most[record] > 0, longer / np.maximum(most[record], 1.0), 1.0 / span[record])
    return np.where(of >= 0, np.rint((spans["dur"] - rest)[record] / span[record] + rest[record] * share), -1).astype(
        np.int64
    )


def _added_up(index: I64, number: I64, values: I64) -> tuple[I64, Mask]:
    """``(n_steps,)`` sums of the ``values`` of each step by its ``number``, and which of the steps have one."""
    at = np.minimum(np.searchsorted(index, number), len(index) - 1)
    known = index[at] == number
    sums, has = np.zeros(len(index), dtype=np.int64), np.zeros(len(index), dtype=np.bool_)
    np.add.at(sums, at[known], values[known])
    has[at[known]] = True
    return sums, has


def _lag(time: I64, behind: Mask, stop: I64) -> I64:
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
