"""Runs in which nothing is to gain, some of which look as if there were."""

import time
from functools import partial

import torch

from accuracy_benchmark.scenario import HEALTHY, Build, Scenario, changed
from accuracy_benchmark.training import Job, Net, Training, compute, loader, sample, slept, train

_COMPUTE_S = 0.020
_SLOW_FIRST, _TIMES_SLOWER = 4, 15
_COLD_BATCHES = 8


def _fed(fetch_s: float, workers: int) -> Build:
    return lambda job: train(loader(job, slept(fetch_s), workers), Net(_COMPUTE_S))


def _cold_cache(job: Job) -> Training:
    """Every sample is slow to read once, and in memory from then on."""
    seen: set[int] = set()

    def read(index: int) -> torch.Tensor:
        if index not in seen:
            seen.add(index)
            time.sleep(0.010)
        return sample()

    return train(loader(job, read, batches=_COLD_BATCHES), Net(_COMPUTE_S))


def _slow_start(job: Job) -> Training:
    left = iter([(_TIMES_SLOWER - 1) * _COMPUTE_S] * _SLOW_FIRST)
    return train(loader(job, sample), Net(_COMPUTE_S), before=lambda: _more_compute(next(left, 0.0)))


def _more_compute(seconds: float) -> None:
    if seconds:
        compute(sample(), seconds)


def _matmul(job: Job) -> Training:
    """Real arithmetic, about 15 ms of it on one core."""
    factor = torch.randn(640, 640)

    class Multiplied(Net):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            """The outputs, behind some products."""
            for _ in range(4):
                torch.mm(factor, factor)
            return super().forward(batch)

    return train(loader(job, sample), Multiplied(0.0))


def _outlier(job: Job) -> Training:
    turn = iter(range(job.steps))
    return train(
        loader(job, sample), Net(_COMPUTE_S), before=lambda: _more_compute(2.0 * (next(turn, 0) == job.steps // 2))
    )


SCENARIOS = (
    Scenario("C01", "healthy: two workers feed a step of 20 ms", "healthy", HEALTHY, _fed(0.008, 2)),
    Scenario(
        "C02", "healthy: no workers, but a batch takes 0.2 ms", "healthy", HEALTHY, _fed(0.0002, 0),
        fixes=(changed("num_workers", 0, 2, ("IN002", "IN003"), partial(_fed, 0.0002)),),
    ),
    Scenario(
        "C09", "an input stall that prefetching hides", "healthy", HEALTHY, _fed(0.030, 2),
        fixes=(changed("num_workers", 2, 4, ("IN001", "IN003"), partial(_fed, 0.030)),), warm=10,
    ),
    Scenario("C10", "a cold cache in the first epoch, warm later", "healthy", HEALTHY, _cold_cache, steps=80),
    Scenario("C22", "the first 4 steps are 15 times slower", "healthy", HEALTHY, _slow_start),
    Scenario("C24", "matrix products own the step", "healthy", ("compute-bound",), _matmul),
    Scenario("C40", "one outlier of 2 s in 200 steps", "healthy", HEALTHY, _outlier, steps=200),
)  # fmt: skip
