"""The steps of a rank as the report shows them: their times, a row for each, slow ones, and waits for a processor."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.analysis.parts import LEAVES
from profilerkit.analysis.stats import median, quantile
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.steps.series import StepSeries, shown_rows
from profilerkit.analysis.steps.slow import slow_steps
from profilerkit.analysis.steps.warmup import warmup_cost
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model.change import revise
from profilerkit.model.step import StepRow, Steps, StepState, StepTimes, Stretches, Warmup
from profilerkit.rundir.sampled import HostSample, Sample


def queued_per_step(samples: Sequence[Sample], start: I64, time: I64) -> I64:
    """``(n_steps,)`` int64 ns in which the training thread was ready and waited for a processor, as ``per_step``.

    A thread that waited 20 % of one second and 40 % of the next:

    >>> host = [HostSample(), HostSample(thread_queue_ratio=0.2), HostSample(thread_queue_ratio=0.4)]
    >>> samples = [Sample(t_ns=at * 10**9, host=record) for at, record in enumerate(host)]
    >>> queued_per_step(samples, np.array([0, 500, 1900]) * 10**6, np.array([500, 1000, 200]) * 10**6).tolist()
    [100000000, 300000000, -1]
    """
    return per_step(samples, start, time, lambda host: host.thread_queue_ratio)


def computed_per_step(samples: Sequence[Sample], start: I64, time: I64) -> I64:
    """``(n_steps,)`` int64 ns of CPU time of the process, as ``per_step``."""
    return per_step(samples, start, time, lambda host: host.process_cpu_cores)


def per_step(samples: Sequence[Sample], start: I64, time: I64, of: Callable[[HostSample], float | None]) -> I64:
    """``(n_steps,)`` int64 ns, derived: what the kernel counted between two samples, spread evenly over that time.

    -1 for a step that is not wholly between two samples that tell it.

    Args:
        samples: in their order.
        start: starts of the steps on the samples' clock, ``(n_steps,)`` int64 ns, ascending.
        time: start to next start.
        of: share of the time since the sample before.
    """
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


#: With fewer values their 99th percentile is hardly more than the largest.
FEWEST_FOR_P99 = 100
#: Stretches of steady steps that are kept at most: blocks of a comparison are made of several (a choice).
MOST_STRETCHES = 1_000
#: Of the judged steps' time, from which what was sampled in it stands for all of it (a choice).
_TOLD_RATIO = 0.5
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
    queued, computed = queued_per_step(samples, log.start, time), computed_per_step(samples, log.start, time)
    return revise(log.series(wait_part), queued=queued, computed=computed)


def log_steps(log: StepLog, series: StepSeries, found_by: str) -> Steps:
    """Steps as the timers saw them: waits, phases and collections are split off, the rest is one remainder."""
    warmup = warmup_cost(log.state, log.time, {"compilation": log.compiling, "the first batches": log.wait})
    told = told_steps(series, log.start, log.state, found_by, inferred=log.inferred, warmup=warmup)
    return revise(told, ahead_ns=log.ahead_ns)


def trace_steps(trace: TraceFacts, series: StepSeries) -> Steps:
    """Steps as the trace holds them, split into leaves."""
    found = trace.steps
    told = told_steps(series, found.start, found.state, found.found_by, inferred=found.inferred, warmup=trace.warmup)
    return revise(told, ahead_ns=found.ahead_ns)


def told_steps(
    series: StepSeries,
    start: I64,
    state: tuple[StepState, ...],
    found_by: str,
    *,
    inferred: bool,
    warmup: Warmup | None = None,
) -> Steps:
    """Steps with their times, at most so many rows as ``shown_rows`` keeps, and what the first ones cost.

    Args:
        series: the steps.
        start: ``(n_steps,)`` starts on the recording's clock, ns.
        state: why each step is in or out.
        found_by: what marks a step.
        inferred: the marker was not given by the user.
        warmup: what the steps before the judged ones cost.
    """
    queued = series.queued
    count = len(series.index)
    shown = shown_rows(count)
    rows = tuple(
        StepRow(
            index=int(series.index[row]),
            start_ns=int(start[row]),
            time_ns=int(series.time[row]),
            state=state[row],
            parts={part: int(spent[row]) for part, spent in series.parts.items() if spent[row]},
            queued_ns=None if queued is None or queued[row] < 0 else int(queued[row]),
        )
        for row in shown
    )
    dropped = [reason for reason in dict.fromkeys(state) if reason != "steady"]
    return Steps(
        count=count,
        steady=state.count("steady"),
        dropped={reason: state.count(reason) for reason in dropped},
        found_by=found_by,
        inferred=inferred,
        time_ns=step_times(series.time[series.steady]),
        warmup=warmup,
        rows=rows,
        thinned=len(rows) < count,
        slow=slow_steps(series),
        stretches=stretches(*_of_steady(series, queued)) if len(rows) < count else None,
        queued_ratio=None if queued is None else _queued_ratio(series.time[series.steady], queued[series.steady]),
    )


def _queued_ratio(time: I64, queued: I64) -> float | None:
    """Of the steps whose waiting is known, if those are at least half of the time."""
    known = queued >= 0
    told_ns = int(time[known].sum())
    if not told_ns or told_ns < _TOLD_RATIO * int(time.sum()):
        return None
    return int(queued[known].sum()) / told_ns


def _of_steady(series: StepSeries, queued: I64 | None) -> tuple[I64, I64 | None]:
    return series.time[series.steady], None if queued is None else queued[series.steady]


def stretches(time: I64, queued: I64 | None) -> Stretches:
    """Sum neighbouring steps, ``(n_steady,)`` ns each: rows at an even distance show a periodic cost always or never.

    ``queued`` is as in ``told_steps``, of the same steps.
    """
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
