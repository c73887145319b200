"""The partition of the steady window: every instant belongs to exactly one part."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.gaps import attribute
from profilerkit.analysis.host import BATCH_COPY_BYTES, HostNames, host_thread, main_thread
from profilerkit.analysis.intervals import (
    I64,
    Segments,
    Spans,
    innermost_owner,
    latest_end_owner,
    paint,
    subtract,
    union,
    with_label,
)
from profilerkit.analysis.kernels import KernelNames, device_rows
from profilerkit.analysis.leaves import LEAVES, leaf
from profilerkit.errors import InvariantError
from profilerkit.trace.columns import Category, TraceColumns

#: Largest allowed difference between the sum of the parts and the window, relative to the window.
SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Partition:
    """The window cut into labelled segments.

    Attributes:
        mode: ``gpu``, or ``cpu`` when the main thread stands for the device.
        segments: labels are indices into ``LEAVES``.
        per_step: ``(n_steps, n_leaves)`` int64 ns; rows follow the window's spans.
    """

    mode: str
    segments: Segments
    per_step: I64

    @property
    def totals(self) -> I64:
        """``(n_leaves,)`` int64 ns over the window."""
        totals: I64 = self.per_step.sum(axis=0)
        return totals


def copy_leaves(columns: TraceColumns) -> I64:
    """``(n_events,)`` leaf of each device copy or memset, -1 for other events.

    Host-to-device copies of at least ``BATCH_COPY_BYTES`` (or of unknown size) carry batches; smaller ones are
    counted as bandwidth like copies within the device.
    """
    kinds = np.full(len(columns.strings), leaf("compute.membw"), dtype=np.int64)
    copies = columns.is_a(Category.MEMCPY, Category.MEMSET)
    for index in np.flatnonzero(np.bincount(columns.name[copies])).tolist():
        upper = (
            columns.strings[index].upper().replace("HOST", "H").replace("DEVICE", "D").replace("_", "").replace(" ", "")
        )
        if "HTOD" in upper or "H2D" in upper:
            kinds[index] = leaf("input.h2d")
        elif "DTOH" in upper or "D2H" in upper:
            kinds[index] = leaf("sync.d2h")
    out = np.full(len(columns), -1, dtype=np.int64)
    out[copies] = kinds[columns.name[copies]]
    tiny = copies & (out == leaf("input.h2d")) & (columns.bytes >= 0) & (columns.bytes < BATCH_COPY_BYTES)
    out[tiny] = leaf("compute.membw")
    return out


def busiest_device(columns: TraceColumns, window: Spans) -> int:
    """The device with most event time from the first to the last step, -1 where no event names a device.

    Neither an idle second device nor one that worked before the steps may change the answer.
    """
    rows = device_rows(columns) & (columns.device >= 0)
    if not rows.any() or not len(window):
        return -1
    low, high = window.start[0], window.end[-1]
    inside = np.clip(columns.end_ns[rows], low, high) - np.clip(columns.ts_ns[rows], low, high)
    devices, index = np.unique(columns.device[rows], return_inverse=True)
    return int(devices[np.bincount(index, weights=inside).argmax()])


def judged_device_rows(columns: TraceColumns, window: Spans) -> npt.NDArray[np.bool_]:
    """``(n_events,)`` mask of what ran on the busiest device, and of what names none."""
    judged: npt.NDArray[np.bool_] = (columns.device == busiest_device(columns, window)) | (columns.device < 0)
    return device_rows(columns) & judged


def ran_on_a_device(columns: TraceColumns) -> bool:
    """Whether the trace holds device work, so that the device's time is what is cut into parts."""
    return bool((device_rows(columns) & (columns.dur_ns > 0)).any())


def partition(
    columns: TraceColumns, names: HostNames, kinds: KernelNames, launches: I64, window: Spans, work: I64
) -> Partition:
    """Cut ``window`` into parts: device mode if the trace holds device events, else the main thread is the device.

    Args:
        columns: the trace.
        names: its names, classified for host threads.
        kinds: its names, classified for kernels and operators.
        launches: ``(n_events,)`` int64, row of the launching runtime call, -1 for none.
        window: one span per judged step.
        work: ``(n_events,)`` int64, leaf of each compute kernel, or without a device of each operator.

    Raises:
        InvariantError: the parts do not sum to the window.
    """
    on_gpu = ran_on_a_device(columns)
    segments = (
        _on_device(columns, names, kinds, launches, window, work)
        if on_gpu
        else _on_host(columns, names, kinds, window, work)
    )
    step = np.searchsorted(window.start, segments.start, side="right") - 1
    per_step = np.zeros((len(window), len(LEAVES)), dtype=np.int64)
    np.add.at(per_step, (step, segments.label), segments.end - segments.start)
    _check_sum(per_step, window)
    return Partition("gpu" if on_gpu else "cpu", segments, per_step)


def _check_sum(per_step: I64, window: Spans) -> None:
    difference = abs(int(per_step.sum()) - window.total_ns)
    if difference > SUM_TOLERANCE * window.total_ns or (per_step < 0).any():
        raise InvariantError(
            "the parts of the step do not sum to the step",
            cause=f"they differ by {difference} ns over {window.total_ns} ns",
            hint="this is a defect of profilerkit; please report it with the trace",
        )


def _on_device(
    columns: TraceColumns, names: HostNames, kinds: KernelNames, launches: I64, window: Spans, work: I64
) -> Segments:
    mine = judged_device_rows(columns, window)
    communicates = kinds.communication[columns.name]
    kernels = np.flatnonzero(mine & (columns.category == Category.KERNEL) & ~communicates)
    collectives = mine & (columns.category == Category.KERNEL) & communicates
    copies = copy_leaves(columns)
    copy_rows = np.flatnonzero(mine & (copies >= 0))
    start, end = columns.ts_ns, columns.end_ns
    layers = [
        latest_end_owner(start[kernels], end[kernels], work[kernels]),
        with_label(union(start[collectives], end[collectives]), leaf("comm.other")),
        latest_end_owner(start[copy_rows], end[copy_rows], copies[copy_rows]),
    ]
    # Not cut between adjacent steps: why a gap exists does not depend on where a step ends inside it.
    gaps = subtract(union(window.start, window.end), union(start[mine], end[mine]))
    rows = _in_order(columns, np.flatnonzero(mine & (columns.dur_ns > 0)), launches)
    copied = np.full(len(columns), -1, dtype=np.int64)
    launched = copy_rows[launches[copy_rows] >= 0]
    copied[launches[launched]] = copies[launched]
    idle = attribute(columns, names, gaps, rows, launches, copied, main_thread(columns))
    return _complete(paint(window, [*layers, idle]))


def _in_order(columns: TraceColumns, rows: I64, launches: I64) -> I64:
    """``rows`` by start; of those that start together first the one issued last: the others were ready before it."""
    call = launches[rows]
    issued = np.where(call >= 0, columns.end_ns[call], np.iinfo(np.int64).min)
    began = np.where(call >= 0, columns.ts_ns[call], 0)
    return rows[np.lexsort((-began, -issued, columns.ts_ns[rows]))]


def _on_host(columns: TraceColumns, names: HostNames, kinds: KernelNames, window: Spans, work: I64) -> Segments:
    """CPU-only mode: operators of the main and the backward thread are the compute."""
    main = main_thread(columns)
    if main < 0:
        return _complete(paint(window, []))
    *upper, _dispatch = host_thread(columns, names, main, np.full(len(columns), -1, dtype=np.int64)).layers
    communicates = kinds.communication[columns.name]
    backward = np.array([text.startswith("autograd::engine") for text in columns.strings])[columns.name]
    workers = np.unique(columns.thread[backward & (columns.category == Category.CPU_OP)])
    own = np.isin(columns.thread, np.r_[workers, main]) & (columns.category == Category.CPU_OP)
    operators = np.flatnonzero(own & ~communicates)
    kind = work[operators]
    compute = [
        innermost_owner(*(part[columns.thread[operators] == thread] for part in _edges(columns, operators, kind)))
        for thread in (main, *(worker for worker in workers if worker != main))
    ]
    transfers = communicates & columns.is_a(Category.CPU_OP, Category.ANNOTATION)
    communication = with_label(union(columns.ts_ns[transfers], columns.end_ns[transfers]), leaf("comm.other"))
    return _complete(paint(window, [*upper, *compute, communication]), otherwise="over.python")


def _edges(columns: TraceColumns, rows: I64, label: I64) -> tuple[I64, I64, I64]:
    return columns.ts_ns[rows], columns.end_ns[rows], label


def _complete(painted: Segments, otherwise: str = "idle.unknown") -> Segments:
    label = np.where(painted.label < 0, leaf(otherwise), painted.label)
    return Segments(painted.start, painted.end, label)
