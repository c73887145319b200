"""A small classifier whose DataLoader, reading from slow storage in the training process, is slower than the step."""

from dataclasses import dataclass
from pathlib import Path

import torch

from profilerkit.cli.demos.classifier import BATCH, TRACE_STEPS, WARMUP_STEPS, Clock, build, layers_for, step, step_s
from profilerkit.cli.demos.storage import loader_of, propose_workers
from profilerkit.cli.demos.trained import Trained

FAULT = "the DataLoader reads slow storage in the training process (num_workers=0)"

#: What the loader starts with.
SLOW: dict[str, int] = {"num_workers": 0}

_STEPS = 50
_STEP_S = 0.045
# One process waits for more than half of each step; two workers just keep up, and bound the step where the processor
# is faster in the second run than in the first.
_READ_TO_COMPUTE = 1.7


@dataclass(frozen=True, slots=True)
class Workload:
    """A model sized for this machine, and storage sized for that model."""

    layers: int
    read_s: float


def prepare() -> Workload:
    """Size the model so that its step takes about 45 ms here on one thread, and the storage to match."""
    layers = layers_for(_STEP_S)
    return Workload(layers=layers, read_s=_READ_TO_COMPUTE * step_s(layers) / BATCH)


def train(workload: Workload, settings: dict[str, int], directory: Path) -> Trained:
    """Train for a fixed number of steps under ``profilerkit.profile``."""
    from profilerkit import profile

    torch.manual_seed(0)
    loader = loader_of(_STEPS * BATCH, workload.read_s, settings["num_workers"])
    model, optimizer = build(workload.layers)
    clock = Clock()
    with profile(directory, warmup_steps=WARMUP_STEPS, trace_steps=TRACE_STEPS) as profiler:
        for features, labels in profiler.wrap(loader):
            clock.start()
            step(model, optimizer, features, labels)
            clock.computed()
    return clock.trained(profiler.report)


propose = propose_workers
