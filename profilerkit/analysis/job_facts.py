"""Find what the ranks of a job and the judged rank's records say: rows, communication, host."""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from profilerkit.analysis.communication.table import CommFacts, distributed_models, named_groups, parallelism_by_ddp
from profilerkit.analysis.device.device_facts import DeviceFacts
from profilerkit.analysis.device.shape_losses import DenseTables
from profilerkit.analysis.host.host_facts import (
    CollectionFacts,
    CompileFacts,
    PythonFacts,
    between_ratio,
    collection_facts,
    compiles_of_log,
)
from profilerkit.analysis.host.lines import HotLine
from profilerkit.analysis.host.operators import HeldFacts
from profilerkit.analysis.memory.allocator import with_samples
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.ranks.alike import comparable
from profilerkit.analysis.ranks.flight import flight_recorder, groups_of
from profilerkit.analysis.ranks.job import Job
from profilerkit.analysis.ranks.late import late_by_clock, late_by_timers, timed_ns
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.steps.phases import PhaseFacts, RecordingFacts
from profilerkit.analysis.steps.wall_clock import rank_ledger
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.hardware import DeviceSpec
from profilerkit.model import fields_of, revise
from profilerkit.model.communication import Communication, Groups
from profilerkit.model.ledger import Ledger, RankWall, Stage
from profilerkit.model.memory import Memory
from profilerkit.model.step import Rank
from profilerkit.rundir.reader import RankRecord

#: Devices that the link of a device's specification joins in one host; larger groups also use the network.
ONE_SWITCH = 8

_Record = TypeVar("_Record")


def known_world(ranks: Sequence[RankFacts], told: int | None) -> int | None:
    """Ranks of the job: as those say that joined it late, else ``told``, else as the traces say."""
    metas = [rank.record.meta for rank in ranks if rank.record and rank.record.meta]
    joined = [meta.joined[1] for meta in metas if meta.joined is not None]
    traced = [rank.trace.meta.world_size for rank in ranks if rank.trace and rank.trace.meta.world_size]
    return max(joined, default=None) or told or max(traced, default=None)


def timed_rank(job: Job) -> int | None:
    """The rank the others wait for by the timers, else by all devices' clocks, where collectives do not tell."""
    found = job.communication
    if found is None and any(rank.trace for rank in job.ranks):
        return None
    if found and found.matched and not found.blurred and (found.late or found.steps_needed is None):
        return None
    timed = late_by_timers(job.ranks)
    return timed if timed is not None else late_by_clock(job.ranks)


def judged_of(job: Job, timed: int | None, told: int | None) -> int:
    """The rank the others wait for, else the one that was asked for, else the slowest of those recorded alike."""
    if told is not None and not job.late and timed is None:
        return told
    if job.suspect is not None or timed is not None:
        return job.suspect if job.suspect is not None else timed or 0
    times = {index: job.ranks[index].steps.time_ns for index in comparable(job.ranks)}
    lengths = {index: time.median if time else 0 for index, time in times.items()}
    return max(lengths, key=lambda index: lengths[index])


def scaled_shares(value: _Record, rank: RankFacts) -> _Record:
    """The record with shares of the run's step instead of the traced one: tracing slows the host, not kernels."""
    if rank.trace is None or rank.mode != "gpu":
        return value
    traced = rank.trace.shares(rank.trace.partition.per_step)
    kernels = sum(share for name, share in traced.items() if name.startswith("compute."))
    run = sum(part.share for part in rank.parts if part.part.startswith("compute."))
    scaled: _Record = _times(value, run / kernels) if kernels else value
    return scaled


def _times(value: Any, ratio: float, name: str = "") -> Any:
    """The value with every share in it ``ratio`` times as large."""
    if isinstance(value, msgspec.Struct):
        fields = value.__struct_fields__
        return revise(value, **{field: _times(getattr(value, field), ratio, field) for field in fields})
    if isinstance(value, list | tuple):
        return type(value)(_times(each, ratio) for each in value)
    return ratio * value if value is not None and name.endswith("share") else value


def memory_of_run(chosen: RankFacts) -> Memory:
    """What the trace and the samplers tell, with the allocator calls where the trace shows runtime calls."""
    trace, record = chosen.trace, chosen.record
    memory = trace.memory if trace else Memory()
    if trace and trace.allocator:
        memory = revise(memory, allocator_calls_per_step=trace.allocator.calls_per_step)
    if record is None or chosen.log is None:
        return memory
    workers = {worker.pid for worker in record.workers}
    return with_samples(memory, record.samples, chosen.log, record.events, workers)


def communication_of(job: Job, judged: int, timed: int | None) -> Communication | None:
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
        groups=_groups(job) if len(job.ranks) > 1 else (),
    )


def _groups(job: Job) -> tuple[Groups, ...]:
    """The ranks in the groups that their traces name, or else their flight recorders."""
    from profilerkit.analysis.ranks.scale import Place, side_by_side

    logs = job.flight.logs if job.flight else (None,) * len(job.ranks)
    places = []
    for entry, log in zip(job.ranks, logs, strict=True):
        groups = named_groups(entry.trace.meta.groups, entry.trace.collectives) if entry.trace else ()
        if not groups and log is not None:
            groups = named_groups(groups_of(log), None)
        steps = entry.steps.time_ns
        places.append(Place(entry.rank, float(steps.median) if steps else None, groups))
    return side_by_side(places, job.ledger)


def with_links(comm: CommFacts, spec: DeviceSpec | None) -> CommFacts:
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


def device_of_run(rank: RankFacts) -> DeviceFacts | None:
    """The device in the run's steps: it works in each as long as in a traced one."""
    device, ratio = rank.trace.device if rank.trace else None, rank.inflation_ratio
    return device and revise(device, busy_ratio=min(device.busy_ratio * (ratio or 1.0), 1.0))


def all_ranks(job: Job) -> tuple[Rank, ...]:
    """Every rank that was read."""
    timed = timed_ns(job.ranks)
    return tuple(_rank(rank, index, job, timed[index]) for index, rank in enumerate(job.ranks))


def _rank(rank: RankFacts, position: int, job: Job, timed: float | None) -> Rank:
    trace, ledger, matching = rank.trace, job.ledger, job.matching
    device = device_of_run(rank)
    meta = rank.record.meta if rank.record else None
    # A file lists the devices of its machine, used or not.
    used = trace is not None and (trace.device is not None or trace.no_kernels is not None)
    known = ledger if ledger is not None and ledger.of[position] else None
    return Rank(
        rank=rank.rank,
        origin=rank.origin,
        breakdown=rank.parts,
        busy_ratio=device.busy_ratio if device else None,
        step_ns=rank.steps.time_ns.median if rank.steps.time_ns else None,
        device=trace.properties.name if trace and trace.properties and used else meta.device_name if meta else None,
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


def run_ledger(ranks: Sequence[RankFacts], told: int) -> Ledger | None:
    """The ledger of the rank at position ``told``, with the wall clock of every rank; ``None`` without its timers."""
    ledgers = [rank_ledger(rank.record, rank.log, rank.account) if rank.record else None for rank in ranks]
    chosen = ledgers[told]
    walls = tuple(_by_stage(ledger) for ledger in ledgers if ledger is not None)
    return chosen if chosen is None or len(walls) < 2 else revise(chosen, ranks=walls)


def _by_stage(ledger: Ledger) -> RankWall:
    stages: dict[Stage, int] = {}
    for entry in ledger.entries:
        stages[entry.stage] = stages.get(entry.stage, 0) + entry.time_ns
    return RankWall(rank=ledger.rank, wall_ns=ledger.wall_ns, stages=stages)


class HostFacts(msgspec.Struct, frozen=True):
    """Each is ``None`` where the recording does not tell.

    compiles: ``None`` where nothing is known to be compiled.
    switches: of those made for debugging the ones that were on, as ``NAME`` or ``NAME=value``.
    held: what holds the steps of a run without a device, largest first; ``None`` without such a trace.
    """

    collections: CollectionFacts | None = None
    python: PythonFacts | None = None
    compiles: CompileFacts | None = None
    threads: int | None = None
    recording: RecordingFacts | None = None
    phases: tuple[PhaseFacts, ...] = ()
    switches: tuple[str, ...] | None = None
    held: tuple[HeldFacts, ...] | None = None
    tables: DenseTables | None = None
    between_ratio: float = 0.0


def host_facts(
    record: RankRecord | None, log: StepLog | None, trace: TraceFacts | None, line: HotLine | None = None
) -> HostFacts:
    """What the recording tells; the timers, which see every step, go before the trace."""
    meta = record.meta if record is not None else None
    timed = record is not None and log is not None and compiles_of_log(record.events, record.names, log)
    known = HostFacts(
        collections=collection_facts(record.events, log) if record is not None and log is not None else None,
        threads=meta.threads if meta is not None else None,
        switches=meta.switches if meta is not None else None,
        compiles=timed or None,
    )
    if trace is None:
        return known
    python = trace.python
    if python is not None and line is not None:
        python = revise(python, frames=line.frames, frames_ratio=line.share)
    return revise(
        known,
        **fields_of(trace, "recording", "phases", "held", "tables"),
        python=python,
        compiles=timed or trace.compiles,
        between_ratio=between_ratio(trace.partition.segments, trace.window),
    )
