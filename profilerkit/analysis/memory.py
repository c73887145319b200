"""Device memory of one trace: peaks from the memory instants, capacity from the device properties."""

import numpy as np

from profilerkit.analysis.intervals import Spans
from profilerkit.model.report import Memory
from profilerkit.trace.columns import DeviceProperties, TraceColumns

_CUDA = 1  # torch's DeviceType of every GPU back end that reports memory instants


def memory_of(columns: TraceColumns, window: Spans, properties: DeviceProperties | None) -> Memory:
    """Peaks inside the steady window; ``None`` where the trace has no instants or they lack totals."""
    capacity = properties.memory_bytes if properties else None
    instants = columns.memory
    if not len(instants.ts_ns) or not len(window):
        return Memory(capacity_bytes=capacity)
    inside = (instants.ts_ns >= window.start[0]) & (instants.ts_ns < window.end[-1]) & (instants.device_type == _CUDA)

    def peak(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int | None:
        known = values[inside & (values > 0)]
        return int(known.max()) if len(known) else None

    return Memory(
        peak_allocated_bytes=peak(instants.allocated),
        peak_reserved_bytes=peak(instants.reserved),
        capacity_bytes=capacity,
    )
