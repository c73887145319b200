"""Which rank the others wait for by the timers of all ranks alone, where no trace tells waiting from transfer."""

from collections.abc import Sequence

from profilerkit.analysis.leaves import WAITS
from profilerkit.analysis.rank_facts import LOGGED, RankFacts
from profilerkit.analysis.steps.log import StepLog, exposed

#: Timers show no waiting for a rank: the one whose measured input, phases and collections exceed those of the median
#: rank by this share of the step is the one that is told.
TIMED_SPREAD = 0.05


#: Share of its steps for which a late rank's device has work queued, at most, and the other ranks' at least (choices).
NEVER_QUEUED, OFTEN_QUEUED = 0.1, 0.5

#: What only its own rank can be busy with, whatever the others do.
_ALONE = (*WAITS, "over.gc")


def timed_ns(ranks: Sequence[RankFacts]) -> list[float | None]:
    """Per rank the mean time of a judged step in what its timers measure of it, ns; ``None`` where no fetch was seen.

    That is what one rank can do while the others wait: waiting for data, garbage collections, and phases that most
    ranks lack. In a phase that most have, such as an evaluation that ends in a collective, the longer one may be the
    rank that waits. Where a device's trace of every rank tells what the device worked beside it, only the rest counts;
    else all of it on every rank, so that like is compared with like.
    """
    exposed = _all_show_devices(ranks)
    spent = [
        None if rank.log is None or not rank.log.waits_seen else _exposed_ns(rank) if exposed else _spent_ns(rank.log)
        for rank in ranks
    ]
    known = [values for values in spent if values is not None]
    lacked = [name for name in LOGGED if known and not median_rank_ns([values.get(name, 0.0) for values in known])]
    counted = {*_ALONE, *lacked}
    return [
        None if values is None else sum(value for name, value in values.items() if name in counted) for values in spent
    ]


def may_be_hidden(ranks: Sequence[RankFacts]) -> bool:
    """Whether a device may have worked beside what the timers measured, where not every rank's trace tells."""
    metas = [rank.record.meta for rank in ranks if rank.record and rank.record.meta]
    on_device = any(rank.mode == "gpu" for rank in ranks) or any(meta.device_name for meta in metas)
    by_clock = all(rank.log is not None and rank.log.device is not None for rank in ranks)
    return on_device and not _all_show_devices(ranks) and not by_clock


def _all_show_devices(ranks: Sequence[RankFacts]) -> bool:
    return all(rank.mode == "gpu" for rank in ranks)


def _exposed_ns(rank: RankFacts) -> dict[str, float]:
    return {part.part: float(part.time_ns) for part in rank.parts}


def _spent_ns(log: StepLog) -> dict[str, float] | None:
    steady = log.steady
    if not steady.any():
        return None
    spent = exposed(log.spent("input.wait"), log.room)
    return {name: float(values[steady].mean()) for name, values in spent.items()}


def late_by_timers(ranks: Sequence[RankFacts]) -> int | None:
    """Position of the rank that spends much more than the median rank in what its timers measure; else ``None``."""
    spent = {index: value for index, value in enumerate(timed_ns(ranks)) if value is not None}
    if len(spent) < 2:
        return None
    worst = max(spent, key=lambda index: spent[index])
    step = ranks[worst].steps.time_ns
    excess_ns = spent[worst] - median_rank_ns(list(spent.values()))
    return worst if step is not None and excess_ns >= TIMED_SPREAD * step.mean else None


def late_by_clock(ranks: Sequence[RankFacts]) -> int | None:
    """Position of the only rank whose device has no work queued, while the other devices do; else ``None``.

    Devices of ranks that exchange gradients work at one pace. Where the other hosts run ahead of theirs, all of them
    wait for what this host issues.
    """
    queued = [
        float(rank.log.device.full[rank.log.steady].mean())
        for rank in ranks
        if rank.log is not None and rank.log.device is not None and rank.log.steady.any()
    ]
    if len(queued) < max(len(ranks), 2):
        return None
    least, *others = sorted(queued)
    return queued.index(least) if least <= NEVER_QUEUED and min(others) >= OFTEN_QUEUED else None


def median_rank_ns(spent: Sequence[float]) -> float:
    """The value of the median rank, of two that of the lower one: with it the other is compared."""
    return sorted(spent)[(len(spent) - 1) // 2]
