"""How much shorter the step would get: bounds and analytic formulas. Savings are ratios of the steady step."""

import math
from dataclasses import dataclass

from profilerkit.analysis.facts import Facts
from profilerkit.model.finding import Method, Saving

#: Relative error assumed for an analytic prediction until applied fixes calibrate it (a guess, said in the report).
MODEL_ERROR = 0.25
#: Quantile of the normal distribution for a two-sided 90 % interval.
Z90 = 1.64
#: Workers asked for beyond the break-even rate, so that jitter does not empty the queue (R03).
WORKER_MARGIN = 1.2
#: Without a known core count no more workers than this are proposed.
MOST_WORKERS = 16
#: Share of the preparation cost that a cheaper transform is assumed to remove when workers cannot help.
CHEAPER_TRANSFORM = 0.5


def saving(facts: Facts, expected: float, bound: float, method: Method = "analytic") -> Saving:
    """An interval around ``expected``: never above the bound, low end widened by step noise and model error."""
    bound = min(max(bound, 0.0), 1.0)
    expected = min(max(expected, 0.0), bound)
    noise = facts.step_error_ns / facts.step_ns if facts.step_ns else 0.0
    low = max(expected - Z90 * math.hypot(noise, MODEL_ERROR * expected), 0.0)
    return Saving(low=low, expected=expected, high=bound, method=method)


@dataclass(frozen=True, slots=True)
class LoaderFix:
    """What more workers would do.

    Attributes:
        current: workers now; ``None`` when unknown.
        workers: workers proposed.
        expected: saving with them, ratio of the step.
        limited_by: what the step would wait for afterwards: ``compute``, ``workers`` or ``cores``.
    """

    current: int | None
    workers: int
    expected: float
    limited_by: str


def loader_fix(facts: Facts) -> LoaderFix | None:
    """Fluid model of the loader (§3.3 of the diagnosis method): T' = max(C, P / W', CPU / cores).

    C is the step without the wait, P the producer's time per batch and worker. Without workers P is the wait itself;
    with n busy workers one batch arrives per step, so P = n · step. ``None`` when no wait was measured.
    """
    step = facts.mean_step_ns
    if facts.input is None or not step:
        return None
    wait = min(facts.time_ns("input.fetch", "input.prep", "input.wait"), step)
    consumer = max(step - wait, 1.0)
    current = facts.loader.num_workers if facts.loader else None
    if current is None and facts.input.single_process:
        current = 0
    producer = wait if not current else current * step
    most = int(facts.usable_cores) if facts.usable_cores else MOST_WORKERS
    wanted = math.ceil(WORKER_MARGIN * producer / consumer)
    workers = max(1, min(wanted, most), current or 0)
    limits = {"compute": consumer, "workers": producer / workers}
    if not current and facts.input.cpu_ratio is not None and facts.usable_cores:
        limits["cores"] = (producer * facts.input.cpu_ratio + consumer) / facts.usable_cores
    limited_by = max(limits, key=lambda name: limits[name])
    return LoaderFix(current, workers, max(1.0 - limits[limited_by] / step, 0.0), limited_by)


def cheaper_input(facts: Facts) -> float:
    """Saving if preparing a batch cost half as much and nothing else changed."""
    return CHEAPER_TRANSFORM * facts.share("input.fetch", "input.prep", "input.wait")


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
