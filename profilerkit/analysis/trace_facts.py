"""One trace to the facts it holds: partition, kernels, copies, blocking calls, allocator, collectives."""

from typing import Any

import msgspec
import numpy as np

from profilerkit.analysis.communication.details import collective_work_of
from profilerkit.analysis.communication.log import CollectiveLog, collective_log
from profilerkit.analysis.communication.registry import Registry, built_in
from profilerkit.analysis.communication.table import EXPOSED, CollectiveWork, CommFacts, comm_facts, parallelism_of
from profilerkit.analysis.device.compute import compute_facts, compute_leaves, largest
from profilerkit.analysis.device.copies import CopyFacts
from profilerkit.analysis.device.device_facts import (
    AllocatorFacts,
    ChainFacts,
    ColdFacts,
    DeviceFacts,
    SmallCopyFacts,
    SyncFacts,
    batch_copies,
    chain_facts,
    cold_facts,
    device_facts,
    device_window,
    host_copies,
    small_copies,
    sync_facts,
)
from profilerkit.analysis.device.kernel_losses import KernelLosses, host_tables, losses_of_kernels, optimizer_kernels
from profilerkit.analysis.device.kernels import KernelNames, LaunchFacts, launch_facts, no_device_events
from profilerkit.analysis.device.roofline import MathFacts, math_facts
from profilerkit.analysis.device.shape_losses import DenseTables, Judged
from profilerkit.analysis.host.activity import NO_ROWS
from profilerkit.analysis.host.host_facts import (
    CompileFacts,
    InputFacts,
    PythonFacts,
    compiles_of_trace,
    epochs_of_trace,
    input_facts,
    python_facts,
)
from profilerkit.analysis.host.names import HostNames
from profilerkit.analysis.host.operators import HeldFacts, held_by
from profilerkit.analysis.intervals import Spans
from profilerkit.analysis.memory.allocator import judged_instants, memory_of
from profilerkit.analysis.memory.use import MemoryUse, offloaded, recomputed_bytes, zeroed_gradients
from profilerkit.analysis.partition import (
    Partition,
    TraceView,
    busiest_device,
    judged_device_rows,
    partition_and_host,
    ran_on_a_device,
)
from profilerkit.analysis.replay.device_side import MOST_EVENTS
from profilerkit.analysis.replay.gate import ReplayFacts, replay_facts
from profilerkit.analysis.steps.find import TraceSteps, find_steps
from profilerkit.analysis.steps.lanes import StepLanes, step_events, step_lanes
from profilerkit.analysis.steps.phases import PhaseFacts, RecordingFacts, optimizer_rows, phase_facts, recording_facts
from profilerkit.analysis.steps.trend import causes, loading_per_step, warmup_cost
from profilerkit.analysis.workers.queue import EpochFacts
from profilerkit.hardware import DeviceSpec, lookup
from profilerkit.model import revise
from profilerkit.model.communication import Parallelism
from profilerkit.model.events import StepEvents
from profilerkit.model.memory import Memory
from profilerkit.model.report import Compute, HostCopy, Kernel
from profilerkit.model.step import DeviceWindow, Warmup, leaf, leaf_times
from profilerkit.rundir.layout import NoKernels
from profilerkit.trace.columns import I64, Category, Damage, DeviceProperties, TraceColumns, TraceMeta
from profilerkit.trace.launches import aligned, launch_of
from profilerkit.trace.merged import distinct


class TraceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one trace says about its steady window; every ``None`` means the trace cannot say.

    It holds none of the events, so that many ranks fit into memory and between processes. What has a default here is
    told only of a device. ``no_kernels`` says why it has no events of a device that was used.
    """

    meta: TraceMeta
    damage: Damage
    n_events: int
    steps: TraceSteps
    partition: Partition
    window: Spans
    n_steady: int
    properties: DeviceProperties | None
    device_window: DeviceWindow | None
    input: InputFacts | None
    comm: CommFacts | None
    collectives: CollectiveLog | None
    parallelism: tuple[Parallelism, ...]
    warmup: Warmup | None
    no_kernels: NoKernels | None
    kernels: tuple[Kernel, ...]
    compute: Compute
    memory: Memory
    device: DeviceFacts | None = None
    copies: CopyFacts | None = None
    syncs: SyncFacts | None = None
    allocator: AllocatorFacts | None = None
    math: MathFacts | None = None
    chains: ChainFacts | None = None
    cold: ColdFacts | None = None
    launches: LaunchFacts | None = None
    host_copies: tuple[HostCopy, ...] = ()
    pinned: CopyFacts | None = None
    small_copies: SmallCopyFacts | None = None
    epochs: EpochFacts | None = None
    python: PythonFacts | None = None
    held: tuple[HeldFacts, ...] | None = None
    tables: DenseTables | None = None
    compiles: CompileFacts | None = None
    recording: RecordingFacts | None = None
    phases: tuple[PhaseFacts, ...] = ()
    memory_use: MemoryUse = msgspec.field(default_factory=MemoryUse)
    kernel_losses: KernelLosses | None = None
    collective_work: CollectiveWork | None = None
    replay: ReplayFacts | None = None
    lanes: StepLanes | None = None
    step_events: tuple[StepEvents, ...] = ()

    @property
    def totals(self) -> I64:
        """``(n_leaves,)`` ns in the steady window."""
        totals: I64 = self.partition.per_step[self.steps.judged].sum(axis=0)
        return totals

    def shares(self, per_step: I64 | None) -> dict[str, float]:
        """Leaf to its share of the steady window, of an array of the partition; empty for ``None``."""
        if per_step is None or not self.window.total_ns:
            return {}
        times = leaf_times(per_step[self.steps.judged].sum(axis=0))
        return {name: value / self.window.total_ns for name, value in times.items()}


def trace_facts(
    columns: TraceColumns,
    whole: tuple[int, int] | None = None,
    *,
    steps_are_given: bool = True,
    device: str | None = None,
    registry: Registry | None = None,
    replay_events: int = MOST_EVENTS,
    events: bool = False,
) -> TraceFacts:
    """Analyse one trace. Steps outside the steady window are partitioned too, for the step table.

    Args:
        columns: the trace.
        device: overrides the name in the trace.
        whole: first and last step number that capture knows to be whole.
        steps_are_given: the user placed the step marks; after an optimizer step a loop may do more than get a batch.
        registry: which names are communication; the built-in one unless given.
        replay_events: device events that are kept for replaying some of the steps; fewer where many ranks are read.
        events: keep the longest events of two steps too, for a timeline.
    """
    registry = registry or built_in()
    view = _view(distinct(columns), registry, whole, steps_are_given, device, replay_events)
    columns, names, kinds, launches = view.columns, view.names, view.kinds, view.launches
    steps, parts, properties = view.steps, view.parts, _properties(columns, view.device)
    collectives = collective_log(columns, kinds.communication, launches, registry, device=view.device_rows)
    unseen = None if view.on_gpu else no_device_events(columns)
    of_host = {} if view.on_gpu or unseen else {"held": held_by(view), "tables": host_tables(view)}
    made_of = collective_work_of(view, collectives)
    return TraceFacts(
        meta=columns.meta,
        damage=columns.damage,
        n_events=len(columns),
        steps=steps,
        partition=revise(parts, copies=NO_ROWS, copy_leaf=NO_ROWS),  # of no use without the events
        window=steps.steady,
        n_steady=len(steps.steady),
        properties=properties,
        device_window=device_window(view),
        input=input_facts(view),
        comm=comm_facts(view, collectives),
        collectives=collectives,
        parallelism=parallelism_of(columns, collectives, parts.segments.only(*EXPOSED), steps.steady),
        warmup=_warmup(view),
        no_kernels=unseen,
        kernels=largest(view),
        compute=compute_facts(view),
        memory=memory_of(view),
        collective_work=made_of,
        epochs=epochs_of_trace(view),
        python=python_facts(view),
        compiles=compiles_of_trace(view),
        recording=recording_facts(columns, names, parts.segments, steps.steady, steps.by_host.steady),
        phases=phase_facts(columns, optimizer_rows(columns), parts.segments, steps.steady),
        replay=replay_facts(view, made_of.contention if made_of is not None else None),
        lanes=step_lanes(view),
        memory_use=_memory_use(view),
        step_events=step_events(view) if events else (),
        **(_of_device(view, properties) if view.on_gpu else of_host),
    )


def _view(
    columns: TraceColumns,
    registry: Registry,
    whole: tuple[int, int] | None,
    steps_are_given: bool,
    device: str | None,
    most_events: int,
) -> TraceView:
    names, kinds = HostNames.of(columns), KernelNames.of(columns, registry)
    columns = aligned(columns, launches := launch_of(columns))
    steps = find_steps(columns, names, whole, launches)
    all_steps = Spans(steps.start, steps.end)
    on_gpu = ran_on_a_device(columns)
    ran = judged_device_rows(columns, all_steps) if on_gpu else columns.category == Category.CPU_OP
    spec = device_spec(_properties(columns, busiest_device(columns, all_steps)), device)
    roof, work = compute_leaves(columns, kinds, launches, ran, spec)
    between = steps.between if steps_are_given else None
    parts, host = partition_and_host(
        columns, names, kinds, launches, all_steps, work, issuing=steps.issuing, between=between
    )
    return TraceView(columns, names, kinds, launches, steps, roof, work, ran, host, parts, most_events)


def _warmup(view: TraceView) -> Warmup | None:
    steps = view.steps
    by_host = steps.by_host
    loading = loading_per_step(view.columns, view.loading, Spans(by_host.start, by_host.end), view.busy)
    return warmup_cost(steps.state, steps.end - steps.start, causes(view.parts.per_step, loading))


def _memory_use(view: TraceView) -> MemoryUse:
    columns, steps = view.columns, view.steps
    recomputes = view.parts.per_step[steps.judged, leaf("mem.recompute")].any()
    offloads = view.parts.copies[view.parts.copy_leaf == leaf("mem.offload")]
    mine = judged_instants(columns.memory, view.device)
    return MemoryUse(
        zeroed=zeroed_gradients(view),
        offload=offloaded(columns, offloads[view.judged[offloads]], view.count),
        recomputed_bytes=recomputed_bytes(columns, steps.by_host, mine) if recomputes else None,
    )


def _of_device(view: TraceView, properties: DeviceProperties | None) -> dict[str, Any]:
    """Return what only a device has."""
    columns, kinds, launches, judged = view.columns, view.kinds, view.launches, view.judged
    issuing = view.steps.by_host.steady
    work = Judged(columns, kinds, launches, view.roof, np.flatnonzero(judged[view.roof.rows]), view.window, issuing)
    optimizer_step = optimizer_kernels(work)
    pageable, pinned = batch_copies(view)
    calls = judged & (columns.category == Category.RUNTIME) & view.names.allocator[columns.name]
    return {
        "device": device_facts(view, properties),
        "copies": pageable,
        "syncs": sync_facts(view),
        # Without the host's calls there is nothing to count.
        "allocator": None if columns.meta.framework else AllocatorFacts(calls_per_step=int(calls.sum()) / view.count),
        "math": math_facts(columns, kinds, view.roof, judged, view.steady_ns, properties),
        "chains": chain_facts(view, work.rows[optimizer_step >= 0]),
        "cold": cold_facts(view),
        "launches": launch_facts(columns, kinds, launches, issuing),
        "host_copies": host_copies(view),
        "pinned": pinned,
        "small_copies": small_copies(view),
        "kernel_losses": losses_of_kernels(work, optimizer_step, properties),
    }


def device_spec(properties: DeviceProperties | None, device: str | None) -> DeviceSpec | None:
    """Peaks of a device by the name in the trace, or by one that overrides it; ``None`` if it is not in the table."""
    name = device or (properties.name if properties else None)
    if not name or properties is None:
        return lookup(name) if name else None
    return lookup(name, properties.memory_bytes, properties.multiprocessors)


def _properties(columns: TraceColumns, device: int) -> DeviceProperties | None:
    """Of the judged device; where all that the file lists have one name it is that one, whatever their numbers."""
    named = [entry for entry in columns.meta.devices if entry.name]
    alike = named[:1] if len({entry.name for entry in named}) == 1 else []
    return next((entry for entry in (*(entry for entry in named if entry.id == device), *alike)), None)
