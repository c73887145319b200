"""The steps of a rank as the report shows them: their times, a row for each, and the slow ones."""

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from profilerkit.analysis.stats import median, quantile
from profilerkit.analysis.steps.log import StepLog, exposed
from profilerkit.analysis.steps.series import LEAST_COVERAGE, StepSeries, evened, recurring, shown_rows, what_grew
from profilerkit.analysis.steps.trend import warmup_cost
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model.step import (
    LEAVES,
    PARTS,
    SlowSteps,
    StepRow,
    Steps,
    StepState,
    StepTimes,
    Stretches,
    Warmup,
    within,
)
from profilerkit.rundir.sampled import HostSample, Sample
from profilerkit.trace.columns import I64
from profilerkit.units import format_ns

SLOW_RATIO = 1.3  #: a steady step is slow above this multiple of the median steady step, as in the per-step figure
#: Few steps above this multiple, as an unforeseen window takes for slow, are told from steps that are merely uneven.
FAR_RATIO = 3.0
RARE = 20  #: at most one step in so many is few: the others are the run, and these something beside it (a choice)
FEWEST_TO_COMPARE = 3  #: fewer steady steps have no usual ones to compare with: the median of three is one of two alike


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
    slow = np.isin(np.arange(len(series.time)), rows[above])
    excess = float(time[above].mean() - time[~above].mean())
    grown = what_grew(even, slow, series.steady & ~slow)
    recurs = recurring(series.index[rows], time)
    among = np.isin(np.flatnonzero(above), recurs[1]).mean() if recurs else 0.0
    return SlowSteps(
        count=len(rows[above]),
        ratio=ratio,
        excess_ns=round(excess),
        share=excess * len(rows[above]) / int(series.time[rows].sum()),
        part=grown.part if grown else None,
        part_excess_ns=round(grown.excess_ns) if grown else None,
        coverage=grown.coverage if grown else None,
        period=recurs[0] if recurs and among >= LEAST_COVERAGE else None,
        first=int(series.index[slow][0]),
        last=int(series.index[slow][-1]),
    )


#: So many other steps of the same window are compared with it: they are profiled alike. With fewer the typical window
#: stands for them.
_FEWEST_BESIDE = 2
_SLOW_RATIO = 1.5  #: a step is told as slow above this multiple of the others
#: A part is named when it holds at least this share of what the slow step takes more; at most so many are named.
_NAMED_SHARE = 0.1
_NAMED = 3


class SlowTrace(msgspec.Struct, frozen=True):
    """One traced slow step ``beside`` others of its window, else of the typical one, of which ``usual_ns`` is the mean.

    ``grown`` has the parts that hold most of the difference and how much they grew, ns, largest first.
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
    """The slow step of a window that was opened to catch one: ``step``, or the longest; ``None`` where none is slow."""
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


def queued_per_step(samples: Sequence[Sample], start: I64, time: I64) -> I64:
    """``(n_steps,)`` int64 ns in which the training thread was ready and waited for a processor, as ``per_step``.

    >>> host = [HostSample(), HostSample(thread_queue_ratio=0.2), HostSample(thread_queue_ratio=0.4)]
    >>> samples = [Sample(t_ns=at * 10**9, host=record) for at, record in enumerate(host)]
    >>> queued_per_step(samples, np.array([0, 500, 1900]) * 10**6, np.array([500, 1000, 200]) * 10**6).tolist()
    [100000000, 300000000, -1]
    """
    return per_step(samples, start, time, lambda host: host.thread_queue_ratio)


def per_step(samples: Sequence[Sample], start: I64, time: I64, of: Callable[[HostSample], float | None]) -> I64:
    """``(n_steps,)`` int64 ns by the samples, spread evenly over the time between two; -1 where they lack."""
    told = [(sample.t_ns, of(sample.host)) for sample in samples if sample.host is not None]
    queued = np.full(len(start), -1, dtype=np.int64)
    if len(told) < 2:
        return queued
    at = np.array([t_ns for t_ns, _ in told], dtype=np.int64)
    ratio = np.array([np.nan if value is None else value for _, value in told], dtype=np.float64)
    # What was counted up to each sample; the ratio of a sample is about the time since the one before.
    known = np.nan_to_num(ratio[1:])
    counted = np.concatenate([[0.0], np.cumsum(known * np.diff(at))])
    silent = np.concatenate([[0], np.cumsum(np.isnan(ratio[1:]))])
    end = start + time
    first = np.searchsorted(at, start, side="right") - 1
    last = np.searchsorted(at, end, side="left")
    inside = (first >= 0) & (last < len(at))
    heard = inside.copy()
    heard[inside] = silent[last[inside]] == silent[first[inside]]
    between = np.interp(end, at, counted) - np.interp(start, at, counted)
    queued[heard] = np.rint(between[heard]).astype(np.int64)
    return queued


FEWEST_FOR_P99 = 100  #: with fewer values their 99th percentile is hardly more than the largest
#: Stretches of steady steps that are kept at most: blocks of a comparison are made of several (a choice).
MOST_STRETCHES = 1_000
_TOLD_RATIO = 0.5  #: of the judged steps' time, from which what was sampled in it stands for all of it (a choice)
#: What is told where nothing was recorded.
NO_STEPS = Steps(count=0, steady=0, dropped={}, found_by="nothing", inferred=True, time_ns=None)


def trace_series(trace: TraceFacts) -> StepSeries:
    """The trace's steps and the parts that any of them has."""
    found, per_step = trace.steps, trace.partition.per_step
    parts = {LEAVES[leaf]: per_step[:, leaf] for leaf in np.flatnonzero(per_step.any(axis=0))}
    return StepSeries(found.index, found.end - found.start, found.judged, found.optimizes, parts)


def log_series(log: StepLog, wait_part: str, samples: Sequence[Sample]) -> StepSeries:
    """The steps of the timers, with what the host's samples tell of them."""
    time = log.stop - log.start
    queued = queued_per_step(samples, log.start, time)
    computed = per_step(samples, log.start, time, lambda host: host.process_cpu_cores)
    parts = exposed(log.spent(wait_part), log.room)
    return StepSeries(log.index, log.time, log.steady, log.optimizes, parts, queued, computed, log.stages)


def log_steps(log: StepLog, series: StepSeries, found_by: str) -> Steps:
    """Steps as the timers saw them: waits, phases and collections are split off, the rest is one remainder."""
    warmup = warmup_cost(log.state, log.time, {"compilation": log.compiling, "the first batches": log.wait})
    return told_steps(series, log.start, log.state, found_by, log.inferred, warmup, log.ahead_ns)


def trace_steps(trace: TraceFacts, series: StepSeries) -> Steps:
    """Steps as the trace holds them, split into leaves."""
    of = trace.steps
    return told_steps(series, of.start, of.state, of.found_by, of.inferred, trace.warmup, of.ahead_ns)


def told_steps(
    series: StepSeries,
    start: I64,
    state: tuple[StepState, ...],
    found_by: str,
    inferred: bool,
    warmup: Warmup | None = None,
    ahead_ns: int | None = None,
) -> Steps:
    """Steps with their times, at most so many rows as ``MOST_ROWS``, and what the first ones cost."""
    queued, count, time = series.queued, len(series.index), series.time[series.steady]
    steady_queued = None if queued is None else queued[series.steady]
    known = np.zeros(len(time), dtype=bool) if steady_queued is None else steady_queued >= 0
    told_ns, queued_ratio = int(time[known].sum()), None
    if steady_queued is not None and told_ns and told_ns >= _TOLD_RATIO * int(time.sum()):
        queued_ratio = int(steady_queued[known].sum()) / told_ns
    rows = tuple(
        StepRow(
            index=int(series.index[row]),
            start_ns=int(start[row]),
            time_ns=int(series.time[row]),
            state=state[row],
            parts={part: int(spent[row]) for part, spent in series.parts.items() if spent[row]},
            queued_ns=None if queued is None or queued[row] < 0 else int(queued[row]),
        )
        for row in shown_rows(count)
    )
    dropped = [reason for reason in dict.fromkeys(state) if reason != "steady"]
    return Steps(
        count=count,
        steady=state.count("steady"),
        dropped={reason: state.count(reason) for reason in dropped},
        found_by=found_by,
        inferred=inferred,
        time_ns=step_times(time),
        warmup=warmup,
        rows=rows,
        thinned=len(rows) < count,
        slow=slow_steps(series),
        stretches=stretches(time, steady_queued) if len(rows) < count else None,
        queued_ratio=queued_ratio,
        ahead_ns=ahead_ns,
    )


def stretches(time: I64, queued: I64 | None) -> Stretches:
    """Sum neighbouring steps: rows at an even distance would show a periodic cost always or never."""
    steps = max(math.ceil(len(time) / MOST_STRETCHES), 1)
    count = len(time) // steps
    waits = np.full(len(time), -1) if queued is None else queued
    by_stretch = waits[len(time) - count * steps :].reshape(count, steps)
    return Stretches(
        steps=steps,
        time_ns=tuple(time[len(time) - count * steps :].reshape(count, steps).sum(axis=1).tolist()),
        queued_ns=tuple(None if row.min() < 0 else int(row.sum()) for row in by_stretch),
    )


def step_times(values: I64) -> StepTimes | None:
    """Return the mean and the quantiles of step times in ns; ``None`` without any."""
    if not len(values):
        return None
    several, mean = len(values) > 1, float(values.mean())
    return StepTimes(
        median=round(median(values)),
        mean=round(mean),
        p10=round(quantile(values, 0.1)) if several else None,
        p90=round(quantile(values, 0.9)) if several else None,
        p99=round(quantile(values, 0.99)) if len(values) >= FEWEST_FOR_P99 else None,
        cv_ratio=float(values.std(ddof=1)) / mean if several and mean else None,
    )
