"""What the judged rank's records show beside its steps: host, memory, pauses, surroundings, its whole time."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from profilerkit.analysis.events import EVENT_DTYPE
from profilerkit.analysis.facts import Facts
from profilerkit.analysis.host.compiles import compiles_of_log
from profilerkit.analysis.host.host_facts import CollectionFacts, HostFacts, HotLine, PythonFacts
from profilerkit.analysis.host.input import InputFacts, between_ratio
from profilerkit.analysis.host.lines import lines_of
from profilerkit.analysis.ledger.account import rank_ledger
from profilerkit.analysis.ledger.pauses import pauses
from profilerkit.analysis.memory.use import MemoryUse, allocator_settings, allocator_use, copied_pages, page_faults
from profilerkit.analysis.probes import probed
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.ranks.alike import host_ranks, sibling_cores
from profilerkit.analysis.steps.find import in_step
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.surroundings import surroundings
from profilerkit.analysis.throttling import throttling
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.analysis.whatif import workers_now
from profilerkit.analysis.workers.queue import loading_facts
from profilerkit.model.change import revise
from profilerkit.model.ledger import Ledger, RankWall, Stage
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.reader import RankRecord, RunRecord

_Held = TypeVar("_Held", InputFacts, PythonFacts)


def with_records(facts: Facts, ranks: Sequence[RankFacts], run: RunRecord | None) -> Facts:
    """``facts`` with what is derived of the judged rank's records, which costs too much to derive of every rank.

    Args:
        facts: of the run.
        ranks: all that were read, in the order of those of the facts.
        run: what the whole run left behind; ``None`` where only traces were given.
    """
    chosen = ranks[facts.judged_rank]
    record, log, trace = chosen.record, chosen.log, chosen.trace
    gpu = record.meta.gpu if record and record.meta else None
    known = revise(
        facts,
        host_ranks=host_ranks(ranks, chosen),
        samples=(*facts.samples, *sibling_cores(ranks, chosen, facts.world_size)),
        loading=loading_facts(record, log, chosen.workers),
        host=host_facts(record, log, trace),
        throttling=throttling(
            [rank.record.samples if rank.record else () for rank in ranks],
            facts.judged_rank,
            gpu.power_limit_default_mw if gpu else None,
        ),
        probes=probed(record.probes if record else None),
        memory_use=revise(
            trace.memory_use if trace else MemoryUse(),
            allocator_settings=allocator_settings(run.manifest.environment) if run and run.manifest else None,
            oom=record.oom if record else None,
        ),
    )
    if record is None or log is None:
        return known
    lines = lines_of(record, log)
    return revise(
        known,
        memory_use=revise(
            known.memory_use,
            allocator=allocator_use(record.samples, log),
            faults=page_faults(record.samples, log),
            copied=copied_pages(record.samples, log, {worker.pid for worker in record.workers}),
        ),
        pauses=pauses(record, log, chosen.account),
        lines=lines,
        input=_with_frames(facts.input, None if workers_now(facts) else lines.get("input")),
        host=revise(known.host, python=_with_frames(known.host.python, lines.get("python"))),
        surroundings=surroundings(record, log, [rank.record for rank in ranks if rank.record]),
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


def _with_frames(known: _Held | None, line: HotLine | None) -> _Held | None:
    """What held a thread, with the line of stacks that holds most of it; as it is without one."""
    if known is None or line is None:
        return known
    return revise(known, frames=line.frames, frames_ratio=line.share)


#: Number of the oldest generation: a collection of it looks at every object.
OLDEST = 2


def collection_facts(events: bytes, log: StepLog) -> CollectionFacts:
    """The collections of at least 50 µs in steady steps; shorter ones are not recorded."""
    table = np.frombuffer(events, dtype=EVENT_DTYPE)
    table = table[table["kind"] == EventKind.GC]
    step = in_step(table["start"].astype(np.int64), log.start, log.stop)
    table = table[(step >= 0) & log.steady[np.maximum(step, 0)]]
    if not len(table):
        return CollectionFacts(per_step=0.0, pause_ns=0.0, longest_ns=0, full=0)
    return CollectionFacts(
        per_step=len(table) / max(int(log.steady.sum()), 1),
        pause_ns=float(table["dur"].mean()),
        longest_ns=int(table["dur"].max()),
        full=int((table["value"] >= OLDEST).sum()),
    )


def host_facts(record: RankRecord | None, log: StepLog | None, trace: TraceFacts | None) -> HostFacts:
    """What the recording tells; the timers, which see every step, go before the trace."""
    timed = compiles_of_log(record.events, record.names, log) if record is not None and log is not None else None
    return HostFacts(
        collections=collection_facts(record.events, log) if record is not None and log is not None else None,
        python=trace.python if trace is not None else None,
        compiles=timed or (trace.compiles if trace is not None else None),
        recording=trace.recording if trace is not None else None,
        phases=trace.phases if trace is not None else (),
        between_ratio=between_ratio(trace.partition.segments, trace.window) if trace is not None else 0.0,
        threads=record.meta.threads if record is not None and record.meta is not None else None,
        held=trace.held if trace is not None else None,
        tables=trace.tables if trace is not None else None,
        switches=record.meta.switches if record is not None and record.meta is not None else None,
    )
