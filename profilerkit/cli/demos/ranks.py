"""Two ranks that train one classifier over gloo; one of them reads slow storage, and the other waits for it."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from profilerkit.api import load
from profilerkit.cli.demos.classifier import BATCH, TRACE_STEPS, WARMUP_STEPS, Clock, build, layers_for, step, step_s
from profilerkit.cli.demos.storage import loader_of, propose_workers
from profilerkit.cli.demos.trained import Trained

FAULT = "rank 1 of two reads slow storage in its training process, and rank 0 waits for it"

#: What the loader of the late rank starts with.
SLOW: dict[str, int] = {"num_workers": 0}

_RANKS, _LATE = 2, 1
_STEPS = 50
_STEP_S = 0.03
# The late rank waits for three quarters of each of its steps. In the second run the ranks compute at the same time: the
# less they compute, the less it shows where there are fewer free cores than ranks.
_READ_TO_COMPUTE = 3.0
_TIMES, _REPORT = "times.json", "report.json"


@dataclass(frozen=True, slots=True)
class Workload:
    """A model sized for this machine, and the late rank's storage sized for that model."""

    layers: int
    read_s: float


def prepare() -> Workload:
    """Size the model so that its step takes about 30 ms here on one thread, and the storage to match."""
    layers = layers_for(_STEP_S)
    return Workload(layers=layers, read_s=_READ_TO_COMPUTE * step_s(layers) / BATCH)


def train(workload: Workload, settings: dict[str, int], directory: Path) -> Trained:
    """Train for a fixed number of steps on both ranks, each a process under ``profilerkit.profile``."""
    with TemporaryDirectory() as shared:
        processes.spawn(_rank, (workload, settings, directory, Path(shared)), nprocs=_RANKS)
        times = json.loads((Path(shared) / _TIMES).read_text("utf-8"))
    report = directory / _REPORT
    return Trained(report=load(report) if report.is_file() else None, **times)


def _rank(number: int, workload: Workload, settings: dict[str, int], directory: Path, shared: Path) -> None:
    from profilerkit import profile

    os.environ.update({"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(_RANKS)})
    # Both are on this host: its name need not lead back to it.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{shared / 'meeting'}", rank=number, world_size=_RANKS)
    late = number == _LATE
    loader = loader_of(_STEPS * BATCH, workload.read_s if late else 0.0, settings["num_workers"] if late else 0)
    model, optimizer = build(workload.layers)
    clock = Clock()
    with profile(directory, warmup_steps=WARMUP_STEPS, trace_steps=TRACE_STEPS) as profiler:
        for features, labels in profiler.wrap(loader):
            clock.start()
            step(model, optimizer, features, labels)
            clock.computed()
            _average(model)
    if number == 0:
        trained = clock.trained(profiler.report)
        times = {"step_ns": trained.step_ns, "compute_ns": trained.compute_ns, "steps": trained.steps}
        (shared / _TIMES).write_text(json.dumps(times), "utf-8")
    dist.destroy_process_group()


def _average(model: torch.nn.Module) -> None:
    """Make the weights of all ranks their mean, in one collective."""
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    dist.all_reduce(weights)
    torch.nn.utils.vector_to_parameters(weights / _RANKS, model.parameters())


propose = propose_workers
