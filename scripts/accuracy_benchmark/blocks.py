"""The truth: blocks of steps with the fault and with each fix, taking turns, while nothing records them."""

import gc
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from accuracy_benchmark.scenario import Build, Scenario
from accuracy_benchmark.training import Job, Training
from accuracy_benchmark.truth import MOST_HALF_WIDTH, saving_interval

#: Rounds of one block forth and one back of each program: at least, and at most where the interval stays wide.
FEWEST_ROUNDS, MOST_ROUNDS = 3, 12
#: Half-width of the interval, share of the step, at which another round would tell little; and the round after which
#: it is enough that the row can be judged.
CLEAR, PATIENT_ROUNDS = 0.01, 6


def batches(training: Training) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from training.loader


def block(build: Build, job: Job, warm: int, measured: int) -> tuple[float, torch.Tensor]:
    """Mean time of a step, and what the parameters are then.

    The mean, because costs that come every so many steps are missing from most of them.
    """
    job.place.mkdir(parents=True)
    torch.manual_seed(0)
    training = build(job)
    source = batches(training)
    try:
        for _ in range(warm):
            training.step(next(source))
        start_s = time.perf_counter()
        for _ in range(measured):
            training.step(next(source))
        step_s = (time.perf_counter() - start_s) / measured
        return step_s, torch.nn.utils.parameters_to_vector(training.model.parameters()).detach()
    finally:
        source.close()
        training.close()
        del training, source
        # What a program left behind must not be collected in the next one's block.
        gc.collect()
        shutil.rmtree(job.place)


def measure(scenario: Scenario, place: Path, rank: int, rounds: tuple[int, int]) -> dict[str, object]:
    """Return seconds per step and whether the numbers are others.

    ``blocks_s`` has one row for the program as it is and one for each fix, one column per block; ``differs`` tells of
    each fix whether any parameter is another one than without it after the same steps.
    """
    programs = [scenario.bad, *(fix.build for fix in scenario.fixes)]
    found: list[list[float]] = [[] for _ in programs]
    ends: list[torch.Tensor] = [torch.empty(0) for _ in programs]
    steps = scenario.warm + scenario.block
    for turn in range(rounds[1]):
        order = list(range(len(programs)))
        for index in [*order, *reversed(order)]:
            job = Job(place / f"block{rank}", steps + 2 * scenario.block, rank, scenario.ranks)
            step_s, ends[index] = block(programs[index], job, scenario.warm, scenario.block)
            found[index].append(step_s)
        wanted = CLEAR if turn + 1 < PATIENT_ROUNDS else MOST_HALF_WIDTH
        if turn + 1 >= rounds[0] and _agreed(partial(_is_known, found, wanted), scenario.ranks):
            break
    return {"blocks_s": found, "differs": [not torch.equal(ends[0], end) for end in ends[1:]]}


def _is_known(found: list[list[float]], half_width: float) -> bool:
    intervals = [saving_interval(found[0], fixed) for fixed in found[1:]]
    return all((interval["high"] - interval["low"]) / 2 <= half_width for interval in intervals)


def _agreed(ask: Callable[[], bool], ranks: int) -> bool:
    """Rank 0's answer, for all: they make the same blocks."""
    if ranks == 1:
        return ask()
    answer = [ask()]
    dist.broadcast_object_list(answer, src=0)
    return bool(answer[0])
