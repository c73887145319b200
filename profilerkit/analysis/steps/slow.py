"""Which steps are slow, how often, and what grew in them."""

import numpy as np

from profilerkit.analysis.stats import median
from profilerkit.analysis.steps.series import LEAST_COVERAGE, StepSeries, evened, what_grew
from profilerkit.analysis.steps.stalls import recurring
from profilerkit.model.step import SlowSteps

#: A steady step is slow above this multiple of the median steady step, as in the per-step figure.
SLOW_RATIO = 1.3
#: Fewer steady steps have no usual one to compare with.
FEWEST_TO_COMPARE = 5


def slow_steps(series: StepSeries) -> SlowSteps | None:
    """The steady steps above ``SLOW_RATIO`` times the median; ``None`` if there are none, or too few to compare."""
    rows = np.flatnonzero(series.steady)
    if len(rows) < FEWEST_TO_COMPARE:
        return None
    even = evened(series)
    time = even.time[rows]
    above = time > SLOW_RATIO * median(time)
    if not above.any():
        return None
    slow, usual = np.zeros_like(series.steady), series.steady.copy()
    slow[rows[above]], usual[rows[above]] = True, False
    excess = float(time[above].mean() - time[~above].mean())
    grown = what_grew(even, slow, usual)
    recurs = recurring(series.index[rows], time)
    among = np.isin(np.flatnonzero(above), recurs.where).mean() if recurs else 0.0
    return SlowSteps(
        count=len(rows[above]),
        excess_ns=round(excess),
        share=excess * len(rows[above]) / int(series.time[rows].sum()),
        part=grown.part if grown else None,
        part_excess_ns=round(grown.excess_ns) if grown else None,
        coverage=grown.coverage if grown else None,
        period=recurs.period if recurs and among >= LEAST_COVERAGE else None,
        first=int(series.index[slow][0]),
        last=int(series.index[slow][-1]),
    )
