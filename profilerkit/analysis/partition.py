"""Partition the steps of a trace into parts, and hold the trace with what was found in it."""

from functools import cached_property
from typing import Literal

import msgspec
import numpy as np

from profilerkit.analysis.device.copies import awaited_copies, copy_leaves, hold_the_host, leads_of, leads_to_copies
from profilerkit.analysis.device.kernels import KernelNames, device_rows, used_a_device
from profilerkit.analysis.device.roofline import Roofline
from profilerkit.analysis.host.activity import NO_ROWS, HostActivity, Queue, loading_rows
from profilerkit.analysis.host.feeding import NOT_FED, Feeding, inferred_input, made_on_host
from profilerkit.analysis.host.gaps import Held, Issued, attribute, in_order, releases
from profilerkit.analysis.host.names import HostNames, backward_threads, main_thread
from profilerkit.analysis.intervals import (
    EMPTY,
    Segments,
    Spans,
    innermost_owner,
    joined,
    latest_end_owner,
    paint,
    rows_of,
    union,
    with_label,
)
from profilerkit.analysis.steps.find import TraceSteps
from profilerkit.errors import InvariantError
from profilerkit.model.step import LEAVES, leaf
from profilerkit.trace.columns import I8, I64, Bools, Category, TraceColumns

SUM_TOLERANCE = 1e-6  #: largest allowed difference between the sum of the parts and the window, relative to the window

#: Copies whose host side is part of the copy.
_HOST_SIDE = tuple(leaf(part) for part in ("input.h2d", "sync.d2h", "mem.offload"))
#: Parts in which the device is busy and does not compute.
_TRANSFERS = (*_HOST_SIDE, *(leaf(part) for part in LEAVES if part.startswith("comm.")))


class Partition(msgspec.Struct, frozen=True):
    """The window cut into labelled segments."""

    mode: Literal["gpu", "cpu"]  #: ``gpu``, or ``cpu`` when the main thread is treated as the device
    segments: Segments
    per_step: I64  #: ``(n_steps, n_leaves)`` int64 ns; rows follow the window's spans
    #: The same shape, time that only this part kept the device from computing; ``None`` without a device.
    alone: I64 | None
    #: The same shape, time in which the host was held up as well while the device communicated or copied.
    hidden: I64 | None
    fed: Feeding
    lead_in: Spans  #: what leads up to the batch copies, where the main thread's input is only inferred from that
    copies: I64
    copy_leaf: I64

    def copied(self, rows: I64) -> I64:
        """``(n,)`` int64 leaf of each of the events ``rows`` that is a copy of the judged device, -1 for others."""
        if not len(self.copies):
            return np.full(len(rows), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.copies, rows), len(self.copies) - 1)
        return np.where(self.copies[at] == rows, self.copy_leaf[at], -1)


def busiest_device(columns: TraceColumns, window: Spans) -> int:
    """The device with most event time from the first to the last step, -1 where no event names a device."""
    rows = device_rows(columns) & (columns.device >= 0)
    if not rows.any() or not len(window):
        return -1
    least, most = int(columns.device[rows].min()), int(columns.device[rows].max())
    if least == most:
        return least
    low, high = window.start[0], window.end[-1]
    inside = np.clip(columns.end_ns[rows], low, high) - np.clip(columns.ts_ns[rows], low, high)
    devices, index = np.unique(columns.device[rows], return_inverse=True)
    return int(devices[np.bincount(index, weights=inside).argmax()])


def judged_device_rows(columns: TraceColumns, window: Spans) -> Bools:
    """``(n_events,)`` mask of what ran on the busiest device, and of what names none."""
    judged: Bools = (columns.device == busiest_device(columns, window)) | (columns.device < 0)
    return device_rows(columns) & judged


def ran_on_a_device(columns: TraceColumns) -> bool:
    """Whether the trace holds device work, so that the device's time is what is cut into parts."""
    return bool((device_rows(columns) & (columns.dur_ns > 0)).any())


def partition_and_host(
    columns: TraceColumns,
    names: HostNames,
    kinds: KernelNames,
    launches: I64,
    window: Spans,
    work: I8,
    *,
    issuing: Spans | None = None,
    between: Spans | None = None,
) -> tuple[Partition, HostActivity]:
    """Cut ``window`` into parts: device mode if the trace holds device events, else the main thread is the device.

    ``work`` is the leaf of each compute kernel, or without a device of each operator; ``issuing`` is when the host
    issued each step of ``window``, where that is when the device did it. ``between`` reaches from the end of a step's
    own range to the next one, where the run itself said where its steps begin: the batch is got there, or in what leads
    up to the copy of it.

    Raises:
        InvariantError: the parts do not sum to the window.
    """
    on_gpu = ran_on_a_device(columns)
    main = main_thread(columns)
    if on_gpu:
        host, segments, held, copies, copied = _on_device(
            columns, names, kinds, launches, window, work, main, issuing or window, between
        )
    else:
        host, segments = _on_host(columns, names, kinds, window, work, main)
        held, copies, copied = None, NO_ROWS, NO_ROWS
    per_step = leaf_ns(segments, window)
    _check_sum(per_step, window)
    parts = Partition(
        mode="gpu" if on_gpu else "cpu",
        segments=segments,
        per_step=per_step,
        alone=leaf_ns(_cut(held.alone, window), window) if held else None,
        hidden=leaf_ns(_cut(held.hidden, window), window) if held else None,
        fed=host.thread(main).fed if main >= 0 else NOT_FED,
        lead_in=host.lead_in,
        copies=copies,
        copy_leaf=copied,
    )
    return parts, host


def leaf_ns(segments: Segments, spans: Spans) -> I64:
    """``(n_spans, n_leaves)`` ns of the segments, which lie in the spans, such as steps."""
    found = np.zeros((len(spans), len(LEAVES)), dtype=np.int64)
    span = np.searchsorted(spans.start, segments.start, side="right") - 1
    np.add.at(found, (span, segments.label), segments.end - segments.start)
    return found


def _check_sum(per_step: I64, window: Spans) -> None:
    difference = abs(int(per_step.sum()) - window.total_ns)
    if difference > SUM_TOLERANCE * window.total_ns or (per_step < 0).any():
        raise InvariantError(
            "the parts of the step do not add up to the step",
            cause=f"they differ by {difference} ns over {window.total_ns} ns",
            hint="this is a bug in profilerkit; please report it with the trace",
        )


def _on_device(
    columns: TraceColumns,
    names: HostNames,
    kinds: KernelNames,
    launches: I64,
    window: Spans,
    work: I8,
    main: int,
    issuing: Spans,
    between: Spans | None,
) -> tuple[HostActivity, Segments, Held, I64, I64]:
    mine = judged_device_rows(columns, window)
    communicates = kinds.communication[columns.name]
    kernels = np.flatnonzero(mine & (columns.category == Category.KERNEL) & ~communicates)
    collectives = np.flatnonzero(mine & (columns.category == Category.KERNEL) & communicates)
    leads = leads_of(columns, launches, kernels, issuing)
    copies = copy_leaves(columns, names, launches, kernels, leads, main)
    copy_rows = np.flatnonzero(mine & (copies >= 0))
    copy_leaf = copies[copy_rows].astype(np.int64)
    start, end = columns.ts_ns, columns.end_ns
    base = paint(
        window,
        [
            latest_end_owner(start[kernels], end[kernels], work[kernels].astype(np.int64)),
            with_label(union(start[collectives], end[collectives]), leaf("comm.other")),
            latest_end_owner(start[copy_rows], end[copy_rows], copy_leaf),
        ],
    )
    busy = base.label >= 0
    quiet = Spans(base.start[~busy], base.end[~busy])
    device = np.flatnonzero(mine & (columns.dur_ns > 0))
    issued = Issued(columns, device, launches, main)
    moved = np.flatnonzero(np.isin(copies, _HOST_SIDE) & (launches >= 0))
    moved = moved[hold_the_host(columns, launches, moved)]
    copied = np.full(len(columns), -1, dtype=np.int8)
    copied[launches[moved]] = copies[moved]
    issues = launches[kernels][launches[kernels] >= 0]
    # Calls that returned only when their copy to the host was done.
    blocks = np.unique(launches[awaited_copies(columns, launches)])
    waits = np.r_[blocks, np.flatnonzero((columns.category == Category.RUNTIME) & names.sync_call[columns.name])]
    lead_in = EMPTY
    if between is not None:
        leads = leads_to_copies(columns, launches, copies, leads, main, waits)
        lead_in = inferred_input(columns, names, main, leads, between, issues)
    host = HostActivity(
        columns,
        names,
        main,
        copied=copied,
        issues=issues,
        blocks=blocks,
        loading=loading_rows(columns, names, launches),
        queue=Queue(columns, device[copies[device] != leaf("sync.d2h")], launches),
        lead_in=lead_in,
    )
    # Not cut between adjacent steps: why a gap exists does not depend on where a step ends inside it.
    idle = _complete(paint(quiet, [attribute(union(quiet.start, quiet.end), issued, host)]))
    exposed = joined(rows_of(base, busy & np.isin(base.label, _TRANSFERS)))
    held = releases(columns, idle, exposed, np.r_[collectives, copy_rows], issued, host)
    return host, in_order([rows_of(base, busy), idle]), held, copy_rows, copy_leaf


def _cut(segments: Segments, window: Spans) -> Segments:
    cut = paint(window, [segments])
    return rows_of(cut, cut.label >= 0)


def _on_host(
    columns: TraceColumns, names: HostNames, kinds: KernelNames, window: Spans, work: I8, main: int
) -> tuple[HostActivity, Segments]:
    """CPU-only mode: operators of the main and the backward thread are the compute."""
    operator = columns.category == Category.CPU_OP
    unseen = used_a_device(columns) is not None
    host = HostActivity(
        *(columns, names, main),
        issues=np.flatnonzero(operator & kinds.math[columns.name] & (columns.dur_ns > 0)),
        loading=loading_rows(columns, names, np.full(len(columns), -1)) if unseen else NO_ROWS,
    )
    if main < 0:
        return host, _complete(paint(window, []))
    *upper, dispatch = host.thread(main).layers
    python = with_label(host.thread(main).python, leaf("over.python"))
    workers = backward_threads(columns, names, main)
    if unseen:
        backward = [host.thread(thread).layers[-1] for thread in workers.tolist()]
        made = made_on_host(columns, names, main)
        return host, _complete(paint(window, [*upper, *made, dispatch, *backward, python]))
    communicates = kinds.communication[columns.name]
    compute = [
        _computed(columns, np.flatnonzero((columns.thread == thread) & operator), communicates, work)
        for thread in (main, *workers.tolist())
    ]
    transfers = communicates & columns.is_a(Category.CPU_OP, Category.ANNOTATION)
    communication = with_label(union(columns.ts_ns[transfers], columns.end_ns[transfers]), leaf("comm.other"))
    return host, _complete(paint(window, [*upper, *compute, communication, python]))


def _computed(columns: TraceColumns, operators: I64, communicates: Bools, work: I8) -> Segments:
    """What one thread computed in its ``operators``, by the innermost; not while one of them issues a collective."""
    issuing = communicates[operators]
    rows, issues = operators[~issuing], operators[issuing]
    owned = innermost_owner(columns.ts_ns[rows], columns.end_ns[rows], work[rows].astype(np.int64))
    if not len(issues):
        return owned
    issued = with_label(union(columns.ts_ns[issues], columns.end_ns[issues]), leaf("comm.other"))
    painted = paint(Spans(owned.start, owned.end), [issued, owned])
    return rows_of(painted, painted.label != leaf("comm.other"))


def _complete(painted: Segments) -> Segments:
    label = np.where(painted.label < 0, leaf("idle.unknown"), painted.label)
    return Segments(painted.start, painted.end, label)


# Without slots: what is derived is kept beside the fields.
class TraceView(msgspec.Struct, frozen=True, dict=True):
    """A trace with its names, steps, partition and roofline."""

    columns: TraceColumns
    names: HostNames
    kinds: KernelNames
    launches: I64
    steps: TraceSteps
    roof: Roofline
    leaves: I8
    ran: Bools
    host: HostActivity
    parts: Partition
    most_events: int

    @property
    def on_gpu(self) -> bool:
        """Whether there is a device, or the main thread stands for it."""
        return self.parts.mode == "gpu"

    @property
    def device_rows(self) -> Bools | None:
        """``ran`` of a device; ``None`` without one."""
        return self.ran if self.on_gpu else None

    @cached_property
    def judged(self) -> Bools:
        """``(n_events,)`` events of the steady steps."""
        return self.steps.judged_events(self.columns, self.launches)

    @cached_property
    def rows(self) -> I64:
        """Rows that ran and are judged."""
        return np.flatnonzero(self.ran & self.judged)

    @property
    def window(self) -> Spans:
        """The steady steps."""
        return self.steps.steady

    @property
    def steady_ns(self) -> int:
        """Length of the steady window, at least 1."""
        return max(self.window.total_ns, 1)

    @property
    def count(self) -> int:
        """Steady steps, at least 1."""
        return max(len(self.window), 1)

    @cached_property
    def busy(self) -> Spans:
        """When the device worked; empty without one."""
        ran = np.flatnonzero(self.ran)
        return union(self.columns.ts_ns[ran], self.columns.end_ns[ran]) if self.on_gpu else EMPTY

    @property
    def loading(self) -> I64:
        """Rows of ``loading_rows``."""
        return self.host.loading if self.on_gpu else loading_rows(self.columns, self.names, self.launches)

    @cached_property
    def main(self) -> int:
        """The thread that runs the training loop; -1 where none is known."""
        return main_thread(self.columns)

    @cached_property
    def device(self) -> int:
        """The judged device; -1 where no event names one."""
        return busiest_device(self.columns, Spans(self.steps.start, self.steps.end))
