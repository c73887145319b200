"""Who keeps the others waiting: one after the other, each looked for once those before it are taken out."""

from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.analysis.ranks.job import LATE_SHARE
from profilerkit.analysis.ranks.late import Lateness, late_ranks
from profilerkit.analysis.ranks.waiting import Arrivals, Ledger, ledger_of
from profilerkit.model.change import revise

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
