"""The small classifier that the demos train on one thread, and the clock that times them beside profilerkit."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean

import torch

from profilerkit.cli.demos.trained import Trained
from profilerkit.model.report import Report

#: A batch of samples. Small layers and long samples: the weights stay in the processor's cache, so neighbours on a
#: shared machine disturb the step less.
BATCH, TOKENS, WIDTH, CLASSES = 16, 64, 256, 10
#: The deep window comes first; the steps compared are the ones after it, which no profiler slowed.
WARMUP_STEPS, TRACE_STEPS, COMPARED_STEPS = 5, 10, 30

_TIMED_STEPS = 20


def build(layers: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A stack of linear layers, and its optimizer."""
    hidden = [module for _ in range(layers) for module in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*hidden, torch.nn.Linear(WIDTH, CLASSES))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, features: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Train on one batch; the scores of its tokens, ``(batch, tokens, classes)``."""
    optimizer.zero_grad()
    scores: torch.Tensor = model(features)
    torch.nn.functional.cross_entropy(scores.mean(dim=1), labels).backward()
    optimizer.step()
    return scores.detach()


def sample(index: int) -> tuple[torch.Tensor, int]:
    """Random features and the label of one sample."""
    return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(index)), index % CLASSES


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """One batch."""
    samples = [sample(index) for index in range(BATCH)]
    return torch.stack([features for features, _ in samples]), torch.tensor([label for _, label in samples])


def layers_for(seconds: float) -> int:
    """How many layers make a step that takes this long here, on one thread."""
    torch.set_num_threads(1)
    return max(2, min(64, round(8 * seconds / step_s(8))))


def step_s(layers: int) -> float:
    """Mean seconds of a training step and nothing else."""
    model, optimizer = build(layers)
    features, labels = batch()
    for _ in range(2):
        step(model, optimizer, features, labels)
    started_s = time.perf_counter()
    for _ in range(_TIMED_STEPS):
        step(model, optimizer, features, labels)
    return (time.perf_counter() - started_s) / _TIMED_STEPS


class Clock:
    """When steps began and how long they computed, ns."""

    def __init__(self) -> None:
        self._starts_ns: list[int] = []
        self._computes_ns: list[int] = []

    def start(self) -> None:
        """A step begins."""
        self._starts_ns.append(time.perf_counter_ns())

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The part of it that no fix changes."""
        started_ns = time.perf_counter_ns()
        yield
        self._computes_ns.append(time.perf_counter_ns() - started_ns)

    def trained(self, report: Report | None) -> Trained:
        """The means of the last steps; the last of all has no next one that ends it."""
        return Trained(
            report=report,
            step_ns=(self._starts_ns[-1] - self._starts_ns[-1 - COMPARED_STEPS]) / COMPARED_STEPS,
            compute_ns=fmean(self._computes_ns[-1 - COMPARED_STEPS : -1]),
            steps=COMPARED_STEPS,
        )
