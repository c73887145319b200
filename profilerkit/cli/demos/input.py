"""A small classifier whose DataLoader, reading from slow storage in the training process, is slower than the step."""

import re
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from profilerkit.cli.demos.classifier import (
    BATCH,
    TRACE_STEPS,
    WARMUP_STEPS,
    Clock,
    build,
    layers_for,
    sample,
    step,
    step_s,
)
from profilerkit.cli.demos.trained import Proposal, Trained
from profilerkit.model.finding import Saving, in_order

FAULT = "the DataLoader reads slow storage in the training process (num_workers=0)"

#: What the loader starts with.
SLOW: dict[str, int] = {"num_workers": 0}

_STEPS = 50
_STEP_S = 0.045
# One process waits for more than half of each step; two workers just keep up, and bound the step where the processor
# is faster in the second run than in the first.
_READ_TO_COMPUTE = 1.7


class SlowStorage:
    """Random samples that take ``read_s`` seconds each to read, without using the processor."""

    def __init__(self, samples: int, read_s: float) -> None:
        self.samples = samples
        self.read_s = read_s

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.read_s)
        return sample(index)


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
    loader = _loader(_STEPS * BATCH, workload.read_s, settings["num_workers"])
    model, optimizer = build(workload.layers)
    clock = Clock()
    with profile(directory, warmup_steps=WARMUP_STEPS, trace_steps=TRACE_STEPS) as profiler:
        for features, labels in profiler.wrap(loader):
            clock.start()
            with clock.computing():
                step(model, optimizer, features, labels)
    return clock.trained(profiler.report)


def propose(trained: Trained) -> Proposal:
    """The number of workers the report proposes for a loader without any, and what it promises."""
    for outcome, finding in in_order(trained.report.outcomes) if trained.report else ():
        code = finding.fix.code if finding.fix else ""
        workers = re.search(r"num_workers\s*=\s*(\d+)", code)
        if outcome.rule.startswith("IN") and workers and int(workers[1]) > 0:
            return _proposal(int(workers[1]), finding.saving, outcome.rule)
    return _proposal(2, None, None)


def _proposal(workers: int, saving: Saving | None, rule: str | None) -> Proposal:
    text = f"num_workers 0 → {workers}, persistent_workers=True"
    return Proposal({"num_workers": workers}, text, saving, rule)


def _loader(samples: int, read_s: float, workers: int) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of that many samples, read by the training process itself or by workers."""
    # torch warns of more workers than cores; these sleep.
    warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
    loader: Iterable[tuple[torch.Tensor, torch.Tensor]] = DataLoader(
        SlowStorage(samples, read_s),
        batch_size=BATCH,
        num_workers=workers,
        persistent_workers=workers > 0,
        # Where forking is not the default, a worker would import torch again: seconds, for nothing shown here.
        multiprocessing_context="fork" if workers else None,
    )
    return loader
