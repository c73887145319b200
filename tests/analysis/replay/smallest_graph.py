"""The smallest graph: two steps of one kernel each, for which the host waits."""

import numpy as np

from profilerkit.analysis.replay.graph import Graph, Shape, Wait
from profilerkit.model.step import leaf

_NONE = np.zeros(0, np.int64)


def two_kernels(host_ns: float, kernel_ns: float) -> Graph:
    """Per step ``host_ns`` of Python, then a kernel of ``kernel_ns`` that the host waits for."""
    shape = Shape(
        n_points=5,
        marks=np.array([0, 2, 4]),
        judged=np.ones(2, np.bool_),
        number=np.arange(2),
        point=np.array([1, 3]),
        stream=np.zeros(2, np.int64),
        wait_event=_NONE,
        wait_for=_NONE,
        join_point=np.array([2, 4]),
        join_event=np.array([0, 1]),
        join_kind=np.full(2, Wait.SYNC),
        ready_point=_NONE,
    )
    kernels = np.ones(2)
    return Graph(
        shape=shape,
        host_ns=np.array([0.0, host_ns, 0.0, host_ns, 0.0]),
        piece_point=np.array([1, 3]),
        piece_leaf=np.full(2, leaf("over.python")),
        piece_ns=np.full(2, float(host_ns)),
        issue_ns=0 * kernels,
        gap_ns=0 * kernels,
        dur_ns=kernel_ns * kernels,
        least_ns=0 * kernels,
        leaf=np.full(2, leaf("compute.math")),
        bytes=np.full(2, -1),
        fp32=np.zeros(2, np.bool_),
        chained=np.zeros(2, np.bool_),
        staged=np.zeros(2, np.bool_),
        node=np.full(2, -1),
        wait_ns=np.zeros(0),
        join_ns=np.zeros(2),
        ready_ns=np.zeros(0),
        fetch_point=_NONE,
        fetch_ns=np.zeros(0),
        issue_typical_ns=0.0,
    )
