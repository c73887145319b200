"""Evaluation that reads no loader and has no name: what a model's evaluation mode adds between two training calls."""

from collections.abc import Mapping

import numpy as np

from profilerkit.analysis.events import NONE, Events, Timed, fetches_here, joined, phases_aside, timed, trains
from profilerkit.analysis.intervals import I64, Mask, covered, time_within, union
from profilerkit.analysis.stats import median, quantile
from profilerkit.rundir.layout import EventFlag, EventKind

#: What has a name of its own and is no part of an evaluation.
_NAMED = (EventKind.SAVE, EventKind.COMPILE, EventKind.WINDOW, EventKind.PROBE)
#: Gaps without an evaluation that tell how long one usually is (a choice).
_FEWEST_USUAL = 3
_NEVER = np.iinfo(np.int64).max
#: An evaluation makes a gap longer than this quantile of the others: one that does not is not told from them.
_LONG = 0.9


def times_in_mode(events: Events, names: Mapping[int, str], *, backward: bool) -> Timed:
    """From each ``eval()`` on, as long as the gap it lies in is longer than gaps without one.

    A gap lies between two backward passes or optimizer steps; it also holds the next batch and its forward pass, and
    these take what they take elsewhere. Where more batches are fetched than usual, the last ones are the training's:
    the evaluation ends as these begin. An evaluation with a loader of its own is found by its iteration instead.
    Where most gaps of a kind hold an ``eval()``, it is a part of the steps: a critic's while the generator trains.

    Args:
        events: of all kinds.
        names: of phases.
        backward: backward passes are recorded all the time.
    """
    here = (events["flags"] & EventFlag.OTHER_THREAD) == 0
    began = np.sort(events["start"][(events["kind"] == EventKind.EVALUATION) & here].astype(np.int64))
    marks = events[trains(events, backward=backward)]
    if not len(began) or len(marks) < 2:
        return NONE
    marks = marks[np.argsort(marks["start"], kind="stable")]
    trained = timed(marks)
    low, high = np.maximum.accumulate(trained.end)[:-1], trained.start[1:]
    phases = phases_aside(events, names)
    aside = joined([phases, timed(events[np.isin(events["kind"], _NAMED)])])
    named = union(aside.start, aside.end)
    free = high - low - time_within(named, low, high)
    fetches = timed(events[fetches_here(events)]).start
    fetched = np.searchsorted(fetches, high) - np.searchsorted(fetches, low)
    gap = np.searchsorted(low, began, side="right") - 1
    inside = (gap >= 0) & (began < high[gap]) & ~covered(union(phases.start, phases.end), began)
    gap, first = np.unique(gap[inside], return_index=True)
    usual, feeding = _usual(gap, marks["kind"][:-1] * 64 + marks["kind"][1:], free, fetched)
    start = began[inside][first]
    steps = np.sort(events["start"][events["kind"] == EventKind.STEP].astype(np.int64))
    end = np.minimum.reduce([start + free[gap] - usual, high[gap], _next(steps, start), _next(fetches, start)])
    reads = (usual >= 0) & (fetched[gap] > feeding)
    if reads.any():
        fed = np.r_[fetches, _NEVER][np.searchsorted(fetches, high[gap]) - np.maximum(feeding, 0)]
        until = np.minimum(np.where(feeding > 0, fed, start + free[gap] - usual), high[gap])
        end = np.where(reads, until, end)
        step = np.r_[0, steps][np.searchsorted(steps, end)]  # its own first batch may have begun one
        start = np.where(reads, np.maximum(start, step), start)
    keep = (usual >= 0) & (end > start)
    return Timed(start[keep], end[keep], np.zeros(int(keep.sum()), dtype=np.int64))


def _usual(gap: I64, kind: I64, free: I64, fetched: I64) -> tuple[I64, I64]:
    """``(n,)`` how long each of these gaps would be without its evaluation, ns, and how many batches it would fetch.

    -1 where that cannot be told.

    Args:
        gap: ``(n,)`` ascending, those with an ``eval()``.
        kind: ``(n_gaps,)`` what they lie between.
        free: ``(n_gaps,)`` how long they are without what has a name.
        fetched: ``(n_gaps,)`` batches fetched in each.
    """
    without: Mask = np.ones(len(kind), dtype=np.bool_)
    without[gap] = False
    usual = np.full((2, len(gap)), -1, dtype=np.int64)
    for between in np.unique(kind[gap]):
        others = without & (kind == between)
        mine = kind[gap] == between
        if int(np.count_nonzero(others)) < max(_FEWEST_USUAL, int(np.count_nonzero(mine))):
            continue
        told = mine & (free[gap] > quantile(free[others], _LONG))
        usual[:, told] = [[round(median(free[others]))], [round(median(fetched[others]))]]
    return usual[0], usual[1]


def _next(instants: I64, after: I64) -> I64:
    """``(n,)`` the first of the sorted instants behind each; the end of time where none is."""
    found: I64 = np.r_[instants, _NEVER][np.searchsorted(instants, after, side="right")]
    return found
