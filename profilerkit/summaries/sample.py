"""Which collectives of a rank are kept where it has too many: the same ones on every rank, or nothing could be matched.

A rank does not know which of its collectives were waits: that shows only beside the others. So what is kept depends on
nothing but what all ranks have in common, the numbers of steps and collectives.
"""

import math

import numpy as np

from profilerkit.analysis.communication.log import CollectiveLog
from profilerkit.analysis.intervals import I64
from profilerkit.analysis.steps.find import TraceSteps, in_step
from profilerkit.model.change import revise

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
