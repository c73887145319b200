"""The judged batches through the loader's queue again: deeper prefetch, more workers, less work, or out of order."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.intervals import I64
from profilerkit.analysis.workers.batches import Fetches, stage_times
from profilerkit.analysis.workers.capacity import MOST_WORKERS
from profilerkit.analysis.workers.loading import QueueFacts
from profilerkit.analysis.workers.queue_model import replay_queue
from profilerkit.model.change import revise

#: Prefetch that is tried: more than 8 takes memory for little.
PREFETCHES = (2, 4, 8)
#: Parts of the work on each batch that are tried without.
CHEAPER = (0.25, 0.5, 0.75, 1.0)
#: The last fetches only, to bound the time: 20 replays of so many take 0.2 s.
MOST_FETCHES = 2_000
#: Batches put through the queue before a stretch that does not begin with an epoch: it starts as full as it was.
WARM_BATCHES = 256
#: Fewer fetches than this tell nothing of a queue (a choice: two rounds of four workers with their prefetch).
FEWEST_FETCHES = 16
#: A batch is slow beyond this multiple of the median.
SLOW_BATCH = 2.0


class _Stretch(msgspec.Struct, frozen=True):
    """Fetches one after the other in one epoch, ``(n,)`` int64 ns each.

    Attributes:
        making: work of the worker on each batch.
        using: of the loop, until the next fetch.
        waits: the fetches.
        cpu: what the loop's thread computed meanwhile; -1 where that was not read.
        lay_ready: fetches whose batch had been handed over before.
        first: number of the first batch in its epoch.
        start_ns: until a worker began with it; ``None`` past the beginning of the epoch.
    """

    making: I64
    using: I64
    waits: I64
    cpu: I64
    lay_ready: npt.NDArray[np.bool_]
    first: int
    start_ns: int | None


def queue_facts(
    fetches: Fetches,
    records: npt.NDArray[np.void],
    *,
    workers: int,
    prefetch: int,
    delivery_ns: int | None,
    pinned: bool = False,
) -> QueueFacts | None:
    """Replay the judged fetches; ``None`` where too few of them follow each other.

    Args:
        fetches: judged, by start.
        records: the batches of all workers.
        workers: of the loader.
        prefetch: of the loader, per worker.
        delivery_ns: from the end of collating to the loop, median of the batches it waited for; ``None`` if there were
            none.
        pinned: a thread of the training process pins the batches, and the loop waits for it.
    """
    stretches = _stretches(fetches, records)
    count = sum(len(stretch.waits) for stretch in stretches)
    if count < FEWEST_FETCHES:
        return None
    waits = np.concatenate([stretch.waits for stretch in stretches])
    making = np.concatenate([stretch.making for stretch in stretches])
    lay_ready = np.concatenate([stretch.lay_ready for stretch in stretches])
    # A batch that lies ready is received in this time; the loop spends it whatever the workers do.
    # Where none ever did, receiving one is part of its delivery.
    receiving = int(np.median(waits[lay_ready])) if lay_ready.any() else min(int(waits.min()), delivery_ns or 0)
    delivery = max((delivery_ns or 0) - receiving, 0)
    unanswered = 0 if pinned else _unanswered(stretches, receiving)

    def time_ns(workers: int, prefetch: int, *, in_order: bool = True, kept: float = 1.0) -> int:
        received = receiving - round(unanswered * (1.0 - kept))
        return sum(
            _replayed(stretch, received, delivery, workers=workers, prefetch=prefetch, in_order=in_order)
            for stretch in (stretches if kept == 1.0 else [_with_less(stretch, kept) for stretch in stretches])
        )

    now = max(time_ns(workers, prefetch), 1)
    measured = max(int(waits.sum()) + sum(int(stretch.using.sum()) for stretch in stretches), 1)
    slow = making > SLOW_BATCH * np.median(making)
    return QueueFacts(
        batches=count,
        error_ratio=now / measured - 1.0,
        by_prefetch={depth: 1.0 - time_ns(workers, depth) / now for depth in PREFETCHES if depth > prefetch},
        by_workers={more: 1.0 - time_ns(more, prefetch) / now for more in range(workers + 1, MOST_WORKERS + 1)},
        out_of_order=1.0 - time_ns(workers, prefetch, in_order=False) / now,
        slow_ratio=float(waits[slow].sum()) / max(int(waits.sum()), 1),
        by_cheaper={less: 1.0 - time_ns(workers, prefetch, kept=1.0 - less) / now for less in CHEAPER},
    )


def _unanswered(stretches: Sequence[_Stretch], receiving: int) -> int:
    """The part of ``receiving``, ns, in which the loop's thread computes nothing.

    The worker that made the batch has to hand over the memory too, on a thread that waits for the interpreter's lock:
    a worker that holds it while it makes the next batch answers when that is done.
    """
    cpu = np.concatenate([stretch.cpu[stretch.lay_ready] for stretch in stretches])
    known = cpu[cpu >= 0]
    return max(receiving - int(np.median(known)), 0) if len(known) else 0


def _with_less(stretch: _Stretch, kept: float) -> _Stretch:
    """The stretch with this part of the work on each batch."""
    return revise(stretch, making=(stretch.making * kept).astype(np.int64))


def _replayed(stretch: _Stretch, receiving: int, delivery: int, *, workers: int, prefetch: int, in_order: bool) -> int:
    """Time of the stretch in the queue, ns; one that does not begin with an epoch comes behind some of itself."""
    warm = 0 if stretch.start_ns is not None else min(len(stretch.making), WARM_BATCHES)
    before = slice(len(stretch.making) - warm, None)
    found = replay_queue(
        np.r_[stretch.making[before], stretch.making],
        np.r_[stretch.using[before], stretch.using] + receiving,
        workers=workers,
        prefetch=prefetch,
        delivery_ns=delivery,
        start_ns=stretch.start_ns or 0,
        in_order=in_order,
        first=stretch.first - warm,
    )
    return found.end_ns - int(found.asked[warm])


def _stretches(fetches: Fetches, records: npt.NDArray[np.void]) -> list[_Stretch]:
    """The last fetches, cut where a batch is not the one after the batch before: at epochs, and where some are missing.

    What follows the last fetch of a stretch is not known to be the loop's own time: it counts as the median.
    """
    rows = np.flatnonzero(fetches.row >= 0)[-MOST_FETCHES:]
    if len(rows) < FEWEST_FETCHES:
        return []
    number, start, end = fetches.batch[rows], fetches.start[rows], fetches.end[rows]
    made = records[fetches.row[rows]]
    samples, collate, handover = (stage_times(made, stage) for stage in ("samples", "collate", "handover"))
    making = np.maximum(samples.wall + collate.wall, handover.wall - handover.blocked)
    follows = (np.diff(number) == 1) & (np.diff(rows) == 1)
    using = np.r_[np.maximum(start[1:] - end[:-1], 0), 0]
    known = np.r_[follows, False]
    if not known.any():
        return []
    using[~known] = round(float(np.median(using[known])))
    edges = np.r_[0, np.flatnonzero(~follows) + 1, len(rows)]
    begun = made["start"].astype(np.int64)
    lay_ready = begun + samples.wall + collate.wall + handover.wall <= start
    return [
        _Stretch(
            making=making[low:high],
            using=using[low:high],
            waits=(end - start)[low:high],
            cpu=fetches.cpu[rows[low:high]],
            lay_ready=lay_ready[low:high],
            first=int(number[low]),
            start_ns=max(int(begun[low] - start[low]), 0) if number[low] == 0 else None,
        )
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
