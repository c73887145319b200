"""The replay graph, the order in which it runs, and its run: every start is the latest of what it waits for."""

from enum import IntEnum
from functools import lru_cache

import msgspec
import numpy as np

from profilerkit.trace.columns import F64, I64, Bools

NEVER = -np.inf  #: no edge: the weight that never decides when anything starts


class Wait(IntEnum):
    """Why the host waits at a point."""

    SYNC = 0  # a call that waits for the device
    COPY = 1  # a copy that returns when it is done
    ALLOCATOR = 2  # memory given back to the driver, which waits for the device
    QUEUE = 3  # the launch queue is full
    END = 4  # the recording's end, where a step lasts until the device is done


class Shape(msgspec.Struct, frozen=True, eq=False):
    """What stays the same whatever is made faster: who comes after whom. Arrays are int64.

    Two shapes are the same only if they are one object.
    """

    n_points: int  #: host points, in the order of their time
    marks: I64  #: ``(n_steps + 1,)`` points at which a step begins; the last one ends the last step
    judged: Bools  #: ``(n_steps,)`` bool, steps whose time counts; others lead in or lie between
    number: I64
    point: I64  #: ``(n_events,)`` point that issues each device event; events are in the order of issue
    stream: I64
    wait_event: I64  #: ``(n_waits,)`` an event that waits for another stream
    wait_for: I64  #: ``(n_waits,)`` the event it waits for, issued before it
    join_point: I64  #: ``(n_joins,)`` a point at which the host waits, sorted
    join_event: I64
    join_kind: I64  #: ``(n_joins,)`` values of ``Wait``
    ready_point: I64  #: ``(n_batches,)`` points at which the host gets a batch that worker processes made


class Graph(msgspec.Struct, frozen=True):
    """One version of the steps: the shape, and how long everything takes."""

    shape: Shape
    host_ns: F64  #: ``(n_points,)`` what the host does from one point to the next, waiting left out
    piece_point: I64  #: ``(n_pieces,)`` int64, ``host_ns`` in pieces by cause: the point that a piece leads to
    piece_leaf: I64  #: ``(n_pieces,)`` int64 what the host did, index into ``LEAVES``
    piece_ns: F64
    #: ``(n_events,)`` from its point to the earliest start of an event; ``NEVER`` where that does not count.
    issue_ns: F64
    gap_ns: F64  #: ``(n_events,)`` from the end of the event before on the stream
    dur_ns: F64
    #: ``(n_events,)`` what no fix can go below: the bytes at the rate real kernels reach; 0 where not known.
    least_ns: F64
    leaf: I64
    bytes: I64  #: ``(n_events,)`` int64 of copies, -1 where not known
    fp32: Bools
    chained: Bools
    staged: Bools
    node: I64  #: ``(n_events,)`` int64 the node of a backward pass that launched it, -1 for none
    wait_ns: F64  #: ``(n_waits,)`` from the end of the awaited event
    join_ns: F64  #: ``(n_joins,)`` from the end of the awaited event, of a queue from its start; ``NEVER`` for no wait
    ready_ns: F64  #: ``(n_batches,)`` when each batch is there, from the first point
    fetch_point: I64  #: ``(n_fetches,)`` int64 points that end the getting of a batch, workers or none
    fetch_ns: F64
    issue_typical_ns: float  #: what issuing adds at least


# Within a stretch the events of a stream follow each other, and each was issued by a host that waited for nothing
# meanwhile. Its last end is then ``max(end before + a, host + b)`` with two numbers that sums and a maximum over its
# events give, so a step of thousands of kernels takes as many operations as it has waits.

JOIN, READY, MARK, RUN = 0, 1, 2, 3


class Program(msgspec.Struct, frozen=True):
    """Operations in an order in which each comes after what it needs; arrays are int64."""

    order: I64  #: ``(n_events,)`` the events by stream, and on a stream in the order of issue
    first: I64  #: ``(n_runs,)`` place in ``order`` of the first event of each stretch
    kind: I64
    number: I64
    run_stream: I64
    waits: dict[int, list[int]]
    n_streams: int
    joined: list[int]
    awaited: list[int]


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
    # In the order of JOIN, READY, MARK and RUN.
    places = (shape.join_point, shape.ready_point, shape.marks, shape.point[leading])
    kind = np.repeat(np.arange(len(places)), [len(at) for at in places])
    number = np.concatenate([np.arange(len(at)) for at in places])
    issued = np.zeros(len(kind), np.int64)
    issued[kind == RUN] = leading
    sequence = np.lexsort((issued, kind, np.concatenate(places)))
    waits: dict[int, list[int]] = {}
    for place, event in enumerate(shape.wait_event.tolist()):
        waits.setdefault(int(run_of[event]), []).append(place)
    return Program(
        order=order,
        first=first,
        kind=kind[sequence],
        number=number[sequence],
        run_stream=shape.stream[leading],
        waits=waits,
        n_streams=int(shape.stream.max()) + 1 if count else 0,
        joined=(run_of[shape.join_event] if count else shape.join_event).tolist(),
        awaited=run_of[shape.wait_for].tolist(),
    )


class Replayed(msgspec.Struct, frozen=True):
    """When each step began, by the host and with all its work done; or as traced."""

    host_ns: F64  #: ``(n_steps + 1,)`` when the host reached each mark
    #: ``(n_steps + 1,)`` when it and the work issued by then were done: a host that runs ahead of its device is not
    #: quicker for that.
    done_ns: F64

    def step_ns(self, shape: Shape) -> F64:
        """``(n_judged,)`` length of the judged steps."""
        steps: F64 = np.diff(self.done_ns)[shape.judged]
        return steps


def replay(graph: Graph) -> Replayed:
    """Run the steps.

    >>> from tests.analysis.replay.smallest_graph import two_kernels
    >>> plain = two_kernels(host_ns=5.0, kernel_ns=20.0)  # each step: 5 ns of host and a kernel, then it is awaited
    >>> replay(plain).step_ns(plain.shape).tolist(), replay(two_kernels(5.0, 8.0)).step_ns(plain.shape).tolist()
    ([25.0, 25.0], [13.0, 13.0])
    """
    shape, program = graph.shape, program_of(graph.shape)
    host = np.cumsum(graph.host_ns)
    after, since = _stretches(program, graph, host)
    wait = (graph.wait_ns - graph.gap_ns[shape.wait_event]).tolist()
    queued = np.where(shape.join_kind == Wait.QUEUE, -graph.dur_ns[shape.join_event] if len(shape.point) else 0.0, 0.0)
    join = (graph.join_ns + queued - host[shape.join_point]).tolist()
    ready = (graph.ready_ns - host[shape.ready_point]).tolist()
    at_marks, streams = host[shape.marks].tolist(), program.run_stream.tolist()
    # Plain numbers: on these an operation takes a fifth of the time that it takes on arrays.
    offset, last, ends = 0.0, [NEVER] * program.n_streams, [NEVER] * len(program.first)
    reached, finished = [0.0] * len(at_marks), [0.0] * len(at_marks)
    for kind, number in zip(program.kind.tolist(), program.number.tolist(), strict=True):
        if kind == JOIN:
            offset = max(offset, ends[program.joined[number]] + join[number])
        elif kind == READY:
            offset = max(offset, ready[number])
        elif kind == MARK:
            reached[number] = offset + at_marks[number]
            finished[number] = max([reached[number], *last])
        else:
            stream = streams[number]
            end = last[stream]
            for place in program.waits.get(number, ()):
                end = max(end, ends[program.awaited[place]] + wait[place])
            ends[number] = last[stream] = max(end + after[number], offset + since[number])
    return Replayed(np.array(reached), np.array(finished))


def _stretches(program: Program, graph: Graph, host: F64) -> tuple[list[float], list[float]]:
    """By stretch: its end is the later of ``after`` its stream's last end and ``since`` the host's offset."""
    order, first = program.order, program.first
    if not len(order):
        return [], []
    busy = graph.gap_ns + graph.dur_ns
    total = np.cumsum(busy[order])
    last = np.r_[first[1:], len(order)] - 1
    before = total[first] - busy[order][first]
    issued = host[graph.shape.point[order]] + graph.issue_ns[order] + graph.dur_ns[order] - total
    latest = np.maximum.reduceat(issued, first)
    return (total[last] - before).tolist(), (total[last] + latest).tolist()
