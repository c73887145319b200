"""How much the step time of two runs differs, and how much two runs of one program would.

What is assumed:

* The steps of a run are not independent: what slows one slows its neighbours. Their mean is therefore resampled in
  blocks of consecutive steps (circular block bootstrap, Politis and Romano 1992).
* Two runs of one program differ by more than their steps show: memory lies elsewhere, the processor is warmer, the host
  does something else (Mytkowicz et al. 2009; Kalibera and Jones 2013). One recording of each cannot tell how much:
  ``QUIET_RATIO`` is taken where the training thread never waited for a processor, and more where it did.
* Time in which the training thread was ready and other programs had the processor is no property of the program. Where
  the kernel counted it (schedstat, sampled once per second) it is taken out of the step before two runs are compared,
  but for what the run's own threads, workers and ranks took. Other programs also leave caches cold, which makes
  computing slower and sleeping not: ``SLOWDOWN`` takes out an estimate of that, too, and what both leave wrong widens
  the interval.
* Operators share their work with a pool of threads. The training thread spins while one of these waits for a processor
  and is in no queue itself: how much of that wait the step held is not known, and widens the interval.
* A step on a device is only as much longer as the device had to wait for the thread, which is not known: there nothing
  is taken out, and a difference in waiting widens the interval instead. So does pressure on the processors (PSI) where
  steps wait for the loader's workers. Nor is anything taken out where the waiting may be for ranks of the same job
  that were not sampled.
* What slows the processor itself, a file system, a network or a device from outside is not seen. Where that is
  possible, runs have to be recorded more than once.
"""

import math
import random
from collections.abc import Sequence
from itertools import accumulate, chain
from statistics import median, stdev

import msgspec

from profilerkit.model import revise
from profilerkit.model.diff import Range, StepChange
from profilerkit.model.report import Report
from profilerkit.model.step import Stretches

#: Resamples of each run: the 1 % points of an interval vary by a twentieth of its width with so many (a choice).
RESAMPLES = 2_000
MEDIAN_RESAMPLES = 500  #: of medians, which take longer: the standard error varies by 3 % with so many (a choice)
Z99 = 2.576  #: two-sided 99 %: one comparison in a hundred of equal runs may say otherwise where the assumptions hold
#: Blocks last at least this long, so that a disturbance of a second lies within one (a choice).
BLOCK_NS = 1_000_000_000
FEWEST_BLOCKS = 10  #: a run is cut into at least so many blocks, or its mean would be resampled from too few


class Resampled(msgspec.Struct, frozen=True):
    """The mean or median of a run's steady steps, its standard error by the block bootstrap, and its blocks."""

    centre_ns: float
    error_ns: float
    blocks: float


def resampled_mean(times_ns: Sequence[int], *, steps: int = 1, seed: int = 0) -> Resampled:
    """Mean and standard error of steps in their order; at least two of them.

    Each time may be that of several consecutive ``steps``: the mean and its error are always of one.

    >>> resampled_mean([100, 102, 98, 100] * 20).centre_ns, resampled_mean([202, 198] * 20, steps=2).centre_ns
    (100.0, 100.0)
    """
    count = len(times_ns)
    mean_ns = sum(times_ns) / (count * steps)
    length = max(block_length(count * steps, mean_ns) // steps, 1)
    sums = list(accumulate([*times_ns, *times_ns[:length]], initial=0))
    blocks = [sums[start + length] - sums[start] for start in range(count)]
    rng = random.Random(seed)  # noqa: S311 - nothing secret; the same runs give the same interval
    taken = max(round(count / length), 1)
    means = [sum(rng.choices(blocks, k=taken)) / (taken * length * steps) for _ in range(RESAMPLES)]
    centre = sum(means) / RESAMPLES
    error_ns = math.sqrt(sum((value - centre) ** 2 for value in means) / (RESAMPLES - 1))
    return Resampled(mean_ns, _corrected(error_ns, taken), count / length)


def resampled_median(times_ns: Sequence[int], *, steps: int = 1, seed: int = 0) -> Resampled:
    """Return the median and its standard error; blocks and arguments are those of ``resampled_mean``.

    Of several ``steps`` together it is the median of their means.

    >>> found = resampled_median([100, 102, 98, 100, 900] * 20)
    >>> found.centre_ns, found.error_ns < 2
    (100.0, True)
    """
    count = len(times_ns)
    length = max(block_length(count * steps, sum(times_ns) / (count * steps)) // steps, 1)
    circle = [*times_ns, *times_ns[:length]]
    blocks = [circle[start : start + length] for start in range(count)]
    rng = random.Random(seed)  # noqa: S311 - nothing secret; the same runs give the same interval
    taken = max(round(count / length), 1)
    medians = [median(chain.from_iterable(rng.choices(blocks, k=taken))) / steps for _ in range(MEDIAN_RESAMPLES)]
    return Resampled(median(times_ns) / steps, _corrected(stdev(medians), taken), count / length)


def _corrected(error_ns: float, taken: int) -> float:
    """The spread of a few blocks around their own centre is smaller than around the true one."""
    return error_ns * math.sqrt(taken / (taken - 1)) if taken > 1 else error_ns


def block_length(count: int, mean_ns: float) -> int:
    """Steps in a block: as many as fill a second, at least the square root of their number.

    >>> block_length(240, 30e6), block_length(240, 1e6), block_length(10, 1e9)
    (24, 24, 1)
    """
    wanted = max(math.isqrt(count), math.ceil(BLOCK_NS / mean_ns) if mean_ns > 0 else 1)
    return max(min(wanted, count // FEWEST_BLOCKS), 1)


def t99(degrees: float) -> float:
    """The 99.5 % point of Student's t, within 0.003 of the tables: tabulated for up to 4 whole degrees.

    Above by the Cornish–Fisher expansion around the normal point, to its fourth term (Abramowitz and Stegun 26.7.5).

    >>> round(t99(2.9), 2), round(t99(6), 2), round(t99(30), 2), round(t99(1e9), 2)
    (9.93, 3.71, 2.75, 2.58)
    """
    if degrees < 5:
        return _T99[max(int(degrees), 1)]
    z, n = Z99, degrees
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    g4 = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160
    return z + g1 / n + g2 / n**2 + g3 / n**3 + g4 / n**4


_T99 = {1: 63.66, 2: 9.925, 3: 5.841, 4: 4.604}


def judged_rank(report: Report) -> int | None:
    """The global rank that the report's steps and parts are about; ``None`` when it is not named."""
    told = [entry.rank for entry in report.ranks if entry.breakdown == report.breakdown]
    ranks = told or [entry.rank for entry in report.ranks]
    return ranks[0] if ranks else None


def sampled_mean(report: Report, name: str) -> float | None:
    """Mean of a signal sampled beside the judged rank, in its unit; ``None`` where it was not sampled."""
    ranks = (judged_rank(report), None)
    own = (series for series in report.run.samples if series.name == name and series.device is None)
    return next((series.mean for series in own if series.rank in ranks), None)


def foreign_ratio(report: Report) -> float | None:
    """Share of the waiting that is blamed on other programs, 0 to 1: by who used the processors meanwhile.

    The training thread competes with the other threads, the workers and the other ranks of its own run, and with
    everything else on the host. A run that fills the processors by itself waits for itself, and that is its own time.
    Where the host's use was not sampled everything is blamed on others: one rank without workers seldom waits for
    itself. ``None`` for a job of several ranks that were not all sampled: they may be what was waited for.

    A thread that used half a core, in a run that used 1.5 of 2 busy cores: of its 1.5 rivals 1 was its own.
    """
    busy, process = sampled_mean(report, "host.cpu"), sampled_mean(report, "host.process_cores")
    cores, siblings = report.run.usable_cores, sampled_mean(report, "host.sibling_cores")
    is_alone = (report.run.world_size or 1) == 1
    if busy is None or process is None or cores is None or (siblings is None and not is_alone):
        return 1.0 if is_alone else None
    queued = sampled_mean(report, "host.thread_queue") or 0.0
    own = process + (sampled_mean(report, "host.worker_cores") or 0.0) + (siblings or 0.0)
    # The training thread can have used no more than one core while it did not wait.
    rivals = max(own - min(process, 1.0 - queued), 0.0)
    others = max(busy * cores * (report.run.host_ranks or 1) - own, 0.0)
    return others / (others + rivals) if others + rivals > 0 else 1.0


FEWEST_STEPS = 3  #: fewer steps than this have no spread to speak of. So few give an interval of tens of per cent.
#: Standard deviation between runs of one program on a quiet host, as a ratio of the step (from scripts/check_diffs).
QUIET_RATIO = 0.010
#: How much slower a thread computes that waits for a processor all the time it could compute, as a logarithm, and how
#: uncertain that is (from scripts/check_diffs).
SLOWDOWN, SLOWDOWN_ERROR = 0.4, 0.2
#: What that leaves wrong, as a share of the contended time: a standard deviation (from scripts/check_diffs).
CONTENTION_ERROR = 0.08
#: The same where anything from none to all of the waiting may be the program's own time, or none of the step: on a
#: device, and where ranks of the same job were not sampled (a choice).
UNTOLD_QUEUE_ERROR = 0.5
#: How much of a wait for workers other programs may have caused, as a share of it and of the pressure (a choice).
FEEDING_ERROR = 0.5
#: Standard deviation between runs where nothing tells how busy the host was: a trace, or no schedstat (a choice).
UNSEEN_RATIO = 0.03
#: How many recordings what is assumed of them counts for, where several tell how much they differ (a choice).
ASSUMED_DEGREES = 10
SMALLEST_RATIO = 0.025  #: changes below this are not worth naming, however sure they are (a choice)
#: A step took at least this share of its time itself, whatever the samples of its waiting add up to (a choice).
LEAST_OWN_RATIO = 0.01
TOLD_RATIO = 0.8  #: where fewer of the steps than this tell how long they waited, the waiting is not taken out


class Timed(msgspec.Struct, frozen=True):
    """The steady steps of one run as they are compared."""

    timed: Resampled  #: the mean as it was timed
    typical: Resampled  #: the median as it was timed
    own: Resampled  #: without the waiting that is blamed on other programs, where it is taken out
    queued_ratio: float | None  #: that waiting as a share of their time; ``None`` where it is not known
    #: What of its time the thread computed, times what of the time in which it could compute it waited: 0 for a thread
    #: that sleeps, or has a processor of its own.
    contended_ratio: float = 0.0
    is_taken_out: bool = False  #: whether ``own`` is without it
    #: Standard deviation between runs that comes of workers, of operators' threads, or of ranks whose use is not known,
    #: which had to share the processors.
    sharing_ratio: float = 0.0

    @property
    def level_ns(self) -> float:
        """The step on a quiet host: without waiting, and without what cold caches are estimated to have cost."""
        return self.own.centre_ns * math.exp(-SLOWDOWN * self.contended_ratio)

    @property
    def between_ratio(self) -> float:
        """Standard deviation between runs of this program on this host, of ``level_ns``."""
        quiet = UNSEEN_RATIO if self.queued_ratio is None else QUIET_RATIO
        return math.hypot(quiet, CONTENTION_ERROR * self.contended_ratio, self.sharing_ratio)


def timed_steps(report: Report) -> Timed | None:
    """The steady steps of a report; ``None`` where they are too few, take no time, or most of them are not in it."""
    steps, times = steady_times(report)
    if len(times) < FEWEST_STEPS or not any(time_ns for time_ns, _ in times):
        return None
    every = [time_ns for time_ns, _ in times]
    timed, typical = resampled_mean(every, steps=steps), resampled_median(every, steps=steps)
    feeding = _feeding_ratio(report)
    told = [(time_ns, queued_ns) for time_ns, queued_ns in times if queued_ns is not None]
    told_ns = sum(time_ns for time_ns, _ in told)
    if len(told) < max(TOLD_RATIO * len(times), FEWEST_STEPS) or not told_ns:
        return Timed(timed, typical, timed, None, sharing_ratio=feeding)
    foreign = foreign_ratio(report)
    blamed = 1.0 if foreign is None else foreign
    most = 1 - LEAST_OWN_RATIO
    own = resampled_mean(
        [time_ns - math.floor(min(blamed * queued_ns, most * time_ns)) for time_ns, queued_ns in told], steps=steps
    )
    queued_ratio = 1 - own.centre_ns * steps * len(told) / told_ns
    if is_on_device(report):
        return Timed(timed, typical, timed, queued_ratio, sharing_ratio=feeding)
    sharing = math.hypot(feeding, _pool_ratio(report))
    contended = _contended_ratio(report, timed.centre_ns, own.centre_ns, queued_ratio)
    if foreign is None:
        doubt = math.hypot(sharing, CONTENTION_ERROR * contended)
        return Timed(timed, typical, timed, queued_ratio, sharing_ratio=doubt)
    return Timed(timed, typical, own, queued_ratio, contended, is_taken_out=True, sharing_ratio=sharing)


def is_thinned(report: Report) -> bool:
    """Whether most steady steps are neither in the report nor in its sums: of others nothing can be told from few."""
    return report.steps.thinned and _stretches(report) is None


def steady_times(report: Report) -> tuple[int, list[tuple[int, int | None]]]:
    """Time and wait for a processor of every steady step, or of stretches of so many; the mean of a job's ranks."""
    if is_thinned(report):
        return 1, []
    stretches = _stretches(report)
    if stretches is not None:
        return stretches.steps, list(zip(stretches.time_ns, stretches.queued_ns, strict=True))
    return 1, [(row.time_ns, row.queued_ns) for row in report.steps.rows if row.state == "steady"]


def _stretches(report: Report) -> Stretches | None:
    return report.job_steps.stretches if report.job_steps else report.steps.stretches


def is_on_device(report: Report) -> bool:
    """Whether the step is the work of a device, beside which the training thread may wait."""
    return bool(report.run.devices) or report.trust.mode == "gpu"


def _contended_ratio(report: Report, timed_ns: float, own_ns: float, queued_ratio: float) -> float:
    """As in ``Timed``. The process's use of processors stands for the thread's; unknown, it computes all the time."""
    cores = sampled_mean(report, "host.process_cores")
    computed_ns = own_ns if cores is None else min(cores * timed_ns, own_ns)
    queued_ns = queued_ratio * timed_ns
    return computed_ns / own_ns * queued_ns / (queued_ns + computed_ns) if computed_ns else 0.0


def _feeding_ratio(report: Report) -> float:
    """The share of the step spent waiting for workers that other programs may have caused, from the host's pressure."""
    pressure = sampled_mean(report, "host.cpu_pressure")
    if pressure is None or report.run.loader is None or not report.run.loader.num_workers:
        return 0.0
    waiting = sum(part.share for part in report.breakdown if part.family == "input")
    return FEEDING_ERROR * pressure * waiting


def pool_queue(report: Report) -> float:
    """Share of the time in which a thread of operators queued for a processor because of other programs, 0 to 1."""
    blamed = foreign_ratio(report)
    return (1.0 if blamed is None else blamed) * (sampled_mean(report, "host.pool_queue") or 0.0)


def _pool_ratio(report: Report) -> float:
    """Standard deviation of the step's logarithm: it held none to all of what operators' threads queued.

    Also where both sides queued alike: in four recordings of one program that queued for half of the time the steps
    lay a factor of 2.6 apart. ``LEAST_OWN_RATIO`` is left of a step, whatever the pool queued.
    """
    return -UNTOLD_QUEUE_ERROR * math.log(max(1.0 - pool_queue(report), LEAST_OWN_RATIO))


def step_change(before: Sequence[Timed], after: Sequence[Timed]) -> StepChange:
    """How much longer the step got, with the interval that also holds what differs between runs.

    Each side is one recording or several of the same program.
    """
    taken_out = all(timed.is_taken_out for timed in (*before, *after))
    is_told = all(timed.queued_ratio is not None for timed in (*before, *after))
    raw = [_as_timed(timed, is_told) for timed in before], [_as_timed(timed, is_told) for timed in after]
    if not taken_out:
        before, after = raw
    first, second = map(_Level.of, raw)
    timed_error, timed_degrees = _within(first, second)
    timed, judged = _compared(*raw, taken_out=False), _compared(before, after, taken_out=taken_out)
    typical = _compared(*([revise(entry, own=entry.typical) for entry in side] for side in raw), taken_out=False)
    return StepChange(
        mean=_around(_mean_ns(after) / _mean_ns(before), t99(timed_degrees) * timed_error),
        timed=timed.change,
        typical=typical.change,
        judged=judged.change,
        own_before_ns=_own_ns(before),
        own_after_ns=_own_ns(after),
        quiet_before_ns=judged.before_ns,
        quiet_after_ns=judged.after_ns,
        between_runs_ratio=judged.between,
        visible_ratio=max(math.expm1(judged.half), SMALLEST_RATIO),
        is_taken_out=taken_out,
    )


class _Compared(msgspec.Struct, frozen=True):
    """Two sides as levels, ns; ``between`` and ``half`` of the interval are of the logarithm of their ratio."""

    before_ns: float
    after_ns: float
    between: float
    half: float

    @property
    def change(self) -> Range:
        return _around(self.after_ns / self.before_ns, self.half)


def _compared(before: Sequence[Timed], after: Sequence[Timed], *, taken_out: bool) -> _Compared:
    """Two sides with the interval that also holds what differs between runs.

    What differs between recordings of a side is weighed with what was assumed, as if that rested on
    ``ASSUMED_DEGREES`` recordings.
    """
    first, second = _Level.of(before), _Level.of(after)
    seen = len(before) + len(after) - 2
    scale = (ASSUMED_DEGREES + first.surprise + second.surprise) / (ASSUMED_DEGREES + seen)
    # What waiting costs is the less certain the more the two sides differ in it, however many recordings there are.
    apart = (
        SLOWDOWN_ERROR * abs(second.contended_ratio - first.contended_ratio)
        if taken_out
        else UNTOLD_QUEUE_ERROR * abs(second.queued_ratio - first.queued_ratio)
    )
    between = math.sqrt(scale * (first.between + second.between) + apart**2)
    within, degrees = _within(first, second)
    half = math.hypot(t99(degrees) * math.sqrt(scale) * within, Z99 * between)
    return _Compared(math.exp(first.log_ns), math.exp(second.log_ns), between, half)


class _Level(msgspec.Struct, frozen=True):
    """One side: the logarithm of its step, variances of that within and between recordings, and their blocks.

    ``surprise`` is the sum of squared deviations of the recordings from their mean, in assumed variances.
    """

    log_ns: float
    within: float
    between: float
    blocks: float
    queued_ratio: float
    contended_ratio: float
    surprise: float

    @classmethod
    def of(cls, side: Sequence[Timed]) -> "_Level":
        count = len(side)
        logs = [math.log(timed.level_ns) for timed in side]
        centre = sum(logs) / count
        within = [(timed.own.error_ns / timed.own.centre_ns) ** 2 for timed in side]
        between = [timed.between_ratio**2 for timed in side]
        variance = (sum(within) + sum(between)) / count
        return cls(
            log_ns=centre,
            within=sum(within) / count**2,
            between=sum(between) / count**2,
            blocks=sum(timed.own.blocks for timed in side),
            queued_ratio=sum(timed.queued_ratio or 0.0 for timed in side) / count,
            contended_ratio=sum(timed.contended_ratio for timed in side) / count,
            surprise=sum((log_ns - centre) ** 2 for log_ns in logs) / variance,
        )


def _mean_ns(side: Sequence[Timed]) -> float:
    return sum(timed.timed.centre_ns for timed in side) / len(side)


def _own_ns(side: Sequence[Timed]) -> float:
    """The geometric mean of the recordings, as of their levels."""
    return math.exp(sum(math.log(timed.own.centre_ns) for timed in side) / len(side))


def _as_timed(timed: Timed, is_told: bool) -> Timed:
    """The steps as they were timed, and what they waited where both sides tell it; contention still adds its doubt."""
    queued_ratio = timed.queued_ratio if is_told else None
    sharing_ratio = math.hypot(timed.sharing_ratio, CONTENTION_ERROR * timed.contended_ratio)
    return Timed(timed.timed, timed.typical, timed.timed, queued_ratio, sharing_ratio=sharing_ratio)


def _within(before: _Level, after: _Level) -> tuple[float, float]:
    """Standard error of the log ratio of two sides, and its degrees of freedom (Welch and Satterthwaite)."""
    total = before.within + after.within
    if not total:
        return 0.0, before.blocks + after.blocks
    spread = before.within**2 / max(before.blocks - 1, 1) + after.within**2 / max(after.blocks - 1, 1)
    return math.sqrt(total), total**2 / spread


def _around(ratio: float, half: float) -> Range:
    """The change that belongs to a ratio, with an interval that is symmetric in its logarithm."""
    centre = math.log(ratio)
    return Range(low=math.expm1(centre - half), expected=ratio - 1, high=math.expm1(centre + half))
