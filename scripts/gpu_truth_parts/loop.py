"""A training loop whose device time, host time and input are known, timed bare and recorded."""

import contextlib
import shutil
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import profilerkit
from gpu_truth_parts.device import MS, Device
from profilerkit.model.finding import Finding
from profilerkit.model.report import Report

#: Steps before the clock of :func:`wall_s` starts.
_WARM_STEPS = 10


@dataclass(frozen=True, slots=True)
class Loop:
    """One training loop.

    Attributes:
        device_s: work of the device in a step, seconds.
        host_s: what Python computes in a step, seconds.
        sample_s: a sample blocks its reader this long, as storage does.
        sample_bytes: size of a batch.
        pinned: batches lie in pinned memory and are copied without waiting. Not with loader workers: a forked process
            cannot read what CUDA pinned.
        loader: arguments of the ``DataLoader``.
        item_every: steps between two reads of the loss; 0 for never.
        accumulate: micro-batches of a step.
        body: takes the place of ``device_s``.
        after: called with the number of each step after its optimizer.
        layers: of the model; each is ``width`` wide.
        adamw: arguments of ``AdamW``; ``None`` for SGD.
    """

    device_s: float = 20 * MS
    host_s: float = 0.0
    sample_s: float = 0.0
    sample_bytes: int = 4096
    pinned: bool = True
    loader: Mapping[str, Any] = field(default_factory=dict)
    item_every: int = 10
    accumulate: int = 1
    body: Callable[[Device], None] | None = None
    after: Callable[[Device, int], None] | None = None
    layers: int = 1
    width: int = 64
    adamw: Mapping[str, Any] | None = None

    def run(self, device: Device, steps: int, recording: Any = None) -> Generator[None]:
        """Train; yields at the end of each step. ``recording`` is what ``profilerkit.profile`` entered."""
        net = torch.nn.Sequential(*(torch.nn.Linear(self.width, self.width) for _ in range(self.layers)))
        parameters = list(net.to(device.name).parameters())
        optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, lr=1e-4)
        if self.adamw is not None:
            optimizer = torch.optim.AdamW(parameters, **self.adamw)
        inputs = torch.randn(16, self.width, device=device.name)
        data: Any = DataLoader(self._samples(device, steps), batch_size=None, **self.loader)
        for number, batch in enumerate(data if recording is None else recording.wrap(data), 1):
            moved = batch.to(device.name, non_blocking=self.pinned)
            self.body(device) if self.body else device.burn(self.device_s / self.accumulate)
            _spin(self.host_s / self.accumulate)
            (net(inputs).square().mean() + 0.0 * moved[0]).backward()
            if number % self.accumulate:
                continue
            optimizer.step()
            optimizer.zero_grad()
            step = number // self.accumulate
            if self.item_every and step % self.item_every == 0:
                device.read()
            if self.after:
                self.after(device, step)
            if recording is not None and self.accumulate > 1:
                recording.step()
            yield

    def _samples(self, device: Device, steps: int) -> "_Samples":
        sample = torch.zeros(self.sample_bytes // 4)
        if self.pinned and device.name == "cuda":
            sample = sample.pin_memory()
        return _Samples(sample, steps * self.accumulate, self.sample_s)


def _read_often(device: Device) -> None:
    for _ in range(100):
        device.read()


#: Loops whose step is what the host does for the device: launches of small kernels, or values read one by one.
HOST_LOOPS = {
    "launches": Loop(body=lambda device: device.tiny(400), item_every=1),
    "reads": Loop(body=_read_often, item_every=1),
}


class _Samples(Dataset):
    """The same sample again and again."""

    def __init__(self, sample: torch.Tensor, count: int, sample_s: float) -> None:
        self._sample, self._count, self._sample_s = sample, count, sample_s

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, _index: int) -> torch.Tensor:
        if self._sample_s:
            time.sleep(self._sample_s)
        return self._sample


def _spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@contextlib.contextmanager
def _recording(path: Path, settings: Mapping[str, Any]) -> Iterator[Any]:
    """A recording at ``path``, where no earlier one stays."""
    shutil.rmtree(path, ignore_errors=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with profilerkit.profile(path, analyze=False, **settings) as recording:
            yield recording


def wall_s(
    loop: Loop, device: Device, steps: int, path: Path | None = None, *, warm_s: float = 0.0, **settings: Any
) -> float:
    """Mean seconds of a step, the device waited for before the first and after the last; recorded where a path is.

    ``warm_s`` is how long it trains before the clock starts, beside some steps.
    """
    with _recording(path, settings) if path else contextlib.nullcontext() as recording:
        warm_steps = _WARM_STEPS + (round(warm_s / wall_s(loop, device, _WARM_STEPS)) if warm_s else 0)
        run = loop.run(device, steps + warm_steps, recording)
        for _ in range(warm_steps):
            next(run)
        device.sync()
        began_s = time.perf_counter()
        for _ in range(steps):
            next(run)
        device.sync()
        taken_s = time.perf_counter() - began_s
        run.close()
    return taken_s / steps


def record(loop: Loop, device: Device, path: Path, steps: int, **settings: Any) -> tuple[Report, float]:
    """The report of the loop under ``profilerkit.profile``, and the mean ms of the recorded steps by a wall clock."""
    wall_ms = 1e3 * wall_s(loop, device, steps, path, **settings)
    return profilerkit.analyze(str(path)), wall_ms


def findings(report: Report) -> dict[str, tuple[Finding, ...]]:
    """The findings of each rule that fired, by its code."""
    return {outcome.rule: outcome.findings for outcome in report.outcomes if outcome.status == "fired"}


def mean_step_ms(report: Report) -> float | None:
    """The report's mean step, ms."""
    return report.steps.time_ns.mean / 1e6 if report.steps.time_ns else None
