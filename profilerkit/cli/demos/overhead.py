"""A small classifier whose metrics are counted in a Python loop, token by token, after every step."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from profilerkit.cli.demos.classifier import (
    BATCH,
    CLASSES,
    TOKENS,
    TRACE_STEPS,
    WARMUP_STEPS,
    WIDTH,
    Clock,
    build,
    layers_for,
    step,
    step_s,
)
from profilerkit.cli.demos.trained import Proposal, Trained, proposal

FAULT = "the metrics of every step are counted in a Python loop"

#: What the loop starts with.
SLOW: dict[str, int] = {"vectorised": 0}

_STEPS = 50
_STEP_S = 0.03
# Python takes more than half of each step.
_PYTHON_TO_COMPUTE = 1.3
_TIMED_COUNTS = 20


@dataclass(frozen=True, slots=True)
class Workload:
    """A model sized for this machine, and how often the scores of a step are counted, sized for that model."""

    layers: int
    counts: int


def prepare() -> Workload:
    """Size the model so that its step takes about 30 ms here on one thread, and the counting to match."""
    layers = layers_for(_STEP_S)
    scores = torch.randn(BATCH, TOKENS, CLASSES)
    started_s = time.perf_counter()
    _count(scores, _TIMED_COUNTS)
    once_s = (time.perf_counter() - started_s) / _TIMED_COUNTS
    return Workload(layers, max(1, round(_PYTHON_TO_COMPUTE * step_s(layers) / once_s)))


def train(workload: Workload, settings: dict[str, int], directory: Path) -> Trained:
    """Train for a fixed number of steps under ``profilerkit.profile``."""
    from profilerkit import profile

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(_STEPS * BATCH, TOKENS, WIDTH), torch.zeros(_STEPS * BATCH, dtype=torch.long))
    model, optimizer = build(workload.layers)
    count = _count_at_once if settings["vectorised"] else _count
    clock = Clock()
    with profile(directory, warmup_steps=WARMUP_STEPS, trace_steps=TRACE_STEPS) as profiler:
        for features, labels in profiler.wrap(DataLoader(data, batch_size=BATCH)):
            clock.start()
            with clock.computing():
                scores = step(model, optimizer, features, labels)
            count(scores, workload.counts)
    return clock.trained(profiler.report)


def propose(trained: Trained) -> Proposal:
    """What the report promises for Python that leaves the loop."""
    text = "metrics counted in a Python loop → with tensor operations"
    return proposal(trained, "OV005", {"vectorised": 1}, text)


def _count(scores: torch.Tensor, times: int) -> list[int]:
    """How often each class has the best score, token by token."""
    values = scores.flatten().tolist()
    counts = [0] * CLASSES
    for _ in range(times):
        for first in range(0, len(values), CLASSES):
            best = first
            for at in range(first + 1, first + CLASSES):
                if values[at] > values[best]:
                    best = at
            counts[best - first] += 1
    return counts


def _count_at_once(scores: torch.Tensor, times: int) -> list[int]:
    """The same by two operators."""
    counts: list[int] = (times * torch.bincount(scores.flatten(0, 1).argmax(dim=1), minlength=CLASSES)).tolist()
    return counts
