"""The stages of a training step: those that hooks time, backward pass and optimizer, and the code between them."""

from collections.abc import Mapping

import numpy as np

from profilerkit.analysis.events import Events, spans_of, trains
from profilerkit.analysis.intervals import I64, Mask, Spans, subtract, union
from profilerkit.analysis.steps.find import spent_in
from profilerkit.rundir.layout import EventKind

_WAIT, _BACKWARD, _OPTIMIZER = range(3)
_TIMED = {"backward": _BACKWARD, "optimizer": _OPTIMIZER}
#: What lies between two of them: from the batch to the backward pass, and from the optimizer step to the next batch.
_BETWEEN = {"forward": (_WAIT, _BACKWARD), "after": (_OPTIMIZER, _WAIT)}
#: All other code of the loop. Without a loader that is what follows the optimizer step, and the forward pass after it.
_LOOP = "loop"


def stage_times(events: Events, waits: Spans, start: I64, stop: I64, steady: Mask) -> Mapping[str, I64]:
    """``(n_steps,)`` host's ns of each stage; empty where a steady step has no backward pass: not all were timed.

    Args:
        events: records of all kinds.
        waits: of the training thread for its batches.
        start: of the steps, ns, ascending.
        stop: their ends.
        steady: the judged steps.
    """
    here = events[trains(events, backward=True)]
    backward, optimizer = (spans_of(here[here["kind"] == kind]) for kind in (EventKind.BACKWARD, EventKind.OPTIMIZER))
    # A closure runs the backward pass in the optimizer step, and may fetch a batch.
    known = [waits, subtract(backward, waits), subtract(subtract(optimizer, backward), waits)]
    begin, end = (np.concatenate([getattr(spans, edge) for spans in known]) for edge in ("start", "end"))
    owner = np.repeat(np.arange(len(known)), [len(spans) for spans in known])
    between = subtract(Spans(start[:1], stop[-1:]), union(begin, end))
    before, after = _owner(end, owner, between.start), _owner(begin, owner, between.end)
    found = {name: known[label] for name, label in _TIMED.items()}
    left = np.ones(len(between), dtype=bool)
    for name, (first, then) in _BETWEEN.items():
        chosen = (before == first) & (after == then)
        found[name] = Spans(between.start[chosen], between.end[chosen])
        left &= ~chosen
    found[_LOOP] = Spans(between.start[left], between.end[left])
    times = {name: spent_in(spans, start, stop) for name, spans in found.items()}
    return times if (times["backward"][steady] > 0).all() else {}


def _owner(edges: I64, owner: I64, instants: I64) -> I64:
    """Of each instant the owner of the edge there; -1 for none."""
    if not len(edges):
        return np.full(len(instants), -1)
    order = np.argsort(edges, kind="stable")
    at = order[np.minimum(np.searchsorted(edges[order], instants), len(order) - 1)]
    found: I64 = np.where(edges[at] == instants, owner[at], -1)
    return found
