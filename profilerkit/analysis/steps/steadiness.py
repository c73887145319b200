"""What makes the steady steps a weak sample of the run: noise, drift, and being taken from one end."""

import numpy as np

from profilerkit.analysis.doubts import Doubt
from profilerkit.analysis.stats import median, theil_sen
from profilerkit.analysis.steps.series import StepSeries
from profilerkit.units import format_ns_range

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
