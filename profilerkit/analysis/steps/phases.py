"""The phases of a step: backward, work done a second time, optimizer steps, named phases, the recording's own cost."""

import re

import msgspec
import numpy as np

from profilerkit.analysis.device.kernels import named
from profilerkit.analysis.enclosing import ThreadLine, innermost_at
from profilerkit.analysis.host.names import HostNames, backward_threads, main_thread, phase_names
from profilerkit.analysis.intervals import EMPTY, Segments, Spans, covered, index_at, intersect, subtract, union
from profilerkit.model.step import leaf
from profilerkit.trace.classify import Phase
from profilerkit.trace.columns import EMIT_NVTX, F64, I64, Bools, Category, TraceColumns, kept


class RecordingFacts(msgspec.Struct, frozen=True):
    """Time that recording took of the host in the average judged step, at least, from the events in the trace."""

    #: Of the recorder, those that slow the host noticeably, or by what no event tells, as they are called.
    options: tuple[str, ...]
    events: float  #: operators, Python calls and allocations that were recorded of it
    waited_ns: float  #: to record those in which the device waited for the host
    hidden_ns: float  #: to record the others


class PhaseFacts(msgspec.Struct, frozen=True):
    """A phase of the step that is marked, in which the device waits ``idle_ns`` of the mean judged step."""

    name: Phase
    idle_ns: float


#: Autograd runs each node of the backward pass in such an operator.
NODE = re.compile(r"^autograd::engine::evaluate_function")


@kept
def backward_nodes(columns: TraceColumns) -> I64:
    """Rows of the nodes of the backward passes; none where the trace shows no pass."""
    return np.flatnonzero(named(columns, NODE, Category.CPU_OP))


def nodes_of(columns: TraceColumns, calls: I64) -> I64:
    """``(n,)`` number of the node of a backward pass in which each of these calls was made, -1 for none."""
    nodes = backward_nodes(columns)
    number = np.full(len(calls), -1, dtype=np.int64)
    count = 0
    for thread in np.unique(columns.thread[nodes]).tolist():
        rows = nodes[columns.thread[nodes] == thread]
        spans = union(columns.ts_ns[rows], columns.end_ns[rows])
        mine = np.flatnonzero((calls >= 0) & (columns.thread[calls] == thread))
        at = index_at(spans, columns.ts_ns[calls[mine]])
        number[mine] = np.where(at >= 0, at + count, -1)
        count += len(spans)
    return number


#: What recording one event takes its thread, ns: an operator, its shapes, an allocation or release, and a call of a
#: Python function. Medians of three loops of small operators (torch 2.13 on a CPU, thread CPU time of the same steps
#: with and without): 270 to 410, 210 to 320, 100 to 280, 310 to 580. CUPTI's work at each launch is not in it.
OPERATOR_NS, SHAPES_NS, ALLOCATION_NS, CALL_NS = 320.0, 290.0, 130.0, 360.0
#: The same of an operator's range under Nsight Systems: ``aten::t``, which holds two ranges more, lasts 7.1 and 8.5 µs
#: in two public exports with emit_nvtx, and 2.9 to 4.8 µs in six traces of torch.profiler.
RANGE_NS = 2_000.0

#: Share of the steps that recording takes by these, from which an option slows the host. They are for a quick host and
#: few counters: torch's own documentation names 4 µs for an operator (torch.autograd.profiler.profile, use_cuda).
NOTED_SHARE = 0.01
#: Parts in which the device waits for what the launching thread does, which is slower while it is recorded.
HOST_PARTS = ("over.dispatch", "over.python", "over.launch", "sync.drain")


def recording_facts(
    columns: TraceColumns, names: HostNames, segments: Segments, window: Spans, issuing: Spans
) -> RecordingFacts | None:
    """Estimate what recording took of the mean steady step; ``None`` without a steady step."""
    if not len(window):
        return None
    main, recorded = main_thread(columns), columns.meta.recorded
    threads = np.r_[main, backward_threads(columns, names, main)]
    mine = np.isin(columns.thread, threads)
    calls = mine & columns.is_a(Category.PYTHON) & ~(names.collects | names.compiles)[columns.name]
    by_nvtx = EMIT_NVTX in recorded
    each = OPERATOR_NS + (SHAPES_NS if "record_shapes" in recorded else 0.0)
    kinds = {
        EMIT_NVTX: (columns.ts_ns[mine & columns.is_a(Category.CPU_OP)], RANGE_NS if by_nvtx else each),
        "with_stack": (columns.ts_ns[calls], CALL_NS),
        "profile_memory": (columns.memory.ts_ns[np.isin(columns.memory.thread, threads)], ALLOCATION_NS),
    }
    unseen = {name for name in recorded if name in kinds and not len(kinds[name][0])}
    at = np.concatenate([at for at, _ in kinds.values()])
    kind = np.repeat(np.arange(len(kinds)), [len(at) for at, _ in kinds.values()])
    prices = np.array([each for _, each in kinds.values()])
    cost = prices[kind]
    inside = covered(issuing, at)
    taken = prices * np.bincount(kind[inside], minlength=len(kinds))
    slow = {name for name, time in zip(kinds, taken.tolist(), strict=True) if time >= NOTED_SHARE * window.total_ns}
    waits = covered(intersect(window, segments.only(*(leaf(part) for part in HOST_PARTS))), at)
    return RecordingFacts(
        options=tuple(name for name in kinds if name in slow | unseen and (by_nvtx or name != EMIT_NVTX)),
        events=float(inside.sum()) / len(window),
        waited_ns=float(cost[waits].sum()) / len(window),
        hidden_ns=float(cost[inside & ~waits].sum()) / len(window),
    )


#: In this order: what lies in two of them, as torch's own backward pass in a range around all, is the first one's.
_SHOWN: tuple[Phase, ...] = ("optimizer", "zero_grad", "backward", "loss", "forward")


def phase_rows(columns: TraceColumns, phase: Phase) -> I64:
    """Rows of the ranges that the program named for a phase of its step."""
    rows = np.flatnonzero(columns.category == Category.ANNOTATION)
    return rows[phase_names(columns, phase)[columns.name[rows]]]


def phase_facts(columns: TraceColumns, optimizer: I64, segments: Segments, window: Spans) -> tuple[PhaseFacts, ...]:
    """How long the device waits for the host in each phase of the mean steady step; empty without any that is known."""
    idle = intersect(window, segments.only(*(leaf(part) for part in HOST_PARTS)))
    found = []
    for phase in _SHOWN:
        rows = optimizer if phase == "optimizer" else phase_rows(columns, phase)
        if phase == "backward":
            rows = np.r_[rows, backward_nodes(columns)]
        spans = union(columns.ts_ns[rows], columns.end_ns[rows])
        if len(spans):
            waited = intersect(idle, spans)
            found.append(PhaseFacts(name=phase, idle_ns=waited.total_ns / max(len(window), 1)))
            idle = subtract(idle, spans)
    return tuple(found)


#: The function of ``torch.utils.checkpoint`` that runs the forward code again (since 1.11, without reentrant backward).
_FRAME = re.compile(r"checkpoint\.py\(\d+\): recompute_fn$")
#: Calls that a model makes and no formula of a derivative does.
_FORWARD_ONLY = re.compile(
    r"^aten::(?:linear|conv(?:_transpose)?[123]d|(?:native_|cudnn_|miopen_)?(?:batch|layer|group|instance)_norm|rms_norm"
    r"|relu_?|relu6|gelu_?|silu_?|leaky_relu_?|hardtanh_?|hardswish_?|elu_?|mish|(?:native_)?dropout|embedding"
    r"|scaled_dot_product_attention|softmax|max_pool[123]d|adaptive_avg_pool[123]d|cross_entropy_loss)$"
)


def recomputed(columns: TraceColumns, rows: I64) -> Bools:
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
    if line is None:
        return None
    frames = line.extents(columns, np.flatnonzero(named(columns, _FRAME, Category.PYTHON)))
    found = _by_operators(columns, line)
    return line, union(np.r_[frames[0], found.start], np.r_[frames[1], found.end])


def _by_operators(columns: TraceColumns, line: ThreadLine) -> Spans:
    nodes = backward_nodes(columns)
    calls = np.flatnonzero(named(columns, _FORWARD_ONLY, Category.CPU_OP))
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


_STEP = re.compile(r"^Optimizer\.step#")
_CLASS = re.compile(r"^Optimizer\.step#([^.]{1,60})")
#: What torch's optimizers call, from the way of going over the tensors that they then have.
STYLES = (("fused", "aten::_fused_"), ("foreach", "aten::_foreach_"), ("single", "aten::"))


@kept
def optimizer_rows(columns: TraceColumns) -> I64:
    """The optimizer steps by their end, each once; where torch marks none, the ranges that the program named for it."""
    rows = _marks_of_torch(columns)
    rows = rows if len(rows) else phase_rows(columns, "optimizer")
    rows = rows[np.lexsort((columns.name[rows], columns.ts_ns[rows], columns.end_ns[rows]))]
    keys = np.stack([columns.end_ns[rows], columns.ts_ns[rows], columns.name[rows].astype(np.int64)])
    return rows[np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)]] if len(rows) else rows


def without_closures(columns: TraceColumns, rows: I64, nodes: I64) -> I64:
    """Return the optimizer steps that run no backward pass inside; ``nodes`` are rows of the pass."""
    passes = np.sort(columns.ts_ns[nodes])
    inside = np.searchsorted(passes, columns.end_ns[rows]) > np.searchsorted(passes, columns.ts_ns[rows])
    out: I64 = rows[~inside]
    return out


def largest_class(columns: TraceColumns, rows: I64, time_ns: I64 | F64) -> tuple[int, str]:
    """Return the name with most of ``time_ns``, one for each of ``rows``, and its optimizer's class; empty without."""
    name = int(np.bincount(columns.name[rows], weights=time_ns).argmax())
    found = _CLASS.match(columns.strings[name])
    return name, found.group(1) if found else ""


def marked_by_torch(columns: TraceColumns) -> bool:
    """Whether torch marks any optimizer step of a trace."""
    return len(_marks_of_torch(columns)) > 0


def _marks_of_torch(columns: TraceColumns) -> I64:
    return np.flatnonzero(named(columns, _STEP, Category.ANNOTATION))


def step_marks(columns: TraceColumns, fetches: I64) -> I64:
    """Ends of the optimizer steps that end a training step, sorted, ns.

    Several optimizers, also of one class, step once per training step each: an optimizer step belongs to the next one
    when no backward pass lies between them, or no fetch although the same number of optimizer steps follows every
    fetch. Without backward passes and fetches to go by, the names tell: of optimizers that step equally often the one
    that steps last in each round counts.
    """
    rows = optimizer_rows(columns)
    passes = np.sort(columns.ts_ns[backward_nodes(columns)])
    ends = columns.end_ns[rows]
    if len(passes):
        last = np.r_[_any_between(passes, ends), True] if len(ends) else np.zeros(0, dtype=bool)
        rows, ends = rows[last], ends[last]
    # Every fetch but the first and the last is followed by the same number of ends, more than one.
    counts = np.diff(np.searchsorted(ends, fetches, side="right"))
    if len(counts) >= 2 and counts[0] > 1 and (counts == counts[0]).all():
        last = np.r_[_any_between(fetches, ends), True]
        rows, ends = rows[last], ends[last]
    return np.unique(columns.end_ns[_last_of_cycle(columns, rows)])


def _any_between(instants: I64, ends: I64) -> Bools:
    """``(n - 1,)`` whether any instant lies between each end and the next."""
    before = np.searchsorted(instants, ends)
    return before[1:] > before[:-1]


def _last_of_cycle(columns: TraceColumns, rows: I64) -> I64:
    """Of several optimizers that step equally often, the marks of the one that steps last in each round."""
    names, counts = np.unique(columns.name[rows], return_counts=True)
    if len(names) < 2 or (counts != counts[0]).any():
        return rows
    latest = columns.name[rows[columns.ts_ns[rows].argmax()]]
    chosen: I64 = rows[columns.name[rows] == latest]
    return chosen
