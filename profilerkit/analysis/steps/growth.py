"""Steps that take longer and longer, what grows in them, and steps that take longer from one step on."""

import msgspec
import numpy as np

from profilerkit.analysis.intervals import I64, Mask
from profilerkit.analysis.stats import Slope, median, quantile, theil_sen
from profilerkit.analysis.steps.series import Grown, StepSeries, what_grew
from profilerkit.model.change import revise
from profilerkit.rundir.layout import SAMPLE_SECONDS

#: Fewer judged steps have no thirds to compare (a choice: ten steps in each).
FEWEST_TO_GROW = 30
#: Fewer steps beside a jump have no quartiles (a choice, as of a third).
_FEWEST_BESIDE = FEWEST_TO_GROW // 3
#: Growth that goes on has at least so much of it on both sides of the largest jump, and the last third gains as much of
#: what the third before it gained. A line has all of it there, a jump none: half is as far from both.
_GOES_ON = 0.5
#: A third of the judged steps that lasts as long holds two samples of the host, and so all of one interval.
_TOLD_NS = round(2 * SAMPLE_SECONDS * 1e9)


class StepGrowth(msgspec.Struct, frozen=True):
    """Growth of the judged steps.

    Attributes:
        slope: ns per step, with its 99 % interval; above 0 without ``jump``.
        base_ns: the line of growth at the run's first step: a step as long as nothing has grown, at least 0.
        least_ns: the same by the steepest line that its interval allows.
        first_ns: the typical step of the first tenth; with ``jump`` of those before it.
        last_ns: the typical step of the last tenth; with ``jump`` of those after it.
        mean_ns: the mean step.
        part: the part that holds most of the growth; ``None`` where none does, or steps are not split.
        stage: the stage of the loop that does, likewise.
        computed_ratio: growth of the CPU time of the process over that of the steps, from the first third to the last,
            at most 1; ``None`` where not known.
        crowding: share of the last third in which the training thread waits for a processor, less that of the first;
            0 where it is not known.
        queue_ns: how much of a last step may be that wait, where samples do not tell when it was.
        steps: first and last judged step.
        jump: number of the step from which all are longer, where most of the growth is there; else ``None``.
    """

    slope: Slope
    base_ns: float
    least_ns: float
    first_ns: float
    last_ns: float
    mean_ns: float
    part: Grown | None
    stage: Grown | None
    computed_ratio: float | None
    crowding: float
    queue_ns: float
    steps: tuple[int, int]
    jump: int | None = None

    @property
    def ratio(self) -> float:
        """Last step over first step, as far as it is not the wait for a processor."""
        return (self.last_ns - self.queue_ns) / self.first_ns


def step_growth(series: StepSeries) -> StepGrowth | None:
    """The growth of the judged steps; ``None`` where they are few, do not grow for certain, or stopped growing.

    Waiting for a processor is left out where it is known: a machine that gets busier is no growth of the program. Where
    the run is too short for samples to tell when it was, all of it may have been at the end.
    """
    rows = np.flatnonzero(series.steady)
    if len(rows) < FEWEST_TO_GROW:
        return None
    recorded, queue_ns = series, _untold_queue(series, rows)
    series = series if queue_ns else series.unqueued()
    index, time = series.index[rows], series.time[rows]
    slope = theil_sen(index, time)
    if slope is None:
        return None
    tenth = max(len(rows) // 10, 3)
    first_ns, last_ns = median(time[:tenth]), median(time[-tenth:])
    at = largest_jump(time)
    is_jump = _beside(index, time, at) < _GOES_ON * (last_ns - first_ns)
    if not (_is_clear(time, at) if is_jump else slope.low > 0 and _goes_on(time)):
        return None
    early, _, late = np.array_split(rows, 3)
    first, last = (_mask(series, chosen) for chosen in ((rows[:at], rows[at:]) if is_jump else (early, late)))
    centre = median(index[:tenth]) - int(series.index[0])
    return StepGrowth(
        slope=slope,
        base_ns=max(first_ns - slope.value * centre, 0.0),
        least_ns=max(first_ns - slope.high * centre, 0.0),
        first_ns=median(time[:at]) if is_jump else first_ns,
        last_ns=median(time[at:]) if is_jump else last_ns,
        mean_ns=float(time.mean()),
        part=what_grew(recorded, last, first),
        stage=what_grew(revise(recorded, parts=series.stages), last, first),
        computed_ratio=None if queue_ns else _computed_ratio(series, early, late),
        crowding=0.0 if queue_ns else _crowding(recorded, early, late),
        queue_ns=queue_ns,
        steps=(int(index[0]), int(index[-1])),
        jump=int(index[at]) if is_jump else None,
    )


def largest_jump(values: I64) -> int:
    """Position from which values are larger, or smaller, than before: where Pettitt's statistic of ranks is largest.

    Of values that grow evenly it is the middle, whatever the shape.

    >>> largest_jump(np.array([4, 5, 3, 4, 9, 8, 9]))
    4
    """
    ordered = np.sort(values)
    ranks = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    return int(np.abs(np.cumsum(ranks - len(values))[:-1]).argmax()) + 1


def _beside(index: I64, time: I64, at: int, *, again: bool = True) -> float:
    """Growth on both sides of a position, ns: not across it. Of a long side with a clear jump likewise."""
    total = 0.0
    for steps, spent in ((index[:at], time[:at]), (index[at:], time[at:])):
        is_long = again and len(steps) >= 2 * FEWEST_TO_GROW
        if is_long and _is_clear(spent, largest_jump(spent)):
            total += _beside(steps, spent, largest_jump(spent), again=False)
        elif (slope := theil_sen(steps, spent)) is not None:
            total += slope.value * float(steps[-1] - steps[0])
    return total


def _is_clear(time: I64, at: int) -> bool:
    """Whether three of four steps after a position are longer than three of four before it, and both are some."""
    before, after = time[:at], time[at:]
    return min(len(before), len(after)) >= _FEWEST_BESIDE and quantile(after, 0.25) > quantile(before, 0.75)


def _goes_on(time: I64) -> bool:
    first, middle, last = (median(third) for third in np.array_split(time, 3))
    return last - middle >= _GOES_ON * (middle - first) > 0


def _mask(series: StepSeries, rows: I64) -> Mask:
    chosen = np.zeros(len(series.time), dtype=bool)
    chosen[rows] = True
    return chosen


def _untold_queue(series: StepSeries, rows: I64) -> float:
    """Wait for a processor of a step of the last third if all of it was there, ns; 0 where samples tell when it was.

    It is 0 as well where that wait is not known.
    """
    queued = series.queued
    if queued is None or (queued[rows] < 0).any() or series.time[rows].sum() >= 3 * _TOLD_NS:
        return 0.0
    return 3.0 * float(queued[rows].mean())


def _computed_ratio(series: StepSeries, early: I64, late: I64) -> float | None:
    computed = series.computed
    if computed is None or min(computed[early].min(), computed[late].min()) <= 0:
        return None
    more, longer = (float(of[late].mean() / of[early].mean()) - 1.0 for of in (computed, series.time))
    return min(max(more, 0.0) / longer, 1.0) if longer > 0 else None


def _crowding(series: StepSeries, early: I64, late: I64) -> float:
    queued = series.queued
    if queued is None or min(queued[early].min(), queued[late].min()) < 0:
        return 0.0
    share = queued / series.time
    return float(share[late].mean() - share[early].mean())
