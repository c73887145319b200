"""Runs that lose time to their host: Python, logging, dispatch, garbage collection, checkpoints, evaluation, others."""

import gc
import io
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from accuracy_benchmark.scenario import HEALTHY, Build, Fix, Scenario
from accuracy_benchmark.training import (
    Job,
    Net,
    Training,
    compute,
    counted,
    loader,
    nothing,
    sample,
    spin,
    spun_compute,
    train,
)

_COMPUTE_S = 0.020
_SHORT_S = 0.005
_BOUND = ("overhead-bound",)
_CORES = len(os.sched_getaffinity(0))
_LIVE_OBJECTS = 150_000
_PYTHON = ("OV001", "OV005")


def _after(action: Callable[[], None]) -> Build:
    return lambda job: train(loader(job, sample), Net(_COMPUTE_S), after=action)


def _logged(every: int) -> Build:
    logger = logging.getLogger("accuracy_benchmark.metrics")
    metrics = {f"layer{number}.gradient_norm": number / 7 for number in range(200)}

    def write() -> None:
        end = time.thread_time() + 0.006
        while time.thread_time() < end:
            logger.info(json.dumps(metrics))

    def build(job: Job) -> Training:
        handler = logging.FileHandler(job.place / f"metrics{job.rank}.log")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False

        def close() -> None:
            logger.removeHandler(handler)
            handler.close()

        return train(loader(job, sample), Net(_COMPUTE_S), after=counted(every, write), close=close)

    return build


def _tiny_operators(*, vectorised: bool) -> Build:
    rows = torch.ones(3000)
    scalars = list(rows)

    def each() -> None:
        for scalar in scalars:
            scalar.mul_(1.0)

    def together() -> None:
        rows.mul_(1.0)

    return lambda job: train(loader(job, sample), Net(_SHORT_S), after=together if vectorised else each)


def _optimizer(*, fused: bool) -> Build:
    def build(job: Job) -> Training:
        net = Net(_SHORT_S)
        net.scales = torch.nn.ParameterList([torch.zeros(8) for _ in range(400)])
        optimizer = torch.optim.Adam(net.parameters(), fused=fused)
        for scale in net.scales:
            scale.grad = torch.zeros(8)

        def step(batch: torch.Tensor) -> None:
            net(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

        return Training(loader(job, sample), step, net)

    return build


def _collected(*, frozen: bool) -> Build:
    def build(job: Job) -> Training:
        live = [{"index": number, "next": []} for number in range(_LIVE_OBJECTS)]
        if frozen:
            gc.collect()
            gc.freeze()

        def litter() -> None:
            for _ in range(100):
                cycle: list[Any] = []
                cycle.append(cycle)
            gc.collect()

        def close() -> None:
            gc.unfreeze()
            live.clear()

        return train(loader(job, sample), Net(_COMPUTE_S), after=litter, close=close)

    return build


class _SlowFile(io.BytesIO):
    """A file on storage that takes 80 ms to open."""

    _is_open = False

    def write(self, data: Any, /) -> int:
        if not self._is_open:
            self._is_open = True
            time.sleep(0.080)
        return super().write(data)


def _save(model: torch.nn.Module) -> None:
    torch.save(model.state_dict(), _SlowFile())


def _checkpointed(*, background: bool) -> Build:
    def build(job: Job) -> Training:
        net = Net(_COMPUTE_S)
        threads: list[threading.Thread] = []

        def save() -> None:
            if not background:
                _save(net)
                return
            threads.append(threading.Thread(target=_save, args=(net,)))
            threads[-1].start()

        def close() -> None:
            for thread in threads:
                thread.join()

        return train(loader(job, sample), net, after=counted(10, save), close=close)

    return build


def _evaluated(every: int) -> Build:
    def build(job: Job) -> Training:
        net = Net(_COMPUTE_S)

        def evaluate() -> None:
            with job.phase("evaluation"), torch.no_grad():
                net.eval()
                for _ in range(6):
                    net(sample()[None])
                net.train()

        return train(loader(job, sample), net, after=counted(every, evaluate))

    return build


def _compiled(*, padded: bool) -> Build:
    def build(job: Job) -> Training:
        import torch._dynamo as dynamo  # noqa: PLC0415 - takes seconds, and only this program needs it

        dynamo.reset()
        # Each step meets a new shape; past its limit dynamo would give up and run the model as it is.
        dynamo.config.recompile_limit = dynamo.config.accumulated_recompile_limit = 10_000
        width = iter(range(4, 4 + 2 * job.steps))
        layer = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32))
        compiled = torch.compile(layer, backend="aot_eager", dynamic=False)
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)

        def step(batch: torch.Tensor) -> None:
            rows = 4 if padded else next(width)
            compute(batch, _COMPUTE_S)
            compiled(torch.ones(rows, 32)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return Training(loader(job, sample), step, layer)

    return build


#: Spins on one core, and ends by itself should nobody stop it.
_HOG = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
end = time.monotonic() + 60
while time.monotonic() < end:
    pass
"""


def _hog(core: int) -> int:
    """The number of a process that spins on ``core`` and is no child of this one: somebody else's work."""
    command = [sys.executable, "-S", "-E", "-c", _HOG, str(core)]
    shell = f"{shlex.join(command)} </dev/null >/dev/null 2>&1 & echo $!"
    return int(subprocess.run(["sh", "-c", shell], check=True, capture_output=True, text=True).stdout)


def _beside_others(job: Job) -> Training:
    hogs = [_hog(core) for core in os.sched_getaffinity(0)]

    def close() -> None:
        for hog in hogs:
            os.kill(hog, signal.SIGKILL)

    return train(loader(job, sample), Net(_COMPUTE_S, spun_compute), close=close)


SCENARIOS = (
    Scenario(
        "C14", "other processes compete for the cores", "healthy", HEALTHY, _beside_others, (), ("RU005",), steps=150,
        fills_host=True,
    ),
    Scenario(
        "C15", "8 ms of Python between operators", "overhead", _BOUND, _after(lambda: spin(0.008)), ("python",),
        _PYTHON, (Fix("removed", _PYTHON, _after(nothing)),),
    ),
    Scenario(
        "C16", "6 ms of logging and JSON in each step", "overhead", _BOUND, _logged(1), ("python", "logging"),
        ("RU002", *_PYTHON), (Fix("every 50 steps", ("RU002", *_PYTHON), _logged(50)),),
    ),
    Scenario(
        "C17", "3,000 tiny operators in each step", "overhead", _BOUND, _tiny_operators(vectorised=False),
        ("launch",), ("OV001",), (Fix("vectorised", ("OV001",), _tiny_operators(vectorised=True)),),
    ),
    Scenario(
        "C18", "an optimizer that goes through 400 parameters", "overhead", _BOUND, _optimizer(fused=False),
        ("launch", "optimizer"), ("CP006", "OV001"),
        (Fix("fused=True", ("CP006", "OV001"), _optimizer(fused=True), "fused"),),
    ),
    Scenario(
        "C19", "garbage collections over many live objects", "overhead", _BOUND, _collected(frozen=False), ("gc",),
        ("OV004",), (Fix("gc.freeze()", ("OV004",), _collected(frozen=True), "gc_freeze"),),
    ),
    Scenario(
        "C20", "a checkpoint of 80 ms every 10 steps", "overhead", _BOUND, _checkpointed(background=False),
        ("checkpoint",), ("RU001",), (Fix("written by a thread", ("RU001",), _checkpointed(background=True)),),
        block=20, warm=3,
    ),
    Scenario(
        "C21", "evaluation every 12 steps", "overhead", _BOUND, _evaluated(12), ("evaluation",), ("RU001", "RU002"),
        (Fix("every 24 steps", ("RU002", "RU001"), _evaluated(24)),), block=24, warm=3,
    ),
    Scenario(
        "C23", "each step compiles for a new shape", "overhead", _BOUND, _compiled(padded=False), ("compile",),
        ("OV006",), (Fix("padded to one shape", ("OV006",), _compiled(padded=True)),), steps=40, block=8, warm=4,
    ),
)  # fmt: skip
