"""Steps that are long at first, longer and longer, or longer from one step on: warm-up and growth."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from profilerkit.analysis.intervals import Spans, subtract, time_within, union
from profilerkit.analysis.stats import Slope, median, quantile, theil_sen
from profilerkit.analysis.steps.series import Grown, StepSeries, what_grew
from profilerkit.model import revise
from profilerkit.model.step import LEAVES, StepState, Warmup
from profilerkit.rundir.layout import SAMPLE_SECONDS
from profilerkit.trace.columns import I64, Bools, TraceColumns

WARMUP_RATIO = 1.5  #: a step longer than this multiple of the settled ones is slow
#: The settled level is this quantile of the last half: steps that are longer at intervals, up to every fourth, are
#: part of what a run settles to.
SETTLED_QUANTILE = 0.75
SLOW_WEIGHT = 2  #: a slow step left in the window harms more than a settled one left out
#: After warm-up steps stop getting shorter: the median of the first half of the rest exceeds that of the second by less
#: than this ratio of what the warm-up cost. Where they go on, as in a curriculum, nothing was warmed up. Steps right
#: behind a slow one may be the shorter ones: the host runs ahead while the device catches up.
DRIFT_RATIO = 0.25
FEWEST_TO_TELL = 6  #: below this number of steps none can be told to be warm-up by its length


def warmup_length(step_ns: I64) -> int:
    """How many leading steps are warm-up, at most half of all; none where the run does not begin with a slow step.

    The change point between slow and settled steps: the split that leaves fewest steps on the wrong side, a slow one
    behind it counting ``SLOW_WEIGHT``. So one quick step among compilations does not end the warm-up.

    >>> warmup_length(np.array([900, 400, 101, 99, 100, 102]))
    2
    >>> warmup_length(np.array([875, 910, 7, 7, 7, 22, 220, 221, 220, 219, 220]))
    2
    >>> warmup_length(np.arange(300, 100, -5))
    0
    """
    if len(step_ns) < FEWEST_TO_TELL:
        return 0
    half = len(step_ns) // 2
    slow = step_ns[:half] > WARMUP_RATIO * quantile(step_ns[half:], SETTLED_QUANTILE)
    if not slow[0]:
        return 0
    settled_before = np.r_[0, np.cumsum(~slow)]
    slow_behind = slow.sum() - np.r_[0, np.cumsum(slow)]
    length = int((settled_before + SLOW_WEIGHT * slow_behind).argmin())
    rest = step_ns[length:]
    early, late = np.array_split(rest, 2)
    cost = median(step_ns[:length]) - median(rest)
    return length if median(early) - median(late) <= DRIFT_RATIO * cost else 0


#: The cause is named when it holds this much of what the first steps took longer, and that is this much of a step.
NAMED_RATIO = 0.5
NOTED_RATIO = 0.05

_WORDS = (
    ("warm.compile", "compilation"),
    ("input.", "the first batches"),
    ("mem.alloc", "growth of the allocator"),
    ("compute.", "more kernels than later, as when cudnn tries algorithms"),
    ("comm.", "the first communication"),
)
LOADING = "loading of modules at their first launch"


def loading_per_step(columns: TraceColumns, rows: I64, steps: Spans, busy: Spans) -> I64:
    """``(n_steps,)`` ns in which a module was loaded, in one of ``rows``, while the device was idle."""
    idle = subtract(union(columns.ts_ns[rows], columns.ts_ns[rows] + columns.dur_ns[rows]), busy)
    return time_within(idle, steps.start, steps.end)


def warmup_cost(state: Sequence[StepState], time: I64, spent: Mapping[str, I64]) -> Warmup | None:
    """The cost of the steps that lead up to the first steady one; ``None`` where there are none.

    ``spent`` has ns per step for the words of each cause; what is part of another one counts first.

    >>> found = warmup_cost(("warmup", "steady", "steady"), np.array([90, 10, 10]), {"x": np.array([70, 0, 0])})
    >>> found.steps, found.time_ns, found.excess_ns, found.cause
    (1, 90, 80, 'x')
    """
    if "steady" not in state:
        return None
    first = state.index("steady")
    leading = np.arange(first)[[value in ("warmup", "compile") for value in state[:first]]]
    if not len(leading):
        return None
    steady = np.array([value == "steady" for value in state], dtype=np.bool_)
    excess = {words: _excess(values, leading, steady) for words, values in spent.items()}
    total = _excess(time, leading, steady)
    cause = next((words for words, value in excess.items() if value >= NAMED_RATIO * total), None)
    noted = total >= NOTED_RATIO * float(np.median(time[steady]))
    time_ns, excess_ns = int(time[leading].sum()), max(round(total), 0)
    return Warmup(steps=len(leading), time_ns=time_ns, excess_ns=excess_ns, cause=cause if noted else None)


def _excess(values: I64, leading: I64, steady: Bools) -> float:
    return float(values[leading].sum()) - len(leading) * float(np.median(values[steady]))


def causes(per_step: I64, loading: I64) -> dict[str, I64]:
    """Words for a cause to its time per step, ``(n_steps,)`` int64 ns, of a partition per step."""
    out = {LOADING: loading}
    for group, words in _WORDS:
        leaves = [index for index, name in enumerate(LEAVES) if name.startswith(group)]
        out[words] = per_step[:, leaves].sum(axis=1)
    return out


FEWEST_TO_GROW = 30  #: fewer judged steps have no thirds to compare (a choice: ten steps in each)
_FEWEST_BESIDE = FEWEST_TO_GROW // 3  #: fewer steps beside a jump have no quartiles (a choice, as of a third)
#: Growth that goes on has at least so much of it on both sides of the largest jump, and the last third gains as much of
#: what the third before it gained. A line has all of it there, a jump none: half is as far from both.
_GOES_ON = 0.5
#: A third of the judged steps that lasts as long holds two samples of the host, and so all of one interval.
_TOLD_NS = round(2 * SAMPLE_SECONDS * 1e9)


class StepGrowth(msgspec.Struct, frozen=True):
    """Growth of the judged steps."""

    slope: Slope  #: ns per step, with its 99 % interval; above 0 without ``jump``
    base_ns: float  #: the line of growth at the run's first step: a step as long as nothing has grown, at least 0
    least_ns: float  #: the same by the steepest line that its interval allows
    first_ns: float  #: the typical step of the first tenth; with ``jump`` of those before it
    last_ns: float  #: the typical step of the last tenth; with ``jump`` of those after it
    mean_ns: float
    part: Grown | None  #: the part that holds most of the growth; ``None`` where none does, or steps are not split
    stage: Grown | None
    #: Growth of the CPU time of the process over that of the steps, from the first third to the last.
    computed_ratio: float | None
    #: Share of the last third in which the training thread waits for a processor, less that of the first.
    crowding: float
    ratio: float  #: of the quicker steps, of which a busy machine holds up few, the last ones over the first ones
    steps: tuple[int, int]
    #: Number of the step from which all are longer, where most of the growth is there; else ``None``.
    jump: int | None = None


def step_growth(series: StepSeries) -> StepGrowth | None:
    """The growth of the judged steps but for waits for a processor; ``None`` where it is not certain, or stopped."""
    rows = np.flatnonzero(series.steady)
    if len(rows) < FEWEST_TO_GROW:
        return None
    recorded, is_told = series, int(series.time[rows].sum()) >= 3 * _TOLD_NS
    series = series.unqueued() if is_told else series
    index, time = series.index[rows], series.time[rows]
    slope = theil_sen(index, time)
    if slope is None:
        return None
    tenth = max(len(rows) // 10, 3)
    first_ns, last_ns = median(time[:tenth]), median(time[-tenth:])
    at = largest_jump(time)
    is_jump = _beside(index, time, at) < _GOES_ON * (last_ns - first_ns)
    thirds = [_quick(third) for third in np.array_split(time, 3)]
    goes_on = thirds[2] - thirds[1] >= _GOES_ON * (thirds[1] - thirds[0]) > 0
    if not (_is_clear(time, at) if is_jump else slope.low > 0 and goes_on):
        return None
    early, _, late = np.array_split(rows, 3)
    chosen = (rows[:at], rows[at:]) if is_jump else (early, late)
    first, last = (np.isin(np.arange(len(series.time)), of) for of in chosen)
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
        computed_ratio=_computed_ratio(series, early, late) if is_told else None,
        crowding=_crowding(recorded, early, late) if is_told else 0.0,
        ratio=_quick(time[at:]) / _quick(time[:at]) if is_jump else _quick(time[-tenth:]) / _quick(time[:tenth]),
        steps=(int(index[0]), int(index[-1])),
        jump=int(index[at]) if is_jump else None,
    )


def largest_jump(values: I64) -> int:
    """Position from which values are larger, or smaller, than before: where Pettitt's statistic of ranks is largest.

    Of values that grow evenly it is the middle, whatever the shape.

    >>> largest_jump(np.array([4, 5, 3, 4, 9, 8, 9]))
    4
    """
    order = np.argsort(values, kind="stable")
    ordered, ranks = values[order], np.empty(len(values), dtype=np.int64)
    ranks[order] = np.searchsorted(ordered, ordered, "left") + np.searchsorted(ordered, ordered, "right")
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


def _quick(time: I64) -> float:
    """The lower quartile: a queue for a processor makes some steps longer, of which the others know nothing."""
    return quantile(time, 0.25)


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
