"""Run graphs of one shape: every start is the latest of what it waits for."""

from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.analysis.replay.graph import F64, NEVER, Graph, Shape, Wait
from profilerkit.analysis.replay.program import JOIN, MARK, READY, Program, program_of

#: So many graphs of a shape are run one after the other, more of them together in arrays (measured: numpy 2.4).
FEW_GRAPHS = 4


class Replayed(msgspec.Struct, frozen=True):
    """When each step began, by the host and with all its work done.

    Attributes:
        host_ns: ``(n_steps + 1,)`` when the host reached each mark.
        done_ns: ``(n_steps + 1,)`` when it and the work issued by then were done: a host that runs ahead of its device
            is not quicker for that.
    """

    host_ns: F64
    done_ns: F64

    def step_ns(self, shape: Shape) -> F64:
        """``(n_judged,)`` length of the judged steps."""
        steps: F64 = np.diff(self.done_ns)[shape.judged]
        return steps


def replay(graph: Graph) -> Replayed:
    """Run one graph."""
    return replay_all([graph])[0]


def replay_all(graphs: Sequence[Graph]) -> list[Replayed]:
    """Run several versions of the same steps; those that share a shape go together.

    >>> from profilerkit.analysis.replay.example import two_kernels
    >>> plain = two_kernels(host_ns=5.0, kernel_ns=20.0)  # each step: 5 ns of host and a kernel, then it is awaited
    >>> replay(plain).step_ns(plain.shape).tolist(), replay(two_kernels(5.0, 8.0)).step_ns(plain.shape).tolist()
    ([25.0, 25.0], [13.0, 13.0])
    """
    done: dict[int, Replayed] = {}
    shapes = {id(graph.shape): graph.shape for graph in graphs}
    for key, shape in shapes.items():
        own = [place for place, graph in enumerate(graphs) if id(graph.shape) == key]
        done.update(zip(own, _together(shape, [graphs[place] for place in own]), strict=True))
    return [done[place] for place in range(len(graphs))]


class _Costs(msgspec.Struct, frozen=True):
    """What the operations of one graph cost: ``(n,)`` columns of the arrays that are run together.

    ``after`` and ``since`` are of stretches: the end of one is the later of ``after`` its stream's last end and
    ``since`` the host's offset. ``wait``, ``join`` and ``ready`` are those of the graph, in the same terms.
    """

    host: F64
    after: F64
    since: F64
    wait: F64
    join: F64
    ready: F64


def _together(shape: Shape, graphs: Sequence[Graph]) -> list[Replayed]:
    program = program_of(shape)
    costs = [_costs(program, graph) for graph in graphs]
    awaited = program.run_of[shape.join_event] if len(program.run_of) else shape.join_event
    edges = _Edges(awaited.tolist(), program.run_of[shape.wait_for].tolist(), shape.marks)
    if len(graphs) <= FEW_GRAPHS:
        return [_alone(program, edges, cost) for cost in costs]
    host, after, since, wait, join, ready = (
        np.stack([getattr(cost, name) for cost in costs], axis=1) for name in _Costs.__struct_fields__
    )
    at_marks = host[edges.marks]
    offset = np.zeros(len(graphs))
    last = np.full((program.n_streams, len(graphs)), NEVER)
    ends = np.full((len(program.first), len(graphs)), NEVER)
    reached, finished = np.zeros_like(at_marks), np.zeros_like(at_marks)
    for kind, number in zip(program.kind.tolist(), program.number.tolist(), strict=True):
        if kind == JOIN:
            np.maximum(offset, ends[edges.joined[number]] + join[number], out=offset)
        elif kind == READY:
            np.maximum(offset, ready[number], out=offset)
        elif kind == MARK:
            reached[number] = offset + at_marks[number]
            finished[number] = np.maximum(reached[number], last.max(axis=0, initial=NEVER))
        else:
            end = last[program.run_stream[number]]
            for place in program.waits.get(number, ()):
                np.maximum(end, ends[edges.awaited[place]] + wait[place], out=end)
            end += after[number]
            np.maximum(end, offset + since[number], out=end)
            ends[number] = end
    return [Replayed(reached[:, place], finished[:, place]) for place in range(len(graphs))]


def _alone(program: Program, edges: "_Edges", cost: _Costs) -> Replayed:
    """The same for one graph, in plain numbers: on these an operation takes a fifth of the time."""
    after, since, wait, join, ready = (
        values.tolist() for values in (cost.after, cost.since, cost.wait, cost.join, cost.ready)
    )
    at_marks, streams = cost.host[edges.marks].tolist(), program.run_stream.tolist()
    offset, last, ends = 0.0, [NEVER] * program.n_streams, [NEVER] * len(program.first)
    reached, finished = [0.0] * len(at_marks), [0.0] * len(at_marks)
    for kind, number in zip(program.kind.tolist(), program.number.tolist(), strict=True):
        if kind == JOIN:
            offset = max(offset, ends[edges.joined[number]] + join[number])
        elif kind == READY:
            offset = max(offset, ready[number])
        elif kind == MARK:
            reached[number] = offset + at_marks[number]
            finished[number] = max([reached[number], *last])
        else:
            stream = streams[number]
            end = last[stream]
            for place in program.waits.get(number, ()):
                end = max(end, ends[edges.awaited[place]] + wait[place])
            ends[number] = last[stream] = max(end + after[number], offset + since[number])
    return Replayed(np.array(reached), np.array(finished))


class _Edges(msgspec.Struct, frozen=True):
    """The stretches that joins and waits are for, and the points of the marks."""

    joined: list[int]
    awaited: list[int]
    marks: I64


def _costs(program: Program, graph: Graph) -> _Costs:
    shape = graph.shape
    host = np.cumsum(graph.host_ns)
    order, first = program.order, program.first
    busy = graph.gap_ns + graph.dur_ns
    total = np.cumsum(busy[order])
    if len(order):
        last = np.r_[first[1:], len(order)] - 1
        before = total[first] - busy[order][first]
        issued = host[shape.point[order]] + graph.issue_ns[order] + graph.dur_ns[order] - total
        latest = np.maximum.reduceat(issued, first)
        after, since = total[last] - before, total[last] + latest
    else:
        after = since = np.zeros(0)
    join_from_start = np.where(
        shape.join_kind == Wait.QUEUE, -graph.dur_ns[shape.join_event] if len(order) else 0.0, 0.0
    )
    return _Costs(
        host=host,
        after=after,
        since=since,
        wait=graph.wait_ns - graph.gap_ns[shape.wait_event],
        join=graph.join_ns + join_from_start - host[shape.join_point],
        ready=graph.ready_ns - host[shape.ready_point],
    )
