"""In what condition a rank's device and host were while it worked: a few numbers of many samples."""

from collections.abc import Sequence

import numpy as np

from profilerkit.analysis.samples import signals
from profilerkit.analysis.throttling import AT_WORK, throttling
from profilerkit.model.crowd import Condition
from profilerkit.rundir.sampled import Sample

#: No clock, temperature or count of threads is as large.
_LARGEST = 1e9
#: Field of a condition and the sampled signal whose median it is.
_MEDIANS = (
    ("host_cpu_ratio", "host.cpu"),
    ("cpu_pressure_ratio", "host.cpu_pressure"),
    ("running_tasks", "host.running_tasks"),
    ("thread_queue_ratio", "host.thread_queue"),
    ("cpu_quota_ratio", "host.cpu_throttled"),
)


def condition_of(samples: Sequence[Sample]) -> Condition | None:
    """Medians over the samples, of the device those at work; ``None`` where nothing of it was sampled."""
    working = [
        sample
        for sample in samples
        if sample.gpu is not None and (sample.gpu.utilization_ratio is None or sample.gpu.utilization_ratio > AT_WORK)
    ]
    of_device = {signal.name: float(np.median(signal.values)) for signal in signals(working)}
    of_host = {signal.name: float(np.median(signal.values)) for signal in signals(samples)}
    held = throttling([samples], 0)
    found = {
        "sm_clock_mhz": of_device.get("gpu.sm_clock"),
        "slowed_ratio": held.slowed_ratio if held else None,
        "thermal_ratio": held.thermal_ratio if held else None,
        "power_capped_ratio": held.capped_ratio if held else None,
        "temperature_c": of_device.get("gpu.temperature"),
        **{name: of_host.get(signal) for name, signal in _MEDIANS},
    }
    kept = {name: value for name, value in found.items() if value is not None and 0.0 <= value < _LARGEST}
    return Condition(**kept) if kept else None


def is_sound(condition: Condition) -> bool:
    """Whether its numbers are such as ``condition_of`` gives."""
    values = (getattr(condition, name) for name in Condition.__struct_fields__)
    return all(value is None or 0.0 <= value < _LARGEST for value in values)


def typical(conditions: Sequence[Condition | None]) -> Condition | None:
    """The median of each number over the ranks that have it; ``None`` where nobody has any."""
    known = [entry for entry in conditions if entry is not None]
    found = {}
    for name in Condition.__struct_fields__:
        values = [value for entry in known if (value := getattr(entry, name)) is not None]
        found[name] = float(np.median(values)) if values else None
    return Condition(**found) if known else None
