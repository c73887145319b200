"""Runs that are made to be misread: misleading names, a busy thread beside a sleeping step, a profiler left on."""

import threading
import time
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from accuracy_benchmark.scenario import HEALTHY, Build, Fix, Scenario
from accuracy_benchmark.training import Job, Net, Training, loader, nothing, sample, train

_COMPUTE_S = 0.020


class _Named(Net):
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The outputs, computed under a name that means something else."""
        with record_function("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            return super().forward(batch)


def _misnamed(job: Job) -> Training:
    return train(loader(job, sample), _Named(_COMPUTE_S))


def _beside_a_busy_thread(pause_s: float) -> Build:
    def build(job: Job) -> Training:
        stop = threading.Event()
        factor = torch.randn(256, 256)

        def multiply() -> None:
            while not stop.is_set():
                torch.mm(factor, factor)

        thread = threading.Thread(target=multiply, daemon=True)
        thread.start()

        def close() -> None:
            stop.set()
            thread.join()

        pause = (lambda: time.sleep(pause_s)) if pause_s else nothing
        return train(loader(job, sample), Net(_COMPUTE_S), after=pause, close=close)

    return build


def _under_a_profiler(*, on: bool) -> Build:
    def build(job: Job) -> Training:
        net = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(24)])
        profiler: Any = profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True)
        if on:
            profiler.start()

        def close() -> None:
            if on:
                profiler.stop()

        return train(loader(job, sample), net, close=close)

    return build


SCENARIOS = (
    Scenario("C37", "a range around computation is named like a loader", "healthy", HEALTHY, _misnamed),
    Scenario(
        "C38", "the step sleeps beside a busy thread", "overhead", ("overhead-bound",), _beside_a_busy_thread(0.015),
        ("python",), ("OV001", "OV005"), (Fix("removed", ("OV001", "OV005"), _beside_a_busy_thread(0.0)),),
    ),
    Scenario(
        "C39", "a profiler with stacks is left on around a tiny model", "overhead", ("overhead-bound",),
        _under_a_profiler(on=True), (), ("OV007",),
        (Fix("switched off", ("OV007",), _under_a_profiler(on=False)),), steps=200, block=50, warm=10,
    ),
)  # fmt: skip
