"""Which rank the others wait for, if it is no accident: by the waiting it causes, weighed by time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.communication.waiting import Arrivals, Ledger, Mask
from profilerkit.analysis.intervals import I64

#: Share of all waiting that one rank, or two together, must cause to be the late ones (R36). Counted by time: beside a
#: real late rank anybody is last by microseconds in back-to-back collectives.
CAUSED_SHARE = 0.60
#: Least share of each of two that are late together: half of theirs would be an even division.
SHARED_BY_TWO = 0.25
#: The late ranks must cause most of the waiting in more steps than this (R36).
MOST_STEPS = 0.5
#: Largest probability that one of equal ranks gets such a share by turns: of a hundred healthy jobs two may be accused.
BY_CHANCE = 0.02
#: Fewer steps than this show no habit, however clearly one rank is last in them.
FEWEST_STEPS = 3


@dataclass(frozen=True, slots=True)
class Lateness:
    """The ranks the others wait for.

    Attributes:
        ranks: positions, most waiting caused first; empty when nobody is late but by chance.
        share: of all waiting, caused by them; of the rank that causes most, where nobody is late.
        steps: share of the steps in which they caused most of the waiting.
        chance: bound on the probability of such a share when ranks are late by turns.
        needed: steps with waiting from which chance could be excluded, where there are fewer; else ``None``.
    """

    ranks: tuple[int, ...]
    share: float
    steps: float
    chance: float
    needed: int | None = None


def late_ranks(ledger: Ledger) -> Lateness:
    """One rank, or two that share the waiting, if their share is large, in most steps, and no accident."""
    total = ledger.total_ns
    if not total or (ledger.of > 0).sum() < 2:
        return Lateness((), 0.0, 0.0, 1.0)
    order = np.argsort(-ledger.caused, kind="stable")[:2].tolist()
    shares = [float(ledger.caused[rank]) / total for rank in order]
    one = _judged(ledger, order[:1], shares[0])
    if one.ranks or shares[0] >= CAUSED_SHARE or shares[1] < SHARED_BY_TWO:
        return one
    both = _judged(ledger, order, sum(shares))
    return both if both.ranks else one


def _judged(ledger: Ledger, ranks: list[int], share: float) -> Lateness:
    """Whether these are late. Steps are what chance is judged by: the collectives of one step depend on each other.

    Of R equal ranks each is last in a step with 1 / R. Where the steps are too few for that to prove anything, a rank
    must be last *clearly*, which the exponential, the widest of the usual spreads, allows in 2 / R of those steps.
    """
    count = int((ledger.of > 0).sum())
    crowd = min(int(ledger.crowd[rank]) for rank in ranks)
    ways = count if len(ranks) == 1 else count * (count - 1) // 2
    won = _won(ledger, ranks)
    weight = np.bincount(ledger.step, weights=ledger.amount).astype(np.float64)
    steps, each = int((weight > 0).sum()), min(len(ranks) / crowd, 1.0)
    needed = _needed(each, ways)
    proving = won
    if steps < needed and len(ranks) == 1 and crowd == count:
        each = each * 2.0 / crowd
        took_part = ledger.of > 0
        own = ledger.own[took_part]
        proving, needed = won & _clear(own, int(took_part[: ranks[0]].sum())), _needed(each, ways)
    chance = 1.0
    if steps >= needed:
        chance = min(1.0, ways * _exceeds(weight, float(weight[proving].sum()), each))
    most = float(won.mean())
    late = share >= CAUSED_SHARE and most > MOST_STEPS and chance <= BY_CHANCE
    return Lateness(tuple(ranks) if late else (), share, most, chance, needed if steps < needed else None)


def _needed(each: float, ways: int) -> int:
    """Steps that must all be theirs before chance is excluded, when chance gives them each with ``each``.

    >>> _needed(1 / 2, 2), _needed(1 / 4, 4), _needed(1 / 4 * 2 / 4, 4)
    (7, 4, 3)
    """
    if each >= 1.0:
        return 1 << 30
    return max(FEWEST_STEPS, math.ceil(math.log(BY_CHANCE / ways) / math.log(each)))


def _clear(own: I64, rank: int) -> Mask:
    """``(n_steps,)`` whether the others wait longer than this rank by more than they differ among themselves."""
    others = np.delete(own, rank, axis=0)
    least = others.min(axis=0)
    clear: Mask = least - own[rank] > others.max(axis=0) - least
    return clear


def _won(ledger: Ledger, ranks: list[int]) -> Mask:
    """``(n_steps,)`` whether one of them caused more of the step's waiting than anybody, and they caused half of it.

    The first is what chance gives to each of R equal ranks with 1 / R; of two that share, the second proves nothing.
    """
    caused = np.zeros(ledger.own.shape, dtype=np.int64)
    np.add.at(caused, (ledger.owner, ledger.step), ledger.amount)
    whole = caused.sum(axis=0)
    won: Mask = np.isin(caused.argmax(axis=0), ranks) & (2 * caused[ranks].sum(axis=0) >= whole) & (whole > 0)
    return won


def _exceeds(weight: npt.NDArray[np.float64], reached: float, chance: float) -> float:
    """Bound on P(sum of the weights drawn >= reached) when each is drawn with probability ``chance`` (Chernoff).

    One heavy weight proves little however many light ones there are: the bound falls with the number of weights that
    matter.

    >>> round(_exceeds(np.ones(10), 10.0, 0.5), 4)  # 2 ** -10
    0.001
    """
    total = float(weight.sum())
    if chance >= 1.0 or not total or reached <= chance * total:
        return 1.0
    share = weight / total
    tilt = np.geomspace(0.1, 1e5, 200)[:, None]
    # log of 1 - p + p exp(tilt * share), without overflow.
    grown = np.logaddexp(np.log1p(-chance), np.log(chance) + tilt * share[None, :]).sum(axis=1)
    return float(np.exp(np.minimum(grown - tilt[:, 0] * (reached / total), 0.0).min()))


def jitter_ratio(rank: int, arrivals: Sequence[Arrivals]) -> float:
    """Share of the waiting for a late rank that would be left if it came with the others.

    Among three and more the others would still wait for the last of themselves. Of two, the other one would still wait
    in the steps in which the late rank is later than it usually is.
    """
    waited = left = 0.0
    steps, ahead = [], []
    for entry in arrivals:
        mine = entry.members == rank
        if not mine.any():
            continue
        judged = entry.step >= 0
        others = entry.wait[~mine][:, judged]
        if not judged.any():
            continue
        if len(entry.members) == 2:
            steps.append(entry.step[judged])
            ahead.append((others - entry.wait[mine][:, judged])[0])
        else:
            late = (entry.last == np.flatnonzero(mine)[0])[judged]
            waited += float(others[:, late].sum())
            left += float((others - others.min(axis=0))[:, late].sum())
    if steps:
        _, step = np.unique(np.concatenate(steps), return_inverse=True)
        lateness = np.bincount(step, weights=np.concatenate(ahead))
        waited += float(np.maximum(lateness, 0.0).sum())
        left += float(np.maximum(lateness - np.median(lateness), 0.0).sum())
    return min(left / waited, 1.0) if waited > 0 else 0.0
