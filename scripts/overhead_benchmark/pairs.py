"""Blocks of steps in pairs, with and without a tool, in random order; what the tool adds is the paired difference.

A block stands for itself by its median step: on a shared machine single steps take a multiple of the usual time, with
a tool and without. What a tool does on threads of its own comes now and then and is in no median, so it is counted
whole: the CPU time of the process beside the training thread's.
"""

import math
import random
import statistics
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import Any

from overhead_benchmark.cases import BLOCK_S, Case
from overhead_benchmark.variants import Variant

#: Time before a block is measured, until the loop runs warm.
_SETTLE_S = 0.02
_CLOCKS = ("thread_cpu", "wall", "process_cpu")


@dataclass(slots=True)
class Pairs:
    """What one variant's pairs gave; ns per step, one entry per pair.

    Attributes:
        added: by clock, with the tool minus without: ``thread_cpu`` and ``wall`` of the median step, ``process_cpu``
            the first of them and the mean CPU time of the process's other threads.
        bare: the same without the tool.
        enter_ns: time to switch the tool on, per pair; ``leave_ns`` off.
    """

    added: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _CLOCKS})
    bare: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _CLOCKS})
    enter_ns: list[int] = field(default_factory=list)
    leave_ns: list[int] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For the file that the program writes."""
        return asdict(self)


def measure(case: Case, step_s: float, off: Variant, variants: dict[str, Variant], seed: int) -> dict[str, Pairs]:
    """The pairs of every variant. All ranks make the same blocks in the same order."""
    order = random.Random(seed)
    found = {name: Pairs() for name in variants}
    for _ in range(case.pairs):
        names = list(variants)
        order.shuffle(names)
        for name in names:
            pair = found[name]
            with_first = order.random() < 0.5
            sides: dict[bool, list[float]] = {}
            for with_tool in (with_first, not with_first):
                counts = math.ceil(_SETTLE_S / step_s), max(2, math.ceil(BLOCK_S[case.step_ms] / step_s))
                sides[with_tool] = _block(variants[name] if with_tool else off, counts, pair if with_tool else None)
            for clock, on_ns, off_ns in zip(_CLOCKS, sides[True], sides[False], strict=True):
                pair.added[clock].append(on_ns - off_ns)
                pair.bare[clock].append(off_ns)
    return found


def _block(variant: Variant, counts: tuple[int, int], pair: Pairs | None) -> list[float]:
    """The times of ``_CLOCKS`` per step, ns."""
    settle, steps = counts
    start_ns = perf_counter_ns()
    with variant() as step:
        entered_ns = perf_counter_ns()
        for _ in range(settle):
            step()
        process_ns, walls, cpus = process_time_ns(), [perf_counter_ns()], [thread_time_ns()]
        for _ in range(steps):
            step()
            walls.append(perf_counter_ns())
            cpus.append(thread_time_ns())
        others_ns = process_time_ns() - process_ns - (cpus[-1] - cpus[0])
        leaving_ns = perf_counter_ns()
    if pair is not None:
        pair.enter_ns.append(entered_ns - start_ns)
        pair.leave_ns.append(perf_counter_ns() - leaving_ns)
    wall_ns, cpu_ns = (statistics.median(end - start for start, end in pairwise(read)) for read in (walls, cpus))
    return [cpu_ns, wall_ns, cpu_ns + others_ns / steps]
