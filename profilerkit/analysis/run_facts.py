"""Everything that was read of a run to one Facts: which rank to judge, what is missing, how far to trust it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from profilerkit.analysis.communication.parallelism import (
    distributed_models,
    named_groups,
    parallelism_by_ddp,
)
from profilerkit.analysis.communication.table import CommFacts
from profilerkit.analysis.device.device_facts import DeviceFacts
from profilerkit.analysis.doubts import Doubt
from profilerkit.analysis.facts import Facts
from profilerkit.analysis.memory.samples import with_samples
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.ranks.alike import comparable, host_ranks, uneven_steps, why_no_trace, without_trace
from profilerkit.analysis.ranks.flight import flight_recorder, groups_of
from profilerkit.analysis.ranks.job import Job, compare, notes_of
from profilerkit.analysis.ranks.late import late_by_clock, late_by_timers, may_be_hidden, timed_ns
from profilerkit.analysis.ranks.scale import Place, side_by_side
from profilerkit.analysis.ranks.waiting import job_steps, rank_steps
from profilerkit.analysis.recorded import with_records
from profilerkit.analysis.steps.lanes import median_step
from profilerkit.analysis.steps.series import StepSeries, weaknesses
from profilerkit.analysis.steps.table import trace_series
from profilerkit.analysis.trace_facts import TraceFacts, device_spec
from profilerkit.analysis.trust import (
    SHOW_DEVICE,
    budget_notes,
    capture_cost,
    damage_notes,
    fitting,
    record_notes,
    signals_of_rank,
    unread,
)
from profilerkit.hardware import DeviceSpec
from profilerkit.model.change import fields_of, revise
from profilerkit.model.communication import Communication
from profilerkit.model.memory import Memory
from profilerkit.model.run import Trust
from profilerkit.model.step import Rank
from profilerkit.rundir.ending import Ending
from profilerkit.rundir.layout import RIVAL, NoKernels
from profilerkit.rundir.reader import RunRecord
from profilerkit.trace.columns import ANOTHER_FOLLOWS

#: Devices that the link of a device's specification joins in one host; larger groups also use the network.
ONE_SWITCH = 8
#: What the facts take of the judged rank's trace as it is.
_OF_TRACE = (
    *("copies", "pinned", "small_copies", "syncs", "allocator", "math", "chains", "cold", "kernels"),
    *("compute", "host_copies", "launches", "kernel_losses", "collective_work", "replay"),
)
_OF_RANK = ("mode", "steps", "step_error_ns", "parts", "input", "workers", "stalls", "samples")


def run_facts(
    ranks: Sequence[RankFacts],
    *,
    run: RunRecord | None = None,
    ending: Ending | None = None,
    device: str | None = None,
    world_size: int | None = None,
    recorded: int | None = None,
    told: int | None = None,
    notes: Sequence[str] = (),
) -> Facts:
    """Facts of a run of at least one rank, told from its judged rank.

    Args:
        ranks: as they were read.
        run: what the whole run left behind; ``None`` where only traces were given.
        ending: how it ended; ``None`` where that is not known.
        device: a device name that overrides the one in the trace.
        world_size: ranks of the job as its manifest says; ``None`` leaves it to the traces.
        recorded: how many different ranks there are; ``None`` takes each of ``ranks`` for one.
        told: position of the rank that is judged where nobody is waited for; ``None`` leaves it to the facts.
        notes: what is said about the run as a whole, for the trust section.
    """
    world = _joined_size(ranks) or world_size or _world_size(ranks)
    job = compare(ranks, world)
    ranks, timed = job.ranks, _timed(job)
    judged = _judged(job, timed, told)
    chosen, trace = ranks[judged], ranks[judged].trace
    meta = chosen.record.meta if chosen.record else None
    doubts = tuple(_doubts(chosen, no_trace := without_trace(ranks)))
    facts = Facts(
        **fields_of(chosen, *_OF_RANK),
        **fields_of(job, "waiting_share", "jitter_share", "shown_share"),
        **({} if ending is None else fields_of(ending, "failure", "raised", "refused")),
        step_ns=float(chosen.steps.time_ns.median) if chosen.steps.time_ns else None,
        ranks=_all_ranks(job),
        rank_steps=rank_steps(ranks, job.ledger),
        job_steps=job_steps(ranks, judged),
        trust=_trust(ranks, chosen, [*notes, *no_trace, *notes_of(job, world), *uneven_steps(ranks)], doubts),
        judged_rank=judged,
        world_size=world,
        missing_ranks=max(world - (recorded or len(ranks)), 0) if world is not None else None,
        communication=_communication(job, judged, timed),
        kernels_unseen=_why_unseen(chosen),
        has_rival=trace is None and RIVAL in why_no_trace(chosen.record),
        loader=meta.loader if meta and (chosen.log is None or chosen.log.waits_seen) else None,
        usable_cores=_cores(ranks, chosen),
        has_whole_host=_has_whole_host(chosen),
        spec=device_spec(trace.properties if trace else None, device),
        memory=_memory(chosen),
        trace_read=trace is not None,
        doubts=doubts,
        late_by_timers=timed == judged,
        late_by_clock=timed == judged and late_by_timers(ranks) is None,
        timed_may_be_hidden=may_be_hidden(ranks),
        step_series=_series(chosen),
    )
    facts = with_records(facts, ranks, run)
    return revise(_with_trace(facts, trace, ranks), device=_device(chosen)) if trace else facts


def _series(chosen: RankFacts) -> tuple[StepSeries, ...]:
    known = (chosen.series, trace_series(chosen.trace) if chosen.trace and chosen.log is not None else None)
    return tuple(series for series in known if series is not None)


def _why_unseen(chosen: RankFacts) -> NoKernels | None:
    if chosen.unseen is None or chosen.record is None:
        return None
    return next((status.no_kernels for status, _ in chosen.record.windows if status.no_kernels), "unknown")


def _with_trace(facts: Facts, trace: TraceFacts, ranks: Sequence[RankFacts]) -> Facts:
    """The facts with what only a trace tells."""
    # Of a file that is cut off the device's events may be what is missing; the whole file of another rank tells.
    on_host = any(r.trace and r.mode == "cpu" and not r.trace.device_events_missing for r in ranks)
    losses = trace.kernel_losses
    of_kernels = _times([trace.math, trace.chains, losses], _of_run(facts, trace))
    if losses is not None:  # what the host takes is in these
        of_kernels[2] = revise(of_kernels[2], **fields_of(losses, "optimizer", "searches"))
    return revise(
        facts,
        **{**fields_of(trace, *_OF_TRACE), **dict(zip(("math", "chains", "kernel_losses"), of_kernels, strict=True))},
        **fields_of(trace.meta, "framework", "recorder", "unprofiled"),
        comm=_with_links(trace.comm, facts.spec) if trace.comm else None,
        device_events_missing=trace.device_events_missing and not (trace.damage.truncated and on_host),
        alone=trace.shares(trace.partition.alone),
        hidden=trace.shares(trace.partition.hidden),
        median_step=median_step(trace.lanes, trace.steps, trace.partition, facts.rank.rank) if trace.lanes else None,
    )


def _device(rank: RankFacts) -> DeviceFacts | None:
    """Return the device in the run's steps: it works in each as long as in a traced one."""
    device, ratio = rank.trace.device if rank.trace else None, rank.inflation_ratio
    return device and revise(device, busy_ratio=min(device.busy_ratio * (ratio or 1.0), 1.0))


def _of_run(facts: Facts, trace: TraceFacts) -> float:
    """Return what a share of kernels in the traced window is of the run's step: tracing slows the host, not them."""
    traced = trace.shares(trace.partition.per_step)
    kernels = sum(share for name, share in traced.items() if name.startswith("compute."))
    return facts.share("compute.") / kernels if facts.mode == "gpu" and kernels else 1.0


def _times(value: Any, ratio: float, name: str = "") -> Any:
    """The value with every share in it ``ratio`` times as large."""
    if isinstance(value, msgspec.Struct):
        fields = value.__struct_fields__
        return revise(value, **{field: _times(getattr(value, field), ratio, field) for field in fields})
    if isinstance(value, (list, tuple)):
        return type(value)(_times(each, ratio) for each in value)
    return ratio * value if value is not None and name.endswith("share") else value


def _memory(chosen: RankFacts) -> Memory:
    """What the trace and the samplers tell, with the allocator calls where the trace shows runtime calls."""
    trace, record = chosen.trace, chosen.record
    memory = trace.memory if trace else Memory()
    if trace and trace.allocator:
        memory = revise(memory, allocator_calls_per_step=trace.allocator.calls_per_step)
    if record is None or chosen.log is None:
        return memory
    workers = {worker.pid for worker in record.workers}
    return with_samples(memory, record.samples, chosen.log, record.events, workers)


def _timed(job: Job) -> int | None:
    """The rank the others wait for by the timers, where collectives do not tell: matched in too few steps, or not."""
    if job.communication is None:
        return None if any(rank.trace for rank in job.ranks) else _late_untraced(job.ranks)
    found = job.communication
    told = found.matched and not found.blurred and (bool(found.late) or found.steps_needed is None)
    return None if told else _late_untraced(job.ranks)


def _late_untraced(ranks: Sequence[RankFacts]) -> int | None:
    """The rank the others wait for, by the timers of all ranks, else by the clocks of all devices."""
    timed = late_by_timers(ranks)
    return timed if timed is not None else late_by_clock(ranks)


def _judged(job: Job, timed: int | None, told: int | None) -> int:
    """The rank the others wait for, else the one that was asked for, else the one that looks worst."""
    if told is not None and not job.late and timed is None:
        return told
    return job.suspect if job.suspect is not None else timed if timed is not None else _slowest(job.ranks)


def _slowest(ranks: Sequence[RankFacts]) -> int:
    """The rank that is told when nobody is waited for: the slowest of those that were recorded alike."""
    told = comparable(ranks)
    times = [ranks[index].steps.time_ns for index in told]
    lengths = [time.median if time else 0 for time in times]
    return told[lengths.index(max(lengths))]


def _communication(job: Job, judged: int, timed: int | None) -> Communication | None:
    """What all ranks' collectives say, with what the judged rank's say by themselves and whom the timers tell."""
    trace, record = job.ranks[judged].trace, job.ranks[judged].record
    flight, ddp = flight_recorder(job.flight, job.ranks, judged), distributed_models(record.ddp if record else None)
    parallelism = (trace.parallelism if trace else ()) or parallelism_by_ddp(ddp)
    if job.communication is None:
        known = parallelism or flight is not None or ddp
        return Communication(parallelism=parallelism, flight=flight, ddp=ddp) if known else None
    ratio = trace.comm.unclassified_ratio if trace and trace.comm else None
    late = None if timed is None else job.ranks[timed].rank
    return revise(
        job.communication,
        unclassified_ratio=ratio,
        parallelism=parallelism,
        late_by_timers=late,
        flight=flight,
        ddp=ddp,
        groups=side_by_side(_places(job), job.ledger) if len(job.ranks) > 1 else (),
    )


def _places(job: Job) -> list[Place]:
    """The ranks in the groups that their traces name, or else their flight recorders."""
    logs = job.flight.logs if job.flight else (None,) * len(job.ranks)
    places = []
    for entry, log in zip(job.ranks, logs, strict=True):
        groups = named_groups(entry.trace.meta.groups, entry.trace.collectives) if entry.trace else ()
        if not groups and log is not None:
            groups = named_groups(groups_of(log), None)
        steps = entry.steps.time_ns
        places.append(Place(entry.rank, float(steps.median) if steps else None, groups))
    return places


def _with_links(comm: CommFacts, spec: DeviceSpec | None) -> CommFacts:
    """The table of collectives with the share of the link's peak they reach, where a group fits beside one switch."""
    peak = spec.link_gb_per_s if spec else None
    if not peak:
        return comm
    table = tuple(
        revise(row, link_ratio=row.bus_bytes_per_s / (peak * 1e9), link_bytes_per_s=peak * 1e9)
        if row.bus_bytes_per_s is not None and row.group_size is not None and row.group_size <= ONE_SWITCH
        else row
        for row in comm.table
    )
    return revise(comm, table=table)


def _cores(ranks: Sequence[RankFacts], chosen: RankFacts) -> float | None:
    """Usable cores for the judged rank: those of its host, divided among the ranks recorded there."""
    meta = chosen.record.meta if chosen.record else None
    return meta.usable_cores / (host_ranks(ranks, chosen) or 1) if meta else None


def _has_whole_host(chosen: RankFacts) -> bool:
    meta = chosen.record.meta if chosen.record else None
    return meta is not None and meta.host_cores is not None and meta.usable_cores >= meta.host_cores


def _world_size(ranks: Sequence[RankFacts]) -> int | None:
    sizes = [rank.trace.meta.world_size for rank in ranks if rank.trace and rank.trace.meta.world_size]
    return max(sizes) if sizes else None


def _joined_size(ranks: Sequence[RankFacts]) -> int | None:
    """Ranks of a job of which each recorded by itself, because it did not know of the others when it began."""
    joined = [rank.record.meta.joined for rank in ranks if rank.record and rank.record.meta]
    return max((found[1] for found in joined if found is not None), default=None)


def _all_ranks(job: Job) -> tuple[Rank, ...]:
    timed = timed_ns(job.ranks)
    return tuple(_rank(rank, index, job, timed[index]) for index, rank in enumerate(job.ranks))


def _rank(rank: RankFacts, position: int, job: Job, timed: float | None) -> Rank:
    trace, ledger, matching = rank.trace, job.ledger, job.matching
    device = _device(rank)
    meta = rank.record.meta if rank.record else None
    known = ledger if ledger is not None and ledger.of[position] else None
    return Rank(
        rank=rank.rank,
        origin=rank.origin,
        breakdown=rank.parts,
        busy_ratio=device.busy_ratio if device else None,
        step_ns=rank.steps.time_ns.median if rank.steps.time_ns else None,
        device=trace.properties.name if trace and trace.properties else meta.device_name if meta else None,
        timed_ns=None if timed is None else round(timed),
        device_window=trace.device_window if trace else None,
        last=int(known.last[position]) if known else None,
        matched=int(known.of[position]) if known else None,
        caused_ns=int(known.caused[position]) if known else None,
        waited_ns=int(known.waited[position]) if known else None,
        clock_offset_ns=matching.offset_ns[position] if matching else None,
        clock_residual_ns=matching.residual_ns[position] if matching else None,
        sampled_busy_ratio=rank.sampled_busy_ratio,
    )


def _trust(ranks: Sequence[RankFacts], chosen: RankFacts, of_the_run: Sequence[str], doubts: Sequence[Doubt]) -> Trust:
    damage = [rank.trace.damage for rank in ranks if rank.trace]
    trace = chosen.trace
    meta = chosen.record.meta if chosen.record else None
    step_ns = chosen.steps.time_ns.median if chosen.steps.time_ns else None
    own = meta.self_ns_per_step if meta else None
    records = [rank.record for rank in ranks if rank.record]
    notes = [*of_the_run, *budget_notes(records)]
    notes += damage_notes([(rank.origin, rank.trace.damage) for rank in ranks if rank.trace])
    notes += record_notes(records)
    if chosen.unseen or (trace and trace.device_events_missing and not trace.damage.truncated):
        notes.insert(0, "The run used a device, but the trace holds none of its events.")
    notes += [doubt.words for doubt in doubts if doubt.words not in notes]
    if chosen.steps.inferred and chosen.steps.time_ns:
        notes.append(f"Steps were inferred from {chosen.steps.found_by}.")
    return Trust(
        mode="gpu" if chosen.mode == "gpu" else "cpu" if chosen.mode == "cpu" else "steps",
        events=sum(rank.trace.n_events for rank in ranks if rank.trace),
        repaired=sum(entry.repaired for entry in damage),
        dropped=sum(entry.dropped for entry in damage),
        truncated=any(entry.truncated for entry in damage),
        another_follows=any(ANOTHER_FOLLOWS in entry.notes for entry in damage),
        damaged=tuple(
            rank.origin for rank in ranks if rank.trace and (rank.trace.damage.truncated or rank.trace.damage.dropped)
        ),
        inflation_ratio=chosen.inflation_ratio,
        overhead_ratio=own / step_ns if own is not None and step_ns else None,
        cost=capture_cost(chosen.record, step_ns or 0),
        signals=signals_of_rank(chosen),
        notes=tuple(notes),
    )


#: Share of a trace's events that may be lost before that is a reason to doubt.
MANY_DROPPED = 0.01
#: Profiled over unprofiled step time outside of this says that the traced steps are not like the others.
ALIKE = (0.8, 1.5)
#: Mean over median step from which a few slow steps carry the mean, and how much of the step must be
#: unexplained for that to matter: named phases and periodic stalls explain theirs.
OUTLIER_MEAN = 1.2
NOTED_UNKNOWN = 0.10
#: Mean share of time in which some process waited for a core (PSI), from which host times are not the run's own.
HIGH_PRESSURE = 0.4
#: Mean share of the processors' time that other guests took, from which they are not either.
HIGH_STEAL = 0.02


def _doubts(chosen: RankFacts, no_trace: Sequence[str]) -> list[Doubt]:
    """What makes the numbers less sure than they look; ``no_trace`` says which ranks have none, while others do."""
    out = [] if chosen.trace else [Doubt("untraced ranks", said) for said in no_trace]
    if chosen.trace and chosen.trace.meta.framework:
        out.append(Doubt("framework", unread(chosen.trace.meta.framework)))
    if chosen.trace and chosen.mode == "cpu" and chosen.record is None and chosen.trace.meta.devices:
        hint = fitting(SHOW_DEVICE, chosen.trace.meta.recorder)
        said = f"The trace lists a GPU but none of its events. If the model is on it, record {hint}."
        out.append(Doubt("unseen device", said))
    damage = chosen.trace.damage if chosen.trace else None
    if damage and damage.truncated and chosen.mode == "gpu":
        said = "The end of the file is missing, with some device events: the device did more than is shown."
        out.append(Doubt("cut file", said))
    if chosen.trace and damage and damage.dropped and damage.dropped >= MANY_DROPPED * chosen.trace.n_events:
        said = f"{damage.dropped:,} damaged events could not be read: shares may be off by as much."
        out.append(Doubt("lost events", said))
    ratio, times = chosen.inflation_ratio, chosen.steps.time_ns
    if ratio is not None and not ALIKE[0] <= ratio <= ALIKE[1]:
        said = f"Traced steps took {ratio:.2f} × the time of the others: how the step splits is uncertain."
        out.append(Doubt("traced steps", said))
    unexplained = chosen.share("idle.unknown") >= NOTED_UNKNOWN
    if times is not None and times.mean > OUTLIER_MEAN * times.median > 0 and unexplained:
        said = f"Slow steps raise the mean to {times.mean / times.median:.1f} × the median."
        out.append(Doubt("slow steps", said))
    if chosen.series is not None:
        out += weaknesses(chosen.series, chosen.step_error_ns)
    return out + _of_host(chosen)


def _of_host(chosen: RankFacts) -> list[Doubt]:
    """What others took of the host's processors."""
    out = []
    mean = {series.name: series.mean for series in chosen.samples}
    if (pressure := mean.get("host.cpu_pressure")) is not None and pressure >= HIGH_PRESSURE:
        said = f"The host was busy: tasks waited for a core {100 * pressure:.0f} % of the time (PSI)."
        out.append(Doubt("pressure", said))
    if (steal := mean.get("host.steal")) is not None and steal > HIGH_STEAL:
        taken = f"{100 * steal:.0f} % of its processors' time"
        said = f"Other guests of this machine took {taken}: host times may differ in the next run."
        out.append(Doubt("steal", said))
    return out
