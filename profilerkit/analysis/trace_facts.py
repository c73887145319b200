"""One trace to the facts it holds: partition, kernels, copies, blocking calls, allocator, collectives."""

import re
from dataclasses import dataclass

import numpy as np

from profilerkit.analysis.communication.comm_facts import EXPOSED, comm_facts
from profilerkit.analysis.communication.log import CollectiveLog, collective_log
from profilerkit.analysis.communication.parallelism import parallelism_of
from profilerkit.analysis.communication.registry import Registry, built_in
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
from profilerkit.analysis.host import HostNames
from profilerkit.analysis.intervals import I64, Spans, union
from profilerkit.analysis.kernel_facts import chain_facts, device_facts, math_facts, pageable_copies
from profilerkit.analysis.kernels import KernelNames, in_window, largest, self_times
from profilerkit.analysis.leaves import LEAVES
from profilerkit.analysis.memory import memory_of
from profilerkit.analysis.partition import Partition, busiest_device, judged_device_rows, partition
from profilerkit.analysis.runtime_calls import allocator_facts, cold_facts, sync_facts
from profilerkit.analysis.steps import TraceSteps, find_steps
from profilerkit.model.communication import Parallelism
from profilerkit.model.report import Kernel, Memory
from profilerkit.model.step import DeviceWindow
from profilerkit.trace.columns import Category, Damage, DeviceProperties, TraceColumns, TraceMeta
from profilerkit.trace.links import launch_of

_LAUNCH = re.compile(r"^(?:cuda|hip|cu)(?:LaunchKernel|LaunchCooperative|GraphLaunch|ModuleLaunch|ExtLaunch)")


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """What one trace says about its steady window; every ``None`` means the trace cannot say.

    It holds none of the events, so that many ranks fit into memory and between processes.
    """

    meta: TraceMeta
    damage: Damage
    n_events: int
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
    collectives: CollectiveLog | None
    parallelism: tuple[Parallelism, ...]
    cold: ColdFacts | None
    device_events_missing: bool
    kernels: tuple[Kernel, ...]
    memory: Memory

    @property
    def totals(self) -> I64:
        """``(n_leaves,)`` ns in the steady window."""
        keep = np.array([state == "steady" for state in self.steps.state], dtype=bool)
        totals: I64 = self.partition.per_step[keep].sum(axis=0)
        return totals


def trace_facts(
    columns: TraceColumns, whole: tuple[int, int] | None = None, registry: Registry | None = None
) -> TraceFacts:
    """Analyse one trace. Steps outside the steady window are partitioned too, for the step table.

    Args:
        columns: the trace.
        whole: first and last step number that capture knows to be whole.
        registry: which names are communication; the built-in one unless given.
    """
    registry = registry or built_in()
    names, kinds = HostNames.of(columns), KernelNames.of(columns, registry)
    launches = launch_of(columns)
    steps = find_steps(columns, names, whole, launches)
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
    device = ran if on_gpu else None
    collectives = collective_log(columns, kinds.communication, launches, registry, device=device)
    return TraceFacts(
        meta=columns.meta,
        damage=columns.damage,
        n_events=len(columns),
        steps=steps,
        partition=parts,
        window=window,
        n_steady=len(window),
        device=device_facts(columns, launches, ran, run_rows, window, parts, properties) if on_gpu else None,
        properties=properties,
        device_window=device_window(columns, kinds),
        input=_input(columns, names, steps),
        copies=pageable_copies(columns, launches, parts, run_rows, count) if on_gpu else None,
        syncs=sync_facts(columns, names, judged, count) if on_gpu else None,
        allocator=allocator_facts(columns, names, judged, count) if on_gpu else None,
        math=math_facts(columns, kinds, run_rows, steady_ns, properties) if on_gpu else None,
        chains=chain_facts(columns, kinds, run_rows, window) if on_gpu else None,
        comm=comm_facts(columns, kinds.communication, window, collectives, parts, device=device),
        collectives=collectives,
        parallelism=parallelism_of(columns, collectives, parts.segments.only(*EXPOSED), window),
        cold=cold_facts(columns, names, steps, union(columns.ts_ns[ran], columns.end_ns[ran])) if on_gpu else None,
        device_events_missing=not on_gpu and _used_a_device(columns),
        kernels=largest(
            columns, kinds, run_rows, columns.dur_ns[run_rows] if on_gpu else self_times(columns, run_rows), steady_ns
        ),
        memory=memory_of(columns, window, properties),
    )


def _properties(columns: TraceColumns, window: Spans) -> DeviceProperties | None:
    device = busiest_device(columns, window)
    return next((entry for entry in columns.meta.devices if entry.id == device and entry.name), None)


def _used_a_device(columns: TraceColumns) -> bool:
    """Whether a trace without device events comes from a run that used a device.

    Kineto writes the host's events first: of a file that is cut off, the device's may be what is missing.
    """
    launch = np.array([_LAUNCH.match(text) is not None for text in columns.strings], dtype=bool)
    launched = (columns.category == Category.RUNTIME) & launch[columns.name]
    return bool(launched.any()) or columns.meta.backend == "nccl" or columns.damage.truncated


def _input(columns: TraceColumns, names: HostNames, steps: TraceSteps) -> InputFacts | None:
    fetch = columns.is_a(Category.ANNOTATION, Category.CPU_OP) & names.loader[columns.name]
    fetch &= in_window(columns, steps.steady)
    if not fetch.any():
        return None
    rows = np.flatnonzero(fetch)
    longest = rows[columns.dur_ns[rows].argmax()]
    torch_rows = rows[[columns.strings[name].startswith("enumerate") for name in columns.name[rows]]]
    single = bool(names.single_process[columns.name[torch_rows]].any()) if len(torch_rows) else None
    return InputFacts(
        cpu_ratio=None,
        fetches=len(rows),
        single_process=single,
        source="derived",
        origin=columns.strings[columns.name[longest]],
        longest_ns=(int(columns.ts_ns[longest]), int(columns.end_ns[longest])),
    )


def leaf_times(totals: I64) -> dict[str, int]:
    """Leaf name to ns, without the empty ones."""
    return {LEAVES[index]: int(value) for index, value in enumerate(totals) if value}
