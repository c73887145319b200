"""Steps that are longer at a regular distance, and checkpoints and compilations that no phase of the user's names."""

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.events import Events, id_of
from profilerkit.analysis.intervals import I64, union
from profilerkit.analysis.stats import median, spread
from profilerkit.analysis.steps.series import StepSeries, evened, levelled, what_grew
from profilerkit.model.finding import Source
from profilerkit.rundir.layout import EventFlag, EventKind


class Stall(msgspec.Struct, frozen=True):
    """A disturbance that recurs.

    Attributes:
        kind: checkpoint, evaluation, logging, the phase's own name, or ``unnamed``.
        part: the leaf its time is booked on, ``None`` when it is only known as longer steps.
        count: occurrences in the steady window.
        period: steps between occurrences; ``None`` when irregular.
        excess_ns: extra time per occurrence: the mean of a named phase, the median of longer steps.
        share: excess summed / steady time.
        source: measured for named phases, derived for longer steps.
        steps: first and last affected step.
        grew: the leaf that holds most of the extra time of longer steps; ``None`` when none does.
        coverage: its share of that time.
    """

    kind: str
    part: str | None
    count: int
    period: int | None
    excess_ns: float
    share: float
    source: Source
    steps: tuple[int, int]
    grew: str | None = None
    coverage: float | None = None


F64 = npt.NDArray[np.float64]

#: What is told of stalls whose time has a name.
STALL_KINDS = {"other.ckpt": "checkpoint", "other.eval": "evaluation", "other.log": "logging"}
#: Fewer occurrences than this are an accident, not a period.
FEWEST_STALLS = 3
#: Chance that steps in no order at all are said to have a period, over all periods that are tried.
FALSE_ALARM = 0.005
#: How many times as many of the longest steps as a period has occurrences are looked for among its steps: the first
#: sees few and large stalls best, the second frequent ones within the jitter.
LEVELS = (1, 2)
#: Longest period tried, and most steps looked at (the last ones): they bound the time to a tenth of a second. Longer
#: periods are found by the distances of their outliers.
MOST_PERIOD = 500
MOST_STEPS = 20_000
#: A stall is said from this ratio of the typical step per occurrence, and at most so many of them.
SMALLEST_STALL = 0.05
MOST_STALLS = 3
#: A step is an outlier above this multiple of the median and above ``OUTLIER_SIGMAS`` robust deviations.
OUTLIER_RATIO = 1.5
OUTLIER_SIGMAS = 5.0


class Recurring(msgspec.Struct, frozen=True):
    """Steps that are longer every ``period`` steps: ``where`` are their positions, ascending."""

    where: I64
    period: int


def recurring(index: I64, values: I64) -> Recurring | None:
    """The clearest period in ``values``, or ``None``.

    Steps are put in classes by ``index`` modulo the period. If order did not matter, the longest steps would fall into
    the classes by chance, as drawn without replacement: so many of them in one class has a probability that holds for
    any distribution of jitter. It must stay below ``FALSE_ALARM`` over all classes of all periods.

    >>> values = 100 + np.arange(40) % 7
    >>> values[5::8] += 30
    >>> recurring(np.arange(40), values).period
    8
    """
    first = max(len(values) - MOST_STEPS, 0)
    index, values = index[first:], values[first:]
    most = min(len(values) // FEWEST_STALLS, MOST_PERIOD)
    if most < 2:
        return None
    trials = len(LEVELS) * (most - 1)
    choices = _LogChoices(len(values))
    best = min(
        _classes(index, values, most),
        key=lambda found: choices.at_least(found.hits, found.size, found.longest) + np.log(found.period),
    )
    chance = choices.at_least(best.hits, best.size, best.longest) + np.log(best.period) + np.log(trials)
    if chance >= np.log(FALSE_ALARM):
        return None
    return Recurring(first + np.flatnonzero(index % best.period == best.phase), best.period)


class _Class(msgspec.Struct, frozen=True):
    """The class of a period that holds most of the ``longest`` steps: ``hits`` of them among its ``size``."""

    period: int
    phase: int
    size: int
    hits: int
    longest: int


def _classes(index: I64, values: I64, most: int) -> Iterator[_Class]:
    """The fullest class of every period at every level."""
    descending = np.sort(values)[::-1]
    for period in range(2, most + 1):
        phase = index % period
        size = np.bincount(phase, minlength=period)
        for level in LEVELS:
            count = level * (len(values) // period)
            longest = values > descending[min(count, len(values) - 1)]  # of equal ones none: they are the usual step
            hits = np.where(size >= FEWEST_STALLS, np.bincount(phase[longest], minlength=period), 0)
            fullest = int(hits.argmax())
            yield _Class(period, fullest, int(size[fullest]), int(hits[fullest]), int(longest.sum()))


class _LogChoices:
    """Logarithms of binomial coefficients up to ``n``."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._factorial = np.r_[0.0, np.cumsum(np.log(np.arange(1, n + 1)))]

    def _choose(self, n: I64 | int, k: I64 | int) -> F64:
        log: F64 = self._factorial[n] - self._factorial[k] - self._factorial[np.subtract(n, k)]
        return log

    def at_least(self, hits: int, size: int, longest: int) -> float:
        """Log probability of ``hits`` or more of the ``longest`` of all ``n`` among ``size`` drawn at random."""
        if not hits:
            return 0.0
        low, high = max(hits, size + longest - self._n), min(size, longest)
        found = np.arange(low, high + 1)
        ways = self._choose(longest, found) + self._choose(self._n - longest, size - found)
        return float(np.logaddexp.reduce(ways - self._choose(self._n, size)))


def regular_distance(steps: I64, slack: float = 0.0) -> int | None:
    """The common distance between occurrences, where all agree to one step, or ``slack`` of it; ``None`` otherwise."""
    if len(steps) < FEWEST_STALLS:
        return None
    distances = np.diff(steps)
    typical = int(np.median(distances))
    return typical if typical > 0 and bool((np.abs(distances - typical) <= max(1.0, slack * typical)).all()) else None


def unnamed_stalls(series: StepSeries, values: I64) -> list[Stall]:
    """Steps that are longer at a regular distance, and the part that grew in them.

    Args:
        series: the steps.
        values: ``(n_steps,)`` step time as far as nothing names it, ns.
    """
    rows = np.flatnonzero(series.steady)
    if len(rows) < 2 * FEWEST_STALLS:
        return []
    left = levelled(values[rows], series.optimizes[rows])
    found: list[Stall] = []
    while len(found) < MOST_STALLS and (period := recurring(series.index[rows], left)) is not None:
        usual = median(np.delete(left, period.where))
        excess = median(left[period.where]) - usual
        if excess < SMALLEST_STALL * usual:
            break
        found.append(_stall(series, rows[period.where], period.period, excess))
        left[period.where] -= round(excess)
    return found or _by_distance(series, left, rows)


def _by_distance(series: StepSeries, values: I64, rows: I64) -> list[Stall]:
    """Outliers at a distance that is regular to one step: too few of them, or too far apart, for ``recurring``.

    Args:
        series: the steps.
        values: time of the judged ones.
        rows: their positions.
    """
    usual = median(values)
    slow = values > max(OUTLIER_RATIO * usual, usual + OUTLIER_SIGMAS * spread(values))
    index = series.index[rows]
    steps, period = index[slow], regular_distance(index[slow])
    if period is None or period < 2:
        return []
    # What recurs also does so at both ends; outliers by chance rarely leave that little room there.
    if max(steps[0] - index[0], index[-1] - steps[-1]) > period:
        return []
    return [_stall(series, rows[slow], period, median(values[slow]) - usual)]


def _stall(series: StepSeries, where: I64, period: int, excess: float) -> Stall:
    slow, usual = np.zeros_like(series.steady), series.steady.copy()
    slow[where], usual[where] = True, False
    grown = what_grew(evened(series), slow, usual)
    return Stall(
        kind="unnamed",
        part=None,
        count=len(where),
        period=period,
        excess_ns=excess,
        share=excess * len(where) / max(int(series.time[series.steady].sum()), 1),
        source="derived",
        steps=(int(series.index[where[0]]), int(series.index[where[-1]])),
        grew=grown.part if grown else None,
        coverage=grown.coverage if grown else None,
    )


#: Kind of record to the name of the phase that it stands for. A compilation also counts on another thread: there a
#: backward pass compiles, which the training thread waits for. A save on another thread is one in the background.
_NAMES = {EventKind.SAVE: "checkpoint", EventKind.COMPILE: "compile"}


def with_watched(phases: Events, events: Events, names: Mapping[int, str]) -> tuple[Events, Mapping[int, str]]:
    """``phases`` and what was watched outside all of them, with the names of both.

    Args:
        phases: PHASE records.
        events: records of all kinds.
        names: name of each name id.
    """
    named = union(phases["start"].astype(np.int64), (phases["start"] + phases["dur"]).astype(np.int64))
    found = [phases]
    names = dict(names)
    for kind, name in _NAMES.items():
        seen = events[events["kind"] == kind]
        if kind == EventKind.SAVE:
            seen = seen[(seen["flags"] & EventFlag.OTHER_THREAD) == 0]
        before = np.searchsorted(named.start, seen["start"], side="right") - 1
        inside = before >= 0
        inside[inside] = seen["start"][inside] < named.end[before[inside]]
        if not inside.all():
            number = id_of(name, names, events)
            names[number] = name
            free = seen[~inside]
            free["kind"], free["flags"], free["name"] = EventKind.PHASE, 0, number
            found.append(free)
    return np.concatenate(found), names
