"""Two ranks that train one model; one of them gets most of the samples, and computes while the other waits."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from profilerkit.cli.demos.classifier import Clock
from profilerkit.cli.demos.device import compute
from profilerkit.cli.demos.pair import train_pair
from profilerkit.cli.demos.trained import Proposal, Trained, proposal

if TYPE_CHECKING:
    from profilerkit.capture.profiler import Profile

FAULT = "rank 1 of two gets 14 of 16 samples, and rank 0 waits while it computes"

# No rule about the kernels of one process can judge a CPU's; the one about ranks with uneven work can.
#: How the samples are dealt.
SLOW: dict[str, int] = {"evened": 0}

_STEPS = 50
#: Samples of a step on each rank.
_UNEVEN, _EVEN = (2, 14), (8, 8)
_WIDTH, _SAMPLE_S = 256, 0.004


def prepare() -> None:
    """Nothing: what is computed takes the same time on every machine."""


def train(workload: None, settings: dict[str, int], directory: Path) -> Trained:
    """Train for a fixed number of steps on both ranks."""
    return train_pair(_loop, settings, directory)


def _loop(rank: int, settings: dict[str, int], profiler: "Profile", clock: Clock) -> None:
    model = DistributedDataParallel(torch.nn.Linear(_WIDTH, _WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batch = (_EVEN if settings["evened"] else _UNEVEN)[rank]
    for (features,) in profiler.wrap(DataLoader(TensorDataset(torch.randn(_STEPS * batch, _WIDTH)), batch)):
        clock.start()
        with clock.computing():
            outputs = model(compute(features, _SAMPLE_S))
        outputs.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def propose(trained: Trained) -> Proposal:
    """What the report promises for work that is evened out."""
    text = f"samples of the ranks {_UNEVEN[0]} and {_UNEVEN[1]} → {_EVEN[0]} and {_EVEN[1]}"
    return proposal(trained, "CO003", {"evened": 1}, text)
