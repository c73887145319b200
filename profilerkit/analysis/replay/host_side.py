"""What the host did in the replayed steps: pieces of time by cause, and when it got its batches."""

import msgspec
import numpy as np

from profilerkit.analysis.host.activity import HostActivity
from profilerkit.analysis.host.names import HostNames
from profilerkit.analysis.intervals import I64, Segments, Spans, paint, union, with_label
from profilerkit.analysis.leaves import LEAVES
from profilerkit.analysis.replay.device_side import Scope
from profilerkit.analysis.replay.graph import F64, Bools
from profilerkit.trace.columns import TraceColumns

#: Getting a batch that is there takes no longer than this; what is beyond is waiting for the workers (a choice: a queue
#: and a tensor in shared memory take 50 to 200 µs).
LONGEST_HANDOVER_NS = 200_000
#: Share of the steps from which such waits say that the workers do not keep up; less is a hiccup (the least that rules
#: speak of).
SMALLEST_WAIT = 0.02

#: The label of time in which the host waited; it is no part.
_WAITING = len(LEAVES)


class Fetches(msgspec.Struct, frozen=True):
    """When the main thread got its batches, ``(n_fetches,)`` int64 ns.

    Attributes:
        start: when it asked, ``end`` when it had the batch.
        asked: when waiting for worker processes began; ``end`` where it did not wait.
        waited: bool, whether it waited for worker processes.
    """

    start: I64
    end: I64
    asked: I64
    waited: Bools


def fetches_of(columns: TraceColumns, names: HostNames, host: HostActivity, scope: Scope) -> Fetches:
    """The fetches that end within the steps; none where no event shows them."""
    rows = host.thread(host.main).fed.rows if host.main >= 0 else np.zeros(0, np.int64)
    rows = rows[(columns.ts_ns[rows] >= scope.start_ns) & (columns.end_ns[rows] <= scope.end_ns)]
    spans = union(columns.ts_ns[rows], columns.end_ns[rows])
    parallel = np.sort(columns.ts_ns[rows[names.multi_process[columns.name[rows]]]])
    by_workers = np.searchsorted(parallel, spans.end) > np.searchsorted(parallel, spans.start)
    length = spans.end - spans.start
    handover = min(int(length[by_workers].min(initial=LONGEST_HANDOVER_NS)), LONGEST_HANDOVER_NS)
    waited = by_workers & (length > handover + LONGEST_HANDOVER_NS)
    waited &= length[waited].sum() >= SMALLEST_WAIT * (scope.end_ns - scope.start_ns)
    return Fetches(spans.start, spans.end, np.where(waited, spans.start + handover, spans.end), waited)


class Pieces(msgspec.Struct, frozen=True):
    """The host's time between points by cause; arrays as in ``Graph``."""

    host_ns: F64
    point: I64
    leaf: I64
    ns: F64


def pieces_of(points: I64, waiting: Spans, did: list[Segments]) -> Pieces:
    """Cut what was done at the points, without what was waiting.

    Args:
        points: ``(n_points,)`` moments, sorted and distinct.
        waiting: when the host waited.
        did: what it did beside, in layers that cover all of the time.
    """
    told = paint(Spans(points[:-1], points[1:]), [with_label(waiting, _WAITING), *did])
    works = (told.label != _WAITING) & (told.label >= 0)
    point = np.searchsorted(points, told.start[works], side="right")
    ns = (told.end - told.start)[works].astype(np.float64)
    host = np.bincount(point, weights=ns, minlength=len(points)).astype(np.float64)
    return Pieces(host, point, told.label[works], ns)


def did_by_others(host: HostActivity, points: I64, thread: I64) -> list[Segments]:
    """What threads beside the main one did before the points that they come to.

    Forward and backward threads hand over to each other and never run at the same time, so that their time is one line.

    Args:
        host: the threads.
        points: ``(n_points,)`` moments, sorted.
        thread: ``(n_points,)`` the thread of each, -1 for the main one.
    """
    layers = []
    for key in np.unique(thread[thread >= 0]).tolist():
        if key != host.main:
            own = np.flatnonzero(thread[1:] == key)
            layers.append(host.did(points[own], points[own + 1], key))
    return layers
