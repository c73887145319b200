"""What a fix does to the steps: each change takes a graph and gives another, and changes nothing else."""

from collections.abc import Sequence
from typing import ClassVar, Protocol

import msgspec
import numpy as np

from profilerkit.analysis.replay.graph import NEVER, Graph, Wait
from profilerkit.model import revise
from profilerkit.model.step import LEAVES, WAITS, leaf
from profilerkit.trace.columns import F64, I64, Bools

FEWEST_BUCKETS = 2  #: collectives of a step that is to overlap: a single one has to be divided first
#: Of what a step computes before its last collective, where no backward pass shows: it takes twice what forward does.
_BACKWARD_RATIO = 2 / 3

#: What launching the step as one graph takes of the host, and the pause between its kernels.
GRAPH_LAUNCH_NS, GRAPH_PAUSE_NS = 15_000.0, 1_000.0
#: A stretch of Python longer than this is work of its own, not the price of issuing the next operator (a choice).
BETWEEN_OPERATORS_NS = 100_000.0

_WAITS = tuple(leaf(name) for name in WAITS)
_ISSUING = (leaf("over.dispatch"), leaf("over.python"))
_COPIES = tuple(leaf(name) for name in ("input.h2d", "sync.d2h", "mem.offload", "other.ckpt"))
_COMPUTE = tuple(place for place, name in enumerate(LEAVES) if name.startswith("compute.") or name == "mem.recompute")
_COLLECTIVE, _BATCH_COPY = leaf("comm.other"), leaf("input.h2d")


class Change(Protocol):
    """One fix."""

    fix_class: ClassVar[str]

    def __call__(self, graph: Graph) -> Graph:
        """The steps with the fix applied."""


class LoaderWaits(msgspec.Struct, frozen=True):
    """Batches come with shorter waits."""

    fix_class: ClassVar[str] = "input"
    kept_ratio: float = 0.0

    def __call__(self, graph: Graph) -> Graph:
        """Fetches that much shorter; no batch is waited for beyond that."""
        if not len(graph.fetch_point):
            return _host_time(graph, _pieces(graph, _WAITS), self.kept_ratio)
        without = _host_time(graph, _pieces(graph, _WAITS), 0.0)
        host = without.host_ns.copy()
        np.add.at(host, graph.fetch_point, self.kept_ratio * graph.fetch_ns)
        return revise(without, host_ns=host, ready_ns=np.full_like(graph.ready_ns, NEVER))


class HostTime(msgspec.Struct, frozen=True):
    """What the host did for some parts takes a part of its time."""

    fix_class: ClassVar[str] = "host"
    leaves: tuple[str, ...] = ("over.python",)
    kept_ratio: float = 0.0
    #: Shorter stretches stay as they are: gaps between operators are not the user's own Python.
    longer_than_ns: float = 0.0

    def __call__(self, graph: Graph) -> Graph:
        """Shorter stretches of the host."""
        chosen = _pieces(graph, tuple(leaf(name) for name in self.leaves)) & (graph.piece_ns >= self.longer_than_ns)
        return _host_time(graph, chosen, self.kept_ratio)


class Phases(HostTime, frozen=True):
    """A phase that stops training runs beside it: checkpoint, evaluation, logging, one that the user named."""

    fix_class: ClassVar[str] = "phase"
    leaves: tuple[str, ...] = ("other.ckpt",)


class Syncs(msgspec.Struct, frozen=True):
    """The host no longer waits for the device, nor reads what it waited for."""

    fix_class: ClassVar[str] = "sync"

    def __call__(self, graph: Graph) -> Graph:
        """The calls return as soon as they are made, and copies that they waited for are not made."""
        shape = graph.shape
        feeds = graph.leaf[shape.join_event] == _BATCH_COPY
        gone = np.isin(shape.join_kind, (Wait.SYNC, Wait.COPY)) & ~feeds
        read = np.zeros(len(graph.dur_ns), dtype=np.bool_)
        read[shape.join_event[gone]] = True
        read &= graph.leaf == leaf("sync.d2h")
        released = _without_joins(graph, gone)
        return revise(released, dur_ns=np.where(read, 0.0, graph.dur_ns), gap_ns=np.where(read, 0.0, graph.gap_ns))


class OneLaunch(msgspec.Struct, frozen=True):
    """Each step is launched as one graph: what the host does to issue its operators is gone."""

    fix_class: ClassVar[str] = "launch"
    launch_ns: float = GRAPH_LAUNCH_NS

    def __call__(self, graph: Graph) -> Graph:
        """No time from a step's first kernel launch to its last, and one launch instead."""
        first, last = _launching(graph)
        short = (graph.piece_leaf != leaf("over.python")) | (graph.piece_ns <= BETWEEN_OPERATORS_NS)
        # Its work leads up to the point.
        step = np.searchsorted(graph.shape.marks, graph.piece_point, side="left") - 1
        inside = (graph.piece_point > first[step]) & (graph.piece_point <= last[step]) & (step >= 0)
        launched = _host_time(graph, _pieces(graph, _ISSUING) & short & inside, 0.0)
        host = launched.host_ns.copy()
        np.add.at(host, last[last >= 0], self.launch_ns)
        return revise(launched, host_ns=host, gap_ns=np.minimum(graph.gap_ns, GRAPH_PAUSE_NS))


class Kernels(msgspec.Struct, frozen=True):
    """Kernels of some kinds run faster, but never faster than their bytes move; fused ones move fewer."""

    fix_class: ClassVar[str] = "kernels"
    speed_up: float
    leaves: tuple[str, ...] = ("compute.math",)
    kind: str = ""  #: ``fp32`` or ``chained`` for these kernels alone; empty for all of the parts

    def __call__(self, graph: Graph) -> Graph:
        """Shorter kernels; on a host that computes itself shorter operators, and of fused ones fewer launches."""
        leaves = tuple(leaf(name) for name in self.leaves)
        chosen: Bools = np.isin(graph.leaf, leaves)
        if self.kind:
            chosen &= graph.fp32 if self.kind == "fp32" else graph.chained
        least = np.minimum(graph.least_ns, graph.dur_ns) if self.kind != "chained" else 0.0
        faster = np.maximum(graph.dur_ns / self.speed_up, least)
        pieces = _pieces(graph, leaves) if not self.kind else np.zeros(len(graph.piece_ns), dtype=np.bool_)
        if self.kind == "chained":
            pieces = _pieces(graph, _ISSUING) & (graph.piece_ns <= BETWEEN_OPERATORS_NS) & _leads_to(graph, chosen)
        shorter = _host_time(graph, pieces, 1.0 / self.speed_up)
        return revise(shorter, dur_ns=np.where(chosen, faster, graph.dur_ns))


class PinnedCopies(msgspec.Struct, frozen=True):
    """Batches come from pinned memory: at the rate of the link, without the host."""

    fix_class: ClassVar[str] = "copies"
    bytes_per_ns: float

    def __call__(self, graph: Graph) -> Graph:
        """Pageable copies to the device at that rate; nobody waits for them."""
        shape = graph.shape
        chosen = graph.staged & (graph.leaf == _BATCH_COPY)
        rate = np.where(graph.bytes > 0, graph.bytes / self.bytes_per_ns, graph.dur_ns)
        gone = (shape.join_kind != Wait.QUEUE) & (shape.join_kind != Wait.END) & chosen[shape.join_event]
        released = _without_joins(graph, gone)
        quick = _host_time(released, _pieces(released, (_BATCH_COPY,)), 0.0)
        return revise(
            quick,
            dur_ns=np.where(chosen, np.minimum(graph.dur_ns, rate), graph.dur_ns),
            issue_ns=np.where(chosen, np.minimum(graph.issue_ns, graph.issue_typical_ns), graph.issue_ns),
        )


class HiddenCopies(msgspec.Struct, frozen=True):
    """Batches are copied on a stream of their own while the device computes the step before."""

    fix_class: ClassVar[str] = "copies"

    def __call__(self, graph: Graph) -> Graph:
        """No kernel waits for a batch copy: the copy has a step's time, and the stream goes on without it."""
        chosen = graph.leaf == _BATCH_COPY
        gone = (graph.shape.join_kind == Wait.COPY) & chosen[graph.shape.join_event]
        released = _without_joins(graph, gone)
        quick = _host_time(released, _pieces(released, (_BATCH_COPY,)), 0.0)
        return revise(quick, dur_ns=np.where(chosen, 0.0, graph.dur_ns), gap_ns=np.where(chosen, 0.0, graph.gap_ns))


class HiddenCollectives(msgspec.Struct, frozen=True):
    """Collectives run beside computation; the last of each step has nothing left to hide behind.

    A single one is divided first.
    """

    fix_class: ClassVar[str] = "communication"

    def __call__(self, graph: Graph) -> Graph:
        """Each as soon as its part of the backward pass is done, one after the other: what then still is exposed."""
        shape = graph.shape
        comm, works = graph.leaf == _COLLECTIVE, ~np.isin(graph.leaf, (_COLLECTIVE, *_COPIES))
        step = np.searchsorted(shape.marks, shape.point, side="right") - 1
        begins = np.searchsorted(step, np.arange(len(shape.marks)))
        duration = graph.dur_ns.copy()
        for number in np.unique(step[comm]).tolist():
            own = np.flatnonzero(comm & (step == number))
            parts = 1 if len(own) >= FEWEST_BUCKETS else FEWEST_BUCKETS
            lengths = np.repeat(graph.dur_ns[own] / parts, parts)
            before = np.arange(begins[number], own[-1])
            ready = _ready(graph, before[works[before]], len(lengths))
            duration[own] *= min(_exposed(lengths, ready) / max(float(lengths.sum()), 1.0), 1.0)
        return revise(graph, dur_ns=duration)


def _ready(graph: Graph, computed: I64, count: int) -> F64:
    """``(count,)`` when each collective has its gradients, ns since the pass began: every node gives as many."""
    part = np.arange(1, count + 1) / count
    passed = computed[graph.node[computed] >= 0]
    if not len(passed):
        return _BACKWARD_RATIO * float(graph.dur_ns[computed].sum()) * part
    _, node = np.unique(graph.node[passed], return_inverse=True)
    done = np.r_[0.0, np.cumsum(np.bincount(node.ravel(), weights=graph.dur_ns[passed]))]
    ready: F64 = np.interp(part * (len(done) - 1), np.arange(len(done)), done)
    return ready


def _exposed(lengths: F64, ready: F64) -> float:
    """What is left of collectives once all of them are ready, if each runs from when it is, one after the other.

    >>> _exposed(np.array([4.0, 4.0]), np.array([5.0, 10.0])), _exposed(np.array([9.0, 4.0]), np.array([5.0, 10.0]))
    (4.0, 8.0)
    """
    left = np.cumsum(lengths[::-1])[::-1]
    return float((ready + left).max() - ready[-1])


class OnlyKernels(msgspec.Struct, frozen=True):
    """Nothing but the kernels takes time: no fix of anything else gets below that."""

    fix_class: ClassVar[str] = "host"

    def __call__(self, graph: Graph) -> Graph:
        """No host, no transfers; on a host that computes itself only what it computes."""
        moved = np.isin(graph.leaf, (*_COPIES, _COLLECTIVE))
        computes = np.isin(graph.piece_leaf, _COMPUTE)
        only = _host_time(graph, ~computes, 0.0)
        kept, ns = only.piece_point[computes], only.piece_ns[computes]
        host = np.bincount(kept, weights=ns, minlength=graph.shape.n_points).astype(np.float64)
        return revise(
            only,
            host_ns=host,
            dur_ns=np.where(moved, 0.0, graph.dur_ns),
            join_ns=np.full_like(graph.join_ns, NEVER),
            ready_ns=np.full_like(graph.ready_ns, NEVER),
        )


class Allocator(msgspec.Struct, frozen=True):
    """The driver is asked for no memory in the steps."""

    fix_class: ClassVar[str] = "allocator"

    def __call__(self, graph: Graph) -> Graph:
        """Neither the calls nor their waits for the device."""
        released = _without_joins(graph, graph.shape.join_kind == Wait.ALLOCATOR)
        return _host_time(released, _pieces(released, (leaf("mem.alloc"),)), 0.0)


def applied(graph: Graph, changes: Sequence[Change]) -> Graph:
    """The graph with all of the changes, in their order."""
    for change in changes:
        graph = change(graph)
    return graph


def _launching(graph: Graph) -> tuple[I64, I64]:
    """``(n_steps,)`` points of each step's first and last launch of a kernel; -1 where there is none."""
    shape = graph.shape
    kernels = ~np.isin(graph.leaf, _COPIES) & (graph.issue_ns > NEVER)
    points = shape.point[kernels]
    step = np.searchsorted(shape.marks, points, side="right") - 1
    first = np.full(len(shape.marks), shape.n_points, dtype=np.int64)
    last = np.full(len(shape.marks), -1, dtype=np.int64)
    np.minimum.at(first, step, points)
    np.maximum.at(last, step, points)
    return np.where(last >= 0, first, -1), last


def _leads_to(graph: Graph, chosen: Bools) -> Bools:
    """``(n_pieces,)`` whether the next launch after a piece of host time is one of the chosen device events."""
    launched = np.flatnonzero(graph.issue_ns > NEVER)
    launched = launched[np.argsort(graph.shape.point[launched], kind="stable")]
    following = np.searchsorted(graph.shape.point[launched], graph.piece_point)
    inside = following < len(launched)
    found = np.zeros(len(graph.piece_point), dtype=np.bool_)
    found[inside] = chosen[launched[following[inside]]]
    return found


def _pieces(graph: Graph, leaves: tuple[int, ...]) -> Bools:
    chosen: Bools = np.isin(graph.piece_leaf, leaves)
    return chosen


def _host_time(graph: Graph, pieces: Bools, kept_ratio: float) -> Graph:
    """The graph with the chosen pieces of host time as long as ``kept_ratio`` of what they were."""
    if not pieces.any():
        return graph
    kept: F64 = np.where(pieces, kept_ratio * graph.piece_ns, graph.piece_ns)
    gone = np.bincount(graph.piece_point, weights=graph.piece_ns - kept, minlength=graph.shape.n_points)
    return revise(graph, host_ns=np.maximum(graph.host_ns - gone, 0.0), piece_ns=kept)


def _without_joins(graph: Graph, gone: Bools) -> Graph:
    """The graph whose host does not wait in the chosen joins, nor takes the time to wake up from them."""
    if not gone.any():
        return graph
    shape = graph.shape
    points, first = np.unique(shape.join_point[gone], return_index=True)
    host = graph.host_ns.copy()
    spent = np.minimum(graph.join_ns[gone][first], host[points])
    host[points] -= np.where(np.isfinite(spent), spent, 0.0)
    pieces = np.isin(graph.piece_point, points)
    share = np.where(graph.host_ns > 0, host / np.maximum(graph.host_ns, 1e-9), 0.0)
    return revise(
        graph,
        host_ns=host,
        piece_ns=np.where(pieces, graph.piece_ns * share[graph.piece_point], graph.piece_ns),
        join_ns=np.where(gone, NEVER, graph.join_ns),
    )
