"""What the run was, what its loader's workers did, and how far the recording can be trusted."""

from typing import Literal

import msgspec

from profilerkit.model.finding import Source


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the training DataLoader; ``None`` means not known.

    ``is_iterable`` is whether torch reads its dataset as a stream, which may have a length all the same.
    """

    kind: str
    num_workers: int | None = None
    batch_size: int | None = None
    pin_memory: bool | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    dataset_len: int | None = None
    is_iterable: bool | None = None


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of evidence and whether this recording has it.

    ``reason`` says why it is missing or what is weak about it; ``hint`` how to record it.
    """

    name: str
    state: Literal["measured", "partial", "missing"]
    reason: str = ""
    hint: str = ""


#: How a run ended: as planned; by an exception or an exit code; by Ctrl-C; without an end record by a process that is
#: gone; not at all yet; one of the last two, where nothing shows which; or before the disk took any record.
EndKind = Literal["finished", "failed", "interrupted", "killed", "running", "unknown", "refused"]

INPUT_WAIT = "input wait"  #: the signal of a run in which the fetches of batches were seen
OPERATOR_TRACE = "operator trace"  #: the signal of a trace that shows which operators ran
STEP_TIMERS = "step timers, every step"  #: the signal of a run whose steps were all timed, not only those in a trace


class CaptureCost(msgspec.Struct, frozen=True, kw_only=True):
    """What the recording itself cost the judged rank, measured by itself; ``None`` means not measured.

    Attributes:
        start_ns: time until the loop could begin.
        close_ns: time from the end of the loop until the recording was complete, without the analysis.
        windows_ns: time the loop stood still for trace windows, all of them together.
    """

    per_step_ns: float | None = None
    start_ns: int | None = None
    close_ns: int | None = None
    windows_ns: int | None = None


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """How far the numbers can be trusted.

    Attributes:
        mode: ``gpu`` when device events were read, ``cpu`` when the main thread is treated as the device,
            ``steps`` when only step timers exist, ``logs`` when there are not even steps.
        damaged: files or rank directories whose trace lost its end or events.
        inflation_ratio: profiled / unprofiled step time; ``None`` when not measured.
        overhead_ratio: capture's own light-tier cost / step time; ``None`` when not measured.
    """

    mode: Literal["gpu", "cpu", "steps", "logs", "dumps"]
    events: int = 0
    repaired: int = 0
    dropped: int = 0
    truncated: bool = False
    another_follows: bool = False
    damaged: tuple[str, ...] = ()
    inflation_ratio: float | None = None
    overhead_ratio: float | None = None
    cost: CaptureCost | None = None
    signals: tuple[Signal, ...] = ()
    notes: tuple[str, ...] = ()


#: The signals of which a report keeps the samples: of the device where one was sampled, else of the host.
DEVICE_STRIPS = ("gpu.utilization", "gpu.sm_clock", "gpu.power", "gpu.temperature")
HOST_STRIPS = ("host.cpu", "host.thread_queue", "host.process_memory")


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one signal in order, for a figure; of many the means of neighbours.

    Attributes:
        at_ns: when they were taken, since the first step began and negative before it, in whole ms; of a log without
            steps since its first sample.
        values: what they said, with four digits.
        timed: whether the samples have times; otherwise ``at_ns`` counts them, a second for each.
    """

    at_ns: tuple[int, ...]
    values: tuple[float, ...]
    timed: bool = True


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A sampled signal in summary, for example ``gpu.utilization``; ``unit`` as in ``Evidence``.

    ``slope_per_s`` is derived: the straight line closest to all samples of a memory, in ``unit`` per second; ``None``
    for other signals and for few samples.
    ``strip`` is ``None`` but for the signals of the figure, and where no step was timed beside a recording.
    ``device`` names the device of a sampler's log; ``None`` for a rank's own.
    """

    name: str
    unit: str
    n: int
    mean: float
    p10: float
    p90: float
    maximum: float
    rank: int | None = None
    slope_per_s: float | None = None
    device: str | None = None
    strip: Strip | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What was run, where, with which settings.

    Attributes:
        name: what a person calls it: the directory or file name.
        kind: ``run`` for a run directory, ``trace`` for files somebody sent, ``logs`` for files without steps,
            ``dumps`` for those of flight recorders.
        left_out: files beside them that cannot be read, each with the reason: at most three of a kind, then a count.
        ended: how the recording ended, for example ``finished`` or ``KeyError: 'x'``; ``None`` when unknown.
        ending: the kind of its end; ``None`` when unknown, as of a trace alone.
        failure: which rank failed first and which left no word of its end, in whole sentences; ``None`` when every rank
            ended as planned, or it is not known.
        messages: what those two quote of exceptions and exits, whole; empty in a redacted report.
        versions: package or driver to version.
        settings: capture settings and allow-listed environment, as text: ``{"trace_steps": "10"}``.
        usable_cores: of the host, divided among its ranks; ``None`` when unknown.
        host_ranks: recorded ranks on the judged rank's host, which share its cores; ``None`` when unknown.
        redacted: names of people and machines, paths and secrets were left out of this report.
    """

    name: str
    kind: Literal["run", "trace", "logs", "dumps"]
    files: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    profilerkit_version: str
    created: str
    world_size: int | None = None
    ranks: tuple[int, ...] = ()
    missing_ranks: int | None = None
    ended: str | None = None
    ending: EndKind | None = None
    failure: str | None = None
    messages: tuple[str, ...] = ()
    command: str | None = None
    devices: tuple[str, ...] = ()
    loader: Loader | None = None
    batch_size: int | None = None
    batches_per_step: float | None = None
    versions: dict[str, str] = {}
    settings: dict[str, str] = {}
    samples: tuple[Series, ...] = ()
    processors: tuple[str, ...] = ()
    usable_cores: float | None = None
    host_ranks: int | None = None
    redacted: bool = False


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
        active: of those, the ones that still had data, mean over the time: so many make batches as fast as these do.
        producer_ns: work on one batch: samples, collate, and of the hand-over its CPU and run-queue time.
        stages: the same by stage, with what the hand-over was blocked.
        variation_ratio: standard deviation / mean of ``producer_ns`` over the batches.
        read_bytes: read through files for a batch, from the page cache or from storage.
        memory_bytes: taken by the largest worker since it started; an estimate for a forked one.
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
