"""One rank of a recorded job: ``-m rank_recordings.train KIND LOOP DIRECTORY SEED SOURCE...``, started as by torchrun.

Trains once for each source: for ``trace`` under ``torch.profiler``, which leaves ``trace/rank<N>.json``; for ``run``
under ``profilerkit.profile``, which leaves ``run/``. Its own timers go to ``timers/<source>.<rank>.json``.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from time import perf_counter_ns

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

import profilerkit
from rank_recordings.kinds import KINDS, LATE_RANK, STEPS, WARMUP_STEPS, Kind

BATCH = 8
#: A rank whose peer died does not wait for it half an hour, which is gloo's default.
PATIENCE = timedelta(seconds=60)


@torch.library.custom_op("rank_recordings::forward", mutates_args=())
def forward(batch: torch.Tensor, seconds: float) -> torch.Tensor:
    """An operator that takes its time as on an accelerator: without a core, which two ranks would fight for."""
    time.sleep(seconds)
    return batch.clone()


class Weights(torch.nn.Module):
    """Parameters whose gradient is the same for all: it costs one pass over them, and its reduction all the bytes."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.zeros(size_bytes // 4))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """A number that depends on all of them."""
        return batch.mean() * self.values.sum()


class Samples(Dataset[float]):
    """Samples for all steps; the first one of each batch takes ``seconds`` to load."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return (WARMUP_STEPS + STEPS) * BATCH

    def __getitem__(self, index: int) -> float:
        if index % BATCH == 0:
            time.sleep(self.seconds)
        return 1.0


class Training:
    """The loop of one rank, with its timers.

    Attributes:
        marks: one row per step, ns on the clock that all processes of a host share.
    """

    def __init__(self, kind: Kind, loop: str, rank: int, seed: str) -> None:
        late = rank == LATE_RANK
        self.input_s = (kind.input_ms + late * kind.late_input_ms) / 1e3
        self.compute_s = kind.compute_ms / 1e3
        self.late_compute_ns = int(1e6 * late * kind.late_compute_ms)
        self.jitter_s = kind.jitter_ms / 1e3
        self.draw = random.Random(f"{seed} {rank}")
        weights = Weights(kind.gradient_bytes)
        weights.values.register_post_accumulate_grad_hook(self.arrive)
        self.explicit = loop == "explicit"
        # As a view, the gradient needs no copy between the hook and the reduction.
        wrapped = None if self.explicit else DistributedDataParallel(weights, gradient_as_bucket_view=True)
        self.model: torch.nn.Module = wrapped or weights
        self.arrived = 0
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.factor, self.product = torch.randn(256, 256), torch.empty(256, 256)
        self.marks: list[dict[str, int]] = []

    def loader(self) -> DataLoader[torch.Tensor]:
        """The data of all steps."""
        return DataLoader(Samples(self.input_s), batch_size=BATCH)

    def train(self, loader: Iterable[torch.Tensor], end_step: Callable[[], None]) -> None:
        """Train over ``loader``; the ranks leave each step's reduction of the gradients together."""
        start = perf_counter_ns()
        for batch in loader:
            marks = {"start": start, "fetched": perf_counter_ns()}
            features = forward(batch, self.compute_s)
            self.compute_more()
            marks["computed"] = perf_counter_ns()
            if self.jitter_s:
                time.sleep(self.draw.uniform(0, self.jitter_s))
            self.model(features).backward()
            if self.explicit:
                for parameter in self.model.parameters():
                    dist.all_reduce(parameter.grad)
            marks |= {"arrived": self.arrived, "left": perf_counter_ns()}
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)
            end_step()
            start = marks["end"] = perf_counter_ns()
            self.marks.append(marks)

    def arrive(self, _gradient: torch.Tensor) -> None:
        """The gradient is there; what follows is its reduction."""
        self.arrived = perf_counter_ns()

    def compute_more(self) -> None:
        """Matrix products until the time of the late rank is over: as long on a busy machine as on a quiet one."""
        until_ns = perf_counter_ns() + self.late_compute_ns
        while perf_counter_ns() < until_ns:
            torch.mm(self.factor, self.factor, out=self.product)


def record_trace(training: Training, directory: Path, rank: int) -> None:
    """Train under plain ``torch.profiler``."""
    trace = directory / "trace" / f"rank{rank}.json"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=WARMUP_STEPS - 1, warmup=1, active=STEPS),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(trace)),
    ) as profiler:
        training.train(training.loader(), profiler.step)
    save(directory, "trace", rank, training)


def record_run(training: Training, directory: Path, rank: int) -> None:
    """Train under ``profilerkit.profile``."""
    with profilerkit.profile(directory / "run", analyze=False) as recording:
        training.train(recording.wrap(training.loader()), lambda: None)
    save(directory, "run", rank, training)


def save(directory: Path, source: str, rank: int, training: Training) -> None:
    """Write the marks of one loop."""
    (directory / "timers" / f"{source}.{rank}.json").write_text(json.dumps(training.marks) + "\n", "utf-8")


def main() -> None:
    kind, loop, directory, seed = KINDS[sys.argv[1]], sys.argv[2], Path(sys.argv[3]), sys.argv[4]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # One core per rank: torch's own threads would take the other rank's.
    torch.set_num_threads(1)
    store = dist.FileStore(str(directory / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=PATIENCE)
    for source in sys.argv[5:]:
        record = {"trace": record_trace, "run": record_run}[source]
        record(Training(kind, loop, rank, f"{seed} {source}"), directory, rank)
        dist.barrier()
    # torch 2.13 aborts in some 10 % of two-rank gloo runs in destroy_process_group, after their work is done.


if __name__ == "__main__":
    main()
