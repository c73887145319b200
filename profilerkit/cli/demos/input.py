"""A small classifier whose DataLoader, reading from slow storage in the training process, is slower than the step."""

import re
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from torch.utils.data import DataLoader

from profilerkit.cli.demos.trained import Proposal, Trained
from profilerkit.model.finding import Saving

FAULT = "the DataLoader reads slow storage in the training process (num_workers=0)"

#: What the loader starts with.
SLOW: dict[str, int] = {"num_workers": 0}

_STEPS = 50
_BATCH = 16
# Small layers and long samples: the weights stay in the processor's cache, so neighbours on a shared machine disturb
# the step less.
_TOKENS, _WIDTH = 64, 256
_CLASSES = 10
_STEP_S = 0.045
# One process waits for more than half of each step; two workers just keep up, and bound the step where the processor
# is faster in the second run than in the first.
_READ_TO_COMPUTE = 1.7
# The deep window comes first; the steps compared are the ones after it, which no profiler slowed.
_WARMUP_STEPS, _TRACE_STEPS, _COMPARED_STEPS = 5, 10, 30


@dataclass(frozen=True, slots=True)
class Workload:
    """A model sized for this machine, and storage sized for that model."""

    layers: int
    read_s: float


class SlowStorage:
    """Random samples that take ``read_s`` seconds each to read, without using the processor."""

    def __init__(self, samples: int, read_s: float) -> None:
        self.samples = samples
        self.read_s = read_s

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.read_s)
        return torch.randn(_TOKENS, _WIDTH, generator=torch.Generator().manual_seed(index)), index % _CLASSES


def prepare() -> Workload:
    """Size the model so that its step takes about 45 ms here on one thread, and the storage to match."""
    torch.set_num_threads(1)
    per_layer_s = _step_s(8) / 8
    layers = max(2, min(64, round(_STEP_S / per_layer_s)))
    return Workload(layers=layers, read_s=_READ_TO_COMPUTE * _step_s(layers) / _BATCH)


def train(workload: Workload, settings: dict[str, int], directory: Path) -> Trained:
    """Train for a fixed number of steps under ``profilerkit.profile``."""
    from profilerkit import profile

    torch.manual_seed(0)
    workers = settings["num_workers"]
    # torch warns of more workers than cores; these sleep.
    warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
    loader = DataLoader(
        SlowStorage(_STEPS * _BATCH, workload.read_s),
        batch_size=_BATCH,
        num_workers=workers,
        persistent_workers=workers > 0,
        # Where forking is not the default, a worker would import torch again: seconds, for nothing shown here.
        multiprocessing_context="fork" if workers else None,
    )
    model, optimizer = _model(workload.layers)
    starts_ns, computes_ns = [], []
    with profile(directory, warmup_steps=_WARMUP_STEPS, trace_steps=_TRACE_STEPS) as profiler:
        for features, labels in profiler.wrap(loader):
            starts_ns.append(time.perf_counter_ns())
            _step(model, optimizer, features, labels)
            computes_ns.append(time.perf_counter_ns() - starts_ns[-1])
    return Trained(
        report=profiler.report,
        step_ns=(starts_ns[-1] - starts_ns[-1 - _COMPARED_STEPS]) / _COMPARED_STEPS,
        compute_ns=mean(computes_ns[-1 - _COMPARED_STEPS : -1]),
        steps=_COMPARED_STEPS,
    )


def propose(trained: Trained) -> Proposal:
    """The number of workers the report proposes for a loader without any, and what it promises."""
    for outcome, finding in trained.report.findings() if trained.report else ():
        code = finding.fix.code if finding.fix else ""
        workers = re.search(r"num_workers\s*=\s*(\d+)", code)
        if outcome.rule.startswith("IN") and workers and int(workers[1]) > 0:
            return _proposal(int(workers[1]), finding.saving, outcome.rule)
    return _proposal(2, None, None)


def _proposal(workers: int, saving: Saving | None, rule: str | None) -> Proposal:
    text = f"num_workers 0 → {workers}, persistent_workers=True"
    return Proposal({"num_workers": workers}, text, saving, rule)


def _model(layers: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    hidden = [module for _ in range(layers) for module in (torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*hidden, torch.nn.Linear(_WIDTH, _CLASSES))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def _step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, features: torch.Tensor, labels: torch.Tensor
) -> None:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(features).mean(dim=1), labels).backward()
    optimizer.step()


def _step_s(layers: int) -> float:
    """Mean seconds of a training step without any loader."""
    model, optimizer = _model(layers)
    features, labels = torch.randn(_BATCH, _TOKENS, _WIDTH), torch.zeros(_BATCH, dtype=torch.long)
    times_s = []
    for _ in range(22):
        start_s = time.perf_counter()
        _step(model, optimizer, features, labels)
        times_s.append(time.perf_counter() - start_s)
    return mean(times_s[2:])
