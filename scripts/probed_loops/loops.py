"""The loops: each with one bottleneck of known cause, and the same loop with that cause gone."""

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import profilerkit
from profilerkit.cli.demos import compute, slow_link

#: Samples of a batch; seconds that a sample takes the model, which no core computes.
BATCH, SAMPLE_S = 8, 0.003
#: Seconds in which storage gives a sample.
READ_S = 0.005
#: Rounds of hashing that stand for decoding a sample: 2 ms on a processor of 2023.
ROUNDS = 1_200
#: Gradients of this many floats, squared, at this rate: 1.6 MB take 13 ms.
WIDTH, BYTES_PER_S = 640, 125_000_000
#: Steps of a run, enough for the window, a probe and as many beside it.
STEPS = 170
#: With the fix each rank trains alone, and their weights are averaged once in so many steps (local SGD).
AVERAGED_EVERY = 64


class Decoded(Dataset):
    """Samples that the processor decodes, or that were decoded before."""

    def __init__(self, is_decoded: bool) -> None:
        self.is_decoded = is_decoded

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        if not self.is_decoded:
            data = b"x" * 4096
            for _ in range(ROUNDS):
                hashlib.sha256(data).digest()
        return torch.full((WIDTH,), float(index % 7))


class Stored(Dataset):
    """Samples from slow storage."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(READ_S)
        return torch.full((WIDTH,), float(index % 7))


@dataclass(frozen=True, slots=True)
class Loop:
    """One bottleneck.

    Attributes:
        probe: what measures its ceiling.
        ranks: processes that train together.
        fault: what is wrong, for people.
        fix: what is done about it.
        batches: the loader, faulty or fixed.
    """

    probe: str
    ranks: int
    fault: str
    fix: str
    batches: Callable[[bool], Iterable[torch.Tensor]]


def _decoding(is_fixed: bool) -> DataLoader:
    return DataLoader(Decoded(is_fixed), BATCH)


def _stored(is_fixed: bool) -> DataLoader:
    return DataLoader(Stored(), BATCH, num_workers=2 if is_fixed else 1)


def _plain(_is_fixed: bool) -> DataLoader:
    return DataLoader(Decoded(True), BATCH)


LOOPS = {
    "decoding": Loop("input", 1, "samples decoded in the loop", "decoded before the run", _decoding),
    "workers": Loop("workers", 1, "one worker reads slow storage", "num_workers 1 → 2", _stored),
    "exchange": Loop(
        "comm",
        2,
        "gradients over 1 Gbit/s",
        f"weights averaged once in {AVERAGED_EVERY} steps",
        _plain,
    ),
}


def train(name: str, is_fixed: bool, directory: Path, probes: tuple[str, ...]) -> None:
    """Train one loop under ``profilerkit.profile``; of two ranks both are this function in a process each."""
    loop = LOOPS[name]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Linear(WIDTH, WIDTH)
    if loop.ranks > 1:
        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo")
        # Not ``no_sync``: that is what the probe does, and a probe is not to be judged by itself.
        model = model if is_fixed else DistributedDataParallel(model, gradient_as_bucket_view=True)
        slow_link(BYTES_PER_S)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    averager = PeriodicModelAverager(period=AVERAGED_EVERY) if is_fixed and loop.ranks > 1 else None
    batches = loop.batches(is_fixed)
    # What is compared with a probe is recorded by timers alone: writing a trace disturbs some steps behind it.
    settings = {"trace_steps": 5, "deep": bool(probes), "nvml": False, "analyze": False}
    with profilerkit.profile(directory, **settings, probes=probes) as prof:
        for features in prof.wrap(batches):
            model(compute(features, SAMPLE_S)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            if averager is not None:
                averager.average_parameters(model.parameters())
    if loop.ranks > 1:
        dist.destroy_process_group()
