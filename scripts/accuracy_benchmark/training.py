"""The pieces that the programs are made of: a tiny model, operators that sleep or spin, loaders with a known cost."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

_WIDTH = 32
_BATCH = 4

# Operators of their own: their time is computation in a trace, and not Python between operators. Sleeping stands for a
# device that computes without a core of the host; two ranks and their workers would fight for the cores otherwise.
_OPERATORS = torch.library.Library("accuracy", "DEF")
_OPERATORS.define("compute(Tensor x, float seconds) -> Tensor")
_OPERATORS.define("spun_compute(Tensor x, float seconds) -> Tensor")


def spin(seconds: float) -> None:
    """Take this much CPU time of the calling thread, however long that lasts."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def _compute(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x.clone()


def _spun_compute(x: torch.Tensor, seconds: float) -> torch.Tensor:
    spin(seconds)
    return x.clone()


_OPERATORS.impl("compute", _compute, "CPU")
_OPERATORS.impl("spun_compute", _spun_compute, "CPU")
compute = torch.ops.accuracy.compute
spun_compute = torch.ops.accuracy.spun_compute


@dataclass(frozen=True)
class Job:
    """Where and how long a program runs.

    Attributes:
        place: an empty directory for its files.
        steps: it makes at most so many.
        rank: of ``ranks``.
        phase: names a block of a step, where something records it.
    """

    place: Path
    steps: int
    rank: int = 0
    ranks: int = 1
    phase: Callable[[str], AbstractContextManager[Any]] = field(default=lambda _name: nullcontext())


@dataclass(frozen=True)
class Training:
    """A program ready to train: its batches, what it does with one, and how it ends.

    Attributes:
        loader: one epoch each time it is iterated.
        step: all that is done with a batch.
        model: what is trained.
        close: undoes what building it did to the process.
    """

    loader: Iterable[Any]
    step: Callable[[Any], None]
    model: torch.nn.Module
    close: Callable[[], None] = lambda: None


class Samples(Dataset[Any]):
    """``count`` samples made by ``make``."""

    def __init__(self, make: Callable[[int], Any], count: int) -> None:
        self._make = make
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._make(index)


def sample(_index: int = 0) -> torch.Tensor:
    """A sample that costs nothing."""
    return torch.ones(_WIDTH)


def slept(seconds: float) -> Callable[[int], torch.Tensor]:
    """Samples of a batch that takes ``seconds`` to fetch, without a core."""

    def make(_index: int) -> torch.Tensor:
        time.sleep(seconds / _BATCH)
        return sample()

    return make


def spun(seconds: float) -> Callable[[int], torch.Tensor]:
    """Samples of a batch that takes ``seconds`` of CPU time to decode."""

    def make(_index: int) -> torch.Tensor:
        spin(seconds / _BATCH)
        return sample()

    return make


def loader(job: Job, make: Callable[[int], Any], workers: int = 0, *, batches: int = 0, **options: Any) -> Any:
    """A loader of ``batches`` per epoch; without a number of them, an epoch lasts as long as the job."""
    samples = Samples(make, (batches or job.steps) * _BATCH)
    # Where forking is not the default, a worker would import torch again.
    context = "fork" if workers else None
    return DataLoader(samples, batch_size=_BATCH, num_workers=workers, multiprocessing_context=context, **options)


class Net(torch.nn.Module):
    """A layer behind an operator that takes ``seconds``."""

    def __init__(self, seconds: float, operator: Any = compute) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(_WIDTH, _WIDTH)
        self._seconds = seconds
        self._operator = operator

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The outputs."""
        return self.layer(self._operator(batch, self._seconds))


def nothing() -> None:
    """Nothing more is done in a step."""


def train(
    batches: Iterable[Any],
    model: torch.nn.Module,
    *,
    before: Callable[[], None] = nothing,
    after: Callable[[], None] = nothing,
    close: Callable[[], None] = nothing,
) -> Training:
    """The usual step: forward and backward between ``before`` and ``after``, then the optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step(batch: torch.Tensor) -> None:
        before()
        model(batch).square().mean().backward()
        after()
        optimizer.step()
        # Gradients that are freed would be fresh pages in the next step, a fault of its own.
        optimizer.zero_grad(set_to_none=False)

    return Training(batches, step, model, close)


def counted(every: int, action: Callable[[], None]) -> Callable[[], None]:
    """Do ``action`` in every so many steps, the first time after so many."""
    turns = _turns(every)

    def act() -> None:
        if next(turns):
            action()

    return act


def _turns(every: int) -> Iterator[bool]:
    while True:
        yield from [False] * (every - 1)
        yield True
