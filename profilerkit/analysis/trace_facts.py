"""One trace to the facts it holds: partition, kernels, copies, blocking calls, allocator, collectives."""

import msgspec
import numpy as np

from profilerkit.analysis.communication.comm_facts import EXPOSED, comm_facts
from profilerkit.analysis.communication.log import CollectiveLog, collective_log
from profilerkit.analysis.communication.parallelism import parallelism_of
from profilerkit.analysis.communication.registry import Registry, built_in
from profilerkit.analysis.communication.wire import Wire
from profilerkit.analysis.communication.wire_facts import wire_facts
from profilerkit.analysis.device.bus_copies import SmallCopyFacts, batch_copies, small_copies
from profilerkit.analysis.device.compute_facts import compute_facts
from profilerkit.analysis.device.compute_leaves import compute_leaves
from profilerkit.analysis.device.host_copies import host_copies
from profilerkit.analysis.device.kernel_facts import chain_facts, device_facts
from profilerkit.analysis.device.kernel_table import largest
from profilerkit.analysis.device.kernels import KernelNames, self_times
from profilerkit.analysis.device.launches import lacks_device_events, launch_facts
from profilerkit.analysis.device.precision import math_facts
from profilerkit.analysis.device.records import (
    AllocatorFacts,
    ChainFacts,
    ColdFacts,
    CopyFacts,
    DeviceFacts,
    LaunchFacts,
    MathFacts,
    SyncFacts,
)
from profilerkit.analysis.device.roofline import Roofline
from profilerkit.analysis.device.utilisation import device_window
from profilerkit.analysis.facts import CommFacts, InputFacts
from profilerkit.analysis.host.activity import NO_ROWS
from profilerkit.analysis.host.compiles import compiles_of_trace
from profilerkit.analysis.host.host_facts import CompileFacts, HeldFacts, PhaseFacts, PythonFacts, RecordingFacts
from profilerkit.analysis.host.input import input_facts
from profilerkit.analysis.host.loading import loading_rows
from profilerkit.analysis.host.names import HostNames, main_thread
from profilerkit.analysis.host.operators import held_by
from profilerkit.analysis.host.phases import phase_facts
from profilerkit.analysis.host.python_stretches import python_facts
from profilerkit.analysis.host.recording import recording_facts
from profilerkit.analysis.host.runtime_calls import allocator_facts, cold_facts, sync_facts
from profilerkit.analysis.intervals import EMPTY, I64, Spans, intersect, subtract, union
from profilerkit.analysis.leaves import LEAVES, leaf
from profilerkit.analysis.memory.allocator import judged_instants, memory_of
from profilerkit.analysis.memory.kept import offloaded, recomputed_bytes
from profilerkit.analysis.memory.use import MemoryUse
from profilerkit.analysis.memory.zeroing import zeroed_gradients
from profilerkit.analysis.partition import (
    Partition,
    busiest_device,
    judged_device_rows,
    partition_and_host,
    ran_on_a_device,
)
from profilerkit.analysis.replay.build import Material
from profilerkit.analysis.replay.gate import ReplayFacts, replay_facts
from profilerkit.analysis.replay.scope import MOST_EVENTS
from profilerkit.analysis.steps.events import step_events
from profilerkit.analysis.steps.find import TraceSteps, find_steps
from profilerkit.analysis.steps.lanes import StepLanes, step_lanes
from profilerkit.analysis.steps.optimizer_marks import optimizer_rows
from profilerkit.analysis.steps.warmup_cause import causes, loading_per_step, warmup_cost
from profilerkit.analysis.waste.embeddings import host_tables
from profilerkit.analysis.waste.find import kernel_waste
from profilerkit.analysis.waste.judged import Judged
from profilerkit.analysis.waste.optimizer import optimizer_kernels
from profilerkit.analysis.waste.records import DenseTables, Waste
from profilerkit.hardware.lookup import DeviceSpec, lookup
from profilerkit.model.change import revise
from profilerkit.model.communication import Parallelism
from profilerkit.model.memory import Memory
from profilerkit.model.report import Compute, HostCopy, Kernel
from profilerkit.model.step import DeviceWindow, Warmup
from profilerkit.model.step_events import StepEvents
from profilerkit.trace.columns import Bools, Category, Damage, DeviceProperties, TraceColumns, TraceMeta
from profilerkit.trace.launches import aligned, launch_of
from profilerkit.trace.merged import distinct


class TraceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one trace says about its steady window; every ``None`` means the trace cannot say.

    It holds none of the events, so that many ranks fit into memory and between processes. What has a default here is
    told only of a device.
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
    device_events_missing: bool
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
    python: PythonFacts | None = None
    held: tuple[HeldFacts, ...] | None = None
    tables: DenseTables | None = None
    compiles: CompileFacts | None = None
    recording: RecordingFacts | None = None
    phases: tuple[PhaseFacts, ...] = ()
    memory_use: MemoryUse = msgspec.field(default_factory=MemoryUse)
    waste: Waste | None = None
    wire: Wire | None = None
    replay: ReplayFacts | None = None
    lanes: StepLanes | None = None
    step_events: tuple[StepEvents, ...] = ()

    @property
    def totals(self) -> I64:
        """``(n_leaves,)`` ns in the steady window."""
        return self._steady(self.partition.per_step)

    def shares(self, per_step: I64 | None) -> dict[str, float]:
        """Leaf to its share of the steady window, of an array of the partition; empty for ``None``."""
        if per_step is None or not self.window.total_ns:
            return {}
        return {name: value / self.window.total_ns for name, value in leaf_times(self._steady(per_step)).items()}

    def _steady(self, per_step: I64) -> I64:
        keep = np.array([state == "steady" for state in self.steps.state], dtype=bool)
        totals: I64 = per_step[keep].sum(axis=0)
        return totals


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
        whole: first and last step number that capture knows to be whole.
        steps_are_given: the user placed the step marks; after an optimizer step a loop may do more than get a batch.
        device: a device name that overrides the one in the trace.
        registry: which names are communication; the built-in one unless given.
        replay_events: device events that are kept for replaying some of the steps; fewer where many ranks are read.
        events: keep the longest events of two steps too, for a timeline.
    """
    columns, registry = distinct(columns), registry or built_in()
    names, kinds = HostNames.of(columns), KernelNames.of(columns, registry)
    columns = aligned(columns, launches := launch_of(columns))
    steps = find_steps(columns, names, whole, launches)
    properties = _properties(columns, all_steps := Spans(steps.start, steps.end))
    on_gpu = ran_on_a_device(columns)
    ran = judged_device_rows(columns, all_steps) if on_gpu else columns.category == Category.CPU_OP
    roof, work = compute_leaves(columns, kinds, launches, ran, device_spec(properties, device))
    between = steps.between if steps_are_given else None
    parts, host = partition_and_host(
        columns, names, kinds, launches, all_steps, work, issuing=steps.issuing, between=between
    )
    seen = _Seen(columns, names, kinds, launches, steps, parts, roof, ran, steps.judged_events(columns, launches))
    collectives = collective_log(columns, kinds.communication, launches, registry, device=ran if on_gpu else None)
    facts = TraceFacts(
        meta=columns.meta,
        damage=columns.damage,
        n_events=len(columns),
        steps=steps,
        partition=revise(parts, copies=NO_ROWS, copy_leaf=NO_ROWS),  # of no use without the events
        window=steps.steady,
        n_steady=len(steps.steady),
        properties=properties,
        device_window=device_window(columns, kinds, launches),
        input=input_facts(columns, names, parts, steps, main_thread(columns)),
        comm=comm_facts(columns, kinds.communication, steps.steady, collectives, parts, device=ran if on_gpu else None),
        collectives=collectives,
        parallelism=parallelism_of(columns, collectives, parts.segments.only(*EXPOSED), steps.steady),
        warmup=_warmup(seen),
        device_events_missing=not on_gpu and lacks_device_events(columns),
        kernels=largest(columns, kinds, roof, launches, seen.rows, seen.time_ns, seen.steady_ns, len(steps.steady)),
        compute=compute_facts(columns, kinds, roof, work, seen.judged, steps.steady),
        memory=memory_of(columns, names, steps, busiest_device(columns, all_steps)),
        wire=_wire(seen, collectives),
    )
    material = Material(columns, names, kinds, launches, steps, roof, work, ran, host, parts, replay_events)
    facts = revise(_with_steps(facts, seen, material), step_events=step_events(material) if events else ())
    return _with_device(facts, seen, roof.spec) if on_gpu else facts


class _Seen(msgspec.Struct, frozen=True):
    """The trace with what was found in it so far; masks are ``(n_events,)``.

    Attributes:
        ran: events of the judged device; on a CPU-only trace the operators.
        judged: events of the steady steps.
    """

    columns: TraceColumns
    names: HostNames
    kinds: KernelNames
    launches: I64
    steps: TraceSteps
    parts: Partition
    roof: Roofline
    ran: Bools
    judged: Bools

    @property
    def rows(self) -> I64:
        """Rows that ran and are judged."""
        return np.flatnonzero(self.ran & self.judged)

    @property
    def time_ns(self) -> I64:
        """Time of each of ``rows``; operators count without what is nested in them."""
        return self.columns.dur_ns[self.rows] if self.parts.mode == "gpu" else self_times(self.columns, self.rows)

    @property
    def steady_ns(self) -> int:
        """Length of the steady window, at least 1."""
        return max(self.steps.steady.total_ns, 1)

    @property
    def busy(self) -> Spans:
        """When the device worked; empty without one."""
        ran = self.ran
        on_gpu = self.parts.mode == "gpu"
        return union(self.columns.ts_ns[ran], self.columns.end_ns[ran]) if on_gpu else EMPTY


def _wire(seen: _Seen, collectives: CollectiveLog | None) -> Wire:
    device = seen.ran if seen.parts.mode == "gpu" else None
    names, steps = seen.kinds.communication, seen.steps
    return wire_facts(seen.columns, names, seen.launches, steps, collectives, seen.parts, device=device)


def _warmup(seen: _Seen) -> Warmup | None:
    steps = seen.steps
    by_host = steps.by_host
    rows = loading_rows(seen.columns, seen.names, seen.launches)
    loading = loading_per_step(seen.columns, rows, Spans(by_host.start, by_host.end), seen.busy)
    return warmup_cost(steps.state, steps.end - steps.start, causes(seen.parts.per_step, loading))


def _memory_use(seen: _Seen, facts: TraceFacts) -> MemoryUse:
    columns, steps = seen.columns, seen.steps
    recomputes = facts.totals[leaf("mem.recompute")] > 0
    on_gpu = facts.partition.mode == "gpu"
    offloads = seen.parts.copies[seen.parts.copy_leaf == leaf("mem.offload")]
    mine = judged_instants(columns.memory, busiest_device(columns, Spans(steps.start, steps.end)))
    return MemoryUse(
        zeroed=zeroed_gradients(columns, seen.launches, seen.ran if on_gpu else None, steps, seen.busy),
        offload=offloaded(columns, offloads[seen.judged[offloads]], max(facts.n_steady, 1)),
        recomputed_bytes=recomputed_bytes(columns, steps.by_host, mine) if recomputes else None,
    )


def _with_steps(facts: TraceFacts, seen: _Seen, material: Material) -> TraceFacts:
    """The facts with what is made of single steps, whatever ran them."""
    columns, parts, steps = seen.columns, seen.parts, seen.steps
    on_host = parts.mode != "gpu" and not facts.device_events_missing
    return revise(
        facts,
        python=python_facts(columns, parts.segments, steps.steady, main_thread(columns)),
        held=held_by(columns, seen.names, seen.kinds, main_thread(columns), steps.steady) if on_host else None,
        tables=host_tables(columns, seen.kinds.math, steps.steady) if on_host else None,
        compiles=compiles_of_trace(columns, seen.names.compiles, steps, parts.per_step),
        recording=recording_facts(columns, seen.names, parts.segments, steps.steady, steps.by_host.steady),
        phases=phase_facts(columns, optimizer_rows(columns), parts.segments, steps.steady),
        replay=replay_facts(material, facts.wire.contention if facts.wire is not None else None),
        lanes=step_lanes(material),
        memory_use=_memory_use(seen, facts),
    )


def _with_device(facts: TraceFacts, seen: _Seen, spec: DeviceSpec | None) -> TraceFacts:
    columns, names, kinds, launches = seen.columns, seen.names, seen.kinds, seen.launches
    rows, judged, window = seen.rows, seen.judged, facts.window
    count = max(facts.n_steady, 1)
    copying = seen.parts.segments.only(leaf("sync.d2h"))
    issuing = seen.steps.by_host.steady
    work = Judged(columns, kinds, launches, seen.roof, np.flatnonzero(judged[seen.roof.rows]), window, issuing)
    optimizer_step = optimizer_kernels(work)
    pageable, pinned = batch_copies(columns, launches, seen.parts, rows, count)
    return revise(
        facts,
        device=device_facts(columns, launches, seen.ran, rows, window, seen.parts, facts.properties),
        copies=pageable,
        syncs=sync_facts(
            *(columns, names, launches, judged, count, intersect(copying, window)),
            # Not cut between adjacent steps: a read-back stands at the end of one more often than not.
            subtract(union(window.start, window.end), seen.busy),
        ),
        # Without the host's calls there is nothing to count.
        allocator=None if columns.meta.framework else allocator_facts(columns, names, judged, count),
        math=math_facts(columns, kinds, seen.roof, judged, seen.steady_ns, facts.properties),
        chains=chain_facts(columns, kinds, seen.roof, rows, work.rows[optimizer_step >= 0], window),
        cold=cold_facts(columns, names, launches, seen.steps, seen.busy),
        launches=launch_facts(columns, kinds, launches, issuing),
        host_copies=host_copies(columns, rows, count, spec),
        pinned=pinned,
        small_copies=small_copies(columns, launches, seen.parts.segments, window, rows, count),
        waste=kernel_waste(work, optimizer_step, facts.properties),
    )


def device_spec(properties: DeviceProperties | None, device: str | None) -> DeviceSpec | None:
    """Peaks of a device by the name in the trace, or by one that overrides it; ``None`` if it is not in the table."""
    name = device or (properties.name if properties else None)
    if not name or properties is None:
        return lookup(name) if name else None
    return lookup(name, properties.memory_bytes, properties.multiprocessors)


def _properties(columns: TraceColumns, window: Spans) -> DeviceProperties | None:
    """Of the judged device; where all that the file lists have one name it is that one, whatever their numbers."""
    device = busiest_device(columns, window)
    named = [entry for entry in columns.meta.devices if entry.name]
    alike = named[:1] if len({entry.name for entry in named}) == 1 else []
    return next((entry for entry in (*(entry for entry in named if entry.id == device), *alike)), None)


def leaf_times(totals: I64) -> dict[str, int]:
    """Leaf name to ns, without the empty ones."""
    return {LEAVES[index]: int(value) for index, value in enumerate(totals) if value}
