"""Compare thousands of ranks: match their collectives, find the culprits, and choose which to show in detail."""

from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.analysis.communication.log import CollectiveLog
from profilerkit.analysis.communication.parallelism import named_groups
from profilerkit.analysis.intervals import I64, Spans
from profilerkit.analysis.parts import leaf_times
from profilerkit.analysis.ranks.alignment import RankLog
from profilerkit.analysis.ranks.job import LATE_SHARE
from profilerkit.analysis.ranks.late import Lateness, late_ranks
from profilerkit.analysis.ranks.matching import Matching, match_ranks
from profilerkit.analysis.ranks.waiting import Arrivals, Ledger, arrivals_of, ledger_of
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model.change import revise
from profilerkit.model.communication import Condition
from profilerkit.trace.columns import ProcessGroup

#: Culprits that are looked for: each later one explains less (a choice).
MOST_CULPRITS = 4
#: A group is one of several: of two hosts one always is the slower.
_FEWEST_GROUPS = 3


class Culprit(msgspec.Struct, frozen=True):
    """Ranks that the others wait for.

    Attributes:
        group: name of the host that all of them are on, where the host is what is late; empty for a rank.
        members: their positions, the one that causes most first.
        waited_ns: per step, by the median rank beside them.
        share: of all waiting that was left when the culprits before it were taken out.
        steps: share of the steps in which it causes most of the waiting.
    """

    group: str
    members: tuple[int, ...]
    waited_ns: float
    share: float
    steps: float


def culprits_of(arrivals: Sequence[Arrivals], groups: Sequence[str], step_ns: float) -> list[Culprit]:
    """Late ranks and late hosts, the one that costs most first.

    Args:
        arrivals: matched collectives in which all members take part.
        groups: host of each rank, empty where it is not known.
        step_ns: of the median rank.
    """
    found: list[Culprit] = []
    left = list(arrivals)
    for _ in range(MOST_CULPRITS):
        ledger = ledger_of(left, len(groups))
        if not ledger.own.shape[1] or not ledger.total_ns:
            break
        culprit = _late_rank(ledger, step_ns) or _late_group(ledger, groups, step_ns)
        if culprit is None or culprit.waited_ns < LATE_SHARE * step_ns:
            break
        found.append(culprit)
        left = [rest for entry in left if (rest := without(entry, culprit.members)) is not None]
    return found


def without(arrivals: Arrivals, members: Sequence[int]) -> Arrivals | None:
    """The collectives as they would have been met by the others alone; ``None`` where fewer than two are left.

    Who waited for the one that is taken out waits for the last of the others, if that came later than itself.
    """
    kept = ~np.isin(arrivals.members, members)
    if kept.all():
        return arrivals
    if kept.sum() < 2:
        return None
    start = arrivals.start[kept]
    left = start + arrivals.wait[kept]
    arrived = start.max(axis=0)
    return revise(
        arrivals,
        members=arrivals.members[kept],
        rows=arrivals.rows[kept],
        start=start,
        wait=np.maximum(np.minimum(arrived, left) - start, 0),
        last=start.argmax(axis=0),
        arrived=arrived,
    )


def _late_rank(ledger: Ledger, step_ns: float) -> Culprit | None:
    late = late_ranks(ledger, step_ns)
    return _culprit("", late.ranks, late, ledger) if late.ranks else None


def _late_group(ledger: Ledger, groups: Sequence[str], step_ns: float) -> Culprit | None:
    """The host whose ranks together cause what one alone does not."""
    names = sorted({name for name in groups if name})
    if len(names) < _FEWEST_GROUPS or not all(groups):
        return None
    position = {name: index for index, name in enumerate(names)}
    of_rank = np.array([position[name] for name in groups], dtype=np.int64)
    late = late_ranks(grouped(ledger, of_rank, len(names)), step_ns)
    if len(late.ranks) != 1:
        return None
    members = np.flatnonzero((of_rank == late.ranks[0]) & (ledger.of > 0))
    if len(members) < 2:
        return None
    ordered = members[np.argsort(-ledger.caused[members], kind="stable")]
    return _culprit(names[late.ranks[0]], tuple(ordered.tolist()), late, ledger)


def _culprit(group: str, members: tuple[int, ...], late: Lateness, ledger: Ledger) -> Culprit:
    others = np.ones(len(ledger.waited), dtype=bool)
    others[list(members)] = False
    others &= ledger.of > 0
    waited = float(np.median(ledger.waited[others])) / ledger.own.shape[1] if others.any() else 0.0
    return Culprit(group, members, waited, late.share, late.steps)


def grouped(ledger: Ledger, of_rank: I64, count: int) -> Ledger:
    """The ledger of ``count`` groups of ranks; ``of_rank`` is ``(n_ranks,)``. A group waits as long as its last one."""

    def summed(values: I64) -> I64:
        total = np.zeros(count, dtype=np.int64)
        np.add.at(total, of_rank, values)
        return total

    own = np.full((count, ledger.own.shape[1]), np.iinfo(np.int64).max, dtype=np.int64)
    took_part = ledger.of > 0
    np.minimum.at(own, of_rank[took_part], ledger.own[took_part])
    own[own == np.iinfo(np.int64).max] = 0
    of = np.zeros(count, dtype=np.int64)
    np.maximum.at(of, of_rank, ledger.of)
    return Ledger(
        last=summed(ledger.last),
        of=of,
        caused=summed(ledger.caused),
        waited=summed(ledger.waited),
        peers=(np.flatnonzero(of > 0),) * count,
        owner=of_rank[ledger.owner],
        amount=ledger.amount,
        members=ledger.members,
        step=ledger.step,
        numbers=ledger.numbers,
        own=own,
    )


#: What ranks are grouped by where nothing says their host.
NO_HOST = ""


class Member(msgspec.Struct, frozen=True):
    """One rank of many.

    Attributes:
        name: for sentences: ``rank 2``, else the name of its file.
        rank: its number; ``None`` where the trace does not say.
        host: of it; empty where the trace does not say. Hostile text.
        log: its collectives; ``None`` where none was seen.
        base_ns: what its clock counts from; ``None`` where the trace does not say.
        steady: its judged steps on its own clock.
        numbers: ``(n,)`` int64 of these steps.
        shares: part to its share of the judged steps.
        device: name of its device; ``None`` where the trace does not say.
        groups: its process groups that say what of the job they divide.
        condition: of its device and host; ``None`` where it was not sampled.
    """

    name: str
    rank: int | None
    host: str
    log: CollectiveLog | None
    base_ns: int | None
    steady: Spans
    numbers: I64
    shares: dict[str, float]
    device: str | None
    groups: tuple[ProcessGroup, ...] = ()
    condition: Condition | None = None

    @property
    def step_ns(self) -> float | None:
        """Median judged step; ``None`` without one."""
        return float(np.median(self.steady.end - self.steady.start)) if len(self.steady) else None

    @property
    def rank_log(self) -> RankLog:
        """What matching needs of it."""
        return RankLog(self.name, self.log, self.base_ns)


def member_of(facts: TraceFacts, origin: str, condition: Condition | None = None) -> Member:
    """What is kept of a rank's facts; ``origin`` names it where the trace does not say its number."""
    rank, total = facts.meta.rank, facts.window.total_ns
    return Member(
        name=origin if rank is None else f"rank {rank}",
        rank=rank,
        host=facts.meta.host or NO_HOST,
        log=facts.collectives,
        base_ns=facts.meta.base_time_ns,
        steady=facts.window,
        numbers=facts.steps.index[facts.steps.judged],
        shares={name: value / total for name, value in leaf_times(facts.totals).items()} if total else {},
        device=facts.properties.name if facts.properties else None,
        groups=named_groups(facts.meta.groups, facts.collectives),
        condition=condition,
    )


#: Ranks that are told in detail beside the culprits: they are what a late one is compared with.
MOST_TOLD = 8
#: Ranks of a late host that are told.
_OF_A_HOST = 2


class Crowd(msgspec.Struct, frozen=True):
    """Many ranks compared.

    Attributes:
        members: as given.
        matching: of their collectives; ``None`` where fewer than two ranks have any.
        ledger: who waited for whom; ``None`` likewise.
        culprits: whom the others wait for, the costliest first.
        told: positions of the ranks to be told in detail, in order.
    """

    members: tuple[Member, ...]
    matching: Matching | None
    ledger: Ledger | None
    culprits: tuple[Culprit, ...]
    told: tuple[int, ...]


def compare_many(members: Sequence[Member], world_size: int | None) -> Crowd:
    """Match the collectives of all ranks and find whom the others wait for.

    Args:
        members: of one job, at least one.
        world_size: ranks of the whole job; ``None`` if unknown.
    """
    logs = [member.log for member in members]
    if sum(log is not None for log in logs) < 2:
        return Crowd(tuple(members), None, None, (), _told(members, ()))
    matching = match_ranks([member.rank_log for member in members], world_size)
    arrivals = arrivals_of(matching, logs, [(member.steady, member.numbers) for member in members])
    joint = [entry for entry in arrivals if not entry.between]
    certain = [entry for entry in joint if entry.certain]
    steps = [step for member in members if (step := member.step_ns) is not None]
    found = culprits_of(certain, [member.host for member in members], float(np.median(steps)) if steps else 0.0)
    ledger = ledger_of(joint, len(members)) if joint else None
    return Crowd(tuple(members), matching, ledger, tuple(found), _told(members, found))


def _told(members: Sequence[Member], culprits: Sequence[Culprit]) -> tuple[int, ...]:
    """The culprits, of a late host those that cause most, and ranks that stand for the others: evenly chosen."""
    late = [rank for culprit in culprits for rank in culprit.members[: _OF_A_HOST if culprit.group else None]]
    blamed = {rank for culprit in culprits for rank in culprit.members}
    others = [index for index in range(len(members)) if index not in blamed]
    count = min(len(others), MOST_TOLD)
    chosen = [others[at] for at in np.linspace(0, len(others) - 1, count).round().astype(int).tolist()] if count else []
    return tuple(sorted({*late, *chosen}))
