"""Two ranks that accumulate gradients over six micro-batches, and reduce them over a slow network after each one."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from profilerkit.cli.demos.classifier import Clock
from profilerkit.cli.demos.device import compute
from profilerkit.cli.demos.link import slow_link
from profilerkit.cli.demos.pair import train_pair
from profilerkit.cli.demos.trained import Proposal, Trained, proposal

if TYPE_CHECKING:
    from profilerkit.capture.profiler import Profile

FAULT = "two ranks reduce their gradients after each of six micro-batches, over 100 Mbit/s"

#: What the loop starts with.
SLOW: dict[str, int] = {"no_sync": 0}

_STEPS = 50
_MICRO_BATCHES, _SAMPLES, _SAMPLE_S = 6, 2, 0.004
# 330 kB of gradients take 27 ms at this rate, and the processor hardly anything: waits are steady where others compute,
# and what is computed after a wait, with the caches cold, is short beside it.
_WIDTH, _BYTES_PER_S = 288, 12_500_000


def prepare() -> None:
    """Nothing: what is computed and sent takes the same time on every machine."""


def train(workload: None, settings: dict[str, int], directory: Path) -> Trained:
    """Train for a fixed number of steps on both ranks."""
    return train_pair(_loop, settings, directory)


def _loop(_rank: int, settings: dict[str, int], profiler: "Profile", clock: Clock) -> None:
    model = DistributedDataParallel(torch.nn.Linear(_WIDTH, _WIDTH), gradient_as_bucket_view=True)
    # Now that the ranks are connected.
    slow_link(_BYTES_PER_S)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batch = _MICRO_BATCHES * _SAMPLES
    for (features,) in profiler.wrap(DataLoader(TensorDataset(torch.randn(_STEPS * batch, _WIDTH)), batch)):
        clock.start()
        *first, last = features.chunk(_MICRO_BATCHES)
        for part in first:
            with model.no_sync() if settings["no_sync"] else nullcontext():
                model(compute(part, _SAMPLE_S)).square().mean().backward()
        with clock.computing():
            loss = model(compute(last, _SAMPLE_S)).square().mean()
        # The one reduction that stays is also where the ranks wait for each other, which the fix changes.
        loss.backward()
        optimizer.step()
        # Gradients that are freed would be fresh pages in the next step, a fault of its own.
        optimizer.zero_grad(set_to_none=False)


def propose(trained: Trained) -> Proposal:
    """What the report promises for gradients that are reduced once a step."""
    text = f"reductions a step {_MICRO_BATCHES} → 1, no_sync() around the others"
    return proposal(trained, "CO007", {"no_sync": 1}, text)
