"""What the records of a run tell beside the steps: memory, pauses, what surrounds it, and the whole wall clock."""

from collections.abc import Sequence

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.host.host_facts import HotLine, PythonFacts
from profilerkit.analysis.host.input import InputFacts
from profilerkit.analysis.host.lines import lines_of
from profilerkit.analysis.ledger.account import rank_ledger
from profilerkit.analysis.ledger.pauses import pauses
from profilerkit.analysis.memory.allocator_use import allocator_settings, allocator_use
from profilerkit.analysis.memory.faults import page_faults
from profilerkit.analysis.memory.use import MemoryUse
from profilerkit.analysis.memory.worker_pages import copied_pages
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.surroundings import surroundings
from profilerkit.analysis.whatif import workers_now
from profilerkit.model.change import revise
from profilerkit.model.ledger import Ledger, RankWall, Stage
from profilerkit.rundir.reader import RunRecord


def with_recorded(facts: Facts, ranks: Sequence[RankFacts], run: RunRecord | None) -> Facts:
    """``facts`` with what was recorded of the judged rank, as far as it was.

    Args:
        facts: of the run.
        ranks: all that were read, in the order of those of the facts.
        run: what the whole run left behind; ``None`` where only traces were given.
    """
    chosen = ranks[facts.judged_rank]
    record, log = chosen.record, chosen.log
    used = revise(
        chosen.trace.memory_use if chosen.trace else MemoryUse(),
        allocator_settings=allocator_settings(run.manifest.environment) if run and run.manifest else None,
        oom=record.oom if record else None,
    )
    if record is None or log is None:
        return revise(facts, memory_use=used)
    lines = lines_of(record, log)
    return revise(
        facts,
        memory_use=revise(
            used,
            allocator=allocator_use(record.samples, log),
            faults=page_faults(record.samples, log),
            copied=copied_pages(record.samples, log, {worker.pid for worker in record.workers}),
        ),
        pauses=pauses(record, log, chosen.account),
        lines=lines,
        input=_fed_by(facts.input, None if workers_now(facts) else lines.get("input")),
        host=revise(facts.host, python=_held_by(facts.host.python, lines.get("python"))),
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


def _fed_by(known: InputFacts | None, line: HotLine | None) -> InputFacts | None:
    """The wait for batches with the line that holds most of it, where stacks were sampled; else as a trace tells."""
    if known is None or line is None:
        return known
    return revise(known, frames=line.frames, frames_ratio=line.share)


def _held_by(known: PythonFacts | None, line: HotLine | None) -> PythonFacts | None:
    """Long stretches of Python with the line that holds most of the interpreter's time outside of the loader."""
    if known is None or line is None:
        return known
    return revise(known, frames=line.frames, frames_ratio=line.share)
