"""The steps of one rank as arrays, what is longer in some of them, and what makes them a weak sample."""

from collections.abc import Mapping

import msgspec
import numpy as np

from profilerkit.analysis.doubts import Doubt
from profilerkit.analysis.intervals import I64, Mask
from profilerkit.analysis.stats import median, theil_sen
from profilerkit.model.change import revise
from profilerkit.units import format_ns_range

#: A part did it when it holds at least this share of what some steps take more (the coverage that a late rank's cause
#: needs as well).
LEAST_COVERAGE = 0.6
#: Steps of which a row is kept.
MOST_ROWS = 2_000
#: Fewer steps of a kind say nothing about how long that kind is.
FEWEST_TO_LEVEL = 3


class StepSeries(msgspec.Struct, frozen=True, eq=False):
    """Every step of a rank; arrays are ``(n_steps,)``, times int64 ns.

    Attributes:
        index: step numbers.
        time: start to next start.
        steady: the judged steps.
        optimizes: steps that hold an optimizer step; where gradients are accumulated they are longer by nature.
        parts: part to its time, as far as steps are split.
        queued: time in which the training thread waited for a processor, -1 where not known; ``None`` without samples.
        computed: CPU time of the process, likewise.
        stages: stage of the loop to the host's time in it, which overlaps with parts; empty where not all were timed.
    """

    index: I64
    time: I64
    steady: Mask
    optimizes: Mask
    parts: Mapping[str, I64]
    queued: I64 | None = None
    computed: I64 | None = None
    stages: Mapping[str, I64] = {}

    def unqueued(self) -> "StepSeries":
        """The steps without their waiting for a processor, where that is known of the judged ones."""
        if self.queued is None or (self.queued[self.steady] < 0).any():
            return self
        return revise(self, time=np.maximum(self.time - np.maximum(self.queued, 0), 1), queued=None)


class Grown(msgspec.Struct, frozen=True):
    """The part that is most longer in some steps, by how much, and its share of all that they take more."""

    part: str
    excess_ns: float
    coverage: float


def what_grew(series: StepSeries, slow: Mask, usual: Mask) -> Grown | None:
    """The part with the largest difference between the means of the ``slow`` and the ``usual`` steps.

    ``None`` without usual steps or parts, or when no part holds ``LEAST_COVERAGE`` of the difference.

    >>> slow = np.array([False, False, True])
    >>> parts = {"input.wait": np.array([1, 1, 19]), "over.gc": np.array([0, 0, 2])}
    >>> what_grew(StepSeries(np.arange(3), np.array([10, 10, 30]), slow, slow, parts), slow, ~slow)
    Grown(part='input.wait', excess_ns=18.0, coverage=0.9)
    """
    if not usual.any() or not series.parts:
        return None
    total = float(series.time[slow].mean() - series.time[usual].mean())
    grown = {part: float(spent[slow].mean() - spent[usual].mean()) for part, spent in series.parts.items()}
    part = max(grown, key=lambda name: grown[name])
    if total <= 0 or grown[part] < LEAST_COVERAGE * total:
        return None
    return Grown(part, grown[part], min(grown[part] / total, 1.0))


def levelled(values: I64, optimizes: Mask) -> I64:
    """``values`` with the fewer of steps with and without an optimizer step brought to the median of the others.

    A copy; unchanged where fewer than ``FEWEST_TO_LEVEL`` steps are of one kind.

    >>> levelled(np.array([10, 10, 16, 10, 10, 16, 10, 10, 19]), np.array([False, False, True] * 3)).tolist()
    [10, 10, 10, 10, 10, 10, 10, 10, 13]
    """
    out = values.copy()
    fewer = optimizes if 2 * np.count_nonzero(optimizes) <= len(optimizes) else ~optimizes
    if np.count_nonzero(fewer) >= FEWEST_TO_LEVEL:
        out[fewer] -= round(median(values[fewer]) - median(values[~fewer]))
    return out


def shown_rows(count: int) -> I64:
    """Positions of the steps of which a row is kept: all, or ``MOST_ROWS`` of them at an even distance."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_ROWS)).round().astype(np.int64))


def evened(series: StepSeries) -> StepSeries:
    """The same steps with the times and parts of the judged ones levelled: no optimizer step is longer by nature."""
    rows = np.flatnonzero(series.steady)

    def even(values: I64) -> I64:
        out = values.copy()
        out[rows] = levelled(values[rows], series.optimizes[rows])
        return out

    return revise(series, time=even(series.time), parts={part: even(spent) for part, spent in series.parts.items()})


#: Standard error of the median step over the step from which steps vary too much for a fine judgement. The verdict
#: keeps silent about lost time above the same ratio.
NOISY_STEPS = 0.05
#: Among fewer steps than high confidence needs, one so much longer than the median carries the mean.
FEW_STEPS = 8
OUTLIER = 1.5
#: Change over all judged steps, relative to the median step, from which they are not one population.
DRIFT = 0.10
#: Fewer steps have no drift that can be told from jitter.
FEWEST_TO_DRIFT = 8
#: Judged steps that begin after, or end before, this part of the recorded steps come from one end.
ONE_END = 0.5


def weaknesses(series: StepSeries, step_error_ns: float | None) -> list[Doubt]:
    """Return reasons why the judged steps may not stand for the run; empty when there is none.

    Args:
        series: all steps that were recorded.
        step_error_ns: standard error of the median judged step; ``None`` for a single one.
    """
    rows = np.flatnonzero(series.steady)
    if not len(rows):
        return []
    time = series.time[rows]
    usual = median(time)
    out = []
    few = 1 < len(rows) < FEW_STEPS
    if few and time.max() >= OUTLIER * usual:
        odd = f"One of only {len(rows)} judged steps took {time.max() / usual:.1f} × the median."
        out.append(Doubt("odd step", odd))
    if step_error_ns is not None and usual and step_error_ns >= NOISY_STEPS * usual:
        # Of so few steps an interval of the median says less than the steps themselves.
        extent = format_ns_range(float(time.min()), float(time.max()))
        known = (
            f"the {len(rows)} judged steps take {extent}"
            if few
            else f"their median is known to ±{100 * step_error_ns / usual:.0f} %"
        )
        out.append(Doubt("noise", f"Step times vary widely: {known}."))
    slope = theil_sen(rows, time) if len(rows) >= FEWEST_TO_DRIFT else None
    if slope and (slope.low > 0 or slope.high < 0):
        change = slope.value * float(rows[-1] - rows[0]) / usual
        if abs(change) >= DRIFT:
            word = "longer" if change > 0 else "shorter"
            by = f"by {100 * abs(change):.0f} % from first to last judged step"
            out.append(Doubt("drift", f"Steps get steadily {word}: {by}."))
    count = len(series.time)
    if rows[0] >= ONE_END * count or rows[-1] + 1 <= ONE_END * count:
        out.append(Doubt("one end", f"The {len(rows)} judged steps come from one end of the {count} recorded."))
    return out
