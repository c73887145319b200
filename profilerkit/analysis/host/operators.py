"""What holds the steps of a run without a device: hooks of gradients, the optimizer, reads of values, one operator."""

import re

import msgspec
import numpy as np

from profilerkit.analysis.device.kernels import SMALL_KERNEL_NS, KernelNames, matching, named, self_times
from profilerkit.analysis.enclosing import call_sites, innermost_at
from profilerkit.analysis.host.names import QUIET_NS, HostNames
from profilerkit.analysis.intervals import EMPTY, Spans, covered, index_at, intersect, subtract, time_within, union
from profilerkit.analysis.partition import TraceView
from profilerkit.analysis.stats import median
from profilerkit.analysis.steps.phases import (
    OPERATOR_NS,
    SHAPES_NS,
    STYLES,
    backward_nodes,
    largest_class,
    optimizer_rows,
    without_closures,
)
from profilerkit.trace.columns import I64, Category, TraceColumns, names_of


class HeldFacts(msgspec.Struct, frozen=True):
    """What holds part of the steps of a run without a device."""

    #: ``hook`` of gradients, ``optimizer``, ``read`` of values, ``fetch`` for what computes while the loop gets a
    #: batch, or the pass in which an operator runs: ``forward``, which is all beside it, or ``backward``.
    place: str
    operator: str  #: the one with most time there; of an optimizer its class. Hostile text.
    per_step: float
    share: float  #: of the step that the place takes, Python included; of a pass what the operator takes
    operator_share: float  #: of the step that the operator itself takes
    line: str | None = None  #: the line of the user's that calls it, as the profiler names it; ``None`` without stacks
    #: The same of the median traced step, ns, without what recording it took; 0 for what fewer steps hold.
    time_ns: float = 0.0
    #: How an optimizer goes over its tensors: ``single``, ``foreach`` or ``fused``; ``None`` for the others.
    style: str | None = None


_NODE = "autograd::engine::evaluate_function: "
#: What the engine itself runs between two nodes: it adds the gradients of a tensor that is used more than once, and
#: brings them to its shape and type.
_ADDS = re.compile(r"^aten::(?:add_?|sum|sum_to_size|view|reshape|to|_to_copy|copy_|detach|empty.*|zeros?_?|fill_)$")
#: What a program calls, without what autograd writes around it.
_OPERATOR = re.compile(r"^(?!(?:torch::)?autograd::)[\w]+::")
_JOINS = re.compile(r"^aten::(?:stack|cat)$")  #: they join samples to a batch
_DISTRIBUTED = re.compile(r"^(?:torch::distributed|c10d)::")  #: what ranks do together has rules of its own
#: Its own function adds to the gradient, and runs the hooks of a parameter that follow.
_ACCUMULATES = "torch::autograd::AccumulateGrad"
_TRIED = 8  #: how many of the longest calls are looked at for the line that made them
_LEAST = 0.02  #: a share below this is told of nothing (no rule speaks below it)


def held_by(view: TraceView) -> tuple[HeldFacts, ...]:
    """Return what holds much of the steady steps, largest share first; only of a trace without a device.

    A hook is what runs in a node of the backward pass beside the node's own function, Python included. Matrix products
    and convolutions are the model's mathematics, and are left out. What the loop does to get a batch is apart.
    """
    columns, names, kinds, main, window = view.columns, view.names, view.kinds, view.main, view.window
    rows = np.flatnonzero((columns.category == Category.CPU_OP) & covered(window, columns.ts_ns))
    if not len(rows) or not window.total_ns:
        return ()
    nodes = backward_nodes(columns)
    marks = optimizer_rows(columns)
    # A closure runs the whole pass inside the optimizer's step.
    optimizer = _spans(columns, without_closures(columns, marks, nodes))
    fetches = _spans(columns, np.flatnonzero(names.loader[columns.name] & (columns.thread == main)))
    hooks = subtract(_hooks(columns, kinds, nodes), optimizer)
    fetched = covered(fetches, columns.ts_ns[rows])
    rows, made = rows[~fetched], rows[fetched]
    seen = _Own(columns, rows, self_times(columns, rows), window)
    backward = _spans(columns, nodes)
    out = [
        seen.told("hook", hooks),
        _optimizer(seen, marks, optimizer),
        seen.told("read", _reading(seen, names, main)),
        _fetching(columns, made, window),
    ]
    left = ~covered(hooks, columns.ts_ns[rows]) & ~covered(optimizer, columns.ts_ns[rows])
    aside = kinds.math | kinds.communication | matching(columns, names_of(columns, Category.CPU_OP), _DISTRIBUTED)
    work = left & ~aside[columns.name[rows]] & ~aside[seen.called]
    out.append(seen.largest(work & covered(backward, columns.ts_ns[rows]), "backward"))
    out.append(seen.largest(work & ~covered(backward, columns.ts_ns[rows]), "forward"))
    return tuple(sorted((held for held in out if held is not None), key=lambda held: -held.share))


class _Own:
    """Operators of the steady steps with their own times."""

    def __init__(self, columns: TraceColumns, rows: I64, own_ns: I64, window: Spans) -> None:
        self.columns, self.rows, self.own_ns, self.window = columns, rows, own_ns, window
        self.called = _called(columns, rows)
        self.named = matching(columns, names_of(columns, Category.CPU_OP), _OPERATOR)[self.called]

    def _share(self, per_step_ns: np.ndarray) -> float:
        """The mean share of the steps, at most twice the median one: a preempted call is nobody's cost."""
        share = per_step_ns / np.maximum(self.window.end - self.window.start, 1)
        mean, typical = float(per_step_ns.sum()) / self.window.total_ns, float(np.median(share))
        return min(mean, 2.0 * typical) if typical else mean

    def told(self, place: str, spans: Spans) -> HeldFacts | None:
        """What ``spans`` hold of the steps, with the operator that takes most of them."""
        per_step = time_within(spans, self.window.start, self.window.end)
        covers = covered(spans, self.columns.ts_ns[self.rows])
        inside = covers & self.named
        if self._share(per_step) < _LEAST or not inside.any():
            return None
        return self._of(inside, place, per_step, int(np.count_nonzero(covers)))

    def largest(self, chosen: np.ndarray, place: str) -> HeldFacts | None:
        """The operator with most time of its own among the chosen rows."""
        if not chosen.any():
            return None
        found = self._of(chosen, place)
        return found if found.share >= _LEAST else None

    def _of(self, chosen: np.ndarray, place: str, per_step: I64 | None = None, recorded: int = 0) -> HeldFacts:
        total = np.bincount(self.called[chosen], weights=self.own_ns[chosen])
        most = int(total.argmax())
        own = np.flatnonzero(chosen & (self.called == most))
        calls = self.rows[own[self.columns.name[self.rows[own]] == most]]
        longest = calls[np.argsort(-self.columns.dur_ns[calls], kind="stable")[:_TRIED]]
        step = index_at(self.window, self.columns.ts_ns[self.rows[own]])
        of_operator = np.bincount(step[step >= 0], self.own_ns[own][step >= 0], len(self.window))
        time, own_share = of_operator if per_step is None else per_step, self._share(of_operator)
        recording_ns = (OPERATOR_NS + SHAPES_NS) * (recorded or len(own)) / max(len(self.window), 1)
        return HeldFacts(
            place=place,
            operator=self.columns.strings[most],
            per_step=len(calls) / max(len(self.window), 1),
            share=own_share if per_step is None else self._share(per_step),
            operator_share=own_share,
            line=next((site.line for site in call_sites(self.columns, longest) if site.line), None),
            time_ns=float(max(median(time) - recording_ns, 0.0)),
        )


def _called(columns: TraceColumns, rows: I64) -> I64:
    """``(n_rows,)`` name of the operator that the program, or the backward pass, called in which each of them runs."""
    calls = rows[named(columns, _OPERATOR, Category.CPU_OP)[rows]]
    called = columns.name[rows].astype(np.int64)
    for thread in np.unique(columns.thread[calls]).tolist():
        own = calls[columns.thread[calls] == thread]
        own = own[np.lexsort((columns.external_id[own], -columns.end_ns[own], columns.ts_ns[own]))]
        latest = np.maximum.accumulate(columns.end_ns[own])
        outer = own[np.r_[True, columns.ts_ns[own][1:] >= latest[:-1]]]
        mine = np.flatnonzero(columns.thread[rows] == thread)
        at = np.searchsorted(columns.ts_ns[outer], columns.ts_ns[rows[mine]], side="right") - 1
        inside = (at >= 0) & (columns.end_ns[rows[mine]] <= columns.end_ns[outer[np.maximum(at, 0)]])
        called[mine] = np.where(inside, columns.name[outer[np.maximum(at, 0)]], called[mine])
    return called


def _spans(columns: TraceColumns, rows: I64) -> Spans:
    return union(columns.ts_ns[rows], columns.end_ns[rows])


def _hooks(columns: TraceColumns, kinds: KernelNames, nodes: I64) -> Spans:
    """Time in nodes of the backward pass beside their own functions, and beside what ranks do together, as DDP does."""
    if not len(nodes):
        return EMPTY
    used = names_of(columns, Category.CPU_OP)
    functions = {columns.strings[name].removeprefix(_NODE) for name in np.unique(columns.name[nodes]).tolist()}
    functions.discard(_ACCUMULATES)
    function = np.zeros(len(columns.strings), dtype=np.bool_)
    function[used] = [columns.strings[name] in functions for name in used.tolist()]
    ranks = kinds.communication | matching(columns, used, _DISTRIBUTED)
    engines = function | ranks | matching(columns, used, _ADDS) | ~matching(columns, used, _OPERATOR)
    operators = columns.category == Category.CPU_OP
    inside = np.flatnonzero(operators & (function | ranks)[columns.name])
    outer = subtract(_spans(columns, nodes), _spans(columns, inside))
    work = np.flatnonzero(operators & ~engines[columns.name] & covered(outer, columns.ts_ns))
    # Only nodes in which a hook ran anything: the engine's own steps take time in each.
    node = innermost_at(columns, nodes, columns.thread[work], columns.ts_ns[work])
    hooked = _spans(columns, np.unique(node[node >= 0]))
    return intersect(hooked, outer)


def _optimizer(seen: _Own, marks: I64, spans: Spans) -> HeldFacts | None:
    found = seen.told("optimizer", spans)
    if found is None:
        return None
    columns = seen.columns
    inside = covered(spans, columns.ts_ns[seen.rows])
    texts = [columns.strings[index] for index in np.unique(columns.name[seen.rows[inside]]).tolist()]
    style = next((style for style, start in STYLES if any(text.startswith(start) for text in texts)), "single")
    operator = largest_class(columns, marks, columns.dur_ns[marks])[1]
    per_step = float(inside.sum()) / max(len(seen.window), 1)
    return HeldFacts("optimizer", operator, per_step, found.share, found.share, style=style)


def _fetching(columns: TraceColumns, rows: I64, window: Spans) -> HeldFacts | None:
    """What computes in the loop's own fetches: calls of 10 µs or more, beside those that join samples to a batch."""
    joins = _spans(columns, rows[named(columns, _JOINS, Category.CPU_OP)[rows]])
    rows = rows[(columns.dur_ns[rows] >= SMALL_KERNEL_NS) & ~covered(joins, columns.ts_ns[rows])]
    if not len(rows):
        return None
    return _Own(columns, rows, self_times(columns, rows), window).told("fetch", _spans(columns, rows))


def _reading(seen: _Own, names: HostNames, main: int) -> Spans:
    """When the loop reads values one after another, with the Python between the reads.

    What an operator reads for itself, as fused optimizers do on a processor, is not the loop's.
    """
    columns, at_main = seen.columns, np.flatnonzero(seen.columns.thread[seen.rows] == main)
    rows = seen.rows[at_main]
    order = np.lexsort((-columns.dur_ns[rows], columns.ts_ns[rows]))
    own, called = rows[order], seen.called[at_main[order]]
    moves_no_data = names.moves_no_data | names.reads
    quiet = moves_no_data[columns.name[own]] & moves_no_data[called]
    read = names.reads[columns.name[own]] & quiet
    if not read.any():
        return EMPTY
    start, end = columns.ts_ns[own], np.maximum.accumulate(columns.end_ns[own])
    breaks = np.r_[True, ~quiet[1:] | ~quiet[:-1] | (start[1:] - end[:-1] > QUIET_NS)]
    chain = np.cumsum(breaks)
    at = np.flatnonzero(read)
    _, first = np.unique(chain[at], return_index=True)
    last = np.r_[first[1:], len(at)] - 1
    return union(start[at[first]], columns.end_ns[own][at[last]])
