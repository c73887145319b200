"""Queries of NVML and GPM: what each costs, whether launches wait for them, and whether their values are right."""

import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpu_truth_parts.checks import Check, between, near
from gpu_truth_parts.device import Device
from gpu_truth_parts.preflight import queried
from profilerkit.capture.nvml import NvmlSource
from profilerkit.capture.nvml_device import Calls

#: Of a query, µs; the slowest that was reported elsewhere took 4.5 ms (flightlessmango/MangoHud#2104).
_MOST_MEDIAN_US = 5_000
_LAUNCHES_S = 2.0
#: Of each known load.
_LOAD_S, _QUICK_LOAD_S = 8.0, 4.0
#: Two readings some 0.1 s apart.
_BESIDE_SMI = 0.1
_FIELDS = ("utilization_ratio", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio", "power_throttle_ratio")


def checks(device: Device, _place: Path) -> Iterator[Check]:
    """The cost of each query, launches beside queries, three known loads, and nvidia-smi at the same moment."""
    source = NvmlSource()
    if reason := source.open():
        yield Check(name="open", passed=False, why=reason)
        return
    taken_us: defaultdict[str, list[float]] = defaultdict(list)
    original = Calls.ask

    def timed(calls: Calls, function: str, *args: Any) -> Any:
        began_ns = time.perf_counter_ns()
        try:
            return original(calls, function, *args)
        finally:
            taken_us[function].append((time.perf_counter_ns() - began_ns) / 1e3)

    with patch.object(Calls, "ask", timed):
        quiet_us, asked_us = (_launch_p99_us(device, read) for read in (lambda: None, source.read))
    medians = {function: statistics.median(values) for function, values in taken_us.items()}
    why = f"largest single one {max(map(max, taken_us.values())):.0f} µs"
    passed = max(medians.values()) < _MOST_MEDIAN_US
    yield Check(name="median of each query, µs", value=medians, reference=_MOST_MEDIAN_US, passed=passed, why=why)
    yield between("p99 of a launch while asked 50 times a second, µs", asked_us, 0.0, 2 * quiet_us + 20)
    yield Check(name="GPM", value=(source.facts.gpm if source.facts else "no device") or "on")
    yield from _loads(device, source)
    device.burn(1.2)
    time.sleep(0.4)
    sample, said = source.read(), queried("power.draw,clocks.sm,memory.used,temperature.gpu")
    device.sync()
    gpu = sample.gpu if sample else None
    if gpu is None:
        yield Check(name="beside nvidia-smi", passed=False, why="no sample")
    else:
        milliwatts = 1e3 * float(said["power.draw"])
        yield near("power beside nvidia-smi, mW", gpu.power_mw, milliwatts, _BESIDE_SMI)
        yield near("clock beside nvidia-smi, MHz", gpu.sm_clock_mhz, float(said["clocks.sm"]), _BESIDE_SMI)
    source.close()


def _launch_p99_us(device: Device, read: Callable[[], object]) -> float:
    """The 99th percentile of a launch on one thread while another asks 50 times a second, µs."""
    taken_us: list[float] = []
    ended = threading.Event()

    def launch() -> None:
        while not ended.wait(0.0002):
            began_ns = time.perf_counter_ns()
            device.tiny(1)
            taken_us.append((time.perf_counter_ns() - began_ns) / 1e3)

    thread = threading.Thread(target=launch)
    thread.start()
    end = time.monotonic() + _LAUNCHES_S
    while time.monotonic() < end:
        read()
        time.sleep(0.02)
    ended.set()
    thread.join()
    return statistics.quantiles(taken_us, n=100)[-1]


def _loads(device: Device, source: NvmlSource) -> Iterator[Check]:
    """Readings of GPM and NVML while matrices are multiplied, memory is copied, and the device works half the time."""
    copied = device.large.clone()

    def copy() -> None:
        for _ in range(4000):
            copied.copy_(device.large)

    def half() -> None:
        device.burn(0.25)
        device.sync()
        time.sleep(0.25)

    # The share of the load in the time between two readings is that of its name, less 0.1 s of rest.
    loads = {
        "tensor": (lambda: device.burn(0.5), "tensor_active_ratio", (0.5, 1.0)),
        "copy": (copy, "dram_active_ratio", (0.5, 1.0)),
        "half": (half, "sm_active_ratio", (0.2, 0.8)),
    }
    for name, (work, judged, bounds) in loads.items():
        samples = []
        end = time.monotonic() + (_QUICK_LOAD_S if device.quick else _LOAD_S)
        while time.monotonic() < end:
            work()
            device.sync()
            samples.append(source.read())
            time.sleep(0.1)
        gpus = [sample.gpu for sample in samples if sample and sample.gpu]
        seen = {field: [v for v in (getattr(gpu, field) for gpu in gpus) if v is not None] for field in _FIELDS}
        value = {field: statistics.median(values) if values else None for field, values in seen.items()}
        yield Check(name=f"load {name}", value=value)
        yield between(f"load {name}: {judged}", value[judged], *bounds)
