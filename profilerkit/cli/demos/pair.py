"""Two ranks on this host that train over gloo, each a process under ``profilerkit.profile``."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from profilerkit.api import load
from profilerkit.cli.demos.classifier import TRACE_STEPS, WARMUP_STEPS, Clock
from profilerkit.cli.demos.trained import Trained

if TYPE_CHECKING:
    from profilerkit.capture.profiler import Profile

_RANKS = 2
_REPORT = "report.json"

#: What a rank does: its number, with which settings, under which profiler, timed by which clock.
Loop = Callable[[int, dict[str, int], "Profile", Clock], None]


def train_pair(loop: Loop, settings: dict[str, int], directory: Path) -> Trained:
    """Run ``loop``, a function of a module, on both ranks; the report is the one that rank 0 made of both."""
    with TemporaryDirectory() as shared:
        processes.spawn(_rank, (loop, settings, directory, Path(shared)), nprocs=_RANKS)
        first, second = (json.loads(_times(Path(shared), rank).read_text("utf-8")) for rank in range(_RANKS))
    report = directory / _REPORT
    # A fix may move work from one rank to the other: what both compute together stays.
    first["compute_ns"] = (first["compute_ns"] + second["compute_ns"]) / _RANKS
    return Trained(report=load(report) if report.is_file() else None, **first)


def _times(shared: Path, rank: int) -> Path:
    """Where a rank leaves its times.

    Not a collective: gloo's thread drops the tensor of the last one some time later, and where Python is ending then,
    Python ends that thread, and C++ the process with it.
    """
    return shared / f"times-{rank}.json"


def _rank(number: int, loop: Loop, settings: dict[str, int], directory: Path, shared: Path) -> None:
    from profilerkit import profile

    os.environ.update({"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(_RANKS)})
    # Both are on this host: its name need not lead back to it. Loopback has another name on other systems.
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{shared / 'meeting'}", rank=number, world_size=_RANKS)
    clock = Clock()
    with profile(directory, warmup_steps=WARMUP_STEPS, trace_steps=TRACE_STEPS) as profiler:
        loop(number, settings, profiler, clock)
    trained = clock.trained(profiler.report)
    times = {"step_ns": trained.step_ns, "compute_ns": trained.compute_ns, "steps": trained.steps}
    _times(shared, number).write_text(json.dumps(times), "utf-8")
    dist.destroy_process_group()
