"""Compare thousands of ranks: match their collectives, find the culprits, and choose who is told in detail."""

from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.analysis.crowd.culprits import Culprit, culprits_of
from profilerkit.analysis.crowd.member import Member
from profilerkit.analysis.ranks.matching import Matching, match_ranks
from profilerkit.analysis.ranks.waiting import Ledger, arrivals_of, ledger_of

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
