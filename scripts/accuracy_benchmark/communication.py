"""Two ranks over gloo: large gradients, many small reductions, late ranks, no overlap, needless reductions."""

import random
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from accuracy_benchmark.scenario import HEALTHY, Build, Fix, Scenario, changed
from accuracy_benchmark.training import Job, Net, Training, compute, loader, sample, slept, train

_BOUND = ("comm-bound",)
_COMPUTE_S = 0.020
_LATE_RANK = 1
_MIB = 1 << 20


class Weighty(Net):
    """A net with parameters whose gradients cost one pass, and their reduction all the bytes."""

    def __init__(self, seconds: float, size_bytes: int) -> None:
        super().__init__(seconds)
        self.values = torch.nn.Parameter(torch.zeros(size_bytes // 4))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The outputs, which depend on all parameters."""
        return super().forward(batch) + batch.mean() * self.values.sum()


class _SleepsBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, outputs: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = seconds
        return outputs.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return compute(gradients[0], context.seconds), None


class Layered(Net):
    """Layers whose backward passes take their time, so that the reduction of one can hide behind the next."""

    def __init__(self, layers: int, seconds: float, size_bytes: int) -> None:
        super().__init__(0.0)
        self.values = torch.nn.ParameterList([torch.zeros(size_bytes // 4) for _ in range(layers)])
        self._each_s = seconds

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The outputs of the last layer."""
        out = super().forward(batch)
        for value in self.values:
            out = _SleepsBackward.apply(out, self._each_s) + out.mean() * value.sum()
        return out


def _large(size_bytes: int, *, half: bool = False) -> Build:
    def build(job: Job) -> Training:
        model = DistributedDataParallel(Weighty(0.015, size_bytes), gradient_as_bucket_view=True)
        if half:
            model.register_comm_hook(None, fp16_compress_hook)
        return train(loader(job, sample), model)

    return build


def _many(count: int) -> Build:
    def build(job: Job) -> Training:
        parts = torch.ones(300).split(300 // count)

        def reduce() -> None:
            for part in parts:
                dist.all_reduce(part)

        return train(loader(job, sample), Net(0.015), after=reduce)

    return build


def _late_input(workers: int) -> Build:
    def build(job: Job) -> Training:
        is_late = job.rank == _LATE_RANK
        batches = loader(job, slept(0.020 if is_late else 0.0), workers if is_late else 0)
        return train(batches, DistributedDataParallel(Net(0.015)))

    return build


def _late_compute(*calls: int) -> Build:
    """As many operators of 8 ms as each rank has: the late one has more to do, not slower cores."""

    def build(job: Job) -> Training:
        def more() -> None:
            for _ in range(calls[job.rank] - 1):
                compute(sample(), 0.008)

        return train(loader(job, sample), DistributedDataParallel(Net(0.008)), before=more)

    return build


def _jitter(job: Job) -> Training:
    draw = random.Random(job.rank)
    model = DistributedDataParallel(Net(_COMPUTE_S))
    return train(loader(job, sample), model, before=lambda: _nothing_back(compute(sample(), draw.uniform(0.0, 0.004))))


def _nothing_back(_result: torch.Tensor) -> None:
    pass


def _layered(*, overlapped: bool) -> Build:
    def build(job: Job) -> Training:
        net = Layered(4, 0.008, 6 * _MIB)
        if overlapped:
            return train(loader(job, sample), DistributedDataParallel(net, bucket_cap_mb=6))

        def reduce() -> None:
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)

        return train(loader(job, sample), net, after=reduce)

    return build


def _accumulated(*, no_sync: bool) -> Build:
    def build(job: Job) -> Training:
        model = DistributedDataParallel(Weighty(0.005, 8 * _MIB), gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

        def step(batch: torch.Tensor) -> None:
            *first, last = batch.split(1)
            for micro in first:
                model.require_backward_grad_sync = not no_sync
                model(micro).square().mean().backward()
            model.require_backward_grad_sync = True
            model(last).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

        return Training(loader(job, sample), step, model)

    return build


def _hidden_input(fetch_s: float, size_bytes: int) -> Build:
    """The next batch is fetched while the gradients of the last are still being reduced."""

    def build(job: Job) -> Training:
        net = Net(_COMPUTE_S)
        gradients = torch.ones(size_bytes // 4)
        pending: list[Any] = []
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)

        def step(batch: torch.Tensor) -> None:
            for work in pending:
                work.wait()
            optimizer.step()
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            pending[:] = [dist.all_reduce(gradients, async_op=True)]

        def close() -> None:
            for work in pending:
                work.wait()

        def fetch(_index: int) -> torch.Tensor:
            time.sleep(fetch_s / 4)
            return sample()

        return Training(loader(job, fetch), step, net, close)

    return build


SCENARIOS = (
    Scenario(
        "C28", "gradients of 32 MB", "communication", _BOUND, _large(32 * _MIB), ("bandwidth",), ("CO001",),
        (
            Fix("gradients of 8 MB", (), _large(8 * _MIB)),
            Fix("FP16 on the wire", ("CO010",), _large(32 * _MIB, half=True)),
        ),
        ranks=2,
    ),
    Scenario(
        "C29", "300 tiny reductions in each step", "communication", _BOUND, _many(300), ("latency",),
        ("CO005", "CO001"), (Fix("flattened into one", ("CO005", "CO001"), _many(1)),), ranks=2,
    ),
    Scenario(
        "C30", "rank 1 fetches slowly", "input", ("input-bound",), _late_input(0), ("fetch",), ("CO003",),
        (changed("num_workers", 0, 2, ("IN002", "CO003", "IN001"), _late_input, "rank 1: {} {} → {}"),),
        ranks=2, rank=_LATE_RANK,
    ),
    Scenario(
        "C31", "rank 1 has twice the work", "compute", ("compute-bound",), _late_compute(2, 4),
        ("imbalance",), ("CO003",), (Fix("balanced", ("CO003",), _late_compute(3, 3)),),
        ranks=2, rank=_LATE_RANK,
    ),
    Scenario(
        "C32", "both ranks jitter", "healthy", HEALTHY, _jitter, ranks=2,
    ),
    Scenario(
        "C33", "gradients are reduced after backward", "communication", _BOUND, _layered(overlapped=False),
        ("no-overlap",), ("CO002", "CO001"), (Fix("DDP", ("CO002", "CO001"), _layered(overlapped=True)),), ranks=2,
    ),
    Scenario(
        "C34", "gradients are reduced in each micro-batch", "communication", _BOUND, _accumulated(no_sync=False),
        (), ("CO007",), (Fix("no_sync()", ("CO007",), _accumulated(no_sync=True), "no_sync"),), ranks=2,
    ),
    Scenario(
        "C36", "fetching hidden behind communication", "communication", _BOUND, _hidden_input(0.012, 32 * _MIB), (),
        ("CO001",),
        (
            Fix("gradients of 4 MB", ("CO001", "CO002", "CO010"), _hidden_input(0.012, 4 * _MIB)),
            Fix("no fetching", ("IN001", "IN002"), _hidden_input(0.0, 32 * _MIB)),
            Fix("both", (), _hidden_input(0.0, 4 * _MIB)),
        ),
        ranks=2,
    ),
)  # fmt: skip
