"""Steps that take longer and longer, and the part that does."""

import msgspec
import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.analysis.stats import Slope, median, theil_sen
from profilerkit.analysis.steps.series import Grown, StepSeries, what_grew

#: Fewer judged steps have no thirds to compare (a choice: ten steps in each).
FEWEST_TO_GROW = 30
#: The last third gains at least so much of what the third before it gained: growth goes on, a jump does not.
_GOES_ON = 0.5


class StepGrowth(msgspec.Struct, frozen=True):
    """Growth of the judged steps.

    Attributes:
        slope: ns per step, with its 99 % interval, above 0.
        base_ns: the line of growth at the run's first step: a step as long as nothing has grown, at least 0.
        least_ns: the same by the steepest line that its interval allows.
        first_ns: the typical step of the first tenth.
        last_ns: the typical step of the last tenth.
        mean_ns: the mean step.
        part: the part that holds most of the growth; ``None`` where none does, or steps are not split.
        computed_ratio: growth of the CPU time of the process over that of the steps, from the first third to the last,
            at most 1; ``None`` where not known.
        crowding: share of the last third in which the training thread waits for a processor, less that of the first;
            0 where it is not known.
        steps: first and last judged step.
    """

    slope: Slope
    base_ns: float
    least_ns: float
    first_ns: float
    last_ns: float
    mean_ns: float
    part: Grown | None
    computed_ratio: float | None
    crowding: float
    steps: tuple[int, int]

    @property
    def ratio(self) -> float:
        """Last step over first step."""
        return self.last_ns / self.first_ns


def step_growth(series: StepSeries) -> StepGrowth | None:
    """The growth of the judged steps; ``None`` where they are few, do not grow for certain, or stopped growing.

    Waiting for a processor is left out where it is known: a machine that gets busier is no growth of the program.
    """
    rows = np.flatnonzero(series.steady)
    if len(rows) < FEWEST_TO_GROW:
        return None
    recorded, series = series, series.unqueued()
    time = series.time[rows]
    slope = theil_sen(series.index[rows], time)
    early, middle, late = np.array_split(rows, 3)
    levels = [median(series.time[third]) for third in (early, middle, late)]
    goes_on = levels[2] - levels[1] >= _GOES_ON * (levels[1] - levels[0]) > 0
    if slope is None or slope.low <= 0 or not goes_on:
        return None
    tenth = max(len(rows) // 10, 3)
    centre = median(series.index[rows[:tenth]]) - int(series.index[0])
    first, last = (np.isin(np.arange(len(series.time)), third) for third in (early, late))
    first_ns = median(time[:tenth])
    return StepGrowth(
        slope=slope,
        base_ns=max(first_ns - slope.value * centre, 0.0),
        least_ns=max(first_ns - slope.high * centre, 0.0),
        first_ns=first_ns,
        last_ns=median(time[-tenth:]),
        mean_ns=float(time.mean()),
        part=what_grew(series, last, first),
        computed_ratio=_computed_ratio(series, early, late),
        crowding=_crowding(recorded, early, late),
        steps=(int(series.index[rows[0]]), int(series.index[rows[-1]])),
    )


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
