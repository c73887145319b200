"""First-to-last device event arithmetic, in the definitions other tools use."""

import numpy as np

from profilerkit.analysis.device.kernels import KernelNames, device_rows
from profilerkit.analysis.intervals import Spans, subtract, union
from profilerkit.model.step import DeviceWindow
from profilerkit.trace.columns import Category, TraceColumns

#: A pause of the device that other tools take for the boundary of an iteration where nothing marks one (nsys-ai 0.3).
_PAUSE_NS = 2_000_000


def busy_spans(columns: TraceColumns) -> Spans:
    """When any device event runs."""
    rows = device_rows(columns)
    return union(columns.ts_ns[rows], columns.end_ns[rows])


def device_window(columns: TraceColumns, kinds: KernelNames) -> DeviceWindow | None:
    """The exact arithmetic of ``DeviceWindow``; ``None`` when the trace holds no device events."""
    busy = busy_spans(columns)
    if not len(busy):
        return None
    communicates = kinds.communication[columns.name]
    kernel = columns.category == Category.KERNEL
    copy = columns.category == Category.MEMCPY
    compute_rows = (kernel & ~communicates) | (columns.category == Category.MEMSET)

    def spans(rows: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Spans:
        return union(columns.ts_ns[rows], columns.end_ns[rows])

    compute, comm, copies = spans(compute_rows), spans(kernel & communicates), spans(copy)
    window_ns = int(busy.end[-1] - busy.start[0])
    return DeviceWindow(
        window_ns=window_ns,
        busy_ns=busy.total_ns,
        idle_ns=window_ns - busy.total_ns,
        compute_ns=compute.total_ns,
        comm_ns=comm.total_ns,
        exposed_comm_ns=subtract(comm, compute).total_ns,
        copy_ns=copies.total_ns,
        exposed_copy_ns=subtract(subtract(copies, compute), comm).total_ns,
        stretch_ns=_first_stretch_ns(busy),
    )


def _first_stretch_ns(busy: Spans) -> int | None:
    """From the first event to the first pause; ``None`` where the device never pauses for long."""
    pauses = np.flatnonzero(busy.start[1:] - busy.end[:-1] > _PAUSE_NS)
    return int(busy.end[pauses[0]] - busy.start[0]) if len(pauses) else None
