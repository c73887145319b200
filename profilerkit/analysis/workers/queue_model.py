"""The queue between a DataLoader's workers and the training loop, replayed as torch runs it.

Torch gives batch i to worker i mod W, keeps W · prefetch batches under way, issues one more each time the loop receives
one, and hands batches over in their order (``_try_put_index`` and ``_next_data`` of ``_MultiProcessingDataLoaderIter``
in torch 2.13). Out of order it hands over what arrives first and gives the next batch to the first worker in turn that
has fewer than ``prefetch`` of them.
"""

import msgspec
import numpy as np

from profilerkit.analysis.intervals import I64


class Replayed(msgspec.Struct, frozen=True):
    """One iteration of a loader, in the order in which the loop got the batches; times from its start.

    Attributes:
        batch: ``(n,)`` int64, number of the batch that each fetch got.
        asked: ``(n,)`` int64 ns, when the loop asked.
        received: ``(n,)`` int64 ns, when it had the batch.
        end_ns: when it had used the last one.
    """

    batch: I64
    asked: I64
    received: I64
    end_ns: int

    @property
    def waits(self) -> I64:
        """``(n,)`` int64 ns, what each fetch took."""
        waits: I64 = self.received - self.asked
        return waits


def replay_queue(
    making: I64,
    using: I64,
    *,
    workers: int,
    prefetch: int = 2,
    delivery_ns: int = 0,
    start_ns: int = 0,
    in_order: bool = True,
    first: int = 0,
) -> Replayed:
    """Run one iteration of a loader: what the loop waits when batch i takes ``making[i]`` and is used ``using[i]``.

    Without workers each batch is made while the loop waits. Exact integer arithmetic, O(n) in the order of the sampler;
    out of order O(n · batches under way).

    Args:
        making: ``(n,)`` int64 ns of one worker for each batch, in the order of the sampler.
        using: ``(n,)`` int64 ns from one fetch to the next, by position in the loop.
        workers: processes; 0 for none.
        prefetch: batches under way per worker, at least 1.
        delivery_ns: from when a batch is made until the loop can have it; the worker makes the next one meanwhile.
        start_ns: before the workers begin, as they are started.
        in_order: batches are handed over in the order of the sampler.
        first: number in its epoch of the first of these batches, which says whose turn it is.

    >>> slow_first = np.array([90, 10, 10, 10])
    >>> replay_queue(slow_first, np.full(4, 20), workers=2).waits.tolist()
    [90, 0, 0, 0]
    >>> replay_queue(slow_first, np.full(4, 20), workers=2, in_order=False).batch.tolist()
    [1, 3, 0, 2]
    """
    if not workers:
        return _alone(making, using)
    times, uses = making.tolist(), using.tolist()
    queue = _Queue(times, workers=workers, prefetch=prefetch, delivery_ns=delivery_ns, start_ns=start_ns, turn=first)
    pick = queue.next_in_order if in_order else queue.first_ready
    batch, asked, received = [], [], []
    now = 0
    for _, use in zip(times, uses, strict=True):
        number, ready = pick()
        batch.append(number)
        asked.append(now)
        now = max(now, ready)
        received.append(now)
        queue.returned(number, now)
        now += use
    return Replayed(
        batch=np.array(batch, dtype=np.int64),
        asked=np.array(asked, dtype=np.int64),
        received=np.array(received, dtype=np.int64),
        end_ns=now,
    )


def _alone(making: I64, using: I64) -> Replayed:
    received = np.cumsum(making + using) - using
    return Replayed(
        batch=np.arange(len(making), dtype=np.int64),
        asked=received - making,
        received=received,
        end_ns=int((making + using).sum()),
    )


class _Queue:
    """Batches under way: issued to a worker and not yet received."""

    def __init__(
        self, times: list[int], *, workers: int, prefetch: int, delivery_ns: int, start_ns: int, turn: int
    ) -> None:
        self._times = times
        self._delivery_ns = delivery_ns
        self._prefetch = prefetch
        self._free = [start_ns] * workers  # when each worker has made all that it was given
        self._held = [0] * workers  # batches of each that the loop has not received
        self._worker: dict[int, int] = {}  # of the batches under way
        self._ready: dict[int, int] = {}
        self._turn = turn % workers
        self._issued = self._next = 0
        self._is_ordered = True
        for _ in range(min(workers * prefetch, len(times))):
            self._issue(0)

    def next_in_order(self) -> tuple[int, int]:
        """The next batch of the sampler, and when the loop can have it."""
        number, self._next = self._next, self._next + 1
        return number, self._ready.pop(number)

    def first_ready(self) -> tuple[int, int]:
        """The batch that can be had first; of two the one issued first."""
        self._is_ordered = False
        number = min(self._ready, key=lambda known: (self._ready[known], known))
        return number, self._ready.pop(number)

    def returned(self, number: int, now: int) -> None:
        """The loop has received a batch: another one is issued."""
        self._held[self._worker.pop(number)] -= 1
        if self._issued < len(self._times):
            self._issue(now)

    def _issue(self, now: int) -> None:
        worker = self._turn
        while not self._is_ordered and self._held[worker] >= self._prefetch:
            worker = (worker + 1) % len(self._free)
        self._turn = (worker + 1) % len(self._free)
        number, self._issued = self._issued, self._issued + 1
        self._free[worker] = max(self._free[worker], now) + self._times[number]
        self._held[worker] += 1
        self._worker[number] = worker
        self._ready[number] = self._free[worker] + self._delivery_ns
