"""Build the graph of a recording once, check it against what was measured, and replay several changes together."""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import factorial

import msgspec
import numpy as np

from profilerkit.analysis.communication.table import Contention
from profilerkit.analysis.device.kernels import named
from profilerkit.analysis.intervals import intersect, union
from profilerkit.analysis.partition import TraceView
from profilerkit.analysis.replay.build import Built, build
from profilerkit.analysis.replay.changes import Change, applied
from profilerkit.analysis.replay.graph import NEVER, Graph, Replayed, Shape, replay
from profilerkit.model import revise
from profilerkit.model.step import LEAVES
from profilerkit.trace.columns import F64, I64, Category

#: The unmodified replay must meet the traced time of the steps within this, and every step within the second.
#: dPRO's replay missed by 14 % on average where it lost dependencies between streams; its authors saw less than 5 %.
LARGEST_ERROR, LARGEST_STEP_ERROR = 0.05, 0.10
#: Share of the steps in transfers between two ranks from which a change shows in the trace of the other first (a
#: choice: what the whole prediction may be off).
MOST_ELSEWHERE = 0.05
_BETWEEN_TWO = re.compile(r"^(?:nccl|rccl|oneccl).*(?:send|recv)", re.IGNORECASE)
#: Share of the steps that kernels lose beside collectives, beyond which a change of these is not told: the replay keeps
#: kernels as long as they were, and a prediction may be 2 points off.
MOST_SLOWED = 0.02
_NAMED = 5  #: steps named when they fail


class ReplayFacts(msgspec.Struct, frozen=True, eq=False):
    """The replayed steps of a trace, and how well the unmodified replay meets them."""

    graph: Graph
    plain: Replayed
    error: float  #: its time over the traced time, less 1; of the host or of all work, whichever is further off
    step_errors: F64
    failing: tuple[int, ...]  #: numbers of the steps that are off by more than ``LARGEST_STEP_ERROR``
    of: int
    shares: Mapping[str, float] = msgspec.field(default_factory=dict)
    #: Share of the steps in transfers between two ranks: what they wait for is in the trace of another.
    elsewhere: float = 0.0
    #: Share of the steps that kernels lose to collectives beside them; ``None`` where many ran beside some and none
    #: could be compared with itself alone.
    slowed: float | None = 0.0

    @property
    def is_open(self) -> bool:
        """Whether savings may be told from it."""
        return not self.refused

    @property
    def steps(self) -> int:
        """Judged steps that are replayed."""
        return int(self.graph.shape.judged.sum())

    @property
    def refused(self) -> str:
        """Why no saving is told from it; empty where one is."""
        if self.elsewhere > MOST_ELSEWHERE:
            held = f"{self.elsewhere:.0%}".replace("%", " %")
            return f"{held} of the steps are transfers between two ranks, which depend on traces of other ranks"
        if self.failing:
            named = ", ".join(str(number) for number in self.failing[:_NAMED])
            more = f" and {len(self.failing) - _NAMED} more" if len(self.failing) > _NAMED else ""
            worst = float(np.abs(self.step_errors).max())
            return f"the replay of steps {named}{more} is up to {worst:.0%} off".replace("%", " %")
        if abs(self.error) > LARGEST_ERROR:
            off = f"{abs(self.error):.0%}".replace("%", " %")
            return f"the replayed steps are {off} {'longer' if self.error > 0 else 'shorter'}"
        return ""

    def refuses(self, fix_class: str) -> str:
        """Why no saving of such a fix is told from it; empty where one is."""
        if self.refused or fix_class != "communication":
            return self.refused
        if self.slowed is None:
            return "kernels run beside collectives and none ran alone, so how much collectives slow them is not known"
        if self.slowed > MOST_SLOWED:
            lost = f"{self.slowed:.0%}".replace("%", " %")
            return f"collectives slow the kernels beside them by {lost} of the steps, and this would change"
        return ""

    def share_of(self, kind: str) -> float:
        """Share of the replayed steps in the kernels of a kind: ``fp32`` or ``chained``."""
        chosen = self.graph.fp32 if kind == "fp32" else self.graph.chained
        whole = float(self.plain.done_ns[-1] - self.plain.done_ns[0])
        return float(self.graph.dur_ns[chosen & (self.graph.issue_ns > NEVER)].sum()) / whole if whole > 0 else 0.0

    @property
    def plain_ns(self) -> float:
        """Judged time of the unmodified replay."""
        return float(self.plain.step_ns(self.graph.shape).sum())


def replay_facts(seen: TraceView, contention: Contention | None) -> ReplayFacts | None:
    """Build the graph of a trace and check it; ``None`` where there is no step or no host thread to follow."""
    built = build(seen)
    if built is None:
        return None
    steady = seen.steps.steady.total_ns
    times = seen.parts.per_step[seen.steps.judged].sum(axis=0)
    shares = {LEAVES[place]: float(time) / steady for place, time in enumerate(times.tolist()) if time and steady}
    return revise(checked(built), shares=shares, elsewhere=_between_two(seen), slowed=_slowed(seen, contention))


def _between_two(seen: TraceView) -> float:
    """Share of the steps that transfers between two ranks take on the judged device."""
    columns, rows = seen.columns, _collectives(seen)
    between = rows[named(columns, _BETWEEN_TWO, Category.KERNEL)[rows]]
    return float(columns.dur_ns[between].sum()) / _length_ns(seen)


def _slowed(seen: TraceView, contention: Contention | None) -> float | None:
    """``ReplayFacts.slowed``: those that could not be compared are slowed like the others."""
    if contention is not None:
        lost = contention.excess_ns / max(contention.usual_ns + contention.excess_ns, 1.0)
        return lost * contention.beside_ns * len(seen.steps.steady) / max(seen.steps.steady.total_ns, 1)
    columns, rows = seen.columns, _collectives(seen)
    computes = seen.ran & (columns.category == Category.KERNEL) & ~seen.kinds.communication[columns.name]
    own, work = (union(columns.ts_ns[chosen], columns.end_ns[chosen]) for chosen in (rows, computes))
    return None if intersect(own, work).total_ns > MOST_ELSEWHERE * _length_ns(seen) else 0.0


def _collectives(seen: TraceView) -> I64:
    columns = seen.columns
    return np.flatnonzero(seen.ran & seen.kinds.communication[columns.name] & (columns.category == Category.KERNEL))


def _length_ns(seen: TraceView) -> int:
    return max(int((seen.steps.end - seen.steps.start).sum()), 1)


def checked(built: Built) -> ReplayFacts:
    """Replay the graph unmodified, and compare with what was traced."""
    plain, shape = replay(built.graph), built.graph.shape
    pairs = ((plain.host_ns, built.traced.host_ns), (plain.done_ns, built.traced.done_ns))
    errors = [_errors(ours, theirs, shape) for ours, theirs in pairs]
    total, by_step = max(errors, key=lambda pair: abs(pair[0]))
    worst = np.max([np.abs(steps) for _, steps in errors], axis=0)
    failing = shape.number[shape.judged][worst > LARGEST_STEP_ERROR]
    worst_of = np.where(np.abs(by_step) >= worst, by_step, worst)
    return ReplayFacts(built.graph, plain, total, worst_of, tuple(failing.tolist()), built.of)


def _errors(ours: F64, theirs: F64, shape: Shape) -> tuple[float, F64]:
    """Relative error of the judged time, and of each judged step."""
    replayed, traced = np.diff(ours)[shape.judged], np.diff(theirs)[shape.judged]
    floor = max(float(traced.mean()), 1.0)
    # A host that runs ahead has steps of nearly nothing by itself: they are measured against the mean.
    return float(replayed.sum() / max(traced.sum(), 1.0)) - 1.0, (replayed - traced) / np.maximum(traced, floor / 2)


MOST_SHARED = 5  #: changes that are replayed together at most: 32 replays of their sets


class Joint(msgspec.Struct, frozen=True):
    """What several changes save, as ratios of the judged steps."""

    alone: tuple[float, ...]
    together: float
    order: tuple[int, ...]  #: places of the changes, the one that saves most on top of those before it first
    #: What is saved once the first of ``order`` is applied, the first two, and so on; the last is ``together``.
    after: tuple[float, ...]
    limit: float  #: what is saved where ``beyond`` is applied instead
    fair: tuple[float, ...]  #: the mean of what each adds over all orders (Shapley), which sum to ``together``


def savings(facts: ReplayFacts, sets: Sequence[Sequence[Change]]) -> list[float]:
    """What each set of changes saves of the judged steps, 0 to 1; below 0 where it makes them longer."""
    graphs = [applied(facts.graph, changes) for changes in sets]
    plain = facts.plain_ns
    return [1.0 - float(replay(graph).step_ns(graph.shape).sum()) / plain if plain else 0.0 for graph in graphs]


def joint(
    facts: ReplayFacts,
    changes: Sequence[Change],
    bounds: Sequence[float],
    beyond: Change,
    alone: Sequence[float] | None = None,
) -> Joint:
    """Replay the changes, at most ``MOST_SHARED``, alone and in every set, and order them by what each adds.

    bounds: what each of them saves at most; a set saves no more than its bounds together.
    beyond: what no fix gets beyond; replayed with them, as that costs little.
    alone: what each saves by itself as it is known; where the replay says more, that is its bound.
    """
    count = len(changes)
    sets = [places for size in range(1, count + 1) for places in combinations(range(count), size)]
    limit, *found = savings(facts, [[beyond], *([changes[place] for place in chosen] for chosen in sets)])
    most = list(bounds)
    for place, value in enumerate(found[:count]):  # each by itself
        if alone is not None and value > alone[place]:
            most[place] = alone[place]
    saved: dict[tuple[int, ...], float] = {(): 0.0}
    for chosen, value in zip(sets, found, strict=True):
        saved[chosen] = min(value, sum(most[place] for place in chosen))
    for chosen in sets:  # smaller ones first: a fix that takes away what another one hides behind is left out
        saved[chosen] = max(saved[chosen], *(saved[part] for part in combinations(chosen, len(chosen) - 1)))
    order: tuple[int, ...] = ()
    after = []
    while len(order) < count:
        left = [place for place in range(count) if place not in order]
        best = max(left, key=lambda place: saved[tuple(sorted((*order, place)))])
        order = (*order, best)
        after.append(saved[tuple(sorted(order))])
    return Joint(
        alone=tuple(saved[(place,)] for place in range(count)),
        together=saved[tuple(range(count))],
        order=order,
        after=tuple(after),
        limit=limit,
        fair=tuple(_shapley(saved, place, count) for place in range(count)),
    )


def _shapley(saved: dict[tuple[int, ...], float], place: int, count: int) -> float:
    """The mean of what ``place`` adds to the sets without it, over all orders."""
    total = 0.0
    for chosen, value in saved.items():
        if place not in chosen:
            weight = factorial(len(chosen)) * factorial(count - len(chosen) - 1) / factorial(count)
            total += weight * (saved[tuple(sorted((*chosen, place)))] - value)
    return total
