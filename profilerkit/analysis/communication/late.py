"""Which rank the others wait for, if it is no accident: by the waiting it causes, weighed by time."""

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
#: Largest probability that ranks which are late by turns give one of them such a share.
BY_CHANCE = 0.05
#: Steps from which they, and not the collectives, are what chance is judged by: the collectives of one step depend on
#: each other, but a few steps prove nothing.
STEPS_TO_JUDGE = 8


@dataclass(frozen=True, slots=True)
class Lateness:
    """The ranks the others wait for.

    Attributes:
        ranks: positions, most waiting caused first; empty when nobody is late but by chance.
        share: of all waiting, caused by them; of the rank that causes most, where nobody is late.
        steps: share of the steps in which they caused most of the waiting.
        chance: bound on the probability of such a share when ranks are late by turns.
    """

    ranks: tuple[int, ...]
    share: float
    steps: float
    chance: float


def late_ranks(ledger: Ledger) -> Lateness:
    """One rank, or two that share the waiting, if their share is large, in most steps, and no accident."""
    total, count = ledger.total_ns, int((ledger.of > 0).sum())
    if not total or count < 2:
        return Lateness((), 0.0, 0.0, 1.0)
    order = np.argsort(-ledger.caused, kind="stable")[:2].tolist()
    shares = [float(ledger.caused[rank]) / total for rank in order]
    one = _judged(ledger, order[:1], shares[0], count)
    if one.ranks or shares[0] >= CAUSED_SHARE or shares[1] < SHARED_BY_TWO:
        return one
    both = _judged(ledger, order, sum(shares), count)
    return both if both.ranks else one


def _judged(ledger: Ledger, ranks: list[int], share: float, count: int) -> Lateness:
    theirs = np.isin(ledger.owner, ranks)
    steps = _won(ledger.step, theirs, ledger.amount)
    unit = ledger.step if len(steps) >= STEPS_TO_JUDGE else np.arange(len(ledger.owner))
    won = _won(unit, theirs, ledger.amount)
    weight = np.bincount(unit, weights=ledger.amount).astype(np.float64)
    ways = count if len(ranks) == 1 else count * (count - 1) / 2
    chance = min(1.0, ways * _exceeds(weight, float(weight[won].sum()), len(ranks) / count))
    most = float(steps.mean())
    late = share >= CAUSED_SHARE and most > MOST_STEPS and chance <= BY_CHANCE
    return Lateness(tuple(ranks) if late else (), share, most, chance)


def _won(unit: I64, theirs: Mask, amount: I64) -> Mask:
    """``(n_units,)`` whether they caused at least half of the waiting in each unit."""
    whole = np.bincount(unit, weights=amount)
    won: Mask = (2.0 * np.bincount(unit, weights=amount * theirs) >= whole) & (whole > 0)
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
