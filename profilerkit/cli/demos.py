"""Training programs with one fault each, timed beside profilerkit, and the fix that their reports propose."""

import ctypes
import json
import os
import re
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from profilerkit.api import load
from profilerkit.model.finding import Saving, in_order
from profilerkit.model.report import Report

if TYPE_CHECKING:
    from profilerkit.capture.profiler import Profile

#: The deep window comes first; the steps compared are the ones after it, which no profiler slowed.
_WARMUP_STEPS, _TRACE_STEPS, _COMPARED_STEPS = 5, 10, 30
_STEPS = 50


@dataclass(frozen=True, slots=True)
class Trained:
    """One training run.

    Attributes:
        step_ns: mean of the last ``steps`` steps by the program's own clock, none of them under torch's profiler.
            Not the median: two workers deliver in pairs, so long and short steps alternate.
        compute_ns: mean of what the program computes in these steps, without what the fix changes: where it differs
            between two runs, the machine was busy with something else.
    """

    report: Report | None
    step_ns: float
    compute_ns: float
    steps: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """The fix to apply, as settings of the program and in words.

    ``saving`` and ``rule`` are ``None`` when the report predicts nothing.
    """

    settings: dict[str, int]
    text: str
    saving: Saving | None
    rule: str | None


#: Trains with settings into a directory.
Train = Callable[[dict[str, int], Path], Trained]


@dataclass(frozen=True, slots=True)
class Program:
    """One fault, what the loop is set to with it, how to size the program for this machine, and how it is mended."""

    fault: str
    slow: dict[str, int]
    prepare: Callable[[], Train]
    propose: Callable[[Trained], Proposal]


def _fixed_by(rule: str, settings: dict[str, int], text: str, trained: Trained) -> Proposal:
    """The fix ``text`` with the saving that ``rule`` predicts; without one where it is silent."""
    for outcome, finding in in_order(trained.report.outcomes) if trained.report else ():
        if outcome.rule == rule:
            return Proposal(settings, text, finding.saving, rule)
    return Proposal(settings, text, None, None)


class _Clock:
    """When steps began and how long they computed, ns."""

    def __init__(self) -> None:
        self._starts_ns: list[int] = []
        self._computes_ns: list[int] = []

    def start(self) -> None:
        self._starts_ns.append(time.perf_counter_ns())

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The part of it that no fix changes."""
        started_ns = time.perf_counter_ns()
        yield
        self._computes_ns.append(time.perf_counter_ns() - started_ns)

    def trained(self, report: Report | None) -> Trained:
        return Trained(
            report=report,
            step_ns=(self._starts_ns[-1] - self._starts_ns[-1 - _COMPARED_STEPS]) / _COMPARED_STEPS,
            compute_ns=fmean(self._computes_ns[-1 - _COMPARED_STEPS : -1]),
            steps=_COMPARED_STEPS,
        )


# Programs of one process: a small classifier on one thread. Small layers and long samples: the weights stay in the
# processor's cache, so neighbours on a shared machine disturb the step less.
_BATCH, _TOKENS, _WIDTH, _CLASSES = 16, 64, 256, 10
_TIMED_STEPS = 20


def _build(layers: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    hidden = [module for _ in range(layers) for module in (torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*hidden, torch.nn.Linear(_WIDTH, _CLASSES))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def _step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, features: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Train on one batch; the scores of its tokens, ``(batch, tokens, classes)``."""
    optimizer.zero_grad()
    scores: torch.Tensor = model(features)
    torch.nn.functional.cross_entropy(scores.mean(dim=1), labels).backward()
    optimizer.step()
    return scores.detach()


def _sample(index: int) -> tuple[torch.Tensor, int]:
    return torch.randn(_TOKENS, _WIDTH, generator=torch.Generator().manual_seed(index)), index % _CLASSES


def _layers_for(seconds: float) -> int:
    """How many layers make a step that takes this long here, on one thread."""
    torch.set_num_threads(1)
    return max(2, min(64, round(8 * seconds / _step_s(8))))


def _step_s(layers: int) -> float:
    model, optimizer = _build(layers)
    samples = [_sample(index) for index in range(_BATCH)]
    features, labels = torch.stack([features for features, _ in samples]), torch.tensor([label for _, label in samples])
    for _ in range(2):
        _step(model, optimizer, features, labels)
    started_s = time.perf_counter()
    for _ in range(_TIMED_STEPS):
        _step(model, optimizer, features, labels)
    return (time.perf_counter() - started_s) / _TIMED_STEPS


def _train_alone(
    loader: Iterable[Any], layers: int, directory: Path, after: Callable[[torch.Tensor], object] = lambda scores: None
) -> Trained:
    """Train over the loader under ``profilerkit.profile``; ``after`` does something with the scores of each step."""
    from profilerkit import profile

    model, optimizer = _build(layers)
    clock = _Clock()
    with profile(directory, warmup_steps=_WARMUP_STEPS, trace_steps=_TRACE_STEPS) as profiler:
        for features, labels in profiler.wrap(loader):
            clock.start()
            with clock.computing():
                scores = _step(model, optimizer, features, labels)
            after(scores)
    return clock.trained(profiler.report)


def _random_batches(steps: int) -> DataLoader[Any]:
    torch.manual_seed(0)
    samples = steps * _BATCH
    features, labels = torch.randn(samples, _TOKENS, _WIDTH), torch.zeros(samples, dtype=torch.long)
    return DataLoader(TensorDataset(features, labels), batch_size=_BATCH)


# Input: one process waits for more than half of each step; two workers just keep up, and bound the step where the
# processor is faster in the second run than in the first.
_INPUT_STEP_S, _READ_TO_COMPUTE = 0.045, 1.7


class _SlowStorage:
    """Random samples that take ``read_s`` seconds each to read, without using the processor."""

    def __init__(self, samples: int, read_s: float) -> None:
        self.samples = samples
        self.read_s = read_s

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.read_s)
        return _sample(index)


def _prepare_input() -> Train:
    layers = _layers_for(_INPUT_STEP_S)
    read_s = _READ_TO_COMPUTE * _step_s(layers) / _BATCH

    def train(settings: dict[str, int], directory: Path) -> Trained:
        torch.manual_seed(0)
        workers = settings["num_workers"]
        # torch warns of more workers than cores; these sleep.
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        loader: Iterable[Any] = DataLoader(
            _SlowStorage(_STEPS * _BATCH, read_s),
            batch_size=_BATCH,
            num_workers=workers,
            persistent_workers=workers > 0,
            # Where forking is not the default, a worker would import torch again: seconds, for nothing shown here.
            multiprocessing_context="fork" if workers else None,
        )
        return _train_alone(loader, layers, directory)

    return train


def _propose_workers(trained: Trained) -> Proposal:
    """The number of workers the report proposes for a loader without any, and what it promises."""
    workers, saving, rule = 2, None, None
    for outcome, finding in in_order(trained.report.outcomes) if trained.report else ():
        found = re.search(r"num_workers\s*=\s*(\d+)", finding.fix.code if finding.fix else "")
        if outcome.rule.startswith("IN") and found and int(found[1]) > 0:
            workers, saving, rule = int(found[1]), finding.saving, outcome.rule
            break
    return Proposal({"num_workers": workers}, f"num_workers 0 → {workers}, persistent_workers=True", saving, rule)


# Overhead: Python takes more than half of each step.
_OVERHEAD_STEP_S, _PYTHON_TO_COMPUTE = 0.03, 1.3
_TIMED_COUNTS = 20


def _prepare_overhead() -> Train:
    layers = _layers_for(_OVERHEAD_STEP_S)
    scores = torch.randn(_BATCH, _TOKENS, _CLASSES)
    started_s = time.perf_counter()
    _count(scores, _TIMED_COUNTS)
    once_s = (time.perf_counter() - started_s) / _TIMED_COUNTS
    times = max(1, round(_PYTHON_TO_COMPUTE * _step_s(layers) / once_s))

    def train(settings: dict[str, int], directory: Path) -> Trained:
        count = _count_at_once if settings["vectorised"] else _count
        return _train_alone(_random_batches(_STEPS), layers, directory, lambda scores: count(scores, times))

    return train


def _count(scores: torch.Tensor, times: int) -> list[int]:
    """How often each class has the best score, token by token."""
    values = scores.flatten().tolist()
    counts = [0] * _CLASSES
    for _ in range(times):
        for first in range(0, len(values), _CLASSES):
            best = first
            for at in range(first + 1, first + _CLASSES):
                if values[at] > values[best]:
                    best = at
            counts[best - first] += 1
    return counts


def _count_at_once(scores: torch.Tensor, times: int) -> list[int]:
    counts: list[int] = (times * torch.bincount(scores.flatten(0, 1).argmax(dim=1), minlength=_CLASSES)).tolist()
    return counts


# Memory: pages are counted once a second, and three seconds are asked for.
_MEMORY_STEPS, _MEMORY_STEP_S = 150, 0.01
_ELEMENTS = 16 << 20
# prctl's PR_SET_THP_DISABLE, of linux/prctl.h.
_NO_HUGE_PAGES = 41


def _prepare_memory() -> Train:
    # Huge pages, which some systems give everyone, are few and long to fetch: no rule tells them from other work.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_NO_HUGE_PAGES, 1, 0, 0, 0)
    layers = _layers_for(_MEMORY_STEP_S)

    def train(settings: dict[str, int], directory: Path) -> Trained:
        kept = torch.empty(_ELEMENTS)

        def write(_scores: torch.Tensor) -> None:
            (kept if settings["kept"] else torch.empty(_ELEMENTS)).fill_(0.5)

        return _train_alone(_random_batches(_MEMORY_STEPS), layers, directory, write)

    return train


# Programs of two ranks: each a process under ``profilerkit.profile``, over gloo. They compute without a core of this
# machine, as a device does for its host: where there are only two, they would fight for them, and measure that.
_RANKS = 2
_SAMPLE_S = 0.004
#: What a rank does: its number, with which settings, under which profiler, timed by which clock.
_Loop = Callable[[int, dict[str, int], "Profile", _Clock], None]
#: Of linux's asm-generic/socket.h; Python has no name for it. On loopback TCP paces itself, without a queue or rights.
SO_MAX_PACING_RATE = 47

_OPERATORS = torch.library.Library("profilerkit_demo", "DEF")
_OPERATORS.define("compute(Tensor features, float seconds) -> Tensor")


def _compute(features: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return features.clone()


_OPERATORS.impl("compute", _compute, "CPU")


def compute(features: torch.Tensor, sample_s: float) -> torch.Tensor:
    """The features of a batch, after ``sample_s`` seconds for each sample: ``(samples, width)``."""
    computed: torch.Tensor = torch.ops.profilerkit_demo.compute(features, sample_s * len(features))
    return computed


def slow_link(bytes_per_s: int) -> None:
    """Let each open connection of this process send no faster; as fast as ever where the system is not linux."""
    if sys.platform != "linux":
        return
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        try:
            if not descriptor.is_socket():
                continue
            connection = socket.socket(fileno=os.dup(int(descriptor.name)))
        except OSError:
            continue  # Closed since it was listed.
        with connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, bytes_per_s)


def _train_pair(loop: _Loop, settings: dict[str, int], directory: Path) -> Trained:
    """Run ``loop``, a function of a module, on both ranks; the report is the one that rank 0 made of both."""
    with TemporaryDirectory() as shared:
        processes.spawn(_rank, (loop, settings, directory, Path(shared)), nprocs=_RANKS)
        first, second = (json.loads(_times(Path(shared), rank).read_text("utf-8")) for rank in range(_RANKS))
    report = directory / "report.json"
    # A fix may move work from one rank to the other: what both compute together stays.
    first["compute_ns"] = (first["compute_ns"] + second["compute_ns"]) / _RANKS
    return Trained(report=load(report) if report.is_file() else None, **first)


def _times(shared: Path, rank: int) -> Path:
    """Where a rank leaves its times.

    Not a collective: gloo's thread drops the tensor of the last one some time later, and where Python is ending then,
    Python ends that thread, and C++ the process with it.
    """
    return shared / f"times-{rank}.json"


def _rank(number: int, loop: _Loop, settings: dict[str, int], directory: Path, shared: Path) -> None:
    from profilerkit import profile

    os.environ.update({"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(_RANKS)})
    # Both are on this host: its name need not lead back to it. Loopback has another name on other systems.
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{shared / 'meeting'}", rank=number, world_size=_RANKS)
    clock = _Clock()
    with profile(directory, warmup_steps=_WARMUP_STEPS, trace_steps=_TRACE_STEPS) as profiler:
        loop(number, settings, profiler, clock)
    trained = clock.trained(profiler.report)
    times = {"step_ns": trained.step_ns, "compute_ns": trained.compute_ns, "steps": trained.steps}
    _times(shared, number).write_text(json.dumps(times), "utf-8")
    dist.destroy_process_group()


# Communication: 330 kB of gradients take 27 ms at this rate, and the processor hardly anything: waits are steady where
# others compute, and what is computed after a wait, with the caches cold, is short beside it.
_REDUCED_WIDTH, _BYTES_PER_S = 288, 12_500_000
_MICRO_BATCHES, _SAMPLES = 6, 2


def _reduce_often(_rank: int, settings: dict[str, int], profiler: "Profile", clock: _Clock) -> None:
    model = DistributedDataParallel(torch.nn.Linear(_REDUCED_WIDTH, _REDUCED_WIDTH), gradient_as_bucket_view=True)
    # Now that the ranks are connected.
    slow_link(_BYTES_PER_S)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batch = _MICRO_BATCHES * _SAMPLES
    for (features,) in profiler.wrap(DataLoader(TensorDataset(torch.randn(_STEPS * batch, _REDUCED_WIDTH)), batch)):
        clock.start()
        *first, last = features.chunk(_MICRO_BATCHES)
        for part in first:
            with model.no_sync() if settings["no_sync"] else nullcontext():
                model(compute(part, _SAMPLE_S)).square().mean().backward()
        with clock.computing():
            loss = model(compute(last, _SAMPLE_S)).square().mean()
        # The one reduction that stays is also where the ranks wait for each other, which the fix changes.
        loss.backward()
        optimizer.step()
        # Gradients that are freed would be fresh pages in the next step, a fault of its own.
        optimizer.zero_grad(set_to_none=False)


# Compute: no rule about the kernels of one process can judge a CPU's; the one about ranks with uneven work can.
#: Samples of a step on each rank.
_UNEVEN, _EVEN = (2, 14), (8, 8)


def _deal_unevenly(rank: int, settings: dict[str, int], profiler: "Profile", clock: _Clock) -> None:
    model = DistributedDataParallel(torch.nn.Linear(_WIDTH, _WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batch = (_EVEN if settings["evened"] else _UNEVEN)[rank]
    for (features,) in profiler.wrap(DataLoader(TensorDataset(torch.randn(_STEPS * batch, _WIDTH)), batch)):
        clock.start()
        with clock.computing():
            outputs = model(compute(features, _SAMPLE_S))
        outputs.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


#: The program of each kind of ``profilerkit demo``.
PROGRAMS = {
    "input": Program(
        "the DataLoader reads slow storage in the training process (num_workers=0)",
        {"num_workers": 0},
        _prepare_input,
        _propose_workers,
    ),
    "overhead": Program(
        "the metrics of every step are counted in a Python loop",
        {"vectorised": 0},
        _prepare_overhead,
        partial(_fixed_by, "OV005", {"vectorised": 1}, "metrics counted in a Python loop → with tensor operations"),
    ),
    "memory": Program(
        "every step writes into a fresh tensor of 64 MiB",
        {"kept": 0},
        _prepare_memory,
        partial(_fixed_by, "ME001", {"kept": 1}, "a fresh tensor of 64 MiB a step → one that is kept"),
    ),
    "comm": Program(
        "two ranks reduce their gradients after each of six micro-batches, over 100 Mbit/s",
        {"no_sync": 0},
        lambda: partial(_train_pair, _reduce_often),
        partial(
            _fixed_by,
            "CO007",
            {"no_sync": 1},
            f"reductions a step {_MICRO_BATCHES} → 1, no_sync() around the others",
        ),
    ),
    "compute": Program(
        "rank 1 of two gets 14 of 16 samples, and rank 0 waits while it computes",
        {"evened": 0},
        lambda: partial(_train_pair, _deal_unevenly),
        partial(
            _fixed_by,
            "CO003",
            {"evened": 1},
            f"samples of the ranks {_UNEVEN[0]} and {_UNEVEN[1]} → {_EVEN[0]} and {_EVEN[1]}",
        ),
    ),
}
