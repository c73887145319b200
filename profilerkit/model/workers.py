"""What the worker processes of a data loader did, batch by batch."""

from typing import Literal

import msgspec

from profilerkit.model.finding import Source

#: Kinds of time that a batch takes to be made, in order: waiting for what is read, computing the samples, waiting for a
#: core, joining the samples to a batch, handing it to the training process.
WorkerPartName = Literal["fetch", "prep", "core", "collate", "handover"]

#: The words for each.
WORKER_PARTS: dict[WorkerPartName, str] = {
    "fetch": "Blocked while the samples are read",
    "prep": "Computing the samples",
    "core": "Waiting for a core",
    "collate": "Joining the samples to a batch",
    "handover": "Handing the batch over",
}


class WorkerPart(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of time in making a batch, mean per batch. The parts sum to ``Workers.producer_ns``.

    ``core`` is left out where the kernel does not keep it.
    """

    part: WorkerPartName
    time_ns: int
    share: float
    source: Source = "measured"


class WorkerStage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a batch, mean ns. ``run_queue_ns`` is ``None`` where the kernel does not keep it.

    ``blocked_ns`` is the rest of ``time_ns``: neither computing nor, where that is known, waiting for a core. In the
    hand-over it is mostly waiting for room in the queue.
    """

    stage: Literal["samples", "collate", "handover"]
    time_ns: int
    cpu_ns: int
    run_queue_ns: int | None
    blocked_ns: int


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """The batches that the judged steps were fed with, and the processes that made them. ``None``: not measured.

    Attributes:
        count: processes at one time.
        active: of those, the ones that still had data, mean over the time: so many make batches as fast as these do.
        batches: judged.
        batches_per_step: fetched in a judged step, mean.
        producer_ns: work on one batch: samples, collate, and of the hand-over its CPU and run-queue time.
        interval_ns: of one worker, per batch: the hand-over runs beside the next batch.
        cpu_ns: CPU time of one batch.
        parts: of ``producer_ns``, in a fixed order.
        stages: the same by stage, with what the hand-over was blocked.
        busy_ratio: share of the workers' time in which they had a batch to make.
        cpu_cores: cores that all workers kept busy, mean over the judged steps.
        variation_ratio: standard deviation / mean of ``producer_ns`` over the batches.
        p99_ns: of ``producer_ns``; ``None`` below 100 batches.
        batch_bytes: tensors and arrays in a batch.
        read_bytes: read through files for a batch, from the page cache or from storage.
        storage_bytes: of those, from storage.
        read_bytes_per_s: all workers together.
        memory_bytes: taken by the largest worker since it started; an estimate for a forked one.
        queue_empty_ratio: fetches that found no batch ready.
        queue_ready: batches ready as a fetch begins, mean.
        queue_p10: the same, 10th percentile.
        queue_p90: the same, 90th percentile.
        waited_ratio: share of the steps' wait in which the awaited batch was: not begun, in each stage, or on its way
            to the training process; empty where the steps hardly wait.
        locked_ratio: of the moments at which a blocked worker was looked at, those at which it waited for a lock.
        delivery_ns: from the end of collating to the training loop, median of the batches it waited for.
    """

    count: int
    batches: int
    batches_per_step: float
    producer_ns: int
    interval_ns: int
    cpu_ns: int
    parts: tuple[WorkerPart, ...]
    stages: tuple[WorkerStage, ...]
    active: float | None = None
    busy_ratio: float | None = None
    cpu_cores: float | None = None
    variation_ratio: float | None = None
    p99_ns: int | None = None
    batch_bytes: int | None = None
    read_bytes: int | None = None
    storage_bytes: int | None = None
    read_bytes_per_s: float | None = None
    memory_bytes: int | None = None
    queue_empty_ratio: float | None = None
    queue_ready: float | None = None
    queue_p10: float | None = None
    queue_p90: float | None = None
    waited_ratio: dict[str, float] = {}
    locked_ratio: float | None = None
    delivery_ns: int | None = None

    @property
    def awaited_ratio(self) -> float | None:
        """Of the steps' wait, the share in which its batch was not sent yet; ``None`` where they hardly wait."""
        return 1.0 - self.waited_ratio.get("arriving", 0.0) if self.waited_ratio else None

    @property
    def at_work(self) -> float:
        """Workers that make batches at one time: those that still have data, where that is known."""
        return max(self.count if self.active is None else self.active, 1.0)

    @property
    def pace_ns(self) -> float:
        """Return the time in which the workers at work make the batches of a step."""
        return self.interval_ns * self.batches_per_step / self.at_work

    def share(self, *parts: WorkerPartName) -> float:
        """Return the share of ``producer_ns`` that these parts own."""
        return sum(part.share for part in self.parts if part.part in parts)

    def time_ns(self, *parts: WorkerPartName) -> int:
        """Return the time of these parts, ns per batch."""
        return sum(part.time_ns for part in self.parts if part.part in parts)
