"""A real training loop on the CPU whose steps take a given time on this machine."""

import statistics
from collections.abc import Iterator
from time import sleep, thread_time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

#: Width of the layers and samples per batch, by the step's length in ms; the number of layers makes the rest.
_SHAPES = {0.0: (8, 4), 1.0: (128, 16), 5.0: (256, 32), 50.0: (512, 128)}
#: How often the number of layers is put right by what they take together (a choice).
_ROUNDS = 6


class Rows(Dataset):
    """As many rows as anybody asks for."""

    def __init__(self, width: int) -> None:
        self._rows = torch.randn(256, width, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._rows[index % 256]


class Workload:
    """Model, optimizer and loader. The four parts of a step are methods, so that a profiler can be put around each.

    Attributes:
        model: what is trained.
        batches: the loader's iterator; it never ends.
        workers: of the loader.
        step_s: median CPU time of a step as it was calibrated, and what it waits; on a quiet machine that is its time.
    """

    def __init__(self, step_ms: float, workers: int, wait_ms: float = 0.0) -> None:
        torch.set_num_threads(1)
        step_ms -= wait_ms
        self._wait_s = wait_ms / 1e3
        torch.manual_seed(0)
        self._width, self._batch = _SHAPES[step_ms]
        self.workers = workers
        self.batches = self.loader()
        self.layers = 1
        self.build()
        if step_ms:
            one_s = self._median_s()
            self.layers = 5
            self.build()
            per_layer_s = max((self._median_s() - one_s) / 4, 1e-6)
            self.layers = max(1, round(1 + (step_ms / 1e3 - one_s) / per_layer_s))
            self.build()
            for _ in range(_ROUNDS):  # layers that no longer fit the caches take longer: half of the way at a time
                self.layers = max(1, round(self.layers * (1 + step_ms / 1e3 / self._median_s()) / 2))
                self.build()
        self.step_s = self._median_s() + self._wait_s

    def loader(self) -> Iterator[torch.Tensor]:
        """A new endless iterator over the rows, with its workers."""
        return iter(DataLoader(Rows(self._width), batch_size=self._batch, num_workers=self.workers))

    def build(self) -> None:
        """A new model of ``layers`` layers, and its optimizer."""
        layers: list[torch.nn.Module] = []
        for _ in range(self.layers):
            layers += [torch.nn.Linear(self._width, self._width), torch.nn.ReLU()]
        self.model: Any = torch.nn.Sequential(*layers)
        self.optimize_with()

    def optimize_with(self) -> None:
        """An optimizer for the model as it is now."""
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return self.model(batch).square().mean()

    def update(self) -> None:
        """After the backward pass."""
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._wait_s:
            sleep(self._wait_s)

    def step(self, batches: Iterator[torch.Tensor]) -> None:
        """One step on the next of ``batches``."""
        self.forward(next(batches)).backward()
        self.update()

    def _median_s(self) -> float:
        spans = []
        for number in range(25):
            start_s = thread_time()
            self.step(self.batches)
            if number >= 5:
                spans.append(thread_time() - start_s)
        return statistics.median(spans)
