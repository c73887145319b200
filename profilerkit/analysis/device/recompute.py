"""Which work is done a second time: forward operators that run again inside backward, for activation checkpointing."""

import re

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.device.kernels import in_use, matching
from profilerkit.analysis.enclosing import ThreadLine, innermost_at
from profilerkit.analysis.host.backward import backward_nodes
from profilerkit.analysis.intervals import EMPTY, I64, Spans, covered, union
from profilerkit.trace.columns import Category, TraceColumns

#: The function of ``torch.utils.checkpoint`` that runs the forward code again (since 1.11, without reentrant backward).
_FRAME = re.compile(r"checkpoint\.py\(\d+\): recompute_fn$")
#: Calls that a model makes and no formula of a derivative does.
_FORWARD_ONLY = re.compile(
    r"^aten::(?:linear|conv(?:_transpose)?[123]d|(?:native_|cudnn_|miopen_)?(?:batch|layer|group|instance)_norm|rms_norm"
    r"|relu_?|relu6|gelu_?|silu_?|leaky_relu_?|hardtanh_?|hardswish_?|elu_?|mish|(?:native_)?dropout|embedding"
    r"|scaled_dot_product_attention|softmax|max_pool[123]d|adaptive_avg_pool[123]d|cross_entropy_loss)$"
)


def recomputed(columns: TraceColumns, rows: I64) -> npt.NDArray[np.bool_]:
    """``(n,)`` which host events in ``rows`` belong to a second run of forward code; -1 stands for no event.

    With Python stacks the frames of ``torch.utils.checkpoint`` tell. Without them: an autograd node in which a
    forward-only operator runs that also ran, with the same shapes, outside backward, recomputes from its start to the
    end of the last such operator. What follows is its own derivative.
    """
    found = reruns(columns)
    if found is None:
        return np.zeros(len(rows), dtype=np.bool_)
    line, again = found
    start, end = line.extents(columns, rows)
    # The node around it goes on to its own derivative: only what lies wholly inside is recomputation.
    return covered(again, start) & covered(again, np.maximum(end - 1, start)) & (rows >= 0)


def reruns(columns: TraceColumns) -> tuple[ThreadLine, Spans] | None:
    """The line of threads, and where on it forward code runs a second time; ``None`` for an empty trace."""
    line = ThreadLine.of(columns)
    return None if line is None else (line, _again(columns, line))


def _again(columns: TraceColumns, line: ThreadLine) -> Spans:
    """When and where forward code runs again, on the line of threads."""
    used = in_use(columns)
    framed = matching(columns, used, _FRAME)[columns.name] & (columns.category == Category.PYTHON)
    frames = line.extents(columns, np.flatnonzero(framed))
    found = _by_operators(columns, line, used)
    return union(np.r_[frames[0], found.start], np.r_[frames[1], found.end])


def _by_operators(columns: TraceColumns, line: ThreadLine, used: I64) -> Spans:
    operator = columns.category == Category.CPU_OP
    nodes = backward_nodes(columns)
    calls = np.flatnonzero(operator & matching(columns, used, _FORWARD_ONLY)[columns.name])
    if not len(nodes) or not len(calls):
        return EMPTY
    start, end = line.extents(columns, calls)
    backward = covered(line.spans(columns, nodes), start)
    what = columns.name[calls].astype(np.int64) * (len(columns.strings) + 1) + columns.input_dims[calls]
    again = backward & np.isin(what, what[~backward])
    if not again.any():
        return EMPTY
    node = innermost_at(columns, nodes, columns.thread[calls[again]], columns.ts_ns[calls[again]])
    # A call that no node is found around starts and ends its own span.
    node_start = np.where(node >= 0, line.extents(columns, np.maximum(node, 0))[0], start[again])
    return union(node_start, end[again])
