"""The run without what other programs take of the processors, and with a larger batch."""

from collections.abc import Callable, Mapping

import msgspec

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.parts import WAITS
from profilerkit.analysis.whatif import opening_share
from profilerkit.analysis.workers.capacity import fills_its_cores, others_hold
from profilerkit.model.change import revise
from profilerkit.model.finding import Throughput
from profilerkit.model.run import Workers
from profilerkit.model.step import PARTS, QUEUE, Part, StepTimes

UNKNOWN = "idle.unknown"
#: Less of a step in the queue for a processor is what every host takes (a choice: no rule speaks below it either).
_LEAST = 0.02
#: Share of the step in that queue from which growth, or a small saving, may be the machine's (a choice, as RU005's).
BUSY = 0.1
#: Less of the work on a batch in that queue leaves the replay of the loader as it is (a choice).
_LEAST_OF_A_BATCH = 0.1
#: More than this of what a thread does is not its queue: that of its waits was missed, and all parts bear it alike.
_MOST = 0.95


def contended(facts: Facts) -> Facts:
    """The facts in which time in the queue for a processor is a part of its own, where others hold the processors.

    Known are the queue of the training thread in its steps and in its waits, and that of the loader's workers, which
    the training waits for, and of the threads that share its operators. A device works meanwhile: then nothing is taken
    off. What a rank waits for others in collectives stays communication, whatever held them.
    """
    taken = _taken(facts)
    share = sum(taken.values())
    if share < _LEAST:
        return facts
    step = facts.mean_step_ns or 0.0
    left = {part.part: 1.0 - taken[part.part] / part.share for part in facts.parts}
    parts = [
        revise(part, time_ns=round(part.time_ns * left[part.part]), share=part.share * left[part.part])
        for part in facts.parts
    ]
    parts.append(Part(part=QUEUE, family=PARTS[QUEUE][0], time_ns=round(share * step), share=share, source="derived"))
    ordered = tuple(sorted((part for part in parts if part.time_ns > 0), key=lambda part: -part.time_ns))
    ranks = tuple(
        revise(rank, breakdown=ordered) if place == facts.judged_rank else rank
        for place, rank in enumerate(facts.ranks)
    )
    return revise(facts, parts=ordered, ranks=ranks, taken=share)


def quiet(facts: Facts) -> Facts:
    """The run as it would be with a free processor: no time in the queue, and shares of the step without it.

    What rules say of the program is said of this step, so that a busy machine neither hides a cause nor makes one.
    """
    if not facts.taken:
        return facts
    left = 1.0 - facts.taken
    times = facts.steps.time_ns
    parts = tuple(revise(part, share=part.share / left) for part in facts.parts if part.part != QUEUE)
    seen, loading = facts.input, facts.loading
    if seen is not None and seen.queue_ratio:
        cpu = None if seen.cpu_ratio is None else ready_ratio(seen.cpu_ratio, seen.queue_ratio)
        seen = revise(seen, cpu_ratio=cpu, queue_ratio=0.0)
    workers = facts.workers and _unqueued(facts.workers)
    if loading is not None and facts.workers is not None and facts.workers.share("core") >= _LEAST_OF_A_BATCH:
        loading = revise(loading, queue=None)  # it was replayed with the batches as they came
    return revise(
        facts,
        parts=parts,
        # Which steps are slow beside others is the machine's doing as well.
        steps=revise(facts.steps, time_ns=_scaled(times, left) if times else None, slow=None),
        step_ns=facts.step_ns * left if facts.step_ns else facts.step_ns,
        step_error_ns=facts.step_error_ns * left if facts.step_error_ns else facts.step_error_ns,
        input=seen,
        workers=workers,
        loading=loading,
        # The traced steps queued as well, and their gaps would be taken for the program's.
        replay=None if facts.taken >= BUSY else facts.replay,
    )


def ready_ratio(cpu_ratio: float, queue_ratio: float) -> float:
    """Share of a wait in which its thread computed, as far as a busy machine let it.

    What it was blocked beyond that is no sign of reading: the threads it works with queue for a processor as well.

    >>> ready_ratio(0.2, 0.6)
    0.8
    """
    return min(cpu_ratio + queue_ratio, 1.0)


def _taken(facts: Facts) -> Mapping[str, float]:
    """Part to the share of the step in which it queues for a processor; empty where that is not others' doing."""
    if facts.on_device or not facts.mean_step_ns or fills_its_cores(facts) is not False:
        return {}
    waits, whole = facts.share(*WAITS), min(facts.steps.queued_ratio or 0.0, 1.0)
    # A thread that waits for a collective is blocked, and in no queue.
    collectives = sum(part.share for part in facts.parts if part.family == "communication")
    ran = max(1.0 - waits - collectives, 0.0)
    known = facts.input.queue_ratio if facts.input is not None else None
    # Of the first fetch of an epoch no queue is known, and what starting workers takes stays.
    opening = opening_share(facts)
    usual = max(waits - opening, 0.0)
    in_waits = min(whole if known is None else known, whole / usual if usual else 0.0, 1.0)
    # The training thread's own queue beyond its waits is in all that it does.
    in_rest = max(whole - in_waits * usual, 0.0) / ran if ran else 0.0
    if in_rest > _MOST:
        in_waits = in_rest = min(whole, _MOST)
    left = opening + _left_to_wait(facts, ran * (1.0 - in_rest) + collectives, usual * (1.0 - in_waits))
    kept = dict.fromkeys(WAITS, max(left / waits, 1.0 - _MOST) if waits else 1.0)
    kept |= {part.part: 1.0 for part in facts.parts if part.family == "communication"}
    rest, unexplained = sum(part.share for part in facts.parts if part.part not in kept), facts.share(UNKNOWN)
    # Nobody knows which steps queued. A queue makes steps longer than the typical one, which is all that explains.
    first = min(in_rest * rest, _MOST * unexplained)
    in_known = (in_rest * rest - first) / (rest - unexplained) if rest > unexplained else 0.0
    taken = {part.part: part.share * (1.0 - kept.get(part.part, 1.0 - in_known)) for part in facts.parts}
    if unexplained:
        taken[UNKNOWN] = first + min(_queue_of_pool(facts, whole), _MOST * unexplained - first)
    return taken


def _queue_of_pool(facts: Facts, own: float) -> float:
    """Return the share of the step in which a thread of the operators' pool queues while the training thread does not.

    The training thread spins for it meanwhile. A calm traced step does not show that, so it is in the unexplained time.
    """
    pool = facts.series("host.pool_queue")
    return pool.mean * (1.0 - own) if pool is not None else 0.0


def _left_to_wait(facts: Facts, ran: float, waits: float) -> float:
    """Return what stays of the share ``waits`` where workers find a core and the rest of the step takes ``ran``."""
    workers, step = facts.workers, facts.mean_step_ns or 1.0
    if workers is None or not others_hold(facts):
        return waits
    # What the training thread computes as it receives batches stays as well.
    received = facts.share(*WAITS) * ((facts.input.cpu_ratio if facts.input is not None else None) or 0.0)
    # So does what their queue does not explain: batches that differ make a wait that no mean shows.
    pace_ns = _unqueued(workers).pace_ns
    unexplained = waits - (workers.pace_ns - pace_ns) / step
    return min(max(pace_ns / step - ran, received, unexplained), waits)


def _unqueued(workers: Workers) -> Workers:
    """The workers' batches without the time in which they waited for a core."""
    queued = workers.time_ns("core")
    if not queued:
        return workers
    producer = max(workers.producer_ns - queued, 1)
    # The hand-over runs beside the next batch.
    between = sum(stage.run_queue_ns or 0 for stage in workers.stages if stage.stage != "handover")
    return revise(
        workers,
        producer_ns=producer,
        interval_ns=max(workers.interval_ns - between, 1),
        parts=tuple(revise(part, share=part.time_ns / producer) for part in workers.parts if part.part != "core"),
        stages=tuple(
            revise(stage, time_ns=max(stage.time_ns - (stage.run_queue_ns or 0), 0), run_queue_ns=0)
            for stage in workers.stages
        ),
    )


def _scaled(times: StepTimes, ratio: float) -> StepTimes:
    """The times, each so much shorter; how much they vary is not known without the queue."""
    return StepTimes(median=round(times.median * ratio), mean=round(times.mean * ratio), cv_ratio=times.cv_ratio)


#: Share of the memory that a proposed batch may fill.
MEMORY_IN_USE = 0.9
#: A batch is doubled as long as that gives a tenth more samples per second, and not beyond four times (choices: more
#: is another training).
_WORTH_DOUBLING = 1.1
_MOST_TIMES = 4


class LargerBatch(msgspec.Struct, frozen=True):
    """A batch that is ``times`` as large, and how many more samples per second it gives."""

    times: int
    gain: Throughput


def peak_memory(facts: Facts) -> int | None:
    """Largest use of the device's memory in bytes: by the allocator, else by all on the device; ``None`` if unknown."""
    memory, sampled = facts.memory, facts.series("allocator.allocated_peak")
    if memory.place == "device" and memory.peak_allocated_bytes is not None:
        return memory.peak_allocated_bytes
    return round(sampled.maximum) if sampled is not None else memory.peak_device_used_bytes


def room(facts: Facts) -> float | None:
    """How many times as large the batch may be for ``MEMORY_IN_USE``; ``None`` where memory was not measured.

    Parameters and state, alive before the recording, keep their size; the rest grows with the batch.
    """
    peak, capacity = peak_memory(facts), facts.memory.capacity_bytes
    if not peak or not capacity:
        return None
    fixed = min(facts.memory.alive_before_bytes or 0, peak)
    return (MEMORY_IN_USE * capacity - fixed) / max(peak - fixed, 1)


def larger_batch(facts: Facts) -> LargerBatch | None:
    """The batch to try, of powers of two that fit; ``None`` where not even twice the batch does, or gains."""
    fits = room(facts)
    found, times = None, 2
    while fits is not None and times <= min(fits, _MOST_TIMES):
        gain = throughput(facts, times)
        before = 1.0 + found.gain.expected if found else 1.0
        if 1.0 + gain.expected < _WORTH_DOUBLING * before:
            break
        found, times = LargerBatch(times, gain), 2 * times
    return found


def throughput(facts: Facts, times: float) -> Throughput:
    """Gain in samples per second with a batch ``times`` as large: times / T - 1, with T in steps of now.

    Expected: T = max(host, device), where the host needs the step of now and the device ``times`` as long for all but
    small kernels and communication. Low: nothing overlaps, and small kernels grow too. High: only large kernels count.
    Waits for data grow with the batch, and no step is shorter than its batches take to make.
    """
    waits = facts.share(*WAITS, "input.h2d")
    small = facts.share("compute.small")
    device = facts.share("compute.", "mem.recompute")
    large = max(device - small, 0.0)
    made = _making(facts) * times

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


def _making(facts: Facts) -> float:
    """Steps of now that the loader's workers take to make the batches of one; 0 where they were not recorded."""
    workers, step = facts.workers, facts.mean_step_ns
    if workers is None or not step:
        return 0.0
    return workers.producer_ns * workers.batches_per_step / workers.at_work / step
