"""The loops: each with one bottleneck of known cause, and the same loop with that cause gone."""

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import profilerkit
from profilerkit.cli.demos.device import compute
from profilerkit.cli.demos.link import slow_link

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
#: With the fix gradients are exchanged once in so many steps.
EXCHANGED_EVERY = 64


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
    "exchange": Loop("comm", 2, "gradients over 1 Gbit/s", f"exchanged once in {EXCHANGED_EVERY} steps", _plain),
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
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        slow_link(BYTES_PER_S)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batches = loop.batches(is_fixed)
    with profilerkit.profile(directory, trace_steps=5, nvml=False, analyze=False, probes=probes) as prof:
        for number, features in enumerate(prof.wrap(batches)):
            is_alone = is_fixed and loop.ranks > 1 and number % EXCHANGED_EVERY
            with model.no_sync() if is_alone else nullcontext():
                model(compute(features, SAMPLE_S)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    if loop.ranks > 1:
        dist.destroy_process_group()
