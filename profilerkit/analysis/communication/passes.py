"""The backward passes of a step: what of the computing is theirs, and whether each reduces the same gradients again."""

import re

import msgspec
import numpy as np

from profilerkit.analysis.communication.log import CollectiveLog
from profilerkit.analysis.communication.records import Accumulation
from profilerkit.analysis.communication.table import Split, transfers_of
from profilerkit.analysis.device.kernels import in_use, matching
from profilerkit.analysis.host.names import main_thread
from profilerkit.analysis.intervals import I64, Mask, Spans, covered, index_at, intersect, subtract, union
from profilerkit.analysis.steps.phases import NODE, backward_nodes, nodes_of, optimizer_rows
from profilerkit.trace.columns import Category, TraceColumns

#: The operators that start the reduction of gradients; older traces have only annotations.
_REDUCES = re.compile(r"^c10d::_?(?:all_?reduce|reduce_?scatter)")
_REDUCES_OF_OLD = re.compile(r"^(?:nccl|gloo):_?(?:all_?reduce|reduce_?scatter)")
#: What reduces gradients.
REDUCTIONS = ("all_reduce", "reduce_scatter")
#: Operators of the forward pass between two backward passes; fewer are a hook's.
_FEWEST_OPERATORS = 2


def backward_compute(columns: TraceColumns, launches: I64, work: Mask, *, on_device: bool) -> Spans | None:
    """When the backward passes compute; ``None`` where the trace shows no backward pass.

    Args:
        columns: the trace.
        launches: ``(n_events,)`` launching runtime row of each device event, -1 for none.
        work: ``(n_events,)`` what computes: kernels of the device, else operators.
        on_device: whether these are kernels, which belong to the pass that their launch lies in.
    """
    nodes = backward_nodes(columns)
    if not len(nodes):
        return None
    if not on_device:
        other = work & ~matching(columns, in_use(columns), NODE)[columns.name]
        inside = union(columns.ts_ns[nodes], columns.end_ns[nodes])
        return intersect(inside, union(columns.ts_ns[other], columns.end_ns[other]))
    kernels = np.flatnonzero(work)
    kernels = kernels[nodes_of(columns, launches[kernels]) >= 0]
    return union(columns.ts_ns[kernels], columns.end_ns[kernels])


class Passes(msgspec.Struct, frozen=True):
    """The backward passes of the judged steps, by what the host issued.

    Attributes:
        count: in the median step; ``None`` where none shows.
        reductions: started in each of several passes; 0 where these are not equally many.
        before: share of all reductions that were started before the first pass of their step: no gradient is in them.
    """

    count: int | None
    reductions: int
    before: float


def passes_of(columns: TraceColumns, window: Spans) -> Passes:
    """Find the backward passes in ``window``.

    A pass ends where operators outside of it follow, before the next begins: those of the next forward pass. An
    optimizer that steps between two passes makes them training of their own, as of two models: their number is known,
    and no reduction is said to be repeated.
    """
    nodes = backward_nodes(columns)
    if not len(nodes) or not len(window):
        return Passes(None, 0, 0.0)
    backward = union(columns.ts_ns[nodes], columns.end_ns[nodes])
    starts = _pass_starts(columns, backward)
    step = index_at(window, starts)
    per_step = np.bincount(step[step >= 0], minlength=len(window))
    passes = int(np.median(per_step))
    reduced = _rows(columns, _REDUCES, Category.CPU_OP)
    if not len(reduced):
        reduced = _rows(columns, _REDUCES_OF_OLD, Category.ANNOTATION)
    at = np.sort(columns.ts_ns[reduced])
    before = _before(at, starts, step, window)
    if passes < 2 or not len(at) or _optimizer_between(columns, window, starts, step):
        return Passes(passes or None, 0, before)
    ends = np.where(step >= 0, np.minimum(np.r_[starts[1:], window.end[-1]], window.end[step]), starts)
    issued = (np.searchsorted(at, ends) - np.searchsorted(at, starts))[step >= 0]
    equal = len(issued) > 0 and bool((issued == issued[0]).all())
    return Passes(passes, int(issued[0]) if equal else 0, before)


def _before(at: I64, starts: I64, step: I64, window: Spans) -> float:
    """Share of the reductions started ``at`` that precede the first backward pass of their step."""
    first = np.full(len(window), np.iinfo(np.int64).max)
    np.minimum.at(first, step[step >= 0], starts[step >= 0])
    own = index_at(window, at)
    judged = own >= 0
    return float((at[judged] < first[own[judged]]).mean()) if judged.any() else 0.0


def accumulating(columns: TraceColumns, host: Spans, window: Spans) -> tuple[Spans, Spans] | None:
    """Whole optimizer steps of several steps each, by the host's and by the device's clock.

    A loop that ends a step with each micro-batch steps its optimizer in one of several. The first step after it begins
    such a group. ``None`` where an optimizer steps in each step, in none, or where no group is whole.

    Args:
        columns: the trace.
        host: ``(n_steps,)`` the judged steps when the host issued them.
        window: ``(n_steps,)`` the same on the judged device.
    """
    stepped = index_at(host, columns.ts_ns[optimizer_rows(columns)])
    last = np.unique(stepped[stepped >= 0])
    if len(last) < 2 or len(host) != len(window) or (np.diff(last) < 2).any():
        return None
    first, last = last[:-1] + 1, last[1:]
    whole = host.start[first] >= 0
    for begin, end, at in zip(first.tolist(), last.tolist(), range(len(first)), strict=True):
        whole[at] = bool((host.start[begin + 1 : end + 1] == host.end[begin:end]).all())
    if not whole.any():
        return None
    first, last = first[whole], last[whole]
    return Spans(host.start[first], host.end[last]), Spans(window.start[first], window.end[last])


def accumulation(
    log: CollectiveLog,
    window: Spans,
    exposed: Spans,
    split: Split,
    passes: int | None,
    reductions: int,
    groups: Spans | None = None,
) -> Accumulation | None:
    """The reductions that each of several passes repeats; ``None`` where they are not the same in each.

    Times are those of a step; ``groups`` are the optimizer steps where each has a step for each of its passes.

    In its order each step's reductions fall into as many pieces as there are passes, of the same sizes piece by piece.
    """
    if passes is None or passes < 2 or not reductions:
        return None
    rows = np.flatnonzero(log.is_a(*REDUCTIONS))
    window, steps = (window, 1) if groups is None else (groups, passes)
    step = index_at(window, log.start[rows])
    early, last = [], []
    for number in range(len(window)):
        own = rows[step == number]
        pieces = [own[first : first + reductions] for first in range(0, len(own), reductions)]
        if len(own) != passes * reductions or any((log.bytes[p] != log.bytes[pieces[0]]).any() for p in pieces):
            continue
        early.append(own[:-reductions])
        last.append(own[-reductions:])
    if 2 * len(early) <= len(window):
        return None
    start, end = transfers_of(log, split)
    sooner, all_rows = np.concatenate(early), np.concatenate(early + last)
    gone = union(start[sooner], end[sooner])
    return Accumulation(
        passes=passes,
        reductions=reductions,
        early_ns=gone.total_ns / len(early) / steps,
        early_exposed_ns=intersect(exposed, gone).total_ns / len(early) / steps,
        transfer_ns=union(start[all_rows], end[all_rows]).total_ns / len(early) / steps,
        groups=groups,
    )


def _rows(columns: TraceColumns, pattern: re.Pattern[str], category: Category) -> I64:
    named = matching(columns, in_use(columns), pattern)
    return np.flatnonzero(named[columns.name] & (columns.category == category))


def _pass_starts(columns: TraceColumns, backward: Spans) -> I64:
    """When each backward pass begins: at a node that operators outside of all nodes come before."""
    # Threads that load data run operators at any time.
    outside = (columns.category == Category.CPU_OP) & (columns.thread == main_thread(columns))
    at = np.sort(columns.ts_ns[outside])
    at = at[~covered(backward, at)]
    before = np.searchsorted(at, backward.start)
    begins = np.r_[True, np.diff(before) >= _FEWEST_OPERATORS]
    starts: I64 = backward.start[begins]
    return starts


def _optimizer_between(columns: TraceColumns, window: Spans, starts: I64, step: I64) -> bool:
    """Whether in some judged step an optimizer steps after one backward pass and before another."""
    stepped = columns.ts_ns[optimizer_rows(columns)]
    at = index_at(window, stepped)
    for number in np.unique(at[at >= 0]).tolist():
        own = starts[step == number]
        if len(own) and (stepped[at == number] < own.max()).any():
            return True
    return False


def alone_ns(compute: Spans, window: Spans, transfers: Spans) -> float:
    """Of ``compute`` what runs beside no transfer, ns per step."""
    return subtract(intersect(window, compute), transfers).total_ns / max(len(window), 1)
