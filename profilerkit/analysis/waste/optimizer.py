"""What optimizer steps put on the device: how many kernels, for how long, and how much of that their bytes ask for."""

import re

import numpy as np

from profilerkit.analysis.device.roofline import MEMORY_RATIO
from profilerkit.analysis.enclosing import innermost_at
from profilerkit.analysis.host.backward import backward_nodes
from profilerkit.analysis.intervals import EMPTY, I64, Spans, intersect, subtract, union
from profilerkit.analysis.kernel_losses.records import OptimizerWork
from profilerkit.analysis.kernel_losses.shapes import Bools, Judged
from profilerkit.analysis.steps.optimizer_marks import STYLES, largest_class, optimizer_rows, without_closures
from profilerkit.trace.columns import Category

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
#: Bytes of an element: lists do not say their type, and optimizers keep FP32 as a rule.
_ITEM_BYTES = 4


def optimizer_rows_of(work: Judged) -> I64:
    """Optimizer steps by their start, without those that run a backward pass inside (a closure)."""
    columns = work.columns
    rows = without_closures(columns, optimizer_rows(columns), backward_nodes(columns))
    return rows[np.argsort(columns.ts_ns[rows], kind="stable")]


def optimizer_kernels(work: Judged) -> I64:
    """``(n,)`` row of the optimizer step that launched each judged kernel, -1 for none."""
    found = np.full(len(work.at), -1, dtype=np.int64)
    calls = work.launches[work.rows]
    linked = np.flatnonzero(calls >= 0)
    calls = calls[linked]
    found[linked] = innermost_at(
        work.columns, optimizer_rows_of(work), work.columns.thread[calls], work.columns.ts_ns[calls]
    )
    return found


def optimizer_work(work: Judged, step: I64) -> OptimizerWork | None:
    """The optimizer with most device time; ``None`` where no marked step launches a kernel.

    Matrix products inside an optimizer step (Muon, Shampoo) are its mathematics, and are left out.

    Args:
        work: the judged kernels.
        step: ``(n,)`` row of the optimizer step that launched each, as of ``optimizer_kernels``.
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
        elements = tensor.elements if tensor else passed.lists.get(0, 0)
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
