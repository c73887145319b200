"""What the run's other ranks on the host of one rank take of its processors."""

from collections.abc import Sequence

from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.workers.capacity import SIBLING_CORES
from profilerkit.model.run import Series


def host_ranks(ranks: Sequence[RankFacts], chosen: RankFacts) -> int | None:
    """Recorded ranks on the host of ``chosen``, itself among them; ``None`` where its host is not known."""
    return len(_together(ranks, chosen)) or None


def sibling_cores(ranks: Sequence[RankFacts], chosen: RankFacts, world_size: int | None) -> tuple[Series, ...]:
    """Cores that the siblings of ``chosen`` and their workers used: the sum of their means, derived.

    Empty for a job of one rank, and where a rank of the job was not read, because it may be on this host, or a sibling
    was not sampled. 0 where the other ranks are all on other hosts.
    """
    recorded = sum(rank.record is not None and rank.record.meta is not None for rank in ranks)
    used = [_used(rank) for rank in _together(ranks, chosen) if rank is not chosen]
    told = [cores for cores in used if cores is not None]
    if world_size in (None, 1) or recorded < world_size or len(told) < len(used):
        return ()
    mean, n = sum(cores for cores, _ in told), min((n for _, n in told), default=0)
    # The ranks were not sampled at the same moments: only their means can be added.
    rank = chosen.rank
    return (Series(name=SIBLING_CORES, unit="cores", n=n, mean=mean, p10=mean, p90=mean, maximum=mean, rank=rank),)


def _together(ranks: Sequence[RankFacts], chosen: RankFacts) -> list[RankFacts]:
    host = chosen.record.meta.host if chosen.record and chosen.record.meta else None
    if host is None:
        return []
    return [rank for rank in ranks if rank.record and rank.record.meta and rank.record.meta.host == host]


def _used(rank: RankFacts) -> tuple[float, int] | None:
    """Cores of a rank and its workers, and from how many samples; ``None`` where either was not sampled."""
    found = {series.name: series for series in rank.samples}
    process, workers = found.get("host.process_cores"), found.get("host.worker_cores")
    if process is None or (workers is None and "host.workers" in found):
        return None
    return process.mean + (workers.mean if workers else 0.0), process.n
