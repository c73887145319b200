"""The steps of one rank as arrays: what is longer in some of them, what recurs, and what makes them a weak sample."""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec
import numpy as np

from profilerkit.analysis.events import Events, id_of, spans_of
from profilerkit.analysis.intervals import covered
from profilerkit.analysis.stats import median, spread, theil_sen
from profilerkit.model import revise
from profilerkit.model.finding import Source
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.trace.columns import F64, I64, Bools
from profilerkit.units import format_ns, format_ns_range

DoubtKind = Literal[
    "untraced ranks",
    "framework",
    "unseen device",
    "cut file",
    "lost events",
    "traced steps",
    "slow steps",
    "odd step",
    "noise",
    "drift",
    "one end",
    "pressure",
    "steal",
    "clocks",
]


class Doubt(msgspec.Struct, frozen=True):
    """One thing that makes the judged numbers less sure than they look."""

    kind: DoubtKind  #: what it is; confidence counts doubts and never reads their words
    words: str  #: one sentence for the reader


#: A part did it when it holds at least this share of what some steps take more (the coverage that a late rank's cause
#: needs as well).
LEAST_COVERAGE = 0.6
MOST_ROWS = 2_000  #: steps of which a row is kept
FEWEST_TO_LEVEL = 3  #: fewer steps of a kind say nothing about how long that kind is


class StepSeries(msgspec.Struct, frozen=True, eq=False):
    """Every step of a rank; arrays are ``(n_steps,)``, times int64 ns."""

    index: I64
    time: I64  #: start to next start
    steady: Bools
    optimizes: Bools  #: steps that hold an optimizer step; where gradients are accumulated they are longer by nature
    parts: Mapping[str, I64]  #: part to its time, as far as steps are split
    #: Time in which the training thread waited for a processor, -1 where not known; ``None`` without samples.
    queued: I64 | None = None
    computed: I64 | None = None  #: CPU time of the process, likewise
    #: Stage of the loop to the host's time in it, which overlaps with parts; empty where not all were timed.
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


def what_grew(series: StepSeries, slow: Bools, usual: Bools) -> Grown | None:
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


def levelled(values: I64, optimizes: Bools) -> I64:
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


def shown_rows(count: int, most: int = MOST_ROWS) -> I64:
    """Positions of what is kept of ``count``: all, or ``most`` at an even distance."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


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
DRIFT = 0.10  #: change over all judged steps, relative to the median step, from which they are not one population
FEWEST_TO_DRIFT = 8  #: fewer steps have no drift that can be told from jitter
ONE_END = 0.5  #: judged steps that begin after, or end before, this part of the recorded steps come from one end


def weaknesses(series: StepSeries, step_error_ns: float | None) -> list[Doubt]:
    """Return reasons why the judged steps may not represent the run; empty when there is none."""
    rows = np.flatnonzero(series.steady)
    if not len(rows):
        return []
    time = series.time[rows]
    usual = median(time)
    out = []
    few = 1 < len(rows) < FEW_STEPS
    if few and time.max() >= OUTLIER * usual:
        times = f"{time.max() / usual:.1f} × the median" if usual else ""
        longest = times or f"{format_ns(int(time.max()))}, most took no time"
        out.append(Doubt("odd step", f"One of only {len(rows)} judged steps took {longest}."))
    if step_error_ns is not None and usual and step_error_ns >= NOISY_STEPS * usual:
        known = f"their median is known to ±{100 * step_error_ns / usual:.0f} %"
        if few:  # of which an interval of the median says less than the steps themselves
            known = f"the {len(rows)} judged steps take {format_ns_range(float(time.min()), float(time.max()))}"
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


class Stall(msgspec.Struct, frozen=True):
    """A disturbance that recurs."""

    kind: str  #: checkpoint, evaluation, logging, the phase's own name, or ``unnamed``
    part: str | None  #: the leaf its time is booked on, ``None`` when it is only known as longer steps
    count: int
    period: int | None  #: steps between occurrences; ``None`` when irregular
    excess_ns: float  #: extra time per occurrence: the mean of a named phase, the median of longer steps
    share: float  #: excess summed / steady time
    source: Source
    steps: tuple[int, int]
    grew: str | None = None  #: the leaf that holds most of the extra time of longer steps; ``None`` when none does
    coverage: float | None = None


#: What is told of stalls whose time has a name.
STALL_KINDS = {"other.ckpt": "checkpoint", "other.eval": "evaluation", "other.log": "logging"}
FEWEST_STALLS = 3  #: fewer occurrences than this are an accident, not a period
FALSE_ALARM = 0.005  #: chance that steps in no order at all are said to have a period, over all periods that are tried
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


def recurring(index: I64, values: I64) -> tuple[int, I64] | None:
    """The clearest period in ``values`` and the positions of the longer steps, ascending; or ``None``.

    Steps are put in classes by ``index`` modulo the period. If order did not matter, the longest steps would fall into
    the classes by chance, as drawn without replacement: so many of them in one class has a probability that holds for
    any distribution of jitter. It must stay below ``FALSE_ALARM`` over all classes of all periods.

    >>> values = 100 + np.arange(40) % 7
    >>> values[5::8] += 30
    >>> recurring(np.arange(40), values)[0]
    8
    """
    first = max(len(values) - MOST_STEPS, 0)
    index, values = index[first:], values[first:]
    most = min(len(values) // FEWEST_STALLS, MOST_PERIOD)
    if most < 2:
        return None
    chance, period, phase = min(_chances(index, values, most), key=lambda found: found[0])
    if chance + np.log(len(LEVELS) * (most - 1)) >= np.log(FALSE_ALARM):
        return None
    return period, first + np.flatnonzero(index % period == phase)


def _chances(index: I64, values: I64, most: int) -> Iterator[tuple[float, int, int]]:
    """The fullest class of every period at every level: log of its probability times the period, period, and phase."""
    count = len(values)
    factorial: F64 = np.r_[0.0, np.cumsum(np.log(np.arange(1, count + 1)))]

    def choices(n: int, k: I64 | int) -> F64:
        """Logarithms of binomial coefficients."""
        log: F64 = factorial[n] - factorial[k] - factorial[np.subtract(n, k)]
        return log

    descending = np.sort(values)[::-1]
    for period in range(2, most + 1):
        phase = index % period
        sizes = np.bincount(phase, minlength=period)
        for level in LEVELS:
            # Of equal ones none: they are the usual step.
            longest = values > descending[min(level * (count // period), count - 1)]
            hits = np.where(sizes >= FEWEST_STALLS, np.bincount(phase[longest], minlength=period), 0)
            fullest, among = int(hits.argmax()), int(longest.sum())
            size, chance = int(sizes[fullest]), 0.0
            if hits[fullest]:
                found = np.arange(max(hits[fullest], size + among - count), min(size, among) + 1)
                ways = choices(among, found) + choices(count - among, size - found)
                chance = float(np.logaddexp.reduce(ways - choices(count, size)))
            yield chance + float(np.log(period)), period, fullest


def regular_distance(steps: I64, slack: float = 0.0) -> int | None:
    """The common distance between occurrences, where all agree to one step, or ``slack`` of it; ``None`` otherwise."""
    if len(steps) < FEWEST_STALLS:
        return None
    distances = np.diff(steps)
    typical = int(np.median(distances))
    return typical if typical > 0 and bool((np.abs(distances - typical) <= max(1.0, slack * typical)).all()) else None


def unnamed_stalls(series: StepSeries, values: I64) -> list[Stall]:
    """Steps that are longer at a regular distance, and the part that grew; ``values`` is time that nothing names."""
    rows = np.flatnonzero(series.steady)
    if len(rows) < 2 * FEWEST_STALLS:
        return []
    left = levelled(values[rows], series.optimizes[rows])
    found: list[Stall] = []
    while len(found) < MOST_STALLS and (recurs := recurring(series.index[rows], left)) is not None:
        period, where = recurs
        usual = median(np.delete(left, where))
        excess = median(left[where]) - usual
        if excess < SMALLEST_STALL * usual:
            break
        found.append(_stall(series, rows[where], period, excess))
        left[where] -= round(excess)
    return found or _by_distance(series, left, rows)


def _by_distance(series: StepSeries, values: I64, rows: I64) -> list[Stall]:
    """Outliers at a distance that is regular to one step: too few of them, or too far apart, for ``recurring``."""
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
    slow = np.isin(np.arange(len(series.time)), where)
    grown = what_grew(evened(series), slow, series.steady & ~slow)
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
    """``phases`` and what was watched outside all of them, with the names of both."""
    named, found, names = spans_of(phases), [phases], dict(names)
    for kind, name in _NAMES.items():
        seen = events[events["kind"] == kind]
        if kind == EventKind.SAVE:
            seen = seen[(seen["flags"] & EventFlag.OTHER_THREAD) == 0]
        free = seen[~covered(named, seen["start"])]
        if len(free):
            number = id_of(name, names, events)
            names[number] = name
            free["kind"], free["flags"], free["name"] = EventKind.PHASE, 0, number
            found.append(free)
    return np.concatenate(found), names
