"""One trace to the facts it holds: partition, kernels, copies, blocking calls, allocator, collectives."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.collectives import comm_facts
from profilerkit.analysis.device import device_window
from profilerkit.analysis.facts import (
    AllocatorFacts,
    ChainFacts,
    ColdFacts,
    CommFacts,
    CopyFacts,
    DeviceFacts,
    InputFacts,
    MathFacts,
    SyncFacts,
)
from profilerkit.analysis.host import BATCH_COPY_BYTES, BLOCKING_CALL_NS, HostNames
from profilerkit.analysis.intervals import I64, Spans, intersect, union
from profilerkit.analysis.kernels import (
    SMALL_KERNEL_NS,
    KernelNames,
    in_window,
    largest,
    self_times,
)
from profilerkit.analysis.leaves import LEAVES, leaf
from profilerkit.analysis.memory import memory_of
from profilerkit.analysis.partition import Partition, busiest_device, copy_leaves, judged_device_rows, partition
from profilerkit.analysis.steps import TraceSteps, find_steps
from profilerkit.model.report import Kernel, Memory
from profilerkit.model.step import DeviceWindow
from profilerkit.trace.columns import Category, DeviceProperties, TraceColumns
from profilerkit.trace.links import launch_of

#: A runtime call this long that neither waits nor copies loads modules, creates a context or grows a heap.
SLOW_CALL_NS = 50_000_000
#: The slow calls are first-use work when this much of their time falls into one step.
COLD_CONCENTRATION = 0.8
#: Shortest run of fusible kernels that a compiler would turn into one (R17).
SHORTEST_CHAIN = 3


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """What one trace says about its steady window; every ``None`` means the trace cannot say."""

    columns: TraceColumns
    steps: TraceSteps
    partition: Partition
    window: Spans
    n_steady: int
    device: DeviceFacts | None
    properties: DeviceProperties | None
    device_window: DeviceWindow | None
    input: InputFacts | None
    copies: CopyFacts | None
    syncs: SyncFacts | None
    allocator: AllocatorFacts | None
    math: MathFacts | None
    chains: ChainFacts | None
    comm: CommFacts | None
    cold: ColdFacts | None
    kernels: tuple[Kernel, ...]
    memory: Memory

    @property
    def totals(self) -> I64:
        """``(n_leaves,)`` ns in the steady window."""
        keep = np.array([state == "steady" for state in self.steps.state], dtype=bool)
        totals: I64 = self.partition.per_step[keep].sum(axis=0)
        return totals


def trace_facts(columns: TraceColumns, whole: tuple[int, int] | None = None) -> TraceFacts:
    """Analyse one trace. Steps outside the steady window are partitioned too, for the step table.

    ``whole``: first and last step number that capture knows to be whole.
    """
    names, kinds = HostNames.of(columns), KernelNames.of(columns)
    steps = find_steps(columns, names, whole)
    launches = launch_of(columns)
    all_steps = Spans(steps.start, steps.end)
    parts = partition(columns, names, kinds, launches, all_steps)
    window = steps.steady
    judged = in_window(columns, window)
    on_gpu = parts.mode == "gpu"
    properties = _properties(columns, all_steps)
    steady_ns = max(window.total_ns, 1)
    count = max(len(window), 1)
    ran = judged_device_rows(columns, all_steps) if on_gpu else columns.category == Category.CPU_OP
    run_rows = np.flatnonzero(judged & ran)
    return TraceFacts(
        columns=columns,
        steps=steps,
        partition=parts,
        window=window,
        n_steady=len(window),
        device=_device(columns, launches, ran, run_rows, window, properties) if on_gpu else None,
        properties=properties,
        device_window=device_window(columns, kinds),
        input=_input(columns, names, parts, steps),
        copies=_pageable(columns, parts, run_rows, count) if on_gpu else None,
        syncs=_syncs(columns, names, judged, parts, steps) if on_gpu else None,
        allocator=_allocator(columns, names, judged, count) if on_gpu else None,
        math=_math(columns, kinds, run_rows, steady_ns, properties) if on_gpu else None,
        chains=_chains(columns, kinds, run_rows, steady_ns, count) if on_gpu else None,
        comm=comm_facts(columns, kinds, window, judged, device=ran if on_gpu else None),
        cold=_cold(columns, names, steps),
        kernels=largest(
            columns, kinds, run_rows, columns.dur_ns[run_rows] if on_gpu else self_times(columns, run_rows), steady_ns
        ),
        memory=memory_of(columns, window, properties),
    )


def _properties(columns: TraceColumns, window: Spans) -> DeviceProperties | None:
    device = busiest_device(columns, window)
    return next((entry for entry in columns.meta.devices if entry.id == device and entry.name), None)


def _device(
    columns: TraceColumns,
    launches: I64,
    ran: npt.NDArray[np.bool_],
    rows: I64,
    window: Spans,
    properties: DeviceProperties | None,
) -> DeviceFacts:
    kernels = rows[columns.category[rows] == Category.KERNEL]
    busy = intersect(window, union(columns.ts_ns[ran], columns.end_ns[ran]))
    durations = columns.dur_ns[kernels]
    return DeviceFacts(
        name=properties.name if properties else None,
        kernels_per_step=len(kernels) / max(len(window), 1),
        median_kernel_ns=float(np.median(durations)) if len(kernels) else 0.0,
        small_count_ratio=float((durations < SMALL_KERNEL_NS).mean()) if len(kernels) else 0.0,
        busy_ratio=busy.total_ns / max(window.total_ns, 1),
        unlinked_ratio=float((launches[kernels] < 0).mean()) if len(kernels) else 0.0,
        queue_empty_ratio=_queue_empty(columns, launches, np.flatnonzero(ran), kernels),
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


def _input(columns: TraceColumns, names: HostNames, parts: Partition, steps: TraceSteps) -> InputFacts | None:
    fetch = columns.is_a(Category.ANNOTATION, Category.CPU_OP) & names.loader[columns.name]
    fetch &= in_window(columns, steps.steady)
    if not fetch.any():
        return None
    rows = np.flatnonzero(fetch)
    steady = np.array([state == "steady" for state in steps.state], dtype=bool)
    waits = parts.per_step[steady][:, [leaf("input.prep"), leaf("input.wait")]].sum()
    longest = rows[columns.dur_ns[rows].argmax()]
    torch_rows = rows[[columns.strings[name].startswith("enumerate") for name in columns.name[rows]]]
    single = bool(names.single_process[columns.name[torch_rows]].any()) if len(torch_rows) else None
    return InputFacts(
        wait_ns=float(waits) / max(int(steady.sum()), 1),
        cpu_ratio=None,
        fetches=len(rows),
        single_process=single,
        source="derived",
        origin=columns.strings[columns.name[longest]],
        longest_ns=(int(columns.ts_ns[longest]), int(columns.end_ns[longest])),
    )


def _pageable(columns: TraceColumns, parts: Partition, rows: I64, count: int) -> CopyFacts:
    pageable = np.array(["Pageable" in text and "HtoD" in text for text in columns.strings], dtype=bool)
    chosen = rows[pageable[columns.name[rows]] & (columns.bytes[rows] >= BATCH_COPY_BYTES)]
    spans = union(columns.ts_ns[chosen], columns.end_ns[chosen])
    exposed = intersect(parts.segments.only(leaf("input.h2d")), spans).total_ns
    return CopyFacts(
        per_step=len(chosen) / count,
        bytes_per_step=float(columns.bytes[chosen].sum()) / count,
        time_ns=float(columns.dur_ns[chosen].sum()) / count,
        exposed_ns=exposed / count,
    )


def _syncs(
    columns: TraceColumns, names: HostNames, judged: npt.NDArray[np.bool_], parts: Partition, steps: TraceSteps
) -> SyncFacts:
    calls = judged & (columns.category == Category.RUNTIME) & names.sync_call[columns.name]
    calls |= (
        judged & (columns.category == Category.RUNTIME) & names.copy_call[columns.name] & _waits_for_result(columns)
    )
    rows = np.flatnonzero(calls & (columns.dur_ns >= BLOCKING_CALL_NS))
    steady = np.array([state == "steady" for state in steps.state], dtype=bool)
    drained = int(parts.per_step[steady][:, leaf("sync.drain")].sum())
    count = max(int(steady.sum()), 1)
    labels, times = np.unique(columns.name[rows], return_counts=True)
    order = np.argsort(-times)[:3]
    return SyncFacts(
        per_step=len(rows) / count,
        blocked_ns=float(columns.dur_ns[rows].sum()) / count,
        drained_ns=drained / count,
        culprits=tuple((columns.strings[labels[i]], int(times[i])) for i in order),
    )


def _waits_for_result(columns: TraceColumns) -> npt.NDArray[np.bool_]:
    """Runtime rows that copied device memory to the host: the call returns when the data is there."""
    copies = copy_leaves(columns) == leaf("sync.d2h")
    return np.isin(columns.correlation, columns.correlation[copies]) & (columns.correlation >= 0)


def _allocator(columns: TraceColumns, names: HostNames, judged: npt.NDArray[np.bool_], count: int) -> AllocatorFacts:
    calls = judged & (columns.category == Category.RUNTIME) & names.allocator[columns.name]
    return AllocatorFacts(calls_per_step=int(calls.sum()) / count, host_ns=float(columns.dur_ns[calls].sum()) / count)


def _math(
    columns: TraceColumns, kinds: KernelNames, rows: I64, steady_ns: int, properties: DeviceProperties | None
) -> MathFacts:
    kernels = rows[columns.category[rows] == Category.KERNEL]
    strings = columns.strings
    math = kinds.math & ~kinds.communication

    def share(mask: npt.NDArray[np.bool_]) -> float:
        return _covered_ns(columns, kernels[mask[columns.name[kernels]]]) / steady_ns

    fp32 = math & kinds.fp32_math
    per_name = np.bincount(columns.name[kernels], weights=columns.dur_ns[kernels], minlength=len(strings)) * fp32
    return MathFacts(
        math_share=share(math),
        fp32_share=share(fp32),
        tensor_core_share=share(math & kinds.tensor_core),
        compute_major=properties.compute_major if properties else None,
        example=strings[int(per_name.argmax())] if per_name.any() else None,
    )


def _covered_ns(columns: TraceColumns, rows: I64) -> int:
    """Time in which any of ``rows`` runs: where streams overlap it counts once, so that a share stays below one."""
    return union(columns.ts_ns[rows], columns.end_ns[rows]).total_ns


def _chains(columns: TraceColumns, kinds: KernelNames, rows: I64, steady_ns: int, count: int) -> ChainFacts:
    """Runs of fusible kernels on one stream; kernels below 10 µs are left to the launch rule."""
    kernels = rows[columns.category[rows] == Category.KERNEL]
    kernels = kernels[columns.dur_ns[kernels] >= SMALL_KERNEL_NS]
    order = np.lexsort((columns.ts_ns[kernels], columns.stream[kernels]))
    kernels = kernels[order]
    fusible = kinds.pointwise[columns.name[kernels]]
    if not fusible.any():
        return ChainFacts(share=0.0, chains_per_step=0.0, mean_length=0.0, example=())
    stream = columns.stream[kernels]
    breaks = np.r_[True, (fusible[1:] != fusible[:-1]) | (stream[1:] != stream[:-1])]
    run = np.cumsum(breaks) - 1
    length = np.bincount(run)
    long = (length >= SHORTEST_CHAIN) & np.bincount(run, weights=fusible).astype(bool)
    inside = long[run]
    time = np.bincount(run, weights=columns.dur_ns[kernels])
    example = kernels[run == int(np.argmax(time * long))][:5] if long.any() else kernels[:0]
    return ChainFacts(
        share=_covered_ns(columns, kernels[inside]) / steady_ns,
        chains_per_step=int(long.sum()) / count,
        mean_length=float(length[long].mean()) if long.any() else 0.0,
        example=tuple(columns.strings[name] for name in columns.name[example]),
    )


def _cold(columns: TraceColumns, names: HostNames, steps: TraceSteps) -> ColdFacts | None:
    """Slow first-use calls, if their time is concentrated in one step."""
    waits = names.sync_call | names.copy_call
    rows = np.flatnonzero(
        (columns.category == Category.RUNTIME) & ~waits[columns.name] & (columns.dur_ns >= SLOW_CALL_NS)
    )
    if not len(rows):
        return None
    inside = np.searchsorted(steps.start, columns.ts_ns[rows], side="right") - 1
    per_step = np.bincount(inside.clip(min=0), weights=columns.dur_ns[rows], minlength=len(steps.start))
    worst = int(per_step.argmax())
    if per_step[worst] < COLD_CONCENTRATION * per_step.sum() or steps.state[worst] != "steady":
        return None
    order = rows[np.argsort(-columns.dur_ns[rows])][:3]
    return ColdFacts(
        share=float(per_step[worst]) / max(steps.steady.total_ns, 1),
        calls=tuple((columns.strings[columns.name[row]], int(columns.dur_ns[row])) for row in order),
    )


def leaf_times(totals: I64) -> dict[str, int]:
    """Leaf name to ns, without the empty ones."""
    return {LEAVES[index]: int(value) for index, value in enumerate(totals) if value}
