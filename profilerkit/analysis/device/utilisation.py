"""First-to-last device event arithmetic, in the definitions other tools use."""

import numpy as np

from profilerkit.analysis.device.kernels import KernelNames, device_rows
from profilerkit.analysis.intervals import I64, Spans, subtract, union
from profilerkit.model.step import DeviceWindow
from profilerkit.trace.columns import Category, TraceColumns

#: A pause between kernels that other tools take for the end of an iteration where nothing marks one (nsys-ai 0.3).
_PAUSE_NS = 2_000_000


def busy_spans(columns: TraceColumns) -> Spans:
    """When any device event runs."""
    rows = device_rows(columns)
    return union(columns.ts_ns[rows], columns.end_ns[rows])


def device_window(columns: TraceColumns, kinds: KernelNames, launches: I64) -> DeviceWindow | None:
    """The exact arithmetic of ``DeviceWindow``; ``None`` when the trace holds no device events.

    ``launches`` has the launching runtime row of each event, -1 for none.
    """
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
    window_ns = int(busy.end[-1] - busy.start[0]) - _between_windows_ns(busy, columns.windows)
    return DeviceWindow(
        window_ns=window_ns,
        busy_ns=busy.total_ns,
        idle_ns=window_ns - busy.total_ns,
        compute_ns=compute.total_ns,
        comm_ns=comm.total_ns,
        exposed_comm_ns=subtract(comm, compute).total_ns,
        copy_ns=copies.total_ns,
        exposed_copy_ns=subtract(subtract(copies, compute), comm).total_ns,
        stretch_ns=_first_stretch_ns(columns, launches),
    )


def _between_windows_ns(busy: Spans, windows: tuple[int, ...]) -> int:
    """Time of the pauses in which another window begins: what was done in them was not recorded."""
    before = np.unique(np.searchsorted(busy.start, np.array(windows[1:], np.int64), side="left"))
    before = before[(before > 0) & (before < len(busy))]
    return int((busy.start[before] - busy.end[before - 1]).sum())


def _first_stretch_ns(columns: TraceColumns, launches: I64) -> int | None:
    """Of the kernels that were launched while it was recorded, all of them where none is known to be."""
    kernels = device_rows(columns) & (columns.category == Category.KERNEL)
    launched = kernels & (launches >= 0)
    rows = launched if launched.any() else kernels
    work = union(columns.ts_ns[rows], columns.end_ns[rows])
    pauses = np.flatnonzero(work.start[1:] - work.end[:-1] > _PAUSE_NS)
    return int(work.end[pauses[0]] - work.start[0]) if len(pauses) else None
