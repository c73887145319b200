"""The facts of a run with what its records tell beside the steps: memory, pauses, and what surrounds it."""

from collections.abc import Sequence
from dataclasses import replace

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.ledger.pauses import pauses
from profilerkit.analysis.memory.allocator_use import allocator_settings, allocator_use
from profilerkit.analysis.memory.faults import page_faults
from profilerkit.analysis.memory.use import MemoryUse
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.sharing import surroundings
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
    used = replace(
        chosen.trace.memory_use if chosen.trace else MemoryUse(),
        allocator_settings=allocator_settings(run.manifest.environment) if run and run.manifest else None,
        oom=record.oom if record else None,
    )
    if record is None or log is None:
        return replace(facts, memory_use=used)
    return replace(
        facts,
        memory_use=replace(used, allocator=allocator_use(record.samples, log), faults=page_faults(record.samples, log)),
        pauses=pauses(record, log),
        surroundings=surroundings(record, log, [rank.record for rank in ranks if rank.record]),
    )
