"""Random but seeded jobs with nothing wrong: sizes, chips and host costs over the ranges that real runs show."""

import random
from collections.abc import Sequence
from dataclasses import replace

from simulator.job import MS, Comm, Data, Host, Job, Model, Recording
from simulator.kernels import A100, H100, V100, Chip
from simulator.model import device_ns

_SIZES = [(tokens, hidden) for hidden in (1024, 2048) for tokens in (2048, 4096, 8192, 16_384)]
#: Part of the attainable roof that real kernels of each kind get to.
_REACHED = {
    "gemm": (0.70, 0.98), "misaligned gemm": (0.20, 0.42), "attention": (0.55, 0.85), "pointwise": (0.75, 0.99),
    "norm": (0.70, 0.95), "gather": (0.55, 0.90), "optimizer": (0.75, 0.98),
}  # fmt: skip


def plain(
    rng: random.Random, *, low_ms: float = 8.0, high_ms: float = 30.0, chips: Sequence[Chip] = (A100, H100, V100),
    layers: Sequence[int] = (1, 2), readback: bool | None = None,
) -> Job:  # fmt: skip
    """A transformer whose kernels take between ``low_ms`` and ``high_ms`` per step; alone on one device."""
    reached = {kind: rng.uniform(*edges) for kind, edges in _REACHED.items()}
    while True:
        tokens, hidden = rng.choice(_SIZES)
        model = Model(layers=rng.choice(list(layers)), hidden=hidden, tokens=tokens)
        job = Job(rng.randrange(1 << 31), chip=rng.choice(list(chips)), reached=reached, model=model)
        if low_ms * MS <= device_ns(job) <= high_ms * MS:
            break
    reads = rng.random() < 0.6 if readback is None else readback
    host = Host(
        operator_us=rng.uniform(6, 13), between_us=rng.uniform(1.5, 5), launch_us=rng.uniform(3.5, 6),
        latency_us=rng.uniform(1.5, 4.5), wake_us=rng.uniform(3, 9), jitter_ratio=rng.uniform(0.003, 0.02),
        readback=reads, queue=rng.randint(40, 120),
    )  # fmt: skip
    data = Data(fetch_us=rng.uniform(40, 120), bytes=8 * model.tokens, gb_per_s=0.7 * job.chip.pcie_gb_per_s)
    return replace(
        job, host=host, data=data, before=2 if reads else 5, warmup=rng.choice([0, 0, 0, 1, 2]), recording=recorded(rng)
    )


def recorded(rng: random.Random) -> Recording:
    """What a profiler was told to record: any mixture."""
    return Recording(
        sync_rows=rng.random() < 0.5,
        stacks=rng.random() < 0.15,
        flows=rng.random() < 0.2,
        instants=rng.random() < 0.3,
        metadata=rng.choice(["full", "full", "no sequence"]),
    )


def averaging(
    rng: random.Random, job: Job, *, ranks: Sequence[int] = (2, 3, 4), hidden_ratio: float = 0.3,
    buckets: tuple[int, int] = (2, 5),
) -> Job:  # fmt: skip
    """Data-parallel training whose collectives take ``hidden_ratio`` of the step and start during backward."""
    count, of_layer = rng.choice(list(ranks)), rng.randint(*buckets)
    bus = rng.uniform(20, 200)
    each_ns = hidden_ratio * device_ns(job) / (of_layer * job.model.layers)
    comm = Comm(
        kind="ddp", ranks=count, buckets=of_layer, bytes=whole(each_ns * bus * count / (2 * (count - 1))),
        bus_gb_per_s=bus, latency_us=rng.uniform(15, 35),
    )  # fmt: skip
    return replace(job, comm=comm)


def added(job: Job, share: float) -> float:
    """How long something must take, µs, to own ``share`` of the step beside the kernels of the model."""
    return device_ns(job) * share / (1.0 - share) / 1000.0


def whole(size: float) -> int:
    """A size in bytes that is a multiple of many small numbers, so that shards are whole."""
    return max(round(size / 9216), 1) * 9216
