"""The samplers' lines to one summary per signal."""

from collections.abc import Sequence

import numpy as np

from profilerkit.model.run import Series
from profilerkit.rundir.layout import Sample

#: Sampled field to signal name and unit.
_SIGNALS = {
    "gpu": {
        "utilization_ratio": ("gpu.utilization", "ratio"),
        "memory_utilization_ratio": ("gpu.memory_utilization", "ratio"),
        "memory_used_bytes": ("gpu.memory_used", "bytes"),
        "power_mw": ("gpu.power", "mW"),
        "sm_clock_mhz": ("gpu.sm_clock", "MHz"),
        "temperature_c": ("gpu.temperature", "°C"),
    },
    "host": {
        "cpu_ratio": ("host.cpu", "ratio"),
        "process_cpu_cores": ("host.process_cores", "cores"),
        "memory_used_bytes": ("host.memory_used", "bytes"),
        "process_rss_bytes": ("host.process_memory", "bytes"),
        "cpu_pressure_ratio": ("host.cpu_pressure", "ratio"),
        "io_pressure_ratio": ("host.io_pressure", "ratio"),
        "cpu_throttled_ratio": ("host.cpu_throttled", "ratio"),
    },
    "allocator": {
        "allocated_bytes": ("allocator.allocated", "bytes"),
        "reserved_bytes": ("allocator.reserved", "bytes"),
        "active_bytes": ("allocator.active", "bytes"),
        "inactive_split_bytes": ("allocator.inactive_split", "bytes"),
        "allocated_peak_bytes": ("allocator.allocated_peak", "bytes"),
        "reserved_peak_bytes": ("allocator.reserved_peak", "bytes"),
        "alloc_retries": ("allocator.retries", "count"),
        "ooms": ("allocator.ooms", "count"),
    },
}


def summarise(samples: Sequence[Sample], rank: int) -> tuple[Series, ...]:
    """One ``Series`` per signal that was read at least once."""
    out = []
    for group, signals in _SIGNALS.items():
        records = [record for sample in samples if (record := getattr(sample, group)) is not None]
        for field, (name, unit) in signals.items():
            values = np.array([v for record in records if (v := getattr(record, field)) is not None], dtype=np.float64)
            if not len(values):
                continue
            low, high = np.quantile(values, [0.1, 0.9])
            out.append(
                Series(
                    name=name,
                    unit=unit,
                    n=len(values),
                    mean=float(values.mean()),
                    p10=float(low),
                    p90=float(high),
                    maximum=float(values.max()),
                    rank=rank,
                )
            )
    return tuple(out)
