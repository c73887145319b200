"""Runs that wait for data: too few workers, costly samples, costly hand-over, locks, bursts, epochs, too little CPU."""

import os
import time
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch

from accuracy_benchmark.scenario import Build, Fix, Scenario, changed
from accuracy_benchmark.training import Job, Net, Training, loader, sample, slept, spin, spun, train

_COMPUTE_S = 0.020
_SHORT_S = 0.010
_BOUND = ("input-bound",)
#: One in eight batches is slow.
_BURST = 8
_CORES = len(os.sched_getaffinity(0))
#: A batch of Python floats that takes some 40 ms to become a tensor.
_FLOATS = 250_000


def _slept(seconds: float, workers: int, compute_s: float = _COMPUTE_S, **options: Any) -> Build:
    return lambda job: train(loader(job, slept(seconds), workers, **options), Net(compute_s))


def _spun(seconds: float, workers: int, compute_s: float = _COMPUTE_S) -> Build:
    return lambda job: train(loader(job, spun(seconds), workers), Net(compute_s))


def _collated(*, as_lists: bool) -> Build:
    row = [0.5] * _FLOATS if as_lists else torch.full((_FLOATS,), 0.5)

    def collate(rows: list[Any]) -> torch.Tensor:
        return torch.tensor(rows) if as_lists else torch.stack(rows)

    def build(job: Job) -> Training:
        training = train(loader(job, lambda _index: row, 1, collate_fn=collate), Net(_SHORT_S))
        return Training(training.loader, lambda batch: training.step(batch[:, :32]), training.model)

    return build


def _bursty(prefetch: int) -> Build:
    def make(index: int) -> torch.Tensor:
        time.sleep((0.100 if index // 4 % _BURST == _BURST - 1 else 0.004) / 4)
        return sample()

    return lambda job: train(loader(job, make, 1, prefetch_factor=prefetch), Net(_COMPUTE_S))


def _open_index(_worker: int) -> None:
    time.sleep(0.050)


def _short_epochs(*, persistent: bool) -> Build:
    def build(job: Job) -> Training:
        batches = loader(
            job, slept(0.004), 2, batches=10, worker_init_fn=_open_index, persistent_workers=persistent
        )  # fmt: skip
        return train(batches, Net(_SHORT_S))

    return build


def _locked(*, shared: bool) -> Build:
    lock = get_context("fork").Lock()

    def make(_index: int) -> torch.Tensor:
        if shared:
            with lock:
                time.sleep(0.006)
        else:
            time.sleep(0.006)
        return sample()

    return lambda job: train(loader(job, make, 2), Net(_SHORT_S))


def _threaded(threads: int) -> Build:
    rows = torch.randn(256, 256)

    def many_threads(_worker: int) -> None:
        torch.set_num_threads(threads)

    def make(_index: int) -> torch.Tensor:
        spin(0.001)
        product = rows
        for _ in range(4):
            product = torch.mm(rows, product).clamp(-1.0, 1.0)
        return sample() + 0.0 * product[0, 0]

    return lambda job: train(loader(job, make, 2 * _CORES, worker_init_fn=many_threads), Net(0.002))


SCENARIOS = (
    Scenario(
        "C03", "fetching sleeps 24 ms, no workers", "input", _BOUND, _slept(0.024, 0), ("fetch",), ("IN001", "IN002"),
        (changed("num_workers", 0, 2, ("IN002", "IN001"), partial(_slept, 0.024)),),
    ),
    Scenario(
        "C04", "fetching sleeps 60 ms, one worker", "input", _BOUND, _slept(0.060, 1), ("fetch",), ("IN003",),
        (changed("num_workers", 1, 3, ("IN003",), partial(_slept, 0.060)),), warm=8,
    ),
    Scenario(
        "C05", "decoding spins 16 ms, no workers", "input", _BOUND, _spun(0.016, 0), ("prep",), ("IN002", "IN007"),
        (changed("num_workers", 0, 1, ("IN002",), partial(_spun, 0.016)),),
    ),
    Scenario(
        "C06", "decoding needs three times the cores", "input", _BOUND, _spun(0.030 * _CORES, _CORES, _SHORT_S),
        ("prep",), ("IN005", "IN007"),
        (
            Fix("decoding at half the cost", ("IN007", "IN005"), _spun(0.015 * _CORES, _CORES, _SHORT_S)),
            changed(
                "num_workers", _CORES, 2 * _CORES, ("IN003", "IN002"),
                partial(_spun, 0.030 * _CORES, compute_s=_SHORT_S),
            ),
        ),
        warm=8, fills_host=True,
    ),
    Scenario(
        "C07", "collating Python lists of floats", "input", _BOUND, _collated(as_lists=True), ("ipc",), ("IN008",),
        (Fix("samples are tensors", ("IN008",), _collated(as_lists=False)),),
    ),
    Scenario(
        "C08", "one in 8 batches is slow, prefetch_factor=2", "input", _BOUND, _bursty(2), ("fetch",),
        ("IN004", "IN003"), (changed("prefetch_factor", 2, 8, ("IN004",), _bursty),), steps=96, block=24, warm=16,
    ),
    Scenario(
        "C11", "workers start anew in each short epoch", "input", _BOUND, _short_epochs(persistent=False), (),
        ("IN011",), (Fix("persistent_workers=True", ("IN011",), _short_epochs(persistent=True), "persistent_workers"),),
        block=20, warm=10, steps=80,
    ),
    Scenario(
        "C12", "workers share one lock", "input", _BOUND, _locked(shared=True), ("fetch",), ("IN006", "IN001"),
        (Fix("a handle for each worker", ("IN006",), _locked(shared=False)),),
    ),
    Scenario(
        "C13", "threads of operators times workers exceed the cores", "input", ("input-bound", "overhead-bound"),
        _threaded(8 * _CORES), ("prep", "wait", "contention"), ("OV008", "IN005"),
        (Fix("torch.set_num_threads(1) in workers", ("OV008", "IN005"), _threaded(1)),), fills_host=True, steps=240,
    ),
)  # fmt: skip
