"""The order in which a graph is run: stretches of one stream that nothing interrupts, waits of the host, step marks.

Within a stretch the events of a stream follow each other, and each was issued by a host that waited for nothing
meanwhile. Its last end is then ``max(end before + a, host + b)`` with two numbers that sums and a maximum over its
events give, so a step of thousands of kernels takes as many operations as it has waits.
"""

from functools import lru_cache

import msgspec
import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.analysis.replay.graph import Shape

JOIN, READY, MARK, RUN = 0, 1, 2, 3


class Program(msgspec.Struct, frozen=True):
    """Operations in an order in which each comes after what it needs; arrays are int64.

    Attributes:
        order: ``(n_events,)`` the events by stream, and on a stream in the order of issue.
        first: ``(n_runs,)`` place in ``order`` of the first event of each stretch.
        run_of: ``(n_events,)`` the stretch of each event.
        kind: ``(n_ops,)`` what each operation is.
        number: ``(n_ops,)`` of the stretch, the join, the batch or the mark.
        run_stream: ``(n_runs,)`` stream of each stretch.
        waits: ``waits[run]`` are the waits before its first event.
        n_streams: how many there are.
    """

    order: I64
    first: I64
    run_of: I64
    kind: I64
    number: I64
    run_stream: I64
    waits: dict[int, list[int]]
    n_streams: int


@lru_cache(maxsize=2)
def program_of(shape: Shape) -> Program:
    """Cut the streams where the host waits, where a step begins, and around what is waited for."""
    count = len(shape.point)
    breaks = np.unique(np.concatenate([shape.join_point, shape.ready_point, shape.marks]))
    epoch = np.searchsorted(breaks, shape.point, side="right")
    order = np.argsort(shape.stream, kind="stable")
    stream, epochs = shape.stream[order], epoch[order]
    ends, begins = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    ends[shape.wait_for] = True
    ends[shape.join_event[shape.join_event >= 0]] = True
    begins[shape.wait_event] = True
    opens = np.ones(count, np.bool_)
    if count:
        opens[1:] = (stream[1:] != stream[:-1]) | (epochs[1:] != epochs[:-1]) | ends[order][:-1] | begins[order][1:]
    first = np.flatnonzero(opens)
    run_of = np.empty(count, np.int64)
    run_of[order] = np.cumsum(opens) - 1
    leading = order[first]
    kinds = (
        (JOIN, shape.join_point, np.zeros(len(shape.join_point), np.int64)),
        (READY, shape.ready_point, np.zeros(len(shape.ready_point), np.int64)),
        (MARK, shape.marks, np.zeros(len(shape.marks), np.int64)),
        (RUN, shape.point[leading], leading),
    )
    kind = np.concatenate([np.full(len(at), key, np.int64) for key, at, _ in kinds])
    number = np.concatenate([np.arange(len(at)) for _, at, _ in kinds])
    at = np.concatenate([places for _, places, _ in kinds])
    issued = np.concatenate([issue for _, _, issue in kinds])
    sequence = np.lexsort((issued, kind, at))
    waits: dict[int, list[int]] = {}
    for place, event in enumerate(shape.wait_event.tolist()):
        waits.setdefault(int(run_of[event]), []).append(place)
    return Program(
        order=order,
        first=first,
        run_of=run_of,
        kind=kind[sequence],
        number=number[sequence],
        run_stream=shape.stream[leading],
        waits=waits,
        n_streams=int(shape.stream.max()) + 1 if count else 0,
    )
