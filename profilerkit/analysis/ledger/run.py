"""The ledger of a run: of the rank that is told in detail, with every rank's wall clock by stage."""

from collections.abc import Sequence

from profilerkit.analysis.ledger.account import rank_ledger
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.model.change import revise
from profilerkit.model.ledger import Ledger, RankWall, Stage


def run_ledger(ranks: Sequence[RankFacts], told: int) -> Ledger | None:
    """The ledger of the rank at position ``told``; ``None`` where it was not recorded by timers."""
    ledgers = [rank_ledger(rank.record, rank.log) if rank.record else None for rank in ranks]
    chosen = ledgers[told]
    walls = tuple(_by_stage(ledger) for ledger in ledgers if ledger is not None)
    return chosen if chosen is None or len(walls) < 2 else revise(chosen, ranks=walls)


def _by_stage(ledger: Ledger) -> RankWall:
    stages: dict[Stage, int] = {}
    for entry in ledger.entries:
        stages[entry.stage] = stages.get(entry.stage, 0) + entry.time_ns
    return RankWall(rank=ledger.rank, wall_ns=ledger.wall_ns, stages=stages)
