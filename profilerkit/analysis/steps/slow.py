"""Which steps are slow, how often, and what grew in them."""

import msgspec
import numpy as np

from profilerkit.analysis.parts import LEAVES
from profilerkit.analysis.stats import median
from profilerkit.analysis.steps.series import LEAST_COVERAGE, StepSeries, evened, what_grew
from profilerkit.analysis.steps.stalls import recurring
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model.step import PARTS, SlowSteps, within
from profilerkit.units import format_ns

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


#: So many other steps of the same window are compared with it: they are profiled alike. With fewer the typical window
#: stands for them.
_FEWEST_BESIDE = 2
#: A step is told as slow above this multiple of the others.
_SLOW_RATIO = 1.5
#: A part is named when it holds at least this share of what the slow step takes more; at most so many are named.
_NAMED_SHARE = 0.1
_NAMED = 3


class SlowTrace(msgspec.Struct, frozen=True):
    """One traced slow step beside others.

    Attributes:
        step: its number.
        time_ns: what it took.
        usual_ns: mean of the others.
        beside: the others are of the same window; else they are those of the typical one.
        grown: the parts that hold most of the difference and how much they grew, ns, largest first.
    """

    step: int
    time_ns: int
    usual_ns: int
    beside: bool
    grown: tuple[tuple[str, int], ...]

    @property
    def own_ns(self) -> int:
        """How much the largest part that is no waiting for other ranks grew."""
        return max((grown for part, grown in self.grown if not part.startswith("comm.")), default=0)

    def told(self, trigger: str) -> str:
        """The step in a sentence; ``trigger`` says why it was traced."""
        excess = self.time_ns - self.usual_ns
        others = "the steps beside it" if self.beside else "the typical traced step"
        labels = {part: PARTS[part][1] for part, _ in self.grown}
        named = [f"{format_ns(ns)} {within(labels[part])}" for part, ns in self.grown]
        of_that = f"of that {', '.join(named)}" if named else "spread over all parts"
        return (
            f"Slow step {self.step:,} was traced because {trigger}: it took {format_ns(self.time_ns)}, "
            f"{format_ns(excess)} longer than {others}, {of_that}."
        )


def slow_trace(trace: TraceFacts, typical: TraceFacts | None, step: int | None) -> SlowTrace | None:
    """The slow step of a window that was opened to catch one; ``None`` where no step in it is slow.

    Args:
        trace: of that window.
        typical: of the typical window; ``None`` where it cannot be read.
        step: the number of the slow one as capture saw it; ``None`` takes the longest.
    """
    steps, per_step = trace.steps, trace.partition.per_step
    time = steps.end - steps.start
    if not len(time):
        return None
    seen = steps.index == step if step is not None else np.zeros(len(time), dtype=bool)
    slow = int(seen.argmax() if seen.any() else time.argmax())
    others = np.arange(len(time)) != slow
    beside = len(time) > _FEWEST_BESIDE
    if beside:
        usual = per_step[others].mean(axis=0)
    elif typical is not None and typical.n_steady:
        usual = typical.totals / typical.n_steady
    else:
        return None
    usual_ns, excess = float(usual.sum()), per_step[slow] - usual
    if time[slow] < _SLOW_RATIO * usual_ns:
        return None
    largest = np.argsort(-excess)[:_NAMED]
    least = _NAMED_SHARE * float(excess.sum())
    return SlowTrace(
        step=int(steps.index[slow]),
        time_ns=int(time[slow]),
        usual_ns=round(usual_ns),
        beside=beside,
        grown=tuple((LEAVES[leaf], round(float(excess[leaf]))) for leaf in largest if excess[leaf] >= max(least, 1.0)),
    )
