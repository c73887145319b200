"""How much shorter the step would get: bounds and analytic formulas. Savings are ratios of the steady step."""

import math
from dataclasses import dataclass

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.leaves import WAITS
from profilerkit.model.finding import Method, Saving

#: Relative error assumed for an analytic prediction until applied fixes calibrate it (a guess, said in the report).
MODEL_ERROR = 0.25
#: Quantile of the normal distribution for a two-sided 90 % interval.
Z90 = 1.64
#: Workers asked for beyond the break-even rate, so that jitter does not empty the queue (R03).
WORKER_MARGIN = 1.2
#: No more workers than this are proposed.
MOST_WORKERS = 16
#: Workers per core where they wait for storage rather than compute (R06: such workers are cheap, they sleep).
BLOCKED_PER_CORE = 4
#: Share of CPU time below which the loading thread is blocked rather than computing (R06).
BLOCKED_RATIO = 0.5
#: Host utilisation, and share of time in which processes waited for a core (PSI), that leave no core to spare (R05).
FULL_HOST = 0.9
FULL_PRESSURE = 0.4
#: Relative noise assumed for a single step, whose own cannot be known.
UNKNOWN_NOISE = 0.1
#: Share of the preparation cost that a cheaper transform is assumed to remove when workers cannot help.
CHEAPER_TRANSFORM = 0.5
#: Collectives of a step that is to overlap: a single one has to be divided first.
FEWEST_BUCKETS = 2


def saving(facts: Facts, expected: float, bound: float, method: Method = "analytic") -> Saving:
    """An interval around ``expected``: never above the bound, low end widened by step noise and model error."""
    bound = min(max(bound, 0.0), 1.0)
    expected = min(max(expected, 0.0), bound)
    noise = relative_error(facts) if facts.step_error_ns is not None else UNKNOWN_NOISE
    low = max(expected - Z90 * math.hypot(noise, MODEL_ERROR * expected), 0.0)
    return Saving(low=low, expected=expected, high=bound, method=method)


def at_most(expected: float, bound: float) -> Saving:
    """A saving of which only the bound is known: how much of it there is to gain cannot be told."""
    bound = min(max(bound, 0.0), 1.0)
    return Saving(low=0.0, expected=min(max(expected, 0.0), bound), high=bound, method="bound")


def relative_error(facts: Facts) -> float:
    """Standard error of the median step over the step; 0 where a single step leaves it unknown."""
    return facts.step_error_ns / facts.step_ns if facts.step_ns and facts.step_error_ns else 0.0


@dataclass(frozen=True, slots=True)
class LoaderFix:
    """What more workers would do.

    Attributes:
        current: workers now.
        workers: workers proposed, more than now.
        expected: saving with them, ratio of the step.
        limited_by: what the step would wait for afterwards: ``compute``, ``workers`` or ``cores``.
    """

    current: int
    workers: int
    expected: float
    limited_by: str


def loader_fix(facts: Facts) -> LoaderFix | None:
    """Fluid model of the loader (§3.3 of the diagnosis method): T' = max(C, P / W', CPU / cores).

    C is the step without the wait, P the producer's time per batch and worker. Without workers P is the wait itself;
    with n busy workers one batch arrives per step, so P = n · step. ``None`` when no wait or no number of workers is
    known, when the host has no core to spare, or when no more workers can be asked for.
    """
    step = facts.mean_step_ns
    current = workers_now(facts)
    if facts.input is None or not step or current is None or (current and host_is_full(facts)):
        return None
    wait = min(facts.time_ns(*WAITS), step)
    consumer = max(step - wait, 1.0)
    producer = wait if not current else current * step
    ratio = facts.input.cpu_ratio if not current else None
    workers = min(math.ceil(WORKER_MARGIN * producer / consumer), _most_workers(facts, ratio))
    workers = max(workers, 1)
    if workers <= current:
        return None
    limits = {"compute": consumer, "workers": producer / workers}
    if ratio is not None and facts.usable_cores:
        limits["cores"] = (producer * ratio + consumer) / facts.usable_cores
    limited_by = max(limits, key=lambda name: limits[name])
    return LoaderFix(current, workers, max(1.0 - limits[limited_by] / step, 0.0), limited_by)


def workers_now(facts: Facts) -> int | None:
    """Worker processes of the loader; 0 when the main process loads, ``None`` when unknown."""
    if facts.loader and facts.loader.num_workers is not None:
        return facts.loader.num_workers
    return 0 if facts.input is not None and facts.input.single_process else None


def host_is_full(facts: Facts) -> bool:
    """Whether the host's cores are taken, as far as they were sampled."""
    busy, pressure = facts.series("host.cpu"), facts.series("host.cpu_pressure")
    return (busy is not None and busy.mean >= FULL_HOST) or (pressure is not None and pressure.mean >= FULL_PRESSURE)


def _most_workers(facts: Facts, cpu_ratio: float | None) -> int:
    """Workers that make sense: one per core when they compute, several when they are blocked most of the time."""
    if not facts.usable_cores:
        return MOST_WORKERS
    cores = max(int(facts.usable_cores), 1)
    blocked = cpu_ratio is None or cpu_ratio <= BLOCKED_RATIO
    return min(MOST_WORKERS, BLOCKED_PER_CORE * cores) if blocked else cores


def cheaper_input(facts: Facts) -> float:
    """Saving if preparing a batch cost half as much and nothing else changed."""
    return CHEAPER_TRANSFORM * facts.share(*WAITS)


def overlapped(facts: Facts, exposed: float) -> float:
    """Saving if the collectives that are ``exposed``, a share of the step, ran beside computation (R35 of the method).

    The last of them has nothing left to hide behind. 0 where no collective was seen.
    """
    if facts.comm is None:
        return 0.0
    return min(exposed * (1.0 - 1.0 / max(facts.comm.per_step, FEWEST_BUCKETS)), alone_compute(facts))


def alone_compute(facts: Facts) -> float:
    """Share of the step in which computation runs beside no communication; 0 where no collective was seen.

    What runs on a device takes as long without the trace; on a host everything is quicker alike.
    """
    comm = facts.comm
    step = (comm.step_ns if facts.mode == "cpu" else facts.mean_step_ns) if comm is not None else None
    return min(comm.alone_compute_ns / step, 1.0) if comm is not None and step else 0.0


def faster_kernels(share: float, speed_up: float) -> float:
    """Amdahl: saving if kernels that own ``share`` of the step ran ``speed_up`` times faster.

    >>> round(faster_kernels(0.5, 2.0), 3)
    0.25
    """
    return share * (1.0 - 1.0 / max(speed_up, 1.0))


def fused_chain(share: float, length: float) -> float:
    """Bound for fusing a chain of ``length`` pointwise kernels into one: read once and write once instead of each time.

    A kernel reads and writes, so a chain of k moves 2k tensors and its fusion about 2: with one extra input the kept
    part is 2 / (k + 1).

    >>> round(fused_chain(0.3, 5), 3)
    0.2
    """
    return share * (1.0 - 2.0 / (length + 1.0)) if length > 1 else 0.0
