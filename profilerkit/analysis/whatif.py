"""How much shorter the step would get: bounds and analytic formulas. Savings are ratios of the steady step."""

import math
from collections.abc import Callable

import msgspec

from profilerkit.analysis.facts import Facts, worker_count
from profilerkit.analysis.rank_facts import BLOCKED_RATIO
from profilerkit.analysis.replay.changes import FEWEST_BUCKETS
from profilerkit.analysis.steps.table import RARE
from profilerkit.analysis.workers.capacity import FULL_HOST, memory_room, no_use, opening_share, shortage
from profilerkit.analysis.workers.queue import MOST_WORKERS, QueueFacts
from profilerkit.model import revise
from profilerkit.model.finding import Method, Saving, Throughput
from profilerkit.model.run import Workers
from profilerkit.model.step import PAUSES, WAITS

EVEN_ODDS = 0.5  #: what is expected of a saving between nothing and its bound of which nothing else is known
WORKER_MARGIN = 1.2  #: workers asked for beyond the break-even rate, so that jitter does not empty the queue
#: Workers per core where they wait for storage rather than compute (such workers are cheap, they sleep).
BLOCKED_PER_CORE = 4
FULL_PRESSURE = 0.4  #: share of time in which processes waited for a core (PSI) that leaves no core to spare
#: Share of the wait in which the loading thread queues for a core, from which others hold the cores (a choice).
CROWDED_RATIO = 0.2
BUSY_WORKERS = 0.9  #: share of their time in which workers have a batch to make, below which they are not the limit
#: What handing a batch from a worker to the training costs it, ns: 1.6 ms for 32 KiB in tests. On two cores it
#: was 1.0 to 1.9 ms of waiting in torch's loaders (4 KiB and 4 MiB), a little more of slower steps, and 1.7 to 2.4 ms
#: where a ``get_batch`` was moved into a worker (three sizes of it).
HANDOVER_NS = 1_600_000
#: Share of the preparation cost that a cheaper transform is assumed to remove when workers cannot help.
CHEAPER_TRANSFORM = 0.5


def saving(expected: float, bound: float, method: Method = "analytic") -> Saving:
    """What a rule expects, never above its bound, without an interval: ``rules.calibrated`` gives every saving one.

    ``low`` over ``expected`` is how much of the usual low end the rule trusts; ``high`` is the bound.
    """
    bound = min(max(bound, 0.0), 1.0)
    expected = min(max(expected, 0.0), bound)
    return Saving(low=expected, expected=expected, high=bound, method=method)


def at_most(bound: float, expected: float = 1.0) -> Saving:
    """A saving of which only the bound is known: how much of it there is to gain cannot be told.

    Any part between none and all is as likely, so half of the bound is expected, or what the rule expects if that is
    less. Where all ranks of a job were recorded, 1 to 95 % of a rank's exposed communication was transfer, a third on
    average (24 ranks of 6 jobs); of 5.8 % that one rank showed, a better overlap saved 1.1.
    """
    bound = min(max(bound, 0.0), 1.0)
    return Saving(low=0.0, expected=min(max(expected, 0.0), EVEN_ODDS * bound), high=bound, method="bound")


def half_sure(value: Saving) -> Saving:
    """The saving with a low end half as high, where too few applied fixes tell how much is won (a choice)."""
    return revise(value, low=0.5 * value.low)


def slowed(value: Saving, ratio: float) -> Saving:
    """The saving where a profiler may have slowed the host by this much: the low end is of a host that quick.

    Of the step's share S that the host takes, ``ratio`` would be left, and the rest of the step stays: the saving is
    then ratio · S / (1 - (1 - ratio) S).

    >>> slowed(saving(0.5, 0.5), 0.5).low
    0.3333333333333333
    """
    return revise(value, low=value.low * ratio / (1.0 - (1.0 - ratio) * value.expected))


def relative_error(facts: Facts) -> float:
    """Standard error of the median step over the step; 0 where a single step leaves it unknown."""
    return facts.step_error_ns / facts.step_ns if facts.step_ns and facts.step_error_ns else 0.0


class LoaderFix(msgspec.Struct, frozen=True):
    """What more workers would do."""

    current: int
    workers: int
    expected: float
    limited_by: str  #: what the step would wait for afterwards: ``compute``, ``workers`` or ``cores``
    wanted: int = 0  #: workers that the rates ask for, if the host had room for them
    capped_by: str = ""  #: what allows no more than ``workers``: ``cores`` or ``memory``; empty where nothing does


def loader_fix(facts: Facts) -> LoaderFix | None:
    """More workers, by a fluid model of the loader: T' = Z + max(C, P / W', CPU / cores).

    Z are pauses for something else, in which workers are soon as far ahead as they may be; C is the step without them
    and without the wait, P the producer's time per step and worker: as the workers' own records have it.
    Without workers, or a loader, P is the wait itself, and C grows by what handing a batch over costs; with n busy ones
    of which nothing is known one batch arrives per step, so P = n · step. The number follows from these rates. Where
    the batches were recorded the saving does not: the queue replayed with so many workers knows what uneven batches
    leave of the wait. ``None`` when no wait or no number of workers is known, when the host has no core to spare, or
    when no more workers can be asked for.
    """
    step = facts.mean_step_ns
    current = 0 if made_in_line(facts) else workers_now(facts)
    if facts.input is None or not step or current is None or _is_useless(facts, current):
        return None
    consumer, paused = consumer_ns(facts, step) + handover_share(facts) * step, _paused_share(facts) * step
    producer, cpu = _producer(facts, current, step)
    ratio = cpu / producer if cpu is not None and producer else None
    wanted = max(math.ceil(WORKER_MARGIN * producer / consumer), 1)
    caps = {"cores": _most_workers(facts, ratio)}
    room = memory_room(facts)
    if current and room is not None:
        caps["memory"] = current + room
    capped_by = min(caps, key=lambda name: caps[name])
    workers = min(wanted, caps[capped_by])
    if workers <= current:
        return None
    limits = {"compute": consumer, "workers": producer / workers}
    if cpu is not None and facts.usable_cores:
        training = _training_cpu(facts, consumer, ratio or 0.0, within=0.0 if current else cpu)
        limits["cores"] = (cpu + training) / facts.usable_cores
    limited_by = max(limits, key=lambda name: limits[name])
    expected = max(1.0 - (limits[limited_by] + paused) / step, 0.0)
    queue = _faithful_queue(facts)
    replayed = queue.by_workers.get(workers) if queue is not None else None
    if replayed is not None:
        # Batches that take unlike times leave waits that mean rates do not show; cores are not in the queue.
        cores = 1.0 - (limits.get("cores", 0.0) + paused) / step
        expected = max(min(replayed, cores, waited_share(facts)), 0.0)
    return LoaderFix(current, workers, expected, limited_by, wanted, capped_by if workers < wanted else "")


def _faithful_queue(facts: Facts) -> QueueFacts | None:
    queue = facts.loading.queue if facts.loading is not None else None
    return queue if queue is not None and queue.is_faithful else None


def _producer(facts: Facts, current: int, step: float) -> tuple[float, float | None]:
    """Time of one worker per step, and CPU time of that, ns; ``None`` where the second is not known."""
    measured = facts.workers
    if current and measured is not None:
        return measured.interval_ns * measured.batches_per_step, measured.cpu_ns * measured.batches_per_step
    if current:
        return current * step, None
    known, wait = facts.input, min(waited_share(facts), 1.0) * step
    if facts.on_device and known is not None:  # of which the device hides a part
        wait = max(wait, (known.held_ratio or 0.0) * step)
    ratio = known.cpu_ratio if known is not None else None
    ratio = 1.0 if ratio is None and made_in_line(facts) else ratio
    return wait, None if ratio is None else min(facts.time_ns(*WAITS) * ratio, wait)


def cheaper_batch(facts: Facts, removed_ns: float, removed_cpu_ns: float = 0.0) -> float:
    """Saving if each batch took ``removed_ns`` less of a worker, and ``removed_cpu_ns`` less CPU time."""
    measured = facts.workers
    if not facts.mean_step_ns or measured is None:
        return 0.0
    batch_ns, cpu_ns = max(measured.producer_ns - removed_ns, 0.0), max(measured.cpu_ns - removed_cpu_ns, 0.0)
    expected = _made_at(facts, measured, batch_ns / measured.at_work, cpu_ns)
    queue = _faithful_queue(facts)
    if queue is None:
        return expected
    # The queue knows what uneven batches leave of the wait, and what of it is receiving them; not how many cores.
    return min(expected, max(queue.cheaper(removed_ns / max(measured.producer_ns, 1.0)), 0.0))


def even_parts(facts: Facts) -> float:
    """Saving if all workers had data to the end, by the model of ``loader_fix``; 0 where they were not recorded."""
    measured = facts.workers
    if not facts.mean_step_ns or measured is None:
        return 0.0
    return _made_at(facts, measured, measured.interval_ns / max(measured.count, 1), measured.cpu_ns)


def _made_at(facts: Facts, measured: Workers, batch_ns: float, cpu_ns: float) -> float:
    """Saving if a batch came every ``batch_ns`` and took ``cpu_ns`` of a core."""
    step = facts.mean_step_ns or 1.0
    consumer, paused, batches = consumer_ns(facts, step), _paused_share(facts) * step, measured.batches_per_step
    limits = [consumer, batch_ns * batches]
    if facts.usable_cores:
        training = _training_cpu(facts, consumer, measured.cpu_ns / max(measured.producer_ns, 1))
        limits.append((cpu_ns * batches + training) / facts.usable_cores)
    return min(max(1.0 - (max(limits) + paused) / step, 0.0), waited_share(facts))


def _is_useless(facts: Facts, current: int) -> bool:
    """Whether the workers have time to spare, or more of them would find no core, or wait for each other."""
    if made_in_line(facts):
        queued = 0.0 if facts.taken else facts.steps.queued_ratio or 0.0
        return host_is_full(facts) or queued >= CROWDED_RATIO
    if not current:
        return facts.input is not None and (facts.input.queue_ratio or 0.0) >= CROWDED_RATIO
    busy = workers_busy(facts)
    return host_is_full(facts) or no_use(facts) is not None or (busy is not None and busy < BUSY_WORKERS)


def workers_busy(facts: Facts) -> float | None:
    """Share of their time in which the workers have a batch to make; ``None`` where that was not recorded.

    Of the time without pauses of the training, in most of which they are as far ahead as they may be.
    """
    if facts.workers is None or facts.workers.busy_ratio is None:
        return None
    return min(facts.workers.busy_ratio / max(1.0 - _paused_share(facts), 0.01), 1.0)


def workers_now(facts: Facts) -> int | None:
    """Worker processes of the loader; 0 when the main process loads, ``None`` when unknown."""
    return worker_count(facts.loader, facts.input)


def made_in_line(facts: Facts) -> bool:
    """Whether the training thread computes its batches without a loader: in a ``get_batch`` of the user's own."""
    if facts.input is None or facts.loader is not None or facts.input.single_process is not None:
        return False
    return facts.share("input.prep") > facts.share(*WAITS) / 2


def handover_share(facts: Facts) -> float:
    """Share of the step that handing a batch over would take; 0 where there are workers, which do so already."""
    step = facts.mean_step_ns
    without = made_in_line(facts) or workers_now(facts) == 0
    return batches_per_step(facts) * HANDOVER_NS / step if without and step else 0.0


def batches_per_step(facts: Facts) -> float:
    """Batches that a step takes from its loader; at least 1."""
    return max(facts.input.fetches / max(facts.steps.steady, 1), 1.0) if facts.input is not None else 1.0


def host_is_full(facts: Facts) -> bool:
    """Whether the run takes the host's cores: as the loader's workers found them, else as far as they were sampled."""
    if facts.taken:
        return False
    if facts.workers is not None:
        return shortage(facts) is not None
    busy, pressure = facts.series("host.cpu"), facts.series("host.cpu_pressure")
    return (busy is not None and busy.mean >= FULL_HOST) or (pressure is not None and pressure.mean >= FULL_PRESSURE)


def _most_workers(facts: Facts, cpu_ratio: float | None) -> int:
    """Workers that make sense: one per core when they compute, several when they are blocked most of the time."""
    if not facts.usable_cores:
        return MOST_WORKERS
    cores = max(int(facts.usable_cores), 1)
    blocked = cpu_ratio is None or cpu_ratio <= BLOCKED_RATIO
    return min(MOST_WORKERS, BLOCKED_PER_CORE * cores) if blocked else cores


def waited_share(facts: Facts) -> float:
    """Share of the step in which it waits for data and another way to load could shorten that.

    Left out are the openings of epochs, the time in which the waiting thread was ready and got no processor: nothing
    is taken off that queue, and on a host the time in which collectives run behind the wait.
    """
    queued = facts.input.queue_ratio if facts.input is not None else None
    return max(facts.share(*WAITS) - opening_share(facts) - hidden_share(facts), 0.0) * (1.0 - (queued or 0.0))


def hidden_share(facts: Facts) -> float:
    """Share of the step in which it waits for data while collectives run that it would wait for otherwise."""
    work = facts.collective_work
    return work.under_input_ns / work.step_ns if work is not None and work.step_ns else 0.0


def consumer_ns(facts: Facts, step: float) -> float:
    """Time that a batch is trained on, ns: the mean step without its wait and without pauses."""
    return max(step - min(waited_share(facts), 1.0) * step - _paused_share(facts) * step, 1.0)


def _training_cpu(facts: Facts, consumer: float, computing: float, *, within: float = 0.0) -> float:
    """CPU time per step, ns, that loading has to leave to the training: its thread's, and that of other threads.

    Other threads' is what the process was sampled to use beyond a core, and beyond a core in pauses. Loading that
    computes finds the cores that they compute or spin on taken, loading that is blocked does not: OpenMP's threads spin
    through waits of some ms. A thread that waits for a device or sleeps uses less than a core. Where a device trains,
    only loading has operators for them: they leave with it, as a worker has no threads of its own.

    ``within`` is the part of the process's CPU time per step that goes into loading.
    """
    used = facts.series("host.process_cores")
    if used is None:
        return consumer
    own = used.mean * (facts.mean_step_ns or 0.0) - within
    others = own - consumer - _paused_share(facts) * (facts.mean_step_ns or 0.0)
    if within and facts.on_device:
        others *= consumer / (facts.mean_step_ns or consumer)
    return min(consumer, own) + max(others, 0.0) * min(computing, 1.0)


def _paused_share(facts: Facts) -> float:
    """Share of the steady time in which the training stands still for something that is done once in a while."""
    return min(facts.share(*PAUSES) + min(unnamed_pauses(facts), facts.share("idle.unknown")), 1.0)


def unnamed_pauses(facts: Facts) -> float:
    """Share of the steady time by which a few steps are longer than the others, for what nothing tells."""
    slow = facts.steps.slow
    return slow.share if slow is not None and slow.part is None and slow.count * RARE <= facts.steps.steady else 0.0


def overlapped(facts: Facts, exposed: float) -> float:
    """Saving if the collectives that are ``exposed``, a share of the step, ran beside computation.

    The last of them has nothing left to hide behind. 0 where no collective was seen.
    """
    if facts.comm is None:
        return 0.0
    return min(exposed * (1.0 - 1.0 / max(facts.comm.per_step, FEWEST_BUCKETS)), alone_compute(facts))


def alone_compute(facts: Facts) -> float:
    """Share of the step in which computation runs beside no communication; 0 where no collective was seen."""
    comm = facts.comm
    step = (comm.step_ns if facts.mode == "cpu" else facts.mean_step_ns) if comm is not None else None
    return min(comm.alone_compute_ns / step, 1.0) if comm is not None and step else 0.0


def fused_chain(share: float, length: float) -> float:
    """Bound for fusing a chain of ``length`` pointwise kernels into one: read once and write once instead of each time.

    A kernel reads and writes, so a chain of k moves 2k tensors and its fusion about 2: with one extra input the kept
    part is 2 / (k + 1).

    >>> round(fused_chain(0.3, 5), 3)
    0.2
    """
    return share * (1.0 - 2.0 / (length + 1.0)) if length > 1 else 0.0


MEMORY_IN_USE = 0.9  #: share of the memory that a proposed batch may fill
#: A batch is doubled as long as that gives a tenth more samples per second, and not beyond four times (choices: more
#: is another training).
_WORTH_DOUBLING = 1.1
_MOST_TIMES = 4


def peak_memory(facts: Facts) -> int | None:
    """Largest use of the device's memory in bytes: by the allocator, else by all on the device; ``None`` if unknown."""
    memory, sampled = facts.memory, facts.series("allocator.allocated_peak")
    if memory.place == "device" and memory.peak_allocated_bytes is not None:
        return memory.peak_allocated_bytes
    return round(sampled.maximum) if sampled is not None else memory.peak_device_used_bytes


def room(facts: Facts) -> float | None:
    """How many times as large the batch may be for ``MEMORY_IN_USE``; ``None`` where memory was not measured."""
    peak, capacity = peak_memory(facts), facts.memory.capacity_bytes
    if not peak or not capacity:
        return None
    fixed = min(facts.memory.alive_before_bytes or 0, peak)
    return (MEMORY_IN_USE * capacity - fixed) / max(peak - fixed, 1)


def larger_batch(facts: Facts) -> tuple[int, Throughput] | None:
    """How many times as large a batch to try, and its gain; ``None`` where not even twice the batch fits, or gains."""
    fits, found, times = room(facts) or 0.0, None, 2
    while times <= min(fits, _MOST_TIMES):
        gain = throughput(facts, times)
        if 1.0 + gain.expected < _WORTH_DOUBLING * (1.0 + found[1].expected if found else 1.0):
            break
        found, times = (times, gain), 2 * times
    return found


def throughput(facts: Facts, times: float) -> Throughput:
    """Gain in samples per second with a batch ``times`` as large: times / T - 1, with T in steps of now.

    Expected: T = max(host, device), where the host needs the step of now and the device ``times`` as long for all but
    small kernels and communication. Low: nothing overlaps, and small kernels grow too. High: only large kernels count.
    Waits for data and what operators compute on the host grow with the batch, and no step is shorter than its batches
    take to make.
    """
    waits = facts.share(*WAITS, "input.h2d") + facts.operator_share
    small = facts.share("compute.small")
    device = facts.share("compute.", "mem.recompute")
    large = max(device - small, 0.0)
    workers, step_ns, made = facts.workers, facts.mean_step_ns, 0.0
    if workers is not None and step_ns:
        made = workers.producer_ns * workers.batches_per_step / workers.at_work / step_ns * times

    def gain(step: Callable[[float], float]) -> float:
        return max(times / max(step(times), made, 1e-9) - 1.0, 0.0)

    return Throughput(
        low=gain(lambda b: 1.0 + (b - 1.0) * (device + waits)),
        expected=gain(
            lambda b: max(1.0 + (b - 1.0) * waits, b * (large + waits) + small + facts.family("communication"))
        ),
        high=gain(lambda b: max(1.0, b * large)),
        method="analytic",
    )
