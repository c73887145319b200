"""The steps by the device's own clock: how long each took there, and in which of them the host can have held it up."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.events import Events
from profilerkit.analysis.intervals import I64
from profilerkit.analysis.stats import median
from profilerkit.rundir.layout import EventFlag, EventKind

Mask = npt.NDArray[np.bool_]

#: The device's clock is used where it tells the time of this share of the steps (a choice: most of them).
LEAST_TOLD = 0.5
#: So many steps that the device was sure to work through tell what its work of a step usually takes (a choice).
FEWEST_FULL = 3
#: A device that may have stood still for less of a step than this worked through it: no saving below 5 % is named.
FULL_RATIO = 0.05
#: Steps between which the two clocks drift apart by less than matters: 1e-5 (a usual quartz) of 200 steps is 0.2 %.
_BLOCK = 200


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """What the device's clock says of the steps of a rank; arrays are ``(n_steps,)`` int64 ns.

    Attributes:
        time: from the end of the step before to the end of the step on the device; -1 where not recorded.
        idle: how much of that the device may have stood still, at most: what the host took for the step beyond the
            work that the device had queued as the step began. After the host has ended a step nothing holds it up.
        starved: how much of it the device stood still while the host waited for a batch, as its clock measured; -1
            where no wait was marked.
        lag: how long after the host the device came to the end of the step, at least; -1 where not known.
    """

    time: I64
    idle: I64
    starved: I64
    lag: I64

    @property
    def full(self) -> Mask:
        """``(n_steps,)`` steps that the device worked through."""
        found: Mask = (self.time > 0) & (self.idle <= FULL_RATIO * self.time)
        return found

    @property
    def work_ns(self) -> float | None:
        """Median time of the steps that the device worked through, ns; ``None`` where they are too few."""
        known = self.time[self.full]
        return median(known) if len(known) >= FEWEST_FULL else None


def device_time(events: Events, index: I64, start: I64, stop: I64) -> DeviceTime | None:
    """The device's time of the steps; ``None`` where its clock was off, or tells of too few of them.

    Args:
        events: of all kinds.
        index: ``(n_steps,)`` step numbers, ascending.
        start: ``(n_steps,)`` starts of the steps on the host, ns.
        stop: ``(n_steps,)`` ends of the steps on the host, with what lies behind them, ns.

    What lies between two steps belongs to the one before, as on the host: a record of no step is added to it.
    """
    rows = events[events["kind"] == EventKind.DEVICE]
    if not len(rows):
        return None
    is_starved = (rows["flags"] & EventFlag.STARVED) != 0
    time, behind = _ended(index, rows[rows["name"] > 0])
    told = time >= 0
    if np.count_nonzero(told) < LEAST_TOLD * len(index):
        return None
    waits, gaps = rows[is_starved], rows[~is_starved & (rows["name"] == 0)]
    starved, marked = _added_up(index, waits["value"] + 1, waits["dur"])
    time = np.where(told, time + starved + _added_up(index, gaps["value"], gaps["dur"])[0], -1)
    lag = _lag(time, behind, stop)
    queued = np.r_[0, np.maximum(lag[:-1], 0)]
    idle = np.clip(stop - start - queued, 0, np.maximum(time, 0))
    return DeviceTime(time, np.maximum(idle, starved), np.where(marked, starved, -1), lag)


def _ended(index: I64, rows: Events) -> tuple[I64, Mask]:
    """``(n_steps,)`` ns of each step by the record that spans it, -1 without; and whether the device was behind there.

    A record's name says how many steps it spans, its value the last one: each step gets an equal part.
    """
    if not len(rows):
        return np.full(len(index), -1, dtype=np.int64), np.zeros(len(index), dtype=np.bool_)
    rows = rows[np.argsort(rows["value"], kind="stable")]
    at = np.minimum(np.searchsorted(rows["value"], index), len(rows) - 1)
    rows, span = rows[at], rows["name"][at].astype(np.int64)
    told = (index <= rows["value"]) & (index > rows["value"] - span)
    return np.where(told, rows["dur"] // span, -1), told & ((rows["flags"] & EventFlag.CAUGHT_UP) == 0)


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
            held = stop[done] - passed + np.where(behind[done], time[done], 0)
            lag[done] = passed + int(held.max()) - stop[done]
    return lag
