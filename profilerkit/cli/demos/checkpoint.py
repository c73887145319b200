"""A small classifier that stops every few steps until a checkpoint is on slow storage."""

import io
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from profilerkit.cli.demos.classifier import (
    BATCH,
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
from profilerkit.cli.demos.trained import Proposal, Trained

FAULT = "training stops every 5 steps until a checkpoint is on slow storage"

#: What the loop starts with.
SLOW: dict[str, int] = {"background": 0}

_STEPS = 60
_EVERY = 5
_STEP_S = 0.045
# A checkpoint takes as long as three steps: three eighths of the time.
_WRITE_TO_COMPUTE = 3.0


@dataclass(frozen=True, slots=True)
class Workload:
    """A model sized for this machine, and storage sized for that model."""

    layers: int
    write_s: float


class SlowFile(io.BytesIO):
    """A file that takes ``write_s`` seconds to flush, without using the processor, as one on remote storage does."""

    def __init__(self, write_s: float) -> None:
        super().__init__()
        self._write_s = write_s

    def flush(self) -> None:
        """Wait until everything is written."""
        time.sleep(self._write_s)


def prepare() -> Workload:
    """Size the model so that its step takes about 45 ms here on one thread, and the storage to match."""
    layers = layers_for(_STEP_S)
    return Workload(layers, _WRITE_TO_COMPUTE * step_s(layers))


def train(workload: Workload, settings: dict[str, int], directory: Path) -> Trained:
    """Train for a fixed number of steps under ``profilerkit.profile``."""
    from profilerkit import profile

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(_STEPS * BATCH, TOKENS, WIDTH), torch.zeros(_STEPS * BATCH, dtype=torch.long))
    model, optimizer = build(workload.layers)
    clock = Clock()
    writes: list[Future[None]] = []
    with (
        ThreadPoolExecutor(max_workers=1) as background,
        profile(directory, warmup_steps=WARMUP_STEPS, trace_steps=TRACE_STEPS) as profiler,
    ):
        for number, (features, labels) in enumerate(profiler.wrap(DataLoader(data, batch_size=BATCH))):
            clock.start()
            step(model, optimizer, features, labels)
            clock.computed()
            if number % _EVERY == _EVERY - 1:
                state = {name: value.clone() for name, value in model.state_dict().items()}
                if settings["background"]:
                    writes.append(background.submit(_save, state, workload.write_s))
                else:
                    with profiler.phase("checkpoint"):
                        _save(state, workload.write_s)
    for write in writes:
        write.result()
    return clock.trained(profiler.report)


def propose(trained: Trained) -> Proposal:
    """What the report promises for checkpoints that are written beside the training."""
    text = "checkpoints written in the loop → from a background thread"
    for outcome, finding in trained.report.findings() if trained.report else ():
        if finding.bound == "overhead-bound" and finding.detail == "checkpoint":
            return Proposal({"background": 1}, text, finding.saving, outcome.rule)
    return Proposal({"background": 1}, text, None, None)


def _save(state: dict[str, torch.Tensor], write_s: float) -> None:
    with SlowFile(write_s) as file:
        torch.save(state, file)
