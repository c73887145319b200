"""Everything that was read of a run to one Facts: which rank to judge, what is missing, how far to trust it."""

from collections.abc import Sequence

from profilerkit.analysis.damage import damage_notes
from profilerkit.analysis.facts import Facts
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.hardware.lookup import lookup
from profilerkit.model.change import revise
from profilerkit.model.report import Memory
from profilerkit.model.run import Signal, Trust
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
    judged, waiting = _judge(ranks)
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
        waiting_share=waiting,
        input=chosen.input,
        loader=meta.loader if meta else None,
        usable_cores=_cores(ranks, meta),
        device=trace.device if trace else None,
        copies=trace.copies if trace else None,
        syncs=trace.syncs if trace else None,
        allocator=trace.allocator if trace else None,
        math=trace.math if trace else None,
        chains=trace.chains if trace else None,
        comm=trace.comm if trace else None,
        stalls=chosen.stalls,
        cold=trace.cold if trace else None,
        device_events_missing=trace.device_events_missing if trace else False,
        spec=lookup(name, properties.memory_bytes if properties else None) if name else None,
        kernels=trace.kernels if trace else (),
        memory=_memory(trace),
        samples=chosen.samples,
        trace_read=trace is not None,
        doubts=tuple(_doubts(chosen)),
    )


def _memory(trace: TraceFacts | None) -> Memory:
    """Peaks and capacity, with the allocator calls where the trace shows runtime calls."""
    if trace is None:
        return Memory()
    calls = trace.allocator.calls_per_step if trace.allocator else None
    return revise(trace.memory, allocator_calls_per_step=calls)


def _judge(ranks: Sequence[RankFacts]) -> tuple[int, float | None]:
    """The rank whose story is told, and the share of a step that the median other rank waits for it.

    In a collective everybody leaves together, so the rank that spends least in collectives arrived last: what the
    others book as communication beyond that is waiting for it. Without such a rank the slowest one is told. Only ranks
    that were recorded alike can be compared: those with device events, else those with a trace, else all.
    """
    modes = [rank.mode for rank in ranks]
    alike = next(mode for mode in ("gpu", "cpu", "steps") if mode in modes)
    told = [index for index, mode in enumerate(modes) if mode == alike]
    exposed = [ranks[index].share("comm.other") for index in told]
    least = exposed.index(min(exposed))
    others = sorted(share - exposed[least] for index, share in enumerate(exposed) if index != least)
    if others and others[-1] >= WAITING_SPREAD:
        return told[least], others[len(others) // 2]
    times = [ranks[index].steps.time_ns for index in told]
    lengths = [time.median if time else 0 for time in times]
    return told[lengths.index(max(lengths))], None


def _cores(ranks: Sequence[RankFacts], meta: RankMeta | None) -> float | None:
    """Usable cores for the judged rank: those of its host, divided among the ranks recorded there."""
    if meta is None:
        return None
    hosts = [rank.record.meta.host for rank in ranks if rank.record and rank.record.meta]
    return meta.usable_cores / max(hosts.count(meta.host), 1)


def _world_size(ranks: Sequence[RankFacts]) -> int | None:
    sizes = [rank.trace.meta.world_size for rank in ranks if rank.trace and rank.trace.meta.world_size]
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
    damage = [rank.trace.damage for rank in ranks if rank.trace]
    trace = chosen.trace
    meta = chosen.record.meta if chosen.record else None
    step_ns = chosen.steps.time_ns.median if chosen.steps.time_ns else None
    own = meta.self_ns_per_step if meta else None
    notes = [*of_the_run, *damage_notes([(rank.origin, rank.trace.damage) for rank in ranks if rank.trace])]
    notes += [note for rank in ranks if rank.record for note in rank.record.notes]
    if trace and trace.device_events_missing and not trace.damage.truncated:
        notes.insert(0, "The run used a device, but the trace holds none of its events.")
    notes += _doubts(chosen)
    if chosen.steps.inferred and chosen.steps.time_ns:
        notes.append(f"Steps were inferred from {chosen.steps.found_by}.")
    return Trust(
        mode="gpu" if chosen.mode == "gpu" else "cpu" if chosen.mode == "cpu" else "steps",
        events=sum(rank.trace.n_events for rank in ranks if rank.trace),
        repaired=sum(entry.repaired for entry in damage),
        dropped=sum(entry.dropped for entry in damage),
        truncated=any(entry.truncated for entry in damage),
        inflation_ratio=chosen.inflation_ratio,
        overhead_ratio=own / step_ns if own is not None and step_ns else None,
        signals=_signals(chosen),
        notes=tuple(notes),
    )


#: Share of a trace's events that may be lost before that is a reason to doubt.
MANY_DROPPED = 0.01
#: Profiled over unprofiled step time outside of this says that the traced steps are not like the others (R52).
ALIKE = (0.8, 1.5)
#: Mean over median step from which a few slow steps carry the mean (R56), and how much of the step must be
#: unexplained for that to matter: named phases and periodic stalls explain theirs.
OUTLIER_MEAN = 1.2
NOTED_UNKNOWN = 0.10
#: Mean share of time in which some process waited for a core (PSI), from which host times are not the run's own (R58).
HIGH_PRESSURE = 0.4


def _doubts(chosen: RankFacts) -> list[str]:
    """What makes the numbers less sure than they look."""
    out = []
    damage = chosen.trace.damage if chosen.trace else None
    if damage and damage.truncated and chosen.mode == "gpu":
        out.append("The end of the file is missing, and device events with it: the device did more than is shown.")
    if chosen.trace and damage and damage.dropped and damage.dropped >= MANY_DROPPED * chosen.trace.n_events:
        out.append(f"{damage.dropped:,} damaged events could not be read: shares may be off by as much.")
    ratio, times = chosen.inflation_ratio, chosen.steps.time_ns
    if ratio is not None and not ALIKE[0] <= ratio <= ALIKE[1]:
        out.append(f"Traced steps took {ratio:.2f} × the time of the others: how the step splits is uncertain.")
    unexplained = chosen.share("idle.unknown") >= NOTED_UNKNOWN
    if times is not None and times.mean > OUTLIER_MEAN * times.median and unexplained:
        out.append(f"A few slow steps raise the mean to {times.mean / times.median:.1f} × the median.")
    pressure = next((series.mean for series in chosen.samples if series.name == "host.cpu_pressure"), None)
    if pressure is not None and pressure >= HIGH_PRESSURE:
        out.append(f"Processes waited for a core {pressure:.0%} of the time: host times vary.".replace("%", " %"))
    return out


def _signals(chosen: RankFacts) -> tuple[Signal, ...]:
    """What was recorded of the judged rank and how to record the rest."""
    trace, record = chosen.trace, chosen.record
    features = record.meta.features if record and record.meta else {}
    off = {name: feature.reason for name, feature in features.items() if not feature.on}
    recorded = trace.meta.recorded if trace else frozenset()
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
            "the end of the file is missing" if trace and trace.damage.truncated else "ProfilerActivity.CUDA",
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
