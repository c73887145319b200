"""A trace window that opens while the host runs ahead: busy share, kernels per step, and what opening it costs."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from gpu_truth_parts.checks import Check, between
from gpu_truth_parts.device import MS, Device
from gpu_truth_parts.loop import Loop, mean_step_ms, record
from profilerkit.rundir.reader import read_run

_LOOPS = {"host waits each step": Loop(20 * MS, item_every=1), "host runs ahead": Loop(20 * MS, item_every=0)}
#: Of a device that has work all the time.
_LEAST_BUSY = 0.97


def checks(device: Device, place: Path) -> Iterator[Check]:
    """For each loop what its window holds."""
    for name, loop in _LOOPS.items():
        path = place / "runs" / f"window_{loop.item_every}"
        report, _ = record(loop, device, path, device.steps(200))
        statuses = [status for status, _ in read_run(path).ranks[0].windows]
        held = [(status.kernels, status.last_step - status.first_step + 1, status.reason) for status in statuses]
        yield Check(name=f"{name}: kernels, steps and reason of each window", value=held)
        yield Check(
            name=f"{name}: mean step, ms, and traced / untraced",
            value=[mean_step_ms(report), report.trust.inflation_ratio],
        )
        open_ms = [(s.end_perf_ns - s.start_perf_ns) / 1e6 for s in statuses if s.start_perf_ns and s.end_perf_ns]
        yield Check(name=f"{name}: window open, ms", value=open_ms)
        if not device.is_asynchronous:
            yield Check(name=f"{name}: busy, kernels per step", why="a CPU trace holds operators, not kernels")
            continue
        yield between(f"{name}: busy", report.ranks[0].busy_ratio, _LEAST_BUSY, 1.0)
        found = [kernels / steps for kernels, steps, _ in held if kernels and steps > 0]
        # A host that runs ahead has kernels in the queue as the window opens: they are recorded as well.
        launched = _launched(loop, device)
        yield between(f"{name}: kernels per step", found[-1] if found else None, 0.98 * launched, 1.2 * launched)


def _launched(loop: Loop, device: Device, steps: int = 10) -> float:
    """Kernels of a step by a profiler of torch alone, the device waited for at both ends."""
    run = loop.run(device, 3 * steps)
    for _ in range(steps):
        next(run)
    device.sync()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            next(run)
        device.sync()
    run.close()
    return sum(event.get("cat") == "kernel" for event in exported(profiler)) / steps


def exported(profiler: Any) -> list[dict[str, Any]]:
    """The events of a finished session of torch's profiler, as its trace file has them."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["traceEvents"]
    return events
