"""Which rank the others wait for: by the waiting it causes, weighed by time, or by the timers of all ranks."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.intervals import I64, Mask
from profilerkit.analysis.parts import WAITS
from profilerkit.analysis.rank_facts import LOGGED, RankFacts
from profilerkit.analysis.ranks.waiting import Arrivals, Ledger
from profilerkit.analysis.steps.log import StepLog, exposed

#: Share of all waiting that one rank, or two together, must cause to be the late ones. Counted by time: beside a
#: real late rank anybody is last by microseconds in back-to-back collectives.
CAUSED_SHARE = 0.60
#: Least share of each of two that are late together: half of theirs would be an even division.
SHARED_BY_TWO = 0.25
#: The late ranks must cause most of the waiting in more steps than this.
MOST_STEPS = 0.5
#: Largest probability that one of equal ranks gets such a share by turns: of a hundred healthy jobs two may be accused.
BY_CHANCE = 0.02
#: From so many steps on a rank that is this surely late in each of them is late for sure; else likely (choices).
FEWEST_STEPS, SURELY = 3, 0.001
#: How far equal ranks come apart is assumed before it is seen: by a scale whose inverse is gamma distributed, of this
#: shape and this ratio of the step. So the last comes 0.6 % of the step after the others in half of the steps, and 5 %
#: in one of 20. (Of 15 steps of five real jobs, each without its late rank: 0.6 % in half, 5 % in one.)
JITTER_SHAPE, JITTER_RATIO = 2.0, 0.015


class Lateness(msgspec.Struct, frozen=True):
    """The ranks the others wait for.

    Attributes:
        ranks: positions, most waiting caused first; empty when nobody is late but by chance.
        share: of all waiting, caused by them; of the rank that causes most, where nobody is late.
        steps: share of the steps in which they caused most of the waiting.
        chance: bound on the probability that equal ranks come apart so.
        needed: steps with waiting in which their order alone excludes chance, where there are fewer; else ``None``.
        sure: whether the steps are enough to call them late; else they are likely late.
    """

    ranks: tuple[int, ...]
    share: float
    steps: float
    chance: float
    needed: int | None = None
    sure: bool = False


def late_ranks(ledger: Ledger, step_ns: float) -> Lateness:
    """Return one rank, or two that share the waiting, if their share is large, in most steps, and no accident.

    Args:
        ledger: who waited for whom.
        step_ns: mean step, which healthy jitter is a ratio of.
    """
    total = ledger.total_ns
    if not total or (ledger.of > 0).sum() < 2:
        return Lateness((), 0.0, 0.0, 1.0)
    order = np.argsort(-ledger.caused, kind="stable")[:2].tolist()
    shares = [float(ledger.caused[rank]) / total for rank in order]
    one = _judged(ledger, order[:1], shares[0], step_ns)
    if one.ranks or shares[0] >= CAUSED_SHARE or shares[1] < SHARED_BY_TWO:
        return one
    both = _judged(ledger, order, sum(shares), step_ns)
    return both if both.ranks else one


def _judged(ledger: Ledger, ranks: list[int], share: float, step_ns: float) -> Lateness:
    """Judge whether these are late. Steps are the witnesses: the collectives of one step depend on each other.

    Two things speak independently: of R equal ranks each is last in a step with 1 / R, and who is last by accident is
    so by little in some step.
    """
    count = int((ledger.of > 0).sum())
    peers = min((ledger.peers[rank] for rank in ranks), key=len)
    ways = count if len(ranks) == 1 else count * (count - 1) // 2
    won = _won(ledger, ranks, peers)
    weight = np.bincount(ledger.step, weights=ledger.amount).astype(np.float64)
    steps, each = int((weight > 0).sum()), min(len(ranks) / max(len(peers), 1), 1.0)
    needed = _needed(each, ways)
    chance = by_order = ways * _exceeds(weight, float(weight[won].sum()), each)
    if len(ranks) == 1 and won.all():
        chance *= _by_jitter(ledger.own[peers], int((peers < ranks[0]).sum()), JITTER_RATIO * step_ns)
    most = float(won.mean())
    late = share >= CAUSED_SHARE and most > MOST_STEPS and chance <= BY_CHANCE
    sure = late and steps >= FEWEST_STEPS and (by_order <= BY_CHANCE or chance <= SURELY)
    return Lateness(
        tuple(ranks) if late else (), share, most, min(chance, 1.0), needed if steps < needed else None, sure
    )


def _needed(each: float, ways: int) -> int:
    """Steps that must all be theirs before chance is excluded, when chance gives them each with ``each``.

    >>> _needed(1 / 2, 2), _needed(1 / 4, 4)
    (7, 4)
    """
    if each >= 1.0:
        return 1 << 30
    return max(FEWEST_STEPS, math.ceil(math.log(BY_CHANCE / ways) / math.log(each)))


def _by_jitter(own: I64, rank: int, usual_ns: float) -> float:
    """Return the probability that the last of equal ranks comes so long after the next one in every step.

    Lateness by accident is taken for exponential, the widest of the usual spreads. By how far the others come apart in
    each step alone, the last is so late with the product of j / (j + distance / spread), j from 2 on. By one scale for
    all steps, learnt from the others and from how the distance varies, its least value counts. The smaller is returned.

    Args:
        own: ``(n_ranks, n_steps)`` ns that each rank waited itself.
        rank: position of the last one.
        usual_ns: scale of the jitter that is assumed before these were seen.

    >>> two, four = np.array([[0], [10]]), np.array([[0], [10], [11], [12]])
    >>> round(_by_jitter(two, 0, 1.5), 3), round(_by_jitter(four, 0, 1.5), 3)
    (0.017, 0.024)
    """
    others = np.delete(own, rank, axis=0)
    count, steps = own.shape
    most, least = others.max(axis=0), others.min(axis=0)
    apart, spread = least - own[rank], most - least
    if apart.min() <= 0:
        return 1.0
    order = np.arange(2, count)[:, None] * (spread + usual_ns)
    seen = (most - others).sum() + spread.sum() + (apart - apart.min()).sum()
    shape = JITTER_SHAPE + steps * (count - 2) + steps - 1
    by_all = (1.0 + steps * apart.min() / (usual_ns + seen)) ** -shape
    return float(min(np.prod(order / (order + apart)), by_all))


def _won(ledger: Ledger, ranks: list[int], peers: I64) -> Mask:
    """``(n_steps,)`` whether they are the late ones of the step, as chance makes each of R equal ranks with 1 / R.

    One is if it waits less itself than every peer, whatever else held one of these up; two if one of them caused more
    of the step's waiting than anybody, and both half of it: of two that share, the first proves nothing.
    """
    caused = np.zeros(ledger.own.shape, dtype=np.int64)
    np.add.at(caused, (ledger.owner, ledger.step), ledger.amount)
    whole = caused.sum(axis=0)
    if len(ranks) == 1 and len(peers) > 1:
        others = ledger.own[peers[peers != ranks[0]]].min(axis=0)
        least: Mask = (ledger.own[ranks[0]] < others) & (whole > 0)
        return least
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
