"""What a larger batch would do to the samples per second."""

from collections.abc import Callable

import msgspec

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.leaves import WAITS
from profilerkit.model.finding import Throughput

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

    What was alive before the recording, parameters and state, stays; all else grows with the batch.
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
