"""Facts of a trace made small enough to keep, and those of a rank of which only its meetings with others matter."""

from collections.abc import Callable, Iterator

import numpy as np

from profilerkit.analysis.intervals import I64, NO_SEGMENTS, Segments
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model.change import fields_of, revise
from profilerkit.summaries.sample import spread, stretch

#: Kernels of the table, and of the shortest form of it.
_MOST_KERNELS, _FEWEST_KERNELS = 128, 24


def smaller(facts: TraceFacts) -> Iterator[tuple[str, TraceFacts]]:
    """The facts, then with less and less, each with what was lost last in words: who asks takes the first that fits.

    Sums stay what they are.
    """
    facts = revise(facts, kernels=facts.kernels[:_MOST_KERNELS])
    yield "", facts
    losses: tuple[tuple[str, Callable[[TraceFacts], TraceFacts]], ...] = (
        ("the lanes of the median step", lambda known: revise(known, lanes=None)),
        ("the order of parts between collectives", _coarse),
        ("the replay", lambda known: revise(known, replay=None)),
        ("most kernels", lambda known: revise(known, kernels=known.kernels[:_FEWEST_KERNELS])),
        ("later collectives", lambda known: revise(known, collectives=stretch(known.collectives, known.steps))),
    )
    for words, lose in losses:
        facts = lose(facts)
        yield words, facts


#: What is kept as it is of a rank that is only compared.
_COMPARED_BY = (
    *("meta", "damage", "n_events", "steps", "window", "n_steady", "properties", "input"),
    *("device_events_missing", "compute", "memory", "device"),
)


def thin(facts: TraceFacts) -> TraceFacts:
    """What ranks are compared by: steps, sums of the parts, collectives."""
    return TraceFacts(
        **fields_of(facts, *_COMPARED_BY),
        partition=revise(facts.partition, segments=NO_SEGMENTS, alone=None, hidden=None),
        collectives=spread(facts.collectives, facts.steps),
        device_window=None,
        comm=None,
        parallelism=(),
        warmup=None,
        kernels=(),
    )


def _coarse(facts: TraceFacts) -> TraceFacts:
    """One segment for each part between two instants at which a step or a collective begins or ends."""
    log, segments = facts.collectives, facts.partition.segments
    if not len(segments):
        return facts
    instants = [facts.steps.start, facts.steps.end]
    if log is not None:
        instants += [log.start, log.end]
    return revise(facts, partition=revise(facts.partition, segments=coarse(segments, np.concatenate(instants))))


def coarse(segments: Segments, cuts: I64) -> Segments:
    """The segments joined by label within the spaces between ``cuts``: the same sums in each space, in another order.

    >>> parts = Segments(*(np.array(values) for values in ([0, 2, 3, 5], [2, 3, 5, 9], [1, 2, 1, 2])))
    >>> joined = coarse(parts, np.array([0, 6, 9]))
    >>> [values.tolist() for values in (joined.start, joined.end, joined.label)]
    [[0, 4, 6], [4, 6, 9], [1, 2, 2]]
    """
    edges = np.unique(np.concatenate([segments.start, segments.end, cuts]))
    start, end = edges[:-1], edges[1:]
    owner = np.searchsorted(segments.start, start, side="right") - 1
    inside = (owner >= 0) & (start < segments.end[np.maximum(owner, 0)])
    start, end, label = start[inside], end[inside], segments.label[owner[inside]]
    space = np.searchsorted(np.unique(cuts), start, side="right")
    # Pieces of one label in one space stand together, in the order in which the labels come first.
    order = np.lexsort((start, label, space))
    begins = np.r_[True, (np.diff(space[order]) != 0) | (np.diff(label[order]) != 0)]
    group = np.cumsum(begins) - 1
    length = np.bincount(group, weights=(end - start)[order].astype(np.float64)).round().astype(np.int64)
    first, of_space, of_label = start[order][begins], space[order][begins], label[order][begins]
    placed = np.lexsort((first, of_space))
    length, first, of_space, of_label = length[placed], first[placed], of_space[placed], of_label[placed]
    # The first of a space stands where the space's pieces begin; each of the others follows the one before.
    opens = np.r_[True, np.diff(of_space) != 0]
    before = np.cumsum(length) - length
    base = np.maximum.accumulate(np.where(opens, np.arange(len(length)), 0))
    at = first[base] + before - before[base]
    return Segments(at, at + length, of_label)
