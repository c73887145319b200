"""Facts of a trace made small enough to keep, and those of a rank of which only its meetings with others matter."""

import math
from collections.abc import Callable, Iterator

import numpy as np

from profilerkit.analysis.communication.log import CollectiveLog
from profilerkit.analysis.intervals import I64, NO_SEGMENTS, Segments
from profilerkit.analysis.steps.find import TraceSteps, in_step
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model.change import fields_of, revise

# A rank does not know which of its collectives were waits: that shows only beside the others. So what is kept depends
# on nothing but what all ranks have in common, the numbers of steps and collectives.

#: What is kept of a rank's collectives: 1,000 steps of four, or a few steps of many (a choice; 16 bytes each).
MOST_COLLECTIVES = 4_096
_ARRAYS = ("start", "end", "name", "kind", "title", "dtype", "channel", "sequence", "bytes", "measured", "size")
#: Multiples of it, modulo 1, lie evenly however many there are (Weyl): the order of steps, the largest first.
_GOLDEN = (math.sqrt(5) - 1) / 2


def spread(log: CollectiveLog | None, steps: TraceSteps) -> CollectiveLog | None:
    """The log with at most ``MOST_COLLECTIVES``, of whole steps spread over the trace: who is late when shows in them.

    Steps are taken in an order that depends on their numbers alone, while they fit: of two ranks the one that keeps
    fewer keeps a part of what the other keeps. Where the trace marks no steps, or does not number its collectives,
    the first are kept: those that lie side by side can still be matched by their order.
    """
    if log is None or len(log) <= MOST_COLLECTIVES:
        return log
    if steps.inferred or not _is_numbered(log):
        return _only(log, np.arange(MOST_COLLECTIVES))
    step = in_step(log.start, steps.start, steps.end)
    order = evenly(steps.index)
    held = np.cumsum(np.bincount(step[step >= 0], minlength=len(order))[order])
    fitting = max(int(np.searchsorted(held, MOST_COLLECTIVES, side="right")), 1)
    rows = np.flatnonzero(np.isin(step, order[:fitting]))[:MOST_COLLECTIVES]
    return _only(log, rows if len(rows) else np.arange(MOST_COLLECTIVES))


def stretch(log: CollectiveLog | None, steps: TraceSteps) -> CollectiveLog | None:
    """The log with ``MOST_COLLECTIVES`` side by side, the first of the judged steps: what one rank's time is told by.

    Where collectives are not numbered they are the first of all, so that those of two ranks can be matched by order.
    """
    if log is None or len(log) <= MOST_COLLECTIVES:
        return log
    judged = steps.start[steps.judged]
    first = int(np.searchsorted(log.start, judged[0])) if len(judged) and _is_numbered(log) else 0
    first = min(first, len(log) - MOST_COLLECTIVES)
    return _only(log, np.arange(first, first + MOST_COLLECTIVES))


def evenly(numbers: I64) -> I64:
    """Positions of step numbers in the order in which they are taken.

    >>> [3 + int(at) for at in evenly(np.arange(3, 13))]
    [8, 3, 11, 6, 9, 4, 12, 7, 10, 5]
    """
    order: I64 = np.argsort(-(numbers * _GOLDEN % 1.0), kind="stable")
    return order


def _is_numbered(log: CollectiveLog) -> bool:
    """Whether most collectives have a number in a process group with a name, by which they are matched."""
    named = np.array([bool(channel.group) for channel in log.channels], dtype=np.bool_)[log.channel]
    joint = log.joint
    return bool(joint.any()) and float((named & (log.sequence >= 0))[joint].mean()) > 0.5


def _only(log: CollectiveLog, rows: I64) -> CollectiveLog:
    return revise(log, **{name: getattr(log, name)[rows] for name in _ARRAYS})


#: Kernels of the table, and of the shortest form of it.
_MOST_KERNELS, _FEWEST_KERNELS = 128, 24


def smaller(facts: TraceFacts) -> Iterator[tuple[str, TraceFacts]]:
    """The facts, then with less and less, each with what was lost last in words: who asks takes the first that fits."""
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
