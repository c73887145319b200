"""Six data loaders, each slow for one known reason, and a training loop that consumes them."""

import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accuracy_benchmark.training import Samples
from torch.utils.data import DataLoader

import profilerkit


@dataclass(frozen=True)
class Kind:
    """A loader that is slow for one reason.

    Attributes:
        parts: the parts of a batch that own its time, in the words of ``profilerkit.model.run``.
        make: one sample.
        batch_size: samples per batch.
        start: the ``worker_init_fn``.
        hogs: processes that compete for the core the workers are bound to.
    """

    parts: tuple[str, ...]
    make: Callable[[int], Any]
    batch_size: int = 4
    start: Callable[[int], None] | None = None
    hogs: int = 0


def slept(_index: int) -> torch.Tensor:
    """Waits for 4 ms, as for a service."""
    time.sleep(0.004)
    return torch.ones(16)


def spun(_index: int) -> torch.Tensor:
    """Computes in Python for 4 ms of CPU time."""
    end = time.thread_time() + 0.004
    while time.thread_time() < end:
        pass
    return torch.ones(16)


_PACKED = zlib.compress(np.random.default_rng(0).integers(0, 8, 1 << 19, dtype=np.uint8).tobytes())


def decoded(_index: int) -> torch.Tensor:
    """Unpacks half a megabyte and normalises it."""
    raw = np.frombuffer(zlib.decompress(_PACKED), dtype=np.uint8)
    return torch.from_numpy((raw.astype(np.float32) - raw.mean())[::64].copy())


_ROW = torch.ones(1 << 22)


def large(_index: int) -> torch.Tensor:
    """16 MB that are there already: a batch of four is 64 MB to be joined."""
    return _ROW


_LOCK = get_context("fork").Lock()


def locked(_index: int) -> torch.Tensor:
    """Waits for 4 ms while it holds a lock that all workers share."""
    with _LOCK:
        time.sleep(0.004)
    return torch.ones(16)


def bind(_worker: int) -> None:
    """On the last core, behind everything else there."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.nice(10)


KINDS = {
    "sleeping": Kind(("fetch",), slept),
    "spinning": Kind(("prep",), spun),
    "decoding": Kind(("prep",), decoded, batch_size=8),
    "collating": Kind(("collate", "handover"), large),
    "locked": Kind(("fetch",), locked),
    "starved": Kind(("core",), spun, start=bind, hogs=1),
}


def _hog(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        pass


@contextmanager
def competing(hogs: int) -> Iterator[None]:
    """Processes that keep the last core busy."""
    context = get_context("fork")
    core = max(os.sched_getaffinity(0))
    processes = [context.Process(target=_hog, args=(core,), daemon=True) for _ in range(hogs)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def train(
    kind: Kind, workers: int, directory: Path | None, *, steps: int, step_s: float = 0.002
) -> tuple[Path | None, float]:
    """Consume ``steps`` batches with a step of ``step_s``; the run directory, and the mean step in seconds.

    The mean is over the middle half: batches come in bursts, and at either end workers run ahead or are done.
    """
    loader = DataLoader(
        Samples(kind.make, steps * kind.batch_size),
        batch_size=kind.batch_size,
        num_workers=workers,
        worker_init_fn=kind.start,
        multiprocessing_context="fork" if workers else None,
    )
    ends: list[float] = []
    settings = {"deep": False, "nvml": False, "analyze": False, "enabled": directory is not None}
    with competing(kind.hogs), profilerkit.profile(directory, **settings) as prof:
        for _batch in prof.wrap(loader):
            time.sleep(step_s)
            ends.append(time.perf_counter())
    first, last = steps // 4, 3 * steps // 4
    return prof.directory, (ends[last] - ends[first]) / (last - first)
