"""The samplers' lines to one summary per signal."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np

from profilerkit.model import revise
from profilerkit.model.run import DEVICE_STRIPS, HOST_STRIPS, Series, Strip
from profilerkit.rundir.sampled import GpuSample, HostSample, Sample
from profilerkit.trace.columns import F64

_R = TypeVar("_R")
_F64 = F64
_Gpu = list[tuple[int, GpuSample]]
_Host = list[tuple[int, HostSample]]

MOST_POINTS = 80  #: points of a strip at most: enough for a figure, and a few kB in the JSON (a choice)
FEWEST_FOR_SLOPE = 10  #: below so many samples a trend is what happened to be going on
#: Counters read closer together than this say little: the energy counter was seen to step every 10 ms
#: (gpuopenanalytics/pynvml#18), and the last sample of a run may follow the one before at once.
_SHORTEST_S = 0.1

#: Bits of ``throttle_reasons`` (nvml.h, nvmlClocksEventReason*) that stand for a counter the driver lacks.
_POWER_CAP, _SW_THERMAL, _HW_THERMAL = 0x4, 0x20, 0x40
#: The clock is at most half of what it could be: too hot, the supply broke in, or current was too high.
_HW_SLOWDOWN = 0x8 | 0x80

#: Sampled fields whose values are signals as they are.
_GPU_FIELDS = (
    *("utilization_ratio", "memory_utilization_ratio", "sm_active_ratio", "sm_occupancy_ratio", "tensor_active_ratio"),
    *("fp32_active_ratio", "dram_active_ratio", "memory_used_bytes", "power_instant_mw", "sm_clock_mhz"),
    *("memory_clock_mhz", "temperature_c", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s", "pcie_generation"),
    *("pcie_width", "nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "ecc_corrected", "ecc_uncorrected"),
    *("other_processes", "other_processes_bytes"),
)
_HOST_FIELDS = (
    *("cpu_ratio", "iowait_ratio", "steal_ratio", "running_tasks", "process_cpu_cores", "thread_queue_ratio"),
    *("pool_queue_ratio", "thread_preemptions_per_s", "memory_used_bytes", "swap_used_bytes", "process_rss_bytes"),
    *("process_major_faults_per_s", "cpu_pressure_ratio", "io_pressure_ratio", "memory_pressure_ratio"),
    *("cgroup_cpu_cores", "cgroup_cpu_pressure_ratio", "cgroup_memory_pressure_ratio", "cpu_throttled_ratio"),
    *("cgroup_memory_bytes", "cgroup_memory_max_bytes", "disk_read_bytes_per_s", "disk_write_bytes_per_s"),
    *("disk_busy_ratio", "net_rx_bytes_per_s", "net_tx_bytes_per_s", "thread_faults_per_s", "thread_system_ratio"),
)
_ALLOCATOR_FIELDS = (
    *("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "allocated_peak_bytes"),
    *("reserved_peak_bytes", "alloc_retries", "ooms", "requested_bytes"),
)
#: How the name of a field ends, and the unit of its signal, which has the rest of the name.
_UNITS = {
    **{"_bytes_per_s": "bytes_per_s", "_per_s": "per_s", "_ratio": "ratio", "_bytes": "bytes", "_cores": "cores"},
    **{"_mw": "mW", "_mhz": "MHz", "_c": "°C"},
}
#: Signals with another name than their field's.
_NAMES = {
    "other_processes_bytes": "gpu.other_processes_memory",
    "process_cpu_cores": "host.process_cores",
    "process_rss_bytes": "host.process_memory",
    "process_major_faults_per_s": "host.major_faults",
    "cgroup_cpu_cores": "host.cgroup_cores",
    "cgroup_memory_max_bytes": "host.cgroup_memory_limit",
    "alloc_retries": "allocator.retries",
}


class Signal(NamedTuple):
    """``values`` at ``at_s``, seconds after ``start_ns`` on the recording's clock: both (n,) float64, n > 0."""

    name: str
    unit: str
    start_ns: int
    at_s: _F64
    values: _F64


def summarise(
    samples: Sequence[Sample],
    rank: int | None,
    first_step_ns: int | None = None,
    *,
    device: str | None = None,
    timed: bool = True,
) -> tuple[Series, ...]:
    """One ``Series`` per signal that was read at least once, of a rank or of a ``device`` in the log of a sampler.

    ``first_step_ns`` is when the first step began, on the samples' clock; without it no series has a strip. Samples
    that are not ``timed`` are a second apart for want of times, and have no slope.
    """
    found = list(signals(samples))
    strips = _strips(found, first_step_ns) if first_step_ns is not None else {}
    if not timed:
        strips = {name: revise(strip, timed=False) for name, strip in strips.items()}
    series = (_series(signal, rank, strips.get(signal.name), device) for signal in found)
    return tuple(one if timed else revise(one, slope_per_s=None) for one in series)


def signals(samples: Sequence[Sample]) -> Iterator[Signal]:
    """Every sample of each signal that was read at least once."""
    gpu = [(sample.t_ns, sample.gpu) for sample in samples if sample.gpu is not None]
    host = [(sample.t_ns, sample.host) for sample in samples if sample.host is not None]
    allocator = [(sample.t_ns, sample.allocator) for sample in samples if sample.allocator is not None]
    yield from (*_of_gpu(gpu), *_of_host(host))
    for field in _ALLOCATOR_FIELDS:
        yield from _signal(*_named("allocator", field), allocator, attrgetter(field))


def _named(source: str, field: str) -> tuple[str, str]:
    """Return the name of a field's signal, and its unit."""
    ending = next((ending for ending in _UNITS if field.endswith(ending)), "")
    return _NAMES.get(field, f"{source}.{field.removesuffix(ending)}"), _UNITS.get(ending, "count")


def _of_gpu(gpu: _Gpu) -> Iterator[Signal]:
    for field in _GPU_FIELDS:
        yield from _signal(*_named("gpu", field), gpu, attrgetter(field))
    by_energy = list(_rate("gpu.power", "mW", gpu, lambda record: record.energy_mj))
    yield from by_energy or _signal("gpu.power", "mW", gpu, lambda record: record.power_mw)
    yield from _signal("gpu.power_of_limit", "ratio", gpu, _of_limit)
    for field, name, bit in (
        ("power_throttle_ratio", "gpu.power_throttle", _POWER_CAP),
        ("sw_thermal_throttle_ratio", "gpu.sw_thermal_throttle", _SW_THERMAL),
        ("hw_thermal_throttle_ratio", "gpu.hw_thermal_throttle", _HW_THERMAL),
    ):
        counted = list(_signal(name, "ratio", gpu, attrgetter(field)))
        yield from counted or _signal(name, "ratio", gpu, partial(_is_set, bits=bit))
    yield from _signal("gpu.hw_slowdown", "ratio", gpu, partial(_is_set, bits=_HW_SLOWDOWN))


def _of_host(host: _Host) -> Iterator[Signal]:
    for field in _HOST_FIELDS:
        yield from _signal(*_named("host", field), host, attrgetter(field))
    yield from _rate("host.process_read", "bytes_per_s", host, lambda record: record.read_bytes)
    yield from _rate("host.process_write", "bytes_per_s", host, lambda record: record.write_bytes)
    kills = [(t_ns, record.cgroup_oom_kills) for t_ns, record in host if record.cgroup_oom_kills is not None]
    yield from _signal("host.oom_kills", "count", kills, lambda count: max(count - kills[0][1], 0))
    yield from _signal("host.workers", "count", host, lambda record: len(record.workers) or None)
    yield from _signal("host.worker_cores", "cores", host, lambda record: _worker_cores(record, sum))
    yield from _signal("host.busiest_worker", "cores", host, lambda record: _worker_cores(record, max))
    # What they share counts in each.
    together = [(t_ns, [worker.rss_bytes for worker in record.workers]) for t_ns, record in host if record.workers]
    yield from _signal("host.worker_memory", "bytes", together, sum)


def _signal(
    name: str, unit: str, records: list[tuple[int, _R]], read: Callable[[_R], float | None]
) -> Iterator[Signal]:
    """What ``read`` says of each record; nothing when it never says anything."""
    pairs = [(t_ns, value) for t_ns, record in records if (value := read(record)) is not None]
    if pairs:
        at_ns, values = zip(*pairs, strict=True)
        at_s = (np.array(at_ns, dtype=np.int64) - at_ns[0]) / 1e9
        yield Signal(name, unit, at_ns[0], at_s, np.array(values, dtype=np.float64))


def _rate(name: str, unit: str, records: list[tuple[int, _R]], read: Callable[[_R], int | None]) -> Iterator[Signal]:
    """Growth per second of a counter between samples; where it shrinks it was reset, and says nothing."""
    for signal in _signal(name, unit, records, read):
        passed, grown = np.diff(signal.at_s), np.diff(signal.values)
        kept = (passed >= _SHORTEST_S) & (grown >= 0)
        if kept.any():
            yield Signal(name, unit, signal.start_ns, signal.at_s[1:][kept], grown[kept] / passed[kept])


def _is_set(record: GpuSample, bits: int) -> float | None:
    """1 while one of these reasons holds the clock down; ``None`` when the driver gives no reasons."""
    return None if record.throttle_reasons is None else float(bool(record.throttle_reasons & bits))


def _of_limit(record: GpuSample) -> float | None:
    """Power as a ratio of its limit; ``None`` where one of the two was not sampled."""
    if record.power_mw is None or not record.power_limit_mw:
        return None
    return record.power_mw / record.power_limit_mw


def _worker_cores(record: HostSample, fold: Callable[[list[float]], float]) -> float | None:
    known = [worker.cpu_cores for worker in record.workers if worker.cpu_cores is not None]
    return fold(known) if known else None


def _series(signal: Signal, rank: int | None, strip: Strip | None, device: str | None) -> Series:
    low, high = np.quantile(signal.values, [0.1, 0.9])
    return Series(
        name=signal.name,
        unit=signal.unit,
        n=len(signal.values),
        mean=float(signal.values.mean()),
        p10=float(low),
        p90=float(high),
        maximum=float(signal.values.max()),
        slope_per_s=_slope(signal) if signal.unit == "bytes" else None,
        rank=rank,
        strip=strip,
        device=device,
    )


def _strips(found: Sequence[Signal], first_step_ns: int) -> dict[str, Strip]:
    """Signal to strip, of those that the figure draws; of all of them the same samples are put together."""
    names = HOST_STRIPS if {signal.name for signal in found}.isdisjoint(DEVICE_STRIPS) else DEVICE_STRIPS
    drawn = [signal for signal in found if signal.name in names]
    each = -(-max((len(signal.values) for signal in drawn), default=0) // MOST_POINTS)
    return {signal.name: _strip(signal, each, first_step_ns) for signal in drawn}


def _strip(signal: Signal, each: int, first_step_ns: int) -> Strip:
    """The means of ``each`` neighbours, counted from the end: rates lack the first sample that others have."""
    count = len(signal.values)
    starts = np.unique(np.r_[0, np.arange(count % each, count, each)])
    sizes = np.diff(np.r_[starts, count])
    at_ms = np.add.reduceat(signal.at_s, starts) / sizes * 1e3 + (signal.start_ns - first_step_ns) / 1e6
    means = np.add.reduceat(signal.values, starts) / sizes
    at_ns = tuple(round(float(at)) * 1_000_000 for at in at_ms)
    return Strip(at_ns=at_ns, values=tuple(float(f"{value:.4g}") for value in means))


def _slope(signal: Signal) -> float | None:
    """The slope of the straight line with the least squared distance, per second; ``None`` for few samples."""
    centred = signal.at_s - signal.at_s.mean()
    spread = float(centred @ centred)
    if len(signal.values) < FEWEST_FOR_SLOPE or spread == 0.0:
        return None
    return float(centred @ (signal.values - signal.values.mean())) / spread
