"""What the steady kernels say: how busy the device is, what could be fused."""

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.device.kernels import SMALL_KERNEL_NS, KernelNames
from profilerkit.analysis.device.precision import covered_ns
from profilerkit.analysis.device.records import ChainFacts, DeviceFacts
from profilerkit.analysis.device.roofline import Roofline
from profilerkit.analysis.host.gaps import LATE_LAUNCH_NS
from profilerkit.analysis.host.python_stretches import between_ratio
from profilerkit.analysis.intervals import I64, Spans, intersect, union
from profilerkit.analysis.leaves import leaf
from profilerkit.analysis.partition import Partition
from profilerkit.trace.columns import Category, DeviceProperties, TraceColumns

#: Shortest run of fusible kernels that a compiler would turn into one.
SHORTEST_CHAIN = 3


def device_facts(
    columns: TraceColumns,
    launches: I64,
    ran: npt.NDArray[np.bool_],
    rows: I64,
    window: Spans,
    parts: Partition,
    properties: DeviceProperties | None,
) -> DeviceFacts:
    """How the judged device was used.

    Args:
        columns: the trace.
        launches: ``(n_events,)`` launching runtime row of each device event, -1 for none.
        ran: ``(n_events,)`` events of the judged device.
        rows: those of them that start in the steady window.
        window: the steady steps.
        parts: the partition of all steps.
        properties: of the device.
    """
    kernels = rows[columns.category[rows] == Category.KERNEL]
    busy = intersect(window, union(columns.ts_ns[ran], columns.end_ns[ran]))
    launch = intersect(window, parts.segments.only(leaf("over.launch")))
    gaps = launch.end - launch.start
    return DeviceFacts(
        name=properties.name if properties else None,
        kernels_per_step=len(kernels) / max(len(window), 1),
        median_kernel_ns=float(np.median(columns.dur_ns[kernels])) if len(kernels) else 0.0,
        busy_ratio=busy.total_ns / max(window.total_ns, 1),
        queue_empty_ratio=_queue_empty(columns, launches, np.flatnonzero(ran), kernels),
        between_ratio=between_ratio(parts.segments, window),
        late_launch_ratio=int(gaps[gaps > LATE_LAUNCH_NS].sum()) / launch.total_ns if launch.total_ns else 0.0,
    )


def _queue_empty(columns: TraceColumns, launches: I64, rows: I64, kernels: I64) -> float | None:
    """Share of kernels whose launch call returned after every earlier device event had ended."""
    linked = kernels[launches[kernels] >= 0]
    if not len(linked):
        return None
    rows = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
    reach = np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(columns.end_ns[rows])]
    before = np.searchsorted(columns.ts_ns[rows], columns.ts_ns[linked], side="left")
    return float((reach[before] <= columns.end_ns[launches[linked]]).mean())


def chain_facts(
    columns: TraceColumns, kinds: KernelNames, roof: Roofline, rows: I64, optimizer: I64, window: Spans
) -> ChainFacts:
    """Runs of fusible kernels on one stream inside one step; those of the ``optimizer`` have a rule of their own.

    Kernels below 10 µs neither count nor break a run when they are fusible: the launch rule prices them.
    """
    kernels = rows[columns.category[rows] == Category.KERNEL]
    kernels = kernels[np.lexsort((columns.ts_ns[kernels], columns.stream[kernels]))]
    fusible = kinds.pointwise[columns.name[kernels]] & ~np.isin(kernels, optimizer)
    if not fusible.any():
        return ChainFacts(share=0.0, chains_per_step=0.0, mean_length=0.0, example=())
    stream, step = columns.stream[kernels], np.searchsorted(window.start, columns.ts_ns[kernels], side="right")
    breaks = (fusible[1:] != fusible[:-1]) | (stream[1:] != stream[:-1]) | (step[1:] != step[:-1])
    run = np.cumsum(np.r_[True, breaks]) - 1
    counts = fusible & (columns.dur_ns[kernels] >= SMALL_KERNEL_NS)
    length = np.bincount(run, weights=counts)
    long = length >= SHORTEST_CHAIN
    inside = long[run] & counts
    time = np.bincount(run, weights=columns.dur_ns[kernels])
    example = kernels[(run == int(np.argmax(time * long))) & counts][:5] if long.any() else kernels[:0]
    return ChainFacts(
        share=covered_ns(columns, kernels[inside]) / max(window.total_ns, 1),
        chains_per_step=int(long.sum()) / max(len(window), 1),
        mean_length=float(np.average(length[long], weights=time[long])) if long.any() else 0.0,
        example=tuple(columns.strings[name] for name in columns.name[example]),
        memory_ratio=_memory_ratio(columns, roof, kernels[inside]),
    )


def _memory_ratio(columns: TraceColumns, roof: Roofline, kernels: I64) -> float | None:
    """Compulsory traffic of ``kernels`` over what the memory moves at its peak in their time."""
    moved = roof.bytes[np.searchsorted(roof.rows, kernels[np.isin(kernels, roof.rows)])]
    time = columns.dur_ns[kernels[np.isin(kernels, roof.rows)]]
    known = np.isfinite(moved)
    if roof.spec is None or not len(time) or 2 * int(time[known].sum()) < int(columns.dur_ns[kernels].sum()):
        return None
    return float(moved[known].sum()) / (float(time[known].sum()) * roof.spec.hbm_gb_per_s)
