"""Find what the device's kernels lose: optimizer style, layouts, searches, small grids, misaligned products."""

import re
from collections import Counter, defaultdict
from math import prod

import msgspec
import numpy as np

from profilerkit.analysis.device.formulas import Arguments, Shape, sizes
from profilerkit.analysis.device.kernels import self_times
from profilerkit.analysis.device.operator_costs import distinct_calls, understood
from profilerkit.analysis.device.roofline import MEMORY_RATIO, peak_flops_per_ns
from profilerkit.analysis.device.shape_losses import (
    Alignment,
    DenseTables,
    Grid,
    Judged,
    Layout,
    Searches,
    grids,
    layout,
    misaligned,
    searches,
)
from profilerkit.analysis.enclosing import innermost_at
from profilerkit.analysis.intervals import EMPTY, Spans, covered, intersect, subtract, union
from profilerkit.analysis.partition import TraceView
from profilerkit.analysis.steps.phases import STYLES, backward_nodes, largest_class, optimizer_rows, without_closures
from profilerkit.trace.columns import F64, I64, Bools, Category, DeviceProperties, TraceColumns


class Scores(msgspec.Struct, frozen=True):
    """Attention that writes its scores to memory: products, softmax, mask and dropout over tensors of one shape."""

    queries: int
    keys: int
    matrices: int
    share: float  #: time of all kernels that read or write them
    pointwise_share: float  #: of it, all but the matrix products
    #: The least time of the products' arithmetic at the dense peak; ``None`` where it is not known.
    peak_share: float | None


class OptimizerWork(msgspec.Struct, frozen=True):
    """What the optimizer steps put on the device."""

    name: str  #: class of the optimizer, empty where a range of the program marks it; hostile text
    #: How it goes over its tensors: one at a time, by lists, or by one fused kernel; ``None`` where neither of torch's
    #: operators and kernels is seen.
    style: str | None
    kernels_per_step: float
    #: That one optimizer step changes; ``None`` unless it takes them one at a time, as is the next.
    tensors: float | None
    kernels_per_tensor: float | None  #: kernels of an optimizer step for each of them
    share: float  #: device time from the first to the last of its kernels, without communication in between
    kernel_share: float  #: of it, time in which one of them runs
    #: Time to read and write parameters, gradients and state once; ``None`` without shapes or peaks.
    least_share: float | None = None
    parameters: int | None = None  #: elements that it changes per step; ``None`` without shapes


class KernelLosses(msgspec.Struct, frozen=True):
    """Everything above for one device; ``None`` where the trace cannot say, no entry where there is nothing."""

    has_shapes: bool
    multiprocessors: int | None
    alignment: Alignment | None
    grids: tuple[Grid, ...] | None
    scores: tuple[Scores, ...]
    optimizer: OptimizerWork | None
    layout: Layout
    searches: Searches | None
    has_operators: bool = True
    tables: DenseTables | None = None


#: Normalise along the last dimension; their first tensor has the shape of the scores.
_SOFTMAX = ("aten::_softmax", "aten::_safe_softmax", "aten::_masked_softmax", "aten::_softmax_backward_data")
_MOST_SHAPES = 16  #: kinds of score matrices that are told, those with most time

_Kind = tuple[int, int, int]  #: score matrices in one tensor, queries, keys


#: Distinct calls over tensors of one kind: products that make the scores, products that take them, and the others.
_Calls = tuple[set[int], set[int], set[int]]


def scores(work: Judged) -> tuple[Scores, ...]:
    """Score matrices that one product makes, a softmax goes over, and another product takes; largest time first."""
    chosen = work.operator >= 0
    member, calls = work.calls(chosen)
    told = list(calls)
    found: dict[_Kind, _Calls] = {}
    for _, name, passed in told:
        first = passed.tensors[0] if name in _SOFTMAX and passed.tensors else None
        if first is not None and len(first.shape) >= 3 and first.elements:
            found[_kind(first.shape)] = (set(), set(), set())
    if not found:
        return ()
    for index, name, passed in told:
        _assign(found, index, name, passed)
    spent_ns = np.bincount(member, weights=work.dur_ns[chosen])
    whole = {kind: own for kind, own in found.items() if own[0] and own[1]}
    # A pass over all kernels for each kind: only for those that are told.
    told_kinds = sorted(whole, key=lambda kind: -float(spent_ns[list(set().union(*whole[kind]))].sum()))[:_MOST_SHAPES]
    rows = [_scores(work, chosen, member, kind, whole[kind]) for kind in told_kinds]
    return tuple(sorted(rows, key=lambda row: -row.share))


def _kind(shape: Shape) -> _Kind:
    matrices: int = prod(shape[:-2])
    return matrices, shape[-2], shape[-1]


def _assign(found: dict[_Kind, _Calls], index: int, name: str, passed: Arguments) -> None:
    """Add one distinct call to the kinds of matrices it makes, takes, or goes over."""
    product = sizes(name, passed)
    tensors = [tensor.shape for tensor in passed.tensors if tensor and len(tensor.shape) >= 2]
    if product is None:
        for kind in {_kind(shape) for shape in tensors} & found.keys():
            found[kind][2].add(index)
        return
    # The factors are the last two tensors; what is added to a product stands before them.
    pairs = prod(tensors[-1][:-2])
    made = (pairs, product[0], product[1])
    if made in found:
        found[made][0].add(index)
        return
    for shape in tensors[-2:]:
        # Backward takes them transposed too. A call counts with one kind only.
        either = ((pairs, shape[-2], shape[-1]), (pairs, shape[-1], shape[-2]))
        taken = next((kind for kind in either if kind in found), None)
        if taken is not None:
            found[taken][1].add(index)
            return


def _scores(work: Judged, chosen: Bools, member: I64, kind: _Kind, own: _Calls) -> Scores:
    multiplies = work.of_calls(chosen, member, own[0] | own[1])
    between = work.of_calls(chosen, member, own[2])
    computing = multiplies & work.kinds.math[work.name]
    flops = work.roof.flops[work.at]
    peak = peak_flops_per_ns(work.roof.dtype[work.at], work.kinds.math_type[work.name], work.roof.spec)
    least = flops / peak
    is_known = bool(computing.any() and np.isfinite(least[computing]).all())
    return Scores(
        queries=kind[1],
        keys=kind[2],
        matrices=kind[0],
        share=work.share(multiplies | between),
        pointwise_share=work.share(between),
        peak_share=work.part(least, computing) if is_known else None,
    )


_LOOKS_UP = ("aten::embedding", "aten::_embedding_bag", "aten::embedding_bag", "aten::index_select")
_DENSE_BACKWARD = ("aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward")
_FEW_ROWS = 0.5  #: a step that looks up more of a table's rows than this gains little (a choice)


def dense_tables(
    columns: TraceColumns, math: Bools, issuing: Spans, rows: I64, time_ns: F64, window_ns: int
) -> DenseTables | None:
    """What dense gradients of large tables take; ``None`` where none is made, or shapes were not recorded."""
    asked, lookups = _looked_up(columns, issuing)
    if not asked:
        return None
    calls, member = distinct_calls(columns, rows)
    spent = np.bincount(member, weights=time_ns, minlength=len(calls)).tolist()
    held: dict[Shape, float] = defaultdict(float)
    alike: dict[Shape, float] = dict.fromkeys(asked, 1.0)  # tables of each shape, as far as lists tell
    backward: dict[Shape, float] = defaultdict(float)
    tied: set[Shape] = set()
    for index, name, passed in understood(columns, calls, member):
        shapes = [tensor.shape for tensor in passed.tensors if tensor]
        if name in _DENSE_BACKWARD and shapes:
            table = max((table for table in asked if table[1] == shapes[0][-1]), default=(0, 0))
            backward[table] += spent[index]
        elif math[calls[index, 0]]:
            tied |= {table for table in asked if table in shapes or table[::-1] in shapes}
        elif name not in _LOOKS_UP:
            first, whole = passed.tensors[0] if passed.tensors else None, passed.listed(0)
            shapes_of = Counter([first.shape]) if first is not None else passed.lists.get(0, Counter())
            for table in shapes_of.keys() & asked.keys():
                count = min(shapes_of[table], lookups[table])
                alike[table] = max(alike[table], count)
                held[table] += spent[index] * count * prod(table) / (whole or prod(table))
    asked = {table: rows_of / alike[table] for table, rows_of in asked.items()}
    few = [table for table in asked if table in backward and table not in tied and asked[table] < _FEW_ROWS * table[0]]
    if not few:
        return None
    time = {table: backward[table] + held[table] for table in few}
    most = max(few, key=lambda table: time[table])
    return DenseTables(
        count=round(sum(alike[table] for table in few)),
        rows=most[0],
        width=most[1],
        looked_up=asked[most],
        share=sum(time.values()) / max(window_ns, 1),
        unused_share=sum((1.0 - asked[table] / table[0]) * time[table] for table in few) / max(window_ns, 1),
    )


def host_tables(view: TraceView) -> DenseTables | None:
    """The same of a run without a device: operators take the time, each without those inside it."""
    columns, window, math = view.columns, view.window, view.kinds.math
    rows = np.flatnonzero(columns.category == Category.CPU_OP)
    rows = rows[covered(window, columns.ts_ns[rows])]
    return dense_tables(columns, math, window, rows, self_times(columns, rows).astype(np.float64), window.total_ns)


def _looked_up(columns: TraceColumns, issuing: Spans) -> tuple[dict[Shape, float], dict[Shape, float]]:
    """Shape of tables to the rows that a step looks up at most, and to its lookups."""
    names = [at for at, text in enumerate(columns.strings) if text in _LOOKS_UP[:2]]
    rows = np.flatnonzero(np.isin(columns.name, names) & (columns.category == Category.CPU_OP))
    calls, member = distinct_calls(columns, rows[covered(issuing, columns.ts_ns[rows])])
    often = np.bincount(member, minlength=len(calls))
    asked: dict[Shape, float] = defaultdict(float)
    lookups: dict[Shape, float] = defaultdict(float)
    for index, _, passed in understood(columns, calls, member):
        table, indices = (*passed.tensors, None, None)[:2]
        if table and indices and len(table.shape) == 2:
            lookups[table.shape] += int(often[index]) / max(len(issuing), 1)
            asked[table.shape] += indices.elements * int(often[index]) / max(len(issuing), 1)
    return asked, lookups


#: ``STYLES`` by the kernels, where no operator was recorded: torch's fused kernels and those of apex, which DeepSpeed
#: has as well, go over lists too.
_STYLES_OF_KERNELS = (
    ("fused", re.compile(r"(?:Fused|Adam|SGD|LAMB)\w{0,40}Functor")),
    ("foreach", re.compile("multi_tensor_apply")),
    ("single", re.compile("elementwise")),
)
#: Calls that change each parameter once per step, the first that occurs: Adam's kin divide, SGD adds, with momentum
#: and weight decay once more each.
_UPDATES = ("addcdiv_", "add_")
#: How often each element is read or written: parameter and gradient, and one or two moments.
_PASSES = {"addcdiv_": 7, "add_": 5}
_ITEM_BYTES = 4  #: bytes of an element: lists do not say their type, and optimizers keep FP32 as a rule


def optimizer_kernels(work: Judged) -> I64:
    """``(n,)`` row of the optimizer step that launched each judged kernel, -1 for none.

    Steps that run a backward pass inside (a closure) are none.
    """
    columns = work.columns
    rows = without_closures(columns, optimizer_rows(columns), backward_nodes(columns))
    rows = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
    found = np.full(len(work.at), -1, dtype=np.int64)
    calls = work.launches[work.rows]
    linked = calls >= 0
    calls = calls[linked]
    found[linked] = innermost_at(columns, rows, columns.thread[calls], columns.ts_ns[calls])
    return found


def optimizer_work(work: Judged, step: I64) -> OptimizerWork | None:
    """The optimizer with most device time; ``None`` where no marked step launches a kernel.

    Matrix products inside an optimizer step (Muon, Shampoo) are its mathematics, and are left out.
    """
    columns = work.columns
    own = (step >= 0) & ~work.kinds.math[work.name]
    if not own.any():
        return None
    most, name = largest_class(columns, step[own], work.dur_ns[own])
    own &= columns.name[np.maximum(step, 0)] == most
    style = _style(work, own)
    update, elements, calls = _updated(work, own, style)
    steps = len(np.unique(step[own]))
    spec = work.roof.spec
    least_ns = elements * _PASSES.get(update, 0) * _ITEM_BYTES / (spec.hbm_gb_per_s * MEMORY_RATIO) if spec else 0.0
    return OptimizerWork(
        name=name,
        style=style,
        kernels_per_step=float(own.sum()) / work.steps,
        tensors=calls / steps if style == "single" and calls else None,
        kernels_per_tensor=float(own.sum()) / calls if style == "single" and calls else None,
        share=_span(work, step, own).total_ns / max(work.window.total_ns, 1),
        kernel_share=work.share(own),
        least_share=least_ns / max(work.window.total_ns, 1) if least_ns else None,
        parameters=round(elements / work.steps) if elements else None,
    )


def _style(work: Judged, own: Bools) -> str | None:
    """How most of the kernels' time is launched, by the operators; without any by the kernels' names."""
    strings = work.columns.strings
    time = dict.fromkeys((style for style, _ in STYLES), 0.0)
    # Kernels without an operator by their own name, counted behind the names of operators.
    names = np.where(work.operator >= 0, work.columns.name[np.maximum(work.operator, 0)], work.name + len(strings))[own]
    total = np.bincount(names, weights=work.dur_ns[own])
    for name in np.flatnonzero(total).tolist():
        if name < len(strings):
            style = next((style for style, start in STYLES if strings[name].startswith(start)), None)
        else:
            kernel = strings[name - len(strings)]
            style = next((style for style, pattern in _STYLES_OF_KERNELS if pattern.search(kernel)), None)
        if style is not None:
            time[style] += float(total[name])
    most = max(time, key=lambda style: time[style])
    return most if time[most] * 2 > float(work.dur_ns[own].sum()) else None


def _updated(work: Judged, own: Bools, style: str | None) -> tuple[str, float, int]:
    """The call that changes each parameter, the elements it changes in all steps, and how often it is made."""
    prefix = {"single": "aten::", "foreach": "aten::_foreach_"}.get(style or "")
    if prefix is None:
        return "", 0.0, 0
    rows = np.unique(work.operator[own & (work.operator >= 0)])
    names = [work.columns.strings[name] for name in work.columns.name[rows].tolist()]
    for update in _UPDATES:
        calls = rows[[name == prefix + update for name in names]]
        if len(calls):
            return update, _elements(work, own, calls), len(calls)
    return "", 0.0, 0


def _elements(work: Judged, own: Bools, rows: I64) -> float:
    """Elements of the first tensor, or of the first list, of every call in ``rows``."""
    chosen = own & np.isin(work.operator, rows)
    member, calls = work.calls(chosen)
    # A call counts once, however many kernels it launches.
    _, first = np.unique(work.operator[chosen], return_index=True)
    often = np.bincount(member[first])
    total = 0.0
    for index, _, passed in calls:
        tensor = passed.tensors[0] if passed.tensors else None
        elements = tensor.elements if tensor else passed.listed(0)
        total += float(elements) * int(often[index])
    return total


def _span(work: Judged, step: I64, own: Bools) -> Spans:
    """From the first to the last kernel of each optimizer step, without communication in between."""
    columns, rows = work.columns, work.rows[own]
    if not len(rows):
        return EMPTY
    steps, member = np.unique(step[own], return_inverse=True)
    start = np.full(len(steps), np.iinfo(np.int64).max)
    end = np.zeros(len(steps), dtype=np.int64)
    np.minimum.at(start, member, columns.ts_ns[rows])
    np.maximum.at(end, member, columns.end_ns[rows])
    communicates = work.kinds.communication[columns.name] & (columns.category == Category.KERNEL)
    others = union(columns.ts_ns[communicates], columns.end_ns[communicates])
    return subtract(intersect(work.window, union(start, end)), others)


def losses_of_kernels(work: Judged, optimizer_step: I64, properties: DeviceProperties | None) -> KernelLosses:
    """What the judged kernels of a device waste."""
    columns = work.columns
    return KernelLosses(
        has_shapes=bool((columns.input_dims >= 0).any()),
        multiprocessors=properties.multiprocessors if properties else None,
        alignment=misaligned(work),
        grids=grids(work),
        scores=scores(work),
        optimizer=optimizer_work(work, optimizer_step),
        layout=layout(work),
        searches=searches(work),
        tables=dense_tables(columns, work.kinds.math, work.issuing, work.operator, work.dur_ns, work.window.total_ns),
        has_operators=columns.meta.no_operators is None,
    )
