"""Savings of changes: each alone, several together, and in which order to apply them. Savings are never added."""

from collections.abc import Callable, Sequence
from itertools import combinations
from math import factorial

import msgspec

from profilerkit.analysis.replay.changes import Change, applied
from profilerkit.analysis.replay.gate import ReplayFacts
from profilerkit.analysis.replay.graph import replay_all

#: Sets of no more changes are divided fairly among them: 32 replays.
MOST_SHARED = 5


class Joint(msgspec.Struct, frozen=True):
    """What several changes save, as ratios of the judged steps.

    Attributes:
        alone: each by itself, in the order they were given.
        together: all of them.
        order: places of the changes, the one that saves most on top of those before it first.
        after: what is saved once the first of ``order`` is applied, the first two, and so on; the last is ``together``.
        limit: what is saved where ``beyond`` is applied instead.
        fair: the mean of what each adds over all orders (Shapley), which sum to ``together``; ``None`` for more than
            ``MOST_SHARED`` changes.
    """

    alone: tuple[float, ...]
    together: float
    order: tuple[int, ...]
    after: tuple[float, ...]
    limit: float
    fair: tuple[float, ...] | None


def savings(facts: ReplayFacts, sets: Sequence[Sequence[Change]]) -> list[float]:
    """What each set of changes saves of the judged steps, 0 to 1; below 0 where it makes them longer."""
    graphs = [applied(facts.graph, changes) for changes in sets]
    plain = facts.plain_ns
    return [
        1.0 - float(done.step_ns(graph.shape).sum()) / plain if plain else 0.0
        for graph, done in zip(graphs, replay_all(graphs), strict=True)
    ]


def joint(
    facts: ReplayFacts,
    changes: Sequence[Change],
    bounds: Sequence[float],
    beyond: Change,
    alone: Sequence[float] | None = None,
) -> Joint:
    """Replay the changes alone and together, and order them by what each adds.

    Args:
        facts: the steps.
        changes: the fixes.
        bounds: what each of them saves at most; a set saves no more than its bounds together.
        beyond: what no fix gets beyond; replayed with them, as that costs little.
        alone: what each saves by itself as it is known; where the replay says more, that is its bound.
    """
    count = len(changes)
    most = list(bounds)

    def bounded(found: Sequence[float], sets: Sequence[Sequence[int]]) -> list[float]:
        for value, chosen in zip(found, sets, strict=True):
            if alone is not None and len(chosen) == 1 and value > alone[chosen[0]]:
                most[chosen[0]] = alone[chosen[0]]
        return [min(value, sum(most[p] for p in chosen)) for value, chosen in zip(found, sets, strict=True)]

    def saved_by(sets: Sequence[Sequence[int]]) -> list[float]:
        return bounded(savings(facts, [[changes[place] for place in chosen] for chosen in sets]), sets)

    if count > MOST_SHARED:
        return _greedy(count, saved_by, savings(facts, [[beyond]])[0])
    sets = [places for size in range(1, count + 1) for places in combinations(range(count), size)]
    limit, *found = savings(facts, [[beyond], *([changes[place] for place in chosen] for chosen in sets)])
    saved = {(): 0.0} | dict(zip(sets, bounded(found, sets), strict=True))
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


def _greedy(count: int, saved_by: Callable[[Sequence[Sequence[int]]], list[float]], limit: float) -> Joint:
    """The order found step by step: each time the change that saves most with those before it."""
    alone = saved_by([(place,) for place in range(count)])
    order: list[int] = []
    after: list[float] = []
    while len(order) < count:
        left = [place for place in range(count) if place not in order]
        found = saved_by([(*order, other) for other in left])
        best = found.index(max(found))
        order.append(left[best])
        after.append(max([found[best], *after[-1:]]))
    return Joint(tuple(alone), after[-1], tuple(order), tuple(after), limit, None)


def _shapley(saved: dict[tuple[int, ...], float], place: int, count: int) -> float:
    """The mean of what ``place`` adds to the sets without it, over all orders."""
    total = 0.0
    for chosen, value in saved.items():
        if place not in chosen:
            weight = factorial(len(chosen)) * factorial(count - len(chosen) - 1) / factorial(count)
            total += weight * (saved[tuple(sorted((*chosen, place)))] - value)
    return total
