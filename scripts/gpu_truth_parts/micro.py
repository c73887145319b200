"""Questions that one number answers: each call of the device clock, and what opening a trace window does."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from gpu_truth_parts.checks import Check, between
from gpu_truth_parts.device import MS, Device
from gpu_truth_parts.window import exported

#: Of the clock in one step, µs: a judgement from CUDA's documented order of 1 to 2 µs a call.
_MOST_US = 15.0
#: Seconds of work in the queue while the calls are timed again, and as a window opens; both below the 1,024 launches
#: that a queue holds.
_QUEUED_S, _BEFORE_WINDOW_S, _INSIDE_S = 1.0, 0.4, 0.1
_SESSIONS = 3
#: Categories of calls that launch kernels; cuBLAS launches by the driver's own.
_LAUNCHES = ("cuda_runtime", "cuda_driver")


def checks(device: Device, _place: Path) -> Iterator[Check]:
    """The clock's calls with an empty and a full queue, the allocator's statistics, and three profiler sessions."""
    cuda = torch.cuda
    first, last = (cuda.Event(enable_timing=True) for _ in range(2))

    def mark() -> None:
        first.record()
        device.burn(MS)
        last.record()
        device.sync()

    mark()
    calls: dict[str, Callable[[], object]] = {
        "query": first.query,
        "elapsed_time": lambda: first.elapsed_time(last),
        "is_capturing": cuda.is_current_stream_capturing,
        "current_device": cuda.current_device,
        "new event": lambda: cuda.Event(enable_timing=True),
        "record": first.record,
    }
    idle = {name: _cost_us(call) for name, call in calls.items()}
    yield Check(name="the clock's calls, idle queue, µs", value=idle)
    yield between("the clock, µs per step", sum(idle.values()) - idle["new event"], 0.0, _MOST_US)
    device.burn(_QUEUED_S)
    last.record()
    full = {"query": _cost_us(last.query, 500), "record": _cost_us(first.record, 200)}
    device.sync()
    most_us = 3 * idle["query"] + 5
    why = "at most three times that of an idle queue and 5 µs"
    yield Check(name="the clock's calls, full queue, µs", value=full, passed=full["query"] < most_us, why=why)
    blocks = [torch.empty(1024, device="cuda") for _ in range(20_000)]
    name = "memory_stats with 20,000 blocks, µs"
    yield between(name, _cost_us(lambda: cuda.memory_stats_as_nested_dict(0), 200), 0.0, 1000.0)
    del blocks
    for number in range(1, _SESSIONS + 1):
        yield _session(device, number)


def _session(device: Device, number: int) -> Check:
    """One session of torch's profiler that opens with work in the queue: does it wait for it, and what is recorded?"""
    device.sync()
    queued = device.burn(_BEFORE_WINDOW_S)
    mark = torch.cuda.Event()
    mark.record()
    profiler = torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True)
    found: dict[str, object] = {"queued before": queued}
    for name in ("prepare_trace", "start_trace"):
        found[f"{name}, ms"] = _cost_us(getattr(profiler, name), 1) / 1e3
        found[f"drained by {name}"] = mark.query()
    launched = device.burn(_INSIDE_S)
    found["launched inside"] = launched
    found["stop_trace, ms"] = _cost_us(profiler.stop_trace, 1) / 1e3
    events = exported(profiler)
    linked = {event["args"].get("correlation") for event in events if event.get("cat") in _LAUNCHES}
    kernels = [event["args"].get("correlation") for event in events if event.get("cat") == "kernel"]
    found |= {"kernels": len(kernels), "without a launch": sum(number not in linked for number in kernels)}
    passed = len(kernels) >= launched
    return Check(name=f"window {number}", value=found, reference="kernels >= launched inside", passed=passed)


def _cost_us(call: Callable[[], object], count: int = 2000) -> float:
    """Mean host time of a call, µs."""
    began_ns = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - began_ns) / count / 1e3
