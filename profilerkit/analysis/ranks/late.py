"""Which rank the others wait for, by the waiting it causes or by the timers of all ranks, and why it is late."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.analysis.device.kernels import COMMUNICATION
from profilerkit.analysis.intervals import Segments, time_within
from profilerkit.analysis.rank_facts import LOGGED, RankFacts
from profilerkit.analysis.ranks.waiting import Arrivals, Ledger
from profilerkit.analysis.steps.log import exposed
from profilerkit.analysis.steps.series import shown_rows
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model.step import LEAVES, WAITS, Part, leaf
from profilerkit.trace.columns import F64, I64, Bools

#: Share of all waiting that one rank, or two together, must cause to be the late ones. Counted by time: beside a
#: real late rank anybody is last by microseconds in back-to-back collectives.
CAUSED_SHARE = 0.60
SHARED_BY_TWO = 0.25  #: least share of each of two that are late together: half of theirs would be an even division
MOST_STEPS = 0.5  #: the late ranks must cause most of the waiting in more steps than this
#: Largest probability that one of equal ranks gets such a share by turns: of a hundred healthy jobs two may be accused.
BY_CHANCE = 0.02
#: From so many steps on a rank that is this surely late in each of them is late for sure; else likely (choices).
FEWEST_STEPS, SURELY = 3, 0.001
#: How far equal ranks come apart is assumed before it is seen: by a scale whose inverse is gamma distributed, of this
#: shape and this ratio of the step. So the last comes 0.6 % of the step after the others in half of the steps, and 5 %
#: in one of 20. (Of 15 steps of five real jobs, each without its late rank: 0.6 % in half, 5 % in one.)
JITTER_SHAPE, JITTER_RATIO = 2.0, 0.015


class Lateness(msgspec.Struct, frozen=True):
    """The ranks the others wait for."""

    ranks: tuple[int, ...]  #: positions, most waiting caused first; empty when nobody is late but by chance
    share: float  #: of all waiting, caused by them; of the rank that causes most, where nobody is late
    steps: float  #: share of the steps in which they caused most of the waiting
    #: Steps with waiting in which their order alone excludes chance, where there are fewer; else ``None``.
    needed: int | None = None
    sure: bool = False  #: whether the steps are enough; else they are likely late


def late_ranks(ledger: Ledger, step_ns: float) -> Lateness:
    """Return one rank, or two that share the waiting, if their share is large, in most steps, and no accident."""
    total = ledger.total_ns
    if not total or (ledger.of > 0).sum() < 2:
        return Lateness((), 0.0, 0.0)
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
    return Lateness(tuple(ranks) if late else (), share, most, needed if steps < needed else None, sure)


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


def _won(ledger: Ledger, ranks: list[int], peers: I64) -> Bools:
    """``(n_steps,)`` whether they are the late ones of the step, as chance makes each of R equal ranks with 1 / R.

    One is if it waits less itself than every peer, whatever else held one of these up; two if one of them caused more
    of the step's waiting than anybody, and both half of it: of two that share, the first proves nothing.
    """
    caused = np.zeros(ledger.own.shape, dtype=np.int64)
    np.add.at(caused, (ledger.owner, ledger.step), ledger.amount)
    whole = caused.sum(axis=0)
    if len(ranks) == 1 and len(peers) > 1:
        others = ledger.own[peers[peers != ranks[0]]].min(axis=0)
        least: Bools = (ledger.own[ranks[0]] < others) & (whole > 0)
        return least
    won: Bools = np.isin(caused.argmax(axis=0), ranks) & (2 * caused[ranks].sum(axis=0) >= whole) & (whole > 0)
    return won


def _exceeds(weight: F64, reached: float, chance: float) -> float:
    """Bound on P(sum of the weights drawn >= reached) when each is drawn with probability ``chance`` (Chernoff).

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

    Three and more would still wait for the last of themselves; of two, the other one in the steps in which the late
    rank is later than it usually is.
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

_ALONE = (*WAITS, "over.gc")  #: what only its own rank can be busy with, whatever the others do


def timed_ns(ranks: Sequence[RankFacts]) -> list[float | None]:
    """Per rank the mean time of a judged step in what its timers measure of it, ns; ``None`` where no fetch was seen.

    That is what one rank can do while the others wait: waiting for data, garbage collections, and phases that most
    ranks lack; in one that most have, the longer one may be the rank that waits. Where a device's trace of every rank
    tells what the device worked beside it, only the rest counts.
    """
    shown = all(rank.mode == "gpu" for rank in ranks)
    spent = [_spent_ns(rank, shown=shown) for rank in ranks]
    known = [values for values in spent if values is not None]
    lacked = [name for name in LOGGED if known and not median_rank_ns([values.get(name, 0.0) for values in known])]
    counted = {*_ALONE, *lacked}
    return [None if own is None else sum(value for name, value in own.items() if name in counted) for own in spent]


def may_be_hidden(ranks: Sequence[RankFacts]) -> bool:
    """Whether a device may have worked beside what the timers measured, where not every rank's trace tells."""
    metas = [rank.record.meta for rank in ranks if rank.record and rank.record.meta]
    shown = [rank.mode == "gpu" for rank in ranks]
    by_clock = all(rank.log is not None and rank.log.device is not None for rank in ranks)
    return (any(shown) or any(meta.device_name for meta in metas)) and not all(shown) and not by_clock


def _spent_ns(rank: RankFacts, *, shown: bool) -> dict[str, float] | None:
    log = rank.log
    if log is None or not log.waits_seen or not (shown or log.steady.any()):
        return None
    if shown:
        return {part.part: float(part.time_ns) for part in rank.parts}
    spent = exposed(log.spent("input.wait"), log.room)
    return {name: float(values[log.steady].mean()) for name, values in spent.items()}


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
    """Position of the only rank whose device has no work queued: the other hosts run ahead of theirs; else ``None``."""
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


#: Share of the waiting that a cause must explain; else the waiting is called unattributed (TraceML demands 80 %).
FEWEST_EXPLAINED = 0.60
#: The same of the part that holds most of what a rank does longer, where only breakdowns tell (a choice: on a busy host
#: of two ranks the one with the longer sequences computed for 40 to 60 % of what the other one waited).
FEWEST_LED = 0.25
MOST_COMPARED = 16  #: ranks that the late one is compared with: the median of more changes nothing

SAME_FLOPS_RATIO = 0.02  #: seeded training repeats its FLOPs exactly; so much is left for a last batch that is short
#: Share of the window from which a kernel, or on a CPU-only run an operator, must run as often on both.
SHOWN_SHARE = 0.05

#: Parts that one cause makes longer together; each of the others is a cause of its own.
_TOGETHER = ("input.", "compute.", "sync.")
#: Parts that are no cause: other waiting, what nobody can name, and what the profiler did.
_NO_CAUSE = ("comm.", "idle.", "other.prof")


#: The parts that may be a cause, those together that one cause makes longer.
_GROUPS: dict[str, list[str]] = {}
for _part in LEAVES:
    if not _part.startswith(_NO_CAUSE):
        _GROUPS.setdefault(next((prefix for prefix in _TOGETHER if _part.startswith(prefix)), _part), []).append(_part)


class Cause(msgspec.Struct, frozen=True):
    """What made a rank late, summed over the judged steps."""

    part: str | None  #: the largest part of what it did longer; ``None`` when nothing explains enough of the waiting
    explained_ns: float
    waited_ns: float  #: exposed waiting of the median other rank, in the spans that ended with this rank's arrival

    @property
    def coverage(self) -> float | None:
        """Explained / waited, at most 1; ``None`` where nobody had to wait."""
        return min(self.explained_ns / self.waited_ns, 1.0) if self.waited_ns > 0 else None


def cause_of(
    rank: int, arrivals: Sequence[Arrivals], segments: Sequence[Segments | None], to_common: Sequence[int | None]
) -> Cause:
    """Compare the late rank with the others in the spans that ended when it arrived last.

    A span runs from the previous common arrival to this one, so that they lie end to end and are the same for all. In
    it the others waited; what the late rank did longer than their median is why.
    """
    own = [entry for entry in arrivals if rank in entry.members]
    instants = np.unique(np.concatenate([entry.arrived for entry in own]))
    excess = np.zeros(len(LEAVES))
    for entry in own:
        mine = int(np.flatnonzero(entry.members == rank)[0])
        late = (entry.last == mine) & (entry.step >= 0)
        before = np.searchsorted(instants, entry.arrived[late], side="left") - 1
        others = entry.members[entry.members != rank]
        others = others[shown_rows(len(others), MOST_COMPARED)].tolist()
        # The span of the first collective begins when all of them were recorded.
        begun = [(segments[member], to_common[member] or 0) for member in (rank, *others)]
        begin = max(int(own.start[0]) + shift if own is not None and len(own) else 0 for own, shift in begun)
        end = np.maximum(entry.arrived[late], begin)
        start = np.where(before >= 0, np.maximum(instants[np.maximum(before, 0)], begin), begin)
        times = [_times(segments[other], to_common[other], start, end) for other in others]
        if len(end) and times:
            excess += (_times(segments[rank], to_common[rank], start, end) - np.median(times, axis=0)).sum(axis=0)
    waited = float(-excess[leaf("comm.skew")])
    groups = [[leaf(name) for name in group] for group in _GROUPS.values()]
    best = max(groups, key=lambda members: float(excess[members].sum()))
    explained = float(excess[best].sum())
    if waited <= 0 or explained < FEWEST_EXPLAINED * waited:
        return Cause(None, max(explained, 0.0), max(waited, 0.0))
    return Cause(LEAVES[max(best, key=lambda index: excess[index])], explained, waited)


def _times(segments: Segments | None, to_common: int | None, start: I64, end: I64) -> F64:
    """``(n_spans, n_leaves)`` ns of each leaf within each span of the common clock."""
    out = np.zeros((len(start), len(LEAVES)))
    if segments is None or to_common is None or not len(segments):
        return out
    for label in np.unique(segments.label).tolist():
        out[:, label] = time_within(segments.only(label), start - to_common, end - to_common)
    return out


def cause_by_parts(
    late: Sequence[Part], others: Sequence[Sequence[Part]], waited_ns: float, *, among: Sequence[str] = ()
) -> Cause:
    """Compare the mean steps of the late rank and of the others, where no span of a collective tells.

    Their steps are equally long: what the others do less they wait. Where that explains too little, as on a busy host,
    the part that holds most of it is named all the same, with how much it explains. ``waited_ns`` is per step, by the
    median other rank; ``among`` has the names of the parts that are compared, or their beginnings; empty means all.
    """

    def spent(parts: Sequence[Part], names: Sequence[str]) -> float:
        return float(sum(part.time_ns for part in parts if part.part in names))

    groups = [[name for name in group if not among or name.startswith(tuple(among))] for group in _GROUPS.values()]
    excess = [spent(late, group) - float(np.median([spent(other, group) for other in others])) for group in groups]
    most = int(np.argmax(excess))
    explained, whole = excess[most], sum(max(value, 0.0) for value in excess)
    leads = not among and explained >= max(FEWEST_EXPLAINED * whole, FEWEST_LED * waited_ns)
    if waited_ns <= 0 or explained <= 0 or not (leads or explained >= FEWEST_EXPLAINED * waited_ns):
        return Cause(None, max(explained, 0.0), max(waited_ns, 0.0))
    own = {part.part: part.time_ns for part in late}
    return Cause(max(groups[most], key=lambda name: own.get(name, 0)), explained, waited_ns)


def same_work(late: TraceFacts, others: Sequence[TraceFacts]) -> bool | None:
    """Whether the rank runs the same kernels on as much work per step as any other; ``None`` without shapes."""
    told = [_same(late, other) for other in others]
    known = [same for same in told if same is not None]
    return any(known) if known else None


def more_work(late: TraceFacts, others: Sequence[TraceFacts]) -> float:
    """Share of the rank's FLOPs per step that no other rank has; 0 where it is not known."""
    ours = late.compute.flops_per_step
    theirs = [flops for other in others if (flops := other.compute.flops_per_step)]
    return max(1.0 - max(theirs) / ours, 0.0) if ours and theirs else 0.0


def _same(one: TraceFacts, other: TraceFacts) -> bool | None:
    ours, theirs = one.compute.flops_per_step, other.compute.flops_per_step
    if not ours or not theirs:
        return None
    if abs(ours - theirs) > SAME_FLOPS_RATIO * max(ours, theirs):
        return False
    first, second = _per_step(one), _per_step(other)
    shown = {name for found in (first, second) for name, (_, share) in found.items() if share >= SHOWN_SHARE}
    return all(name in first and name in second and first[name][0] == second[name][0] for name in shown)


def _per_step(trace: TraceFacts) -> dict[str, tuple[int, float]]:
    """Name to calls per step, rounded, and share of the window, of the largest kernels that compute."""
    count = max(trace.n_steady, 1)
    computing = (kernel for kernel in trace.kernels if kernel.kind != COMMUNICATION)
    return {kernel.name: (round(kernel.count / count), kernel.share) for kernel in computing}
