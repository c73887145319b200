"""A small classifier that writes a fresh tensor of 64 MiB."""

import ctypes
import sys
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
)
from profilerkit.cli.demos.trained import Proposal, Trained, proposal

FAULT = "every step writes into a fresh tensor of 64 MiB"

#: What the loop starts with.
SLOW: dict[str, int] = {"kept": 0}

# Pages are counted once a second, and three seconds are asked for.
_STEPS = 150
_STEP_S = 0.01
_ELEMENTS = 16 << 20


# prctl's PR_SET_THP_DISABLE, of linux/prctl.h.
_NO_HUGE_PAGES = 41


@dataclass(frozen=True, slots=True)
class Workload:
    """A model sized for this machine."""

    layers: int


def prepare() -> Workload:
    """Size the model so that its step takes about 10 ms here on one thread."""
    # Huge pages, which some systems give everyone, are few and long to fetch: no rule tells them from other work.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_NO_HUGE_PAGES, 1, 0, 0, 0)
    return Workload(layers_for(_STEP_S))


def train(workload: Workload, settings: dict[str, int], directory: Path) -> Trained:
    """Train for a fixed number of steps under ``profilerkit.profile``."""
    from profilerkit import profile

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(_STEPS * BATCH, TOKENS, WIDTH), torch.zeros(_STEPS * BATCH, dtype=torch.long))
    model, optimizer = build(workload.layers)
    kept = torch.empty(_ELEMENTS)
    clock = Clock()
    with profile(directory, warmup_steps=WARMUP_STEPS, trace_steps=TRACE_STEPS) as profiler:
        for features, labels in profiler.wrap(DataLoader(data, batch_size=BATCH)):
            clock.start()
            with clock.computing():
                step(model, optimizer, features, labels)
            noise = kept if settings["kept"] else torch.empty(_ELEMENTS)
            noise.fill_(0.5)
    return clock.trained(profiler.report)


def propose(trained: Trained) -> Proposal:
    """What the report promises for a tensor that is kept."""
    return proposal(trained, "ME001", {"kept": 1}, "a fresh tensor of 64 MiB a step → one that is kept")
