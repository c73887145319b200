"""Runs bound by memory: its bandwidth, its allocation, its growth."""

import torch

from accuracy_benchmark.scenario import HEALTHY, Build, Fix, Scenario
from accuracy_benchmark.training import Job, Net, Training, loader, sample, train

_BOUND = ("memory-bound",)
_COMPUTE_S = 0.020
_SHORT_S = 0.005
_MIB = 1 << 20


def _elementwise(*, fused: bool) -> Build:
    """A chain over 64 MiB, which no cache holds; fused it goes over them in pieces that one holds."""
    values = torch.ones(16 * _MIB)

    def chain(part: torch.Tensor) -> None:
        for _ in range(8):
            part.mul_(1.0)

    def in_pieces() -> None:
        for part in values.split(_MIB // 16):
            chain(part)

    return lambda job: train(loader(job, sample), Net(0.0), after=in_pieces if fused else lambda: chain(values))


def _buffers(*, reused: bool) -> Build:
    kept = torch.empty(16 * _MIB)

    def fill() -> None:
        (kept if reused else torch.empty(16 * _MIB)).fill_(1.0)

    return lambda job: train(loader(job, sample), Net(_SHORT_S), after=fill)


def _history(*, detached: bool) -> Build:
    def build(job: Job) -> Training:
        net = Net(_COMPUTE_S)
        scale = torch.nn.Parameter(torch.ones(1))
        metrics: list[torch.Tensor] = []

        def note() -> None:
            metric = (scale * torch.ones(_MIB // 8)).sum()
            metrics.append(metric.detach() if detached else metric)

        return train(loader(job, sample), net, after=note, close=metrics.clear)

    return build


SCENARIOS = (
    Scenario(
        "C25", "a chain of element-wise operators over 64 MiB", "memory", _BOUND, _elementwise(fused=False),
        ("bandwidth",), (), (Fix("in pieces that the cache holds", ("CP004",), _elementwise(fused=True)),),
    ),
    Scenario(
        "C26", "a fresh tensor of 64 MiB in each step", "memory", _BOUND, _buffers(reused=False), ("capacity",),
        (), (Fix("one buffer", ("ME001",), _buffers(reused=True)),), steps=150,
    ),
    Scenario(
        "C27", "a list keeps the graph of each step", "healthy", HEALTHY, _history(detached=False), (), ("ME004",),
        (Fix("detach()", (), _history(detached=True)),), steps=1_700,
    ),
)  # fmt: skip
