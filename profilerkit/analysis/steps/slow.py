"""Which steps are slow, how often, and what grew in them."""

import numpy as np

from profilerkit.analysis.stats import median
from profilerkit.analysis.steps.series import LEAST_COVERAGE, StepSeries, evened, what_grew
from profilerkit.analysis.steps.stalls import recurring
from profilerkit.model.step import SlowSteps

#: A steady step is slow above this multiple of the median steady step, as in the per-step figure.
SLOW_RATIO = 1.3
#: Few steps above this multiple, as an unforeseen window takes for slow, are told from steps that are merely uneven.
FAR_RATIO = 3.0
#: At most one step in so many is few: the others are the run, and these something beside it (a choice).
RARE = 20
#: Fewer steady steps have no usual ones to compare with: the median of three is one of two alike.
FEWEST_TO_COMPARE = 3


def slow_steps(series: StepSeries) -> SlowSteps | None:
    """The steady steps above ``SLOW_RATIO`` times the median; ``None`` if there are none, or too few to compare.

    Where few of them are above ``FAR_RATIO`` and hold most of the time beyond the others, only those are meant.
    """
    rows = np.flatnonzero(series.steady)
    if len(rows) < FEWEST_TO_COMPARE:
        return None
    even = evened(series)
    time = even.time[rows]
    usual_ns = median(time)
    above = time > SLOW_RATIO * usual_ns
    if not above.any():
        return None
    far = time > FAR_RATIO * usual_ns
    is_few = 0 < np.count_nonzero(far) * RARE <= len(rows)
    ratio = SLOW_RATIO
    if is_few and (time[far] - usual_ns).sum() >= LEAST_COVERAGE * (time[above] - usual_ns).sum():
        above, ratio = far, FAR_RATIO
    slow, usual = np.zeros_like(series.steady), series.steady.copy()
    slow[rows[above]], usual[rows[above]] = True, False
    excess = float(time[above].mean() - time[~above].mean())
    grown = what_grew(even, slow, usual)
    recurs = recurring(series.index[rows], time)
    among = np.isin(np.flatnonzero(above), recurs.where).mean() if recurs else 0.0
    return SlowSteps(
        count=len(rows[above]),
        ratio=ratio,
        excess_ns=round(excess),
        share=excess * len(rows[above]) / int(series.time[rows].sum()),
        part=grown.part if grown else None,
        part_excess_ns=round(grown.excess_ns) if grown else None,
        coverage=grown.coverage if grown else None,
        period=recurs.period if recurs and among >= LEAST_COVERAGE else None,
        first=int(series.index[slow][0]),
        last=int(series.index[slow][-1]),
    )
