"""The replay graph: host time between points, device work in the order of issue, and what waits for what.

All times are float64 ns; differences, so that no sum grows beyond what a float holds exactly.
"""

from enum import IntEnum

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.intervals import I64

F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: No edge: the weight that never decides when anything starts.
NEVER = -np.inf


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

    Attributes:
        n_points: host points, in the order of their time.
        marks: ``(n_steps + 1,)`` points at which a step begins; the last one ends the last step.
        judged: ``(n_steps,)`` bool, steps whose time counts; others lead in or lie between.
        number: ``(n_steps,)`` the steps' own numbers.
        point: ``(n_events,)`` point that issues each device event; events are in the order of issue.
        stream: ``(n_events,)`` dense number of the stream.
        wait_event: ``(n_waits,)`` an event that waits for another stream.
        wait_for: ``(n_waits,)`` the event it waits for, issued before it.
        join_point: ``(n_joins,)`` a point at which the host waits, sorted.
        join_event: ``(n_joins,)`` the event it waits for.
        join_kind: ``(n_joins,)`` values of ``Wait``.
        ready_point: ``(n_batches,)`` points at which the host gets a batch that worker processes made.
    """

    n_points: int
    marks: I64
    judged: Bools
    number: I64
    point: I64
    stream: I64
    wait_event: I64
    wait_for: I64
    join_point: I64
    join_event: I64
    join_kind: I64
    ready_point: I64


class Graph(msgspec.Struct, frozen=True):
    """One version of the steps: the shape, and how long everything takes.

    Attributes:
        shape: who comes after whom.
        host_ns: ``(n_points,)`` what the host does from one point to the next, waiting left out.
        piece_point: ``(n_pieces,)`` int64, ``host_ns`` in pieces by cause: the point that a piece leads to.
        piece_leaf: ``(n_pieces,)`` int64 what the host did, index into ``LEAVES``.
        piece_ns: ``(n_pieces,)`` how long.
        issue_ns: ``(n_events,)`` from its point to the earliest start of an event; ``NEVER`` where that does not count.
        gap_ns: ``(n_events,)`` from the end of the event before on the stream.
        dur_ns: ``(n_events,)``.
        least_ns: ``(n_events,)`` what no fix can go below: the bytes at the rate real kernels reach; 0 where not known.
        leaf: ``(n_events,)`` int64 index into ``LEAVES``.
        bytes: ``(n_events,)`` int64 of copies, -1 where not known.
        fp32: ``(n_events,)`` bool, matrix kernels in FP32 on the vector units.
        chained: ``(n_events,)`` bool, kernels that a compiler can fuse.
        staged: ``(n_events,)`` bool, copies from pageable memory.
        node: ``(n_events,)`` int64 the node of a backward pass that launched it, -1 for none.
        wait_ns: ``(n_waits,)`` from the end of the awaited event.
        join_ns: ``(n_joins,)`` from the end of the awaited event, of a queue from its start; ``NEVER`` for no wait.
        ready_ns: ``(n_batches,)`` when each batch is there, from the first point.
        fetch_point: ``(n_fetches,)`` int64 points that end the getting of a batch, workers or none.
        fetch_ns: ``(n_fetches,)`` how long that took, waiting included.
        issue_typical_ns: what issuing adds at least.
    """

    shape: Shape
    host_ns: F64
    piece_point: I64
    piece_leaf: I64
    piece_ns: F64
    issue_ns: F64
    gap_ns: F64
    dur_ns: F64
    least_ns: F64
    leaf: I64
    bytes: I64
    fp32: Bools
    chained: Bools
    staged: Bools
    node: I64
    wait_ns: F64
    join_ns: F64
    ready_ns: F64
    fetch_point: I64
    fetch_ns: F64
    issue_typical_ns: float

    def host_time_of(self, *leaves: int) -> F64:
        """``(n_points,)`` ns of the host's pieces with these leaves."""
        chosen = np.isin(self.piece_leaf, leaves)
        return np.bincount(
            self.piece_point[chosen], weights=self.piece_ns[chosen], minlength=self.shape.n_points
        ).astype(np.float64)

    def step_of_points(self) -> I64:
        """``(n_points,)`` the step each point belongs to, -1 before the first: its work leads up to the point."""
        found: I64 = np.searchsorted(self.shape.marks, np.arange(self.shape.n_points), side="left") - 1
        return found


class Traced(msgspec.Struct, frozen=True):
    """What the trace says the graph must reproduce, ns from the first point.

    Attributes:
        host_ns: ``(n_steps + 1,)`` when the host reached each mark.
        done_ns: ``(n_steps + 1,)`` when it and all that was issued by then were done.
    """

    host_ns: F64
    done_ns: F64
