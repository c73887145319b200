"""Everything that was read of a run to one Facts: which rank to judge, what is missing, how far to trust it."""

from collections.abc import Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.hardware.lookup import lookup
from profilerkit.model.change import revise
from profilerkit.model.report import Memory
from profilerkit.model.run import Loader, Signal, Trust
from profilerkit.model.step import Rank
from profilerkit.rundir.layout import RankMeta

#: The least communicating rank is taken as the one the others wait for when the spread exceeds this share (R36).
WAITING_SPREAD = 0.05


def run_facts(
    ranks: Sequence[RankFacts],
    *,
    device: str | None = None,
    world_size: int | None = None,
    recorded: int | None = None,
    notes: Sequence[str] = (),
) -> Facts:
    """Facts of a run, told from its judged rank.

    Args:
        ranks: at least one.
        device: a device name that overrides the one in the trace.
        world_size: ranks of the job as its manifest says; ``None`` leaves it to the traces.
        recorded: ranks that could be read, where ``ranks`` are chosen among them.
        notes: what is said about the run as a whole, for the trust section.
    """
    judged, named = _judge(ranks)
    chosen = ranks[judged]
    trace = chosen.trace
    world = world_size or _world_size(ranks)
    properties = trace.properties if trace else None
    name = device or (properties.name if properties else None)
    meta = chosen.record.meta if chosen.record else None
    mode = chosen.mode
    return Facts(
        mode="gpu" if mode == "gpu" else "cpu" if mode == "cpu" else "steps",
        steps=chosen.steps,
        step_ns=float(chosen.steps.time_ns.median) if chosen.steps.time_ns else None,
        step_error_ns=chosen.step_error_ns,
        parts=chosen.parts,
        ranks=tuple(_rank(rank) for rank in ranks),
        trust=_trust(ranks, chosen, notes),
        judged_rank=judged,
        world_size=world,
        missing_ranks=max(world - (recorded or len(ranks)), 0) if world is not None else None,
        waiting_rank_named=named,
        input=chosen.input,
        loader=_loader(meta),
        usable_cores=meta.usable_cores if meta else None,
        device=trace.device if trace else None,
        copies=trace.copies if trace else None,
        syncs=trace.syncs if trace else None,
        allocator=trace.allocator if trace else None,
        math=trace.math if trace else None,
        chains=trace.chains if trace else None,
        comm=trace.comm if trace else None,
        stalls=chosen.stalls,
        cold=trace.cold if trace else None,
        spec=lookup(name, properties.memory_bytes if properties else None) if name else None,
        kernels=trace.kernels if trace else (),
        memory=_memory(trace),
        samples=chosen.samples,
        trace_read=trace is not None,
    )


def _loader(meta: RankMeta | None) -> Loader | None:
    """The loader's settings in the report's own record."""
    if meta is None or meta.loader is None:
        return None
    known = meta.loader
    return Loader(
        kind=known.kind,
        num_workers=known.num_workers,
        batch_size=known.batch_size,
        pin_memory=known.pin_memory,
        prefetch_factor=known.prefetch_factor,
        persistent_workers=known.persistent_workers,
        dataset_len=known.dataset_len,
    )


def _memory(trace: TraceFacts | None) -> Memory:
    """Peaks and capacity, with the allocator calls where the trace shows runtime calls."""
    if trace is None:
        return Memory()
    calls = trace.allocator.calls_per_step if trace.allocator else None
    return revise(trace.memory, allocator_calls_per_step=calls)


def _judge(ranks: Sequence[RankFacts]) -> tuple[int, bool]:
    """The rank whose story is told, and whether the others wait for it.

    In a collective everybody leaves together, so the rank that spends least in collectives arrived last: what the
    others book as communication is waiting for it. Without collectives the slowest rank is told. A rank without a trace
    says nothing about its communication and is told only where no rank has one.
    """
    traced = [index for index, rank in enumerate(ranks) if rank.trace is not None] or list(range(len(ranks)))
    exposed = [ranks[index].share("comm.other") for index in traced]
    if max(exposed) - min(exposed) >= WAITING_SPREAD:
        return traced[exposed.index(min(exposed))], True
    times = [ranks[index].steps.time_ns for index in traced]
    lengths = [time.median if time else 0 for time in times]
    return traced[lengths.index(max(lengths))], False


def _world_size(ranks: Sequence[RankFacts]) -> int | None:
    sizes = [rank.trace.columns.meta.world_size for rank in ranks if rank.trace and rank.trace.columns.meta.world_size]
    return max(sizes) if sizes else None


def _rank(rank: RankFacts) -> Rank:
    trace = rank.trace
    return Rank(
        rank=rank.rank,
        origin=rank.origin,
        breakdown=rank.parts,
        busy_ratio=trace.device.busy_ratio if trace and trace.device else None,
        step_ns=rank.steps.time_ns.median if rank.steps.time_ns else None,
        device=trace.properties.name if trace and trace.properties else None,
        device_window=trace.device_window if trace else None,
    )


def _trust(ranks: Sequence[RankFacts], chosen: RankFacts, of_the_run: Sequence[str]) -> Trust:
    damage = [rank.trace.columns.damage for rank in ranks if rank.trace]
    trace = chosen.trace
    meta = chosen.record.meta if chosen.record else None
    step_ns = chosen.steps.time_ns.median if chosen.steps.time_ns else None
    own = meta.self_ns_per_step if meta else None
    notes = [*of_the_run, *(note for entry in damage for note in entry.notes)]
    notes += [note for rank in ranks if rank.record for note in rank.record.notes]
    if trace and trace.partition.mode == "cpu" and trace.columns.meta.backend == "nccl":
        notes.insert(0, "The job used NCCL, but the trace holds no device events: only the host side is judged.")
    if chosen.steps.inferred and chosen.steps.time_ns:
        notes.append(f"Steps were inferred from {chosen.steps.found_by}.")
    return Trust(
        mode="gpu" if chosen.mode == "gpu" else "cpu" if chosen.mode == "cpu" else "steps",
        events=sum(len(rank.trace.columns) for rank in ranks if rank.trace),
        repaired=sum(entry.repaired for entry in damage),
        dropped=sum(entry.dropped for entry in damage),
        truncated=any(entry.truncated for entry in damage),
        inflation_ratio=chosen.inflation_ratio,
        overhead_ratio=own / step_ns if own is not None and step_ns else None,
        signals=_signals(chosen),
        notes=tuple(notes),
    )


def _signals(chosen: RankFacts) -> tuple[Signal, ...]:
    """What was recorded of the judged rank and how to record the rest."""
    trace, record = chosen.trace, chosen.record
    features = record.meta.features if record and record.meta else {}
    off = {name: feature.reason for name, feature in features.items() if not feature.on}
    recorded = trace.columns.meta.recorded if trace else frozenset()
    capture = "run the loop under profilerkit.profile(...)"

    def signal(name: str, present: bool, reason: str, hint: str) -> Signal:
        return (
            Signal(name=name, state="measured")
            if present
            else Signal(name=name, state="missing", reason=reason, hint=hint)
        )

    windows = record.windows if record else ()
    why_no_trace = next(
        (status.reason for status, _ in windows if not status.ok), off.get("deep", "no window was open")
    )
    gpu_reason = off.get("nvml", "a trace holds no counters")
    return (
        signal("step timers, every step", chosen.log is not None, "only a trace was given", capture),
        signal("input wait", chosen.input is not None, "no loader was seen", "wrap the loader: prof.wrap(loader)"),
        signal("operator trace", trace is not None, why_no_trace, "profilerkit.profile(..., deep=True)"),
        signal(
            "device events",
            trace is not None and trace.partition.mode == "gpu",
            "the trace holds none; the main thread stands for the device",
            "record with ProfilerActivity.CUDA",
        ),
        signal("operator shapes", "record_shapes" in recorded, "not recorded", "torch.profiler: record_shapes=True"),
        signal("Python stacks", "with_stack" in recorded, "not recorded", "torch.profiler: with_stack=True"),
        signal(
            "memory",
            trace is not None and trace.memory.peak_allocated_bytes is not None,
            "not recorded",
            "torch.profiler: profile_memory=True",
        ),
        signal("GPU counters", any(s.name.startswith("gpu.") for s in chosen.samples), gpu_reason, capture),
        signal(
            "host counters",
            any(s.name.startswith("host.") for s in chosen.samples),
            off.get("host", "a trace holds no counters"),
            capture,
        ),
        signal("unprofiled step time", chosen.log is not None, "only profiled steps were given", capture),
    )
