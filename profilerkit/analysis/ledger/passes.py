"""Passes over data that train nothing: evaluation that nobody named."""

import numpy as np

from profilerkit.analysis.intervals import I64, union
from profilerkit.analysis.ledger.records import NONE, Mask, Records, Timed, joined
from profilerkit.rundir.layout import EventFlag, EventKind

#: The fewest fetches of a pass that was broken off: of two loaders read side by side each begins with one.
_FEWEST_BROKEN = 2
_FLAGGED = EventFlag.OTHER_LOADER | EventFlag.IN_PHASE


def evaluation_passes(records: Records) -> Timed:
    """From the first to the last fetch of each pass without a backward pass or an optimizer step in it.

    Fetches of another loader than the one that marks the steps form a pass where no training fetch comes between
    them. Other fetches do from the first of a loader's iteration to its end, where more fetches come before the next
    backward pass: those feed it. Where no end was fetched they do as far as there are more of them than feed a backward
    pass otherwise. A run that never trains has no such passes, and what lies in a named phase needs none.
    """
    named = union(*_edges([timed for entry, timed in records.phases.items() if entry != "step.input"]))
    fetches = records.fetches
    if len(named):
        at = np.searchsorted(named.start, fetches.start, side="right") - 1
        fetches = fetches.where((at < 0) | (fetches.start >= named.end[np.maximum(at, 0)]))
    marks = joined([records.kinds[EventKind.BACKWARD], records.kinds[EventKind.OPTIMIZER]])
    if not len(fetches):
        return NONE
    group = np.searchsorted(marks.start, fetches.start, side="right")
    flagged = _flagged_passes(fetches, group)
    if not len(marks):
        return flagged
    plain = ~fetches.has(_FLAGGED)
    return joined([flagged, _whole_passes(fetches.where(plain), group[plain], len(marks))])


def _edges(parts: list[Timed]) -> tuple[I64, I64]:
    found = joined(parts)
    return found.start, found.end


def _flagged_passes(fetches: Timed, group: I64) -> Timed:
    """Runs of fetches that are flagged as not the training's."""
    aside = fetches.has(_FLAGGED)
    before = np.r_[False, aside[:-1] & (group[1:] == group[:-1])]
    after = np.r_[aside[1:] & (group[1:] == group[:-1]), False]
    first, last = np.flatnonzero(aside & ~before), np.flatnonzero(aside & ~after)
    return Timed(fetches.start[first], fetches.end[last], np.zeros(len(first), dtype=np.int64))


def _whole_passes(fetches: Timed, group: I64, marks: int) -> Timed:
    """Iterations of a loader from their first fetch to their end, or to where they were broken off.

    Args:
        fetches: those that are not flagged.
        group: ``(n_fetches,)`` how many backward passes and optimizer steps came before each.
        marks: how many there are in all.
    """
    count = len(fetches)
    if not count:
        return NONE
    first, last = fetches.has(EventFlag.FIRST), fetches.has(EventFlag.LAST)
    begin = np.flatnonzero(first & ~last)
    edges = np.flatnonzero(first | last)
    behind = np.searchsorted(group, group[begin], side="right")  # where the fetches of the group end
    stop = np.minimum(np.r_[edges, count][np.searchsorted(edges, begin, side="right")], behind)
    at = np.minimum(stop, count - 1)
    ended = (stop < behind) & last[at] & ~first[at]
    # What is fetched next before a backward pass is the training's; where nothing is, the pass itself may feed it.
    at_end = group[begin] == marks
    whole = ended & ((stop + 1 < behind) | at_end)
    broken = (stop < behind) & first[at]
    # Some loops know the length of a loader and never ask it for more: the group's last fetches are the training's.
    left = np.where(at_end, 0, _usual_fetches(first | last, group))
    open_ended = (stop == behind) & (at_end | (group[begin] > 0))
    final = np.where(ended, stop, np.where(open_ended, stop - 1 - left, stop - 1))
    keep = whole | ((broken | open_ended) & (final - begin + 1 >= _FEWEST_BROKEN))
    begin, final = begin[keep], final[keep]
    return Timed(fetches.start[begin], fetches.end[final], np.zeros(len(begin), dtype=np.int64))


def _usual_fetches(edges: Mask, group: I64) -> int:
    """How many fetches feed a backward pass amid an epoch: the median of the groups without an edge of one."""
    groups, where, counts = np.unique(group, return_inverse=True, return_counts=True)
    amid = np.bincount(where, weights=edges, minlength=len(groups)) == 0
    return int(np.median(counts[amid])) if amid.any() else len(group)
