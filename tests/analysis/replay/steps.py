"""Random steps as replay graphs: a host that issues kernels, copies and collectives, and waits for some of them."""

import numpy as np
from hypothesis import strategies as st

from profilerkit.analysis.replay.build import Built
from profilerkit.analysis.replay.gate import ReplayFacts, checked
from profilerkit.analysis.replay.graph import Graph, Shape, Wait, replay
from profilerkit.model.step import leaf

KINDS = ("compute.math", "compute.membw", "comm.other", "input.h2d")
US = 1_000.0


_EVENT = st.tuples(
    st.integers(1, 200),  # host µs before it
    st.integers(1, 400),  # its own µs
    st.sampled_from(KINDS),
    st.booleans(),  # on a stream of its own
    st.booleans(),  # the host waits for it
    st.booleans(),  # waits for the event before it
)
#: What a step issues.
EVENTS = st.lists(_EVENT, min_size=1, max_size=6)


@st.composite
def steps(draw):
    """A graph of two to four alike steps of one to six events each."""
    return graph_of(draw(EVENTS), draw(st.integers(2, 4)), fetch_us=draw(st.integers(0, 300)))


def graph_of(events, repeated, *, fetch_us=0, serial_us=None):
    """Each event takes two points, at which it is issued and may be awaited; the first point of a step is its mark.

    With ``serial_us`` the host waits for everything at the end of a step, and then does something of its own.
    """
    host, pieces, fetch, marks = [0.0], [], [], [0]
    point, stream, dur, kinds, waits, joins = [], [], [], [], [], []
    for _ in range(repeated):
        if fetch_us:
            host.append(fetch_us * US)
            pieces.append((len(host) - 1, leaf("input.wait"), fetch_us * US))
            fetch.append(len(host) - 1)
        for host_us, own_us, kind, aside, awaited, after in events:
            host.append(host_us * US)
            pieces.append((len(host) - 1, leaf("over.python"), host_us * US))
            if after and point:
                waits.append((len(point), len(point) - 1))
            point.append(len(host) - 1)
            stream.append(int(aside))
            dur.append(own_us * US)
            kinds.append(leaf(kind))
            host.append(0.0)
            if awaited:
                joins.append((len(host) - 1, len(point) - 1, Wait.SYNC))
        host.append(0.0)
        if serial_us is not None:
            last = {of: event for event, of in enumerate(stream)}
            joins += [(len(host) - 1, event, Wait.END) for event in last.values()]
            host.append(serial_us * US)
            pieces.append((len(host) - 1, leaf("other.ckpt"), serial_us * US))
        marks.append(len(host) - 1)
    return made(host, pieces, marks, point, stream, dur, kinds, waits, joins, fetch)


def made(host, pieces, marks, point, stream, dur, kinds, waits, joins, fetch):
    """The record from lists."""

    def whole(values):
        return np.array(values, dtype=np.int64)

    def column(pairs, place):
        return whole([pair[place] for pair in pairs])

    count, steps_count = len(point), len(marks) - 1
    shape = Shape(
        n_points=len(host), marks=whole(marks), judged=np.ones(steps_count, np.bool_), number=np.arange(steps_count),
        point=whole(point), stream=np.unique(stream, return_inverse=True)[1].astype(np.int64),
        wait_event=column(waits, 0), wait_for=column(waits, 1), join_point=column(joins, 0),
        join_event=column(joins, 1), join_kind=column(joins, 2),
        ready_point=whole([]),
    )  # fmt: skip
    no = np.zeros(count, np.bool_)
    return Graph(
        shape=shape, host_ns=np.array(host), piece_point=column(pieces, 0), piece_leaf=column(pieces, 1),
        piece_ns=np.array([piece[2] for piece in pieces], dtype=np.float64), issue_ns=np.full(count, 2 * US),
        gap_ns=np.full(count, US), dur_ns=np.array(dur), least_ns=np.zeros(count), leaf=whole(kinds),
        bytes=np.full(count, -1), fp32=no, chained=no, staged=no, node=np.full(count, -1),
        wait_ns=np.full(len(waits), US), join_ns=np.full(len(joins), 5 * US), ready_ns=np.zeros(0),
        fetch_point=whole(fetch), fetch_ns=np.array([host[place] for place in fetch], dtype=np.float64),
        issue_typical_ns=2 * US,
    )  # fmt: skip


def facts_of(graph: Graph) -> ReplayFacts:
    """The graph with its own replay as what was traced."""
    plain = replay(graph)
    return checked(Built(graph, plain, len(graph.shape.judged)))
