"""What a job that still runs does at the moment: arithmetic on the last steps and samples; ``None`` is not measured."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec
import numpy as np

from profilerkit.analysis.events import with_evaluation
from profilerkit.analysis.ranks.late import TIMED_SPREAD, median_rank_ns
from profilerkit.analysis.stats import median, quantile
from profilerkit.analysis.steps.log import StepLog, exposed, log_of
from profilerkit.model import revise
from profilerkit.model.report import Report
from profilerkit.rundir.follow import RankState
from profilerkit.rundir.layout import EVENT, FLUSH_SECONDS
from profilerkit.rundir.reader import RankRecord, RunRecord
from profilerkit.rundir.sampled import GpuSample, HostSample, Sample
from profilerkit.trace.columns import I64

#: Why a rank is told: its timers, fewer steps than the others, or an end before theirs.
LateKind = Literal["timers", "behind", "ended", "killed"]


class LiveRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank now."""

    rank: int
    host: str = ""  #: name of its host; empty where it is not known. Hostile text.
    steps: int = 0
    wait_ns: int | None = None  #: mean wait for data of a recent step; ``None`` where no fetch was seen
    wait_ratio: float | None = None
    #: Latest reading of each field; ``None`` without a sample of the last seconds, and ``no_device`` says why.
    device: GpuSample | None = None
    no_device: str = ""
    hosted: HostSample | None = None  #: of its host, likewise, and ``no_host``
    no_host: str = ""


class Recent(msgspec.Struct, frozen=True, kw_only=True):
    """The last steps of one rank."""

    rank: int
    steps: int
    rate_per_s: float | None
    median_ns: int  #: of those that are no warm-up and were not traced
    p10_ns: int | None  #: of the same; ``None`` for a single one, as is ``p90_ns``
    p90_ns: int | None
    trend: tuple[int, ...]  #: medians of groups of equally many steps, the oldest first
    trend_steps: int


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that stands out: by how much more a step its timers measured, or how many steps it lacks or made."""

    rank: int
    kind: LateKind
    excess_ns: int | None = None
    steps: int | None = None


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """A job now."""

    world_size: int | None  #: ranks of the job; ``None`` while rank 0 has not told
    ranks: tuple[LiveRank, ...]
    running_ns: int | None  #: from the start of the first rank's recording until now, or until its end
    quiet_ns: int | None  #: since the last step of any rank ended; ``None`` before the first one, and after the end
    recent: Recent | None
    late: tuple[Late, ...]
    #: First and last step of the latest trace that can be read; ``None`` while there is none.
    window: tuple[int, int] | None
    is_over: bool
    #: Since the last record of ranks that nobody here can ask whether they still run; ``None`` where one is known to
    #: run, or all are known to be over.
    silent_ns: int | None = None
    #: Since the verdict was made; ``None`` where it is of this moment, or there is none.
    verdict_age_ns: int | None = None

    @property
    def steps(self) -> int:
        """Steps that the rank with the most of them has finished."""
        return max((rank.steps for rank in self.ranks), default=0)


#: Steps that ended within so long of the last one are recent, and so many in any case (choices: long enough for a
#: median, short enough to follow a change).
RECENT_NS = 30_000_000_000
FEWEST_RECENT = 10
#: Records of each rank that are looked at on every refresh: a thousand steps or more, in about 15 ms.
LATEST_EVENTS = 6_000
TREND_GROUPS = 24  #: groups of steps in the trend
#: A sampler takes one each second; what is older than this against the last sample is no reading of now.
_NOW_NS = 5_000_000_000
_LIMIT_SAMPLES = 200  #: samples among which limits are looked for: they are asked for once a minute

_Reading = TypeVar("_Reading", GpuSample, HostSample)
_LIMITS = ("power_limit_mw", "sm_clock_max_mhz", "memory_total_bytes")


def live_of(run: RunRecord, states: Mapping[int, RankState], report: Report | None, now_unix_ns: int) -> Live:
    """What the job does now."""
    logs = {entry.rank: _latest_log(entry) for entry in run.ranks}
    ranks = tuple(_rank(entry, logs[entry.rank]) for entry in run.ranks)
    is_over = bool(ranks) and all(state in ("ended", "killed") for state in states.values())
    first = max(ranks, key=lambda rank: (rank.steps, -rank.rank), default=None)
    log = logs[first.rank] if first is not None else None
    recent = _recent(first.rank, log) if first is not None and log is not None else None
    clocks = [(entry.clock, logs[entry.rank]) for entry in run.ranks]
    ends = [clock.unix_ns(int(log.stop.max())) for clock, log in clocks if clock is not None and log is not None]
    heard = max(ends, default=None)
    until = heard if is_over else now_unix_ns
    started = min((entry.meta.anchor_unix_ns for entry in run.ranks if entry.meta is not None), default=None)
    closed = [window for entry in run.ranks for window, _ in entry.windows if window.ok and window.kind == "scheduled"]
    return Live(
        world_size=run.manifest.world_size if run.manifest is not None else None,
        ranks=ranks,
        running_ns=None if started is None or until is None else max(until - started, 0),
        quiet_ns=None if heard is None or is_over else max(now_unix_ns - heard, 0),
        recent=recent,
        late=(*_late_by_timers(report), *_behind(ranks, states, recent)),
        window=max(((window.first_step, window.last_step) for window in closed), default=None),
        is_over=is_over,
    )


def _latest_log(entry: RankRecord) -> StepLog | None:
    """The log of the latest records, of as many as it takes to hold a step: an evaluation alone may write thousands."""
    most = LATEST_EVENTS * EVENT.size
    while True:
        latest = with_evaluation(revise(entry, events=entry.events[-most:]))
        log = log_of(latest)
        if log is not None or most >= len(entry.events):
            return log
        most *= 4


def _rank(entry: RankRecord, log: StepLog | None) -> LiveRank:
    features = entry.meta.features if entry.meta is not None else {}
    wait_ns, wait_ratio = _wait(log)
    return LiveRank(
        rank=entry.rank,
        host=entry.meta.host if entry.meta is not None else "",
        steps=max(entry.end.steps if entry.end is not None else 0, int(log.index.max()) + 1 if log is not None else 0),
        wait_ns=wait_ns,
        wait_ratio=wait_ratio,
        device=_reading(GpuSample, entry.samples, "gpu"),
        no_device=features["nvml"].reason if "nvml" in features else "",
        hosted=_reading(HostSample, entry.samples, "host"),
        no_host=features["host"].reason if "host" in features else "",
    )


def _timed_rows(log: StepLog) -> I64:
    """Positions of the steps that the device has ended where it has a clock, else of all."""
    return np.arange(len(log.time)) if log.device is None else np.flatnonzero(log.device.time >= 0)


def _recent_rows(log: StepLog) -> I64:
    """Those of the last seconds, at least ``FEWEST_RECENT`` where there are as many."""
    rows = _timed_rows(log)
    ends = log.stop[rows]
    first = int(np.searchsorted(ends, ends.max(initial=0) - RECENT_NS, side="right"))
    return rows[max(min(first, len(rows) - FEWEST_RECENT), 0) :]


def _judged(log: StepLog, rows: I64) -> I64:
    """Those of the steps that are steady; all where none is."""
    steady = rows[log.steady[rows]]
    return steady if len(steady) else rows


def _wait(log: StepLog | None) -> tuple[int, float] | tuple[None, None]:
    """Mean wait for data of a recent step, ns, and its share of the steps' time."""
    if log is None or not log.waits_seen:
        return None, None
    rows = _judged(log, _recent_rows(log))
    if not len(rows):
        return None, None
    time, wait = max(int(log.time[rows].sum()), 1), exposed(log.spent("input.wait"), log.room)["input.wait"][rows]
    return round(float(wait.mean())), float(wait.sum()) / time


def _recent(rank: int, log: StepLog) -> Recent | None:
    """The last steps; ``None`` where the device has ended none of them yet."""
    rows = _recent_rows(log)
    if not len(rows):
        return None
    judged, passed = log.time[_judged(log, rows)], int(log.time[rows].sum())
    all_judged = log.time[_judged(log, _timed_rows(log))]
    groups = np.array_split(all_judged, min(TREND_GROUPS, len(all_judged)))
    several = len(judged) > 1
    return Recent(
        rank=rank,
        steps=len(rows),
        rate_per_s=len(rows) / (passed / 1e9) if passed > 0 else None,
        median_ns=round(median(judged)),
        p10_ns=round(quantile(judged, 0.1)) if several else None,
        p90_ns=round(quantile(judged, 0.9)) if several else None,
        trend=tuple(round(median(group)) for group in groups),
        trend_steps=len(all_judged),
    )


def _late_by_timers(report: Report | None) -> Iterator[Late]:
    """Ranks that spend much more than the median rank in what only their own timers measure, the latest first."""
    if report is None or report.steps.time_ns is None:
        return
    timed = {rank.rank: rank.timed_ns for rank in report.ranks if rank.rank is not None and rank.timed_ns is not None}
    if len(timed) < 2:
        return
    usual = median_rank_ns(list(timed.values()))
    for number, spent in sorted(timed.items(), key=lambda pair: -pair[1]):
        if spent - usual >= TIMED_SPREAD * report.steps.time_ns.mean:
            yield Late(rank=number, kind="timers", excess_ns=round(spent - usual))


def _behind(ranks: Sequence[LiveRank], states: Mapping[int, RankState], recent: Recent | None) -> Iterator[Late]:
    """Ranks that ended while others go on, or that lack steps the others have made.

    What a rank has not written yet is no delay: it writes every ``FLUSH_SECONDS``, and so do the others.
    """
    if recent is None or len(ranks) < 2:
        return
    most = max(rank.steps for rank in ranks)
    usual = 1 + 3 * FLUSH_SECONDS * (recent.rate_per_s or 0.0)
    goes_on = any(states[rank.rank] in ("running", "unknown") for rank in ranks)
    for rank in ranks:
        state = states[rank.rank]
        if state in ("ended", "killed") and goes_on:
            yield Late(rank=rank.rank, kind="ended" if state == "ended" else "killed", steps=rank.steps)
        elif most - rank.steps > usual:
            yield Late(rank=rank.rank, kind="behind", steps=most - rank.steps)


def _reading(kind: type[_Reading], samples: Sequence[Sample], source: str) -> _Reading | None:
    """The latest value of each field, limits of the last minutes; ``None`` without a sample of the last seconds."""
    found = [(sample.t_ns, getattr(sample, source)) for sample in samples[-_LIMIT_SAMPLES:]]
    known = [(at_ns, record) for at_ns, record in found if record is not None]
    if not known or found[-1][0] - known[-1][0] > _NOW_NS:
        return None
    values = {}
    for name in kind.__struct_fields__:
        for at_ns, record in reversed(known):
            if name not in _LIMITS and known[-1][0] - at_ns > _NOW_NS:
                break
            if (value := getattr(record, name)) is not None:
                values[name] = value
                break
    return kind(**values)
