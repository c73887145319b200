"""Storage that is slow to read, its loader, and the number of workers that a report proposes for it."""

import re
import time
import warnings
from collections.abc import Iterable

import torch
from torch.utils.data import DataLoader

from profilerkit.cli.demos.classifier import BATCH, sample
from profilerkit.cli.demos.trained import Proposal, Trained
from profilerkit.model.finding import Saving


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


def loader_of(samples: int, read_s: float, workers: int) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
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


def propose_workers(trained: Trained) -> Proposal:
    """The number of workers the report proposes for a loader without any, and what it promises."""
    for outcome, finding in trained.report.findings() if trained.report else ():
        code = finding.fix.code if finding.fix else ""
        workers = re.search(r"num_workers\s*=\s*(\d+)", code)
        if outcome.rule.startswith(("IN", "CO")) and workers and int(workers[1]) > 0:
            return _proposal(int(workers[1]), finding.saving, outcome.rule)
    return _proposal(2, None, None)


def _proposal(workers: int, saving: Saving | None, rule: str | None) -> Proposal:
    text = f"num_workers 0 → {workers}, persistent_workers=True"
    return Proposal({"num_workers": workers}, text, saving, rule)
