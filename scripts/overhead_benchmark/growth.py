"""What a recording grows by: memory over many steps, and bytes of the run directory per step."""

import os
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from overhead_benchmark.workload import Workload
from profilerkit import profile
from profilerkit.rundir.layout import EVENT, SAMPLES, EventKind
from profilerkit.rundir.reader import read_run

#: Until then everything that is made once has been made.
_FIRST = 10_000
#: Steps from which the bytes of a run directory are counted.
DISK_STEPS = 400


def memory(place: Path, steps: int) -> dict[str, Any]:
    """Resident memory after a tenth of the near-empty steps and after all of them, bytes, with our light tier."""
    work = Workload(0.0, 0)
    first = min(_FIRST, steps // 10)
    seen: list[int] = []
    with profile(place / "memory", deep=False, analyze=False, overhead_budget=1.0) as prof:
        batches = prof.wrap(work.batches)
        for number in range(1, steps + 1):
            work.step(batches)
            if number in (first, steps):
                seen.append(_resident_bytes())
    bare = [0, 0]
    for number in range(1, steps + 1):
        work.step(work.batches)
        if number in (first, steps):
            bare[number == steps] = _resident_bytes()
    return {"steps": steps, "first_steps": first, "bytes": seen, "bare_bytes": bare}


def disk(place: Path, workers: int, steps: int) -> dict[str, Any]:
    """Bytes of a run directory per step, and per second beside that, from a run of 5 ms steps."""
    work = Workload(5.0, workers)
    start_ns = perf_counter_ns()
    with profile(place / f"disk{workers}", deep=False, analyze=False, overhead_budget=1.0) as prof:
        batches = prof.wrap(work.loader())
        for _ in range(steps):
            work.step(batches)
        seconds = (perf_counter_ns() - start_ns) / 1e9
        directory = prof.directory
    assert directory is not None
    total = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    rank = read_run(directory).ranks[0]
    looks = sum(kind == EventKind.LOOK for kind, *_ in EVENT.iter_unpack(rank.events)) * EVENT.size
    timed = looks + (rank.path / SAMPLES).stat().st_size
    once = sum(path.stat().st_size for path in directory.rglob("*.json"))
    return {
        "workers": workers,
        "bytes_per_step": (total - timed - once) / steps,
        "bytes_per_second": timed / seconds,
        "bytes_once": once,
    }


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
