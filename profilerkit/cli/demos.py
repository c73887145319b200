"""Train a small model on the processor with one fault: ``train.py KIND``.

With ``PROFILERKIT_DEMO=mended`` in the environment, a fault of the code is mended. The demo runs a copy of this file.
"""

import ctypes
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

MENDED = os.environ.get("PROFILERKIT_DEMO") == "mended"
STEPS = 400


# One process: a small classifier. Small layers and long samples: the weights stay in the processor's cache, so
# neighbours on a shared machine disturb the step less.
BATCH, TOKENS, WIDTH, CLASSES = 16, 64, 256, 10
ELEMENTS = 16 << 20  #: 64 MiB of them


def train(batches: Iterable[Any], layers: int, after: Callable[[torch.Tensor], object] = lambda scores: None) -> None:
    """Train on each batch; ``after`` gets the scores of its tokens, ``(batch, tokens, classes)``."""
    hidden = [module for _ in range(layers) for module in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*hidden, torch.nn.Linear(WIDTH, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for features, labels in batches:
        optimizer.zero_grad()
        scores = model(features)
        torch.nn.functional.cross_entropy(scores.mean(dim=1), labels).backward()
        optimizer.step()
        after(scores.detach())


class Samples:
    """A few random samples again and again; each takes ``read_s`` seconds to read, without using the processor."""

    def __init__(self, read_s: float = 0.0) -> None:
        self.read_s = read_s
        self.samples = [(torch.randn(TOKENS, WIDTH), index % CLASSES) for index in range(8 * BATCH)]

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.read_s:
            time.sleep(self.read_s)
        return self.samples[index % len(self.samples)]


def slow_input() -> None:
    """Read slow storage in the training process."""
    train(DataLoader(Samples(read_s=0.003), BATCH, num_workers=0), layers=8)


def python_metrics() -> None:
    """Count, after every step, how many scores are above each of many levels."""
    levels = [level / 25 for level in range(-50, 50)]

    def count(scores: torch.Tensor) -> list[int]:
        if MENDED:
            counts: list[int] = (scores.flatten() > torch.tensor(levels)[:, None]).sum(dim=1).tolist()
            return counts
        values = scores.flatten().tolist()
        return [sum(1 for value in values if value > level) for level in levels]

    train(DataLoader(Samples(), BATCH), layers=3, after=count)


def fresh_tensors() -> None:
    """Write 64 MiB in every step: into a fresh tensor, mended into one that is kept."""
    # Huge pages, which some systems give everyone, are few and long to fetch: PR_SET_THP_DISABLE of linux/prctl.h.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)
    elements = 16 << 20
    kept = torch.empty(elements)
    train(
        DataLoader(Samples(), BATCH), layers=2, after=lambda _: (kept if MENDED else torch.empty(elements)).fill_(0.5)
    )


# Two ranks over gloo. They compute without a core of this machine, as a device does for its host: where there are only
# two, they would fight for them, and measure that.
OPERATORS = torch.library.Library("demo", "DEF")
OPERATORS.define("compute(Tensor features) -> Tensor")


def compute(features: torch.Tensor) -> torch.Tensor:
    """The features, after 4 ms for each sample."""
    time.sleep(0.004 * len(features))
    return features.clone()


OPERATORS.impl("compute", compute, "CPU")


#: Of linux's asm-generic/socket.h; Python has no name for it. On loopback TCP paces itself, without a queue or rights.
SO_MAX_PACING_RATE = 47


def train_together(width: int, micro_batches: Sequence[int], bytes_per_s: int = 0) -> None:
    """Train on so many samples in each micro-batch of a step, over a link of this rate where one is given."""
    model = DistributedDataParallel(torch.nn.Linear(width, width), gradient_as_bucket_view=True)
    if bytes_per_s:
        slow_links(bytes_per_s)  # now that the ranks are connected
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for (features,) in DataLoader(TensorDataset(torch.ones(STEPS * sum(micro_batches), width)), sum(micro_batches)):
        for part in features.split(list(micro_batches)):
            model(torch.ops.demo.compute(part)).square().mean().backward()
        optimizer.step()
        # Gradients that are freed would be fresh pages in the next step, a fault of its own.
        optimizer.zero_grad(set_to_none=False)


def slow_links(bytes_per_s: int) -> None:
    """Let each open connection of this process send no faster; as fast as ever where the system is not linux."""
    for descriptor in list(Path("/proc/self/fd").iterdir()) if sys.platform == "linux" else ():
        try:
            connection = socket.socket(fileno=os.dup(int(descriptor.name)))
        except OSError:
            continue  # no socket, or closed since it was listed
        with connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, bytes_per_s)


def frequent_reductions() -> None:
    """Reduce gradients after each of six micro-batches, over 100 Mbit/s: 160 kB take 13 ms."""
    train_together(200, [1] * 6, bytes_per_s=12_500_000)


def uneven_ranks() -> None:
    """Give rank 1 seven times as many samples as rank 0; mended, as many."""
    train_together(WIDTH, [8 if MENDED else (2, 14)[dist.get_rank()]])


ALONE = {"input": slow_input, "overhead": python_metrics, "memory": fresh_tensors}
TOGETHER = {"comm": frequent_reductions, "compute": uneven_ranks}


def main(kind: str) -> None:
    """Run the program of one kind."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if kind in ALONE:
        ALONE[kind]()
        return
    # Both ranks are on this host, whose name need not lead back to it. Loopback has another name on other systems.
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    TOGETHER[kind]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
