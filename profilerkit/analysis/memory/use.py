"""Find what memory costs beside its size: allocator, page faults, host copies, zeroed gradients, offload."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from profilerkit.analysis.device.copies import TO_DEVICE, TO_HOST, are_of_memory, are_pageable, directions
from profilerkit.analysis.device.kernels import named
from profilerkit.analysis.enclosing import ThreadLine
from profilerkit.analysis.intervals import EMPTY, Spans, covered, index_at, intersect, subtract, union
from profilerkit.analysis.partition import TraceView
from profilerkit.analysis.stats import median
from profilerkit.analysis.steps.find import TraceSteps, in_step
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.steps.phases import reruns
from profilerkit.model import revise
from profilerkit.model.memory import OutOfMemory
from profilerkit.rundir.reader import RankRecord
from profilerkit.rundir.sampled import HostSample, Sample, WorkerPages
from profilerkit.trace.columns import I64, Bools, Category, TraceColumns


class ZeroedGradients(msgspec.Struct, frozen=True):
    """Gradients that are filled with zeros instead of dropped, in the steady window."""

    per_step: float
    share: float  #: of the window, the time they take the device, or leave it idle
    added_share: float  #: of the window, the time in which backward adds to gradients that are there
    #: Share of that adding which dropped gradients would not need: their first one of each step is kept as it comes.
    #: ``None`` where the operators do not tell how many gradients they fill.
    spared_ratio: float | None


class Offload(msgspec.Struct, frozen=True):
    """Copies of state that is kept on the host, per steady step.

    ``pageable_ratio`` is the share of their bytes in memory that is not pinned, ``pinned_ns`` the time of copies
    between pinned memory and the device, in the direction in which they take longer: no fix makes these quicker.
    """

    to_device_bytes: float
    to_host_bytes: float
    pageable_ratio: float
    pinned_ns: float = 0.0


class AllocatorUse(msgspec.Struct, frozen=True):
    """What torch's allocator said once per second of the judged steps."""

    samples: int  #: how many in the judged steps
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    #: Free pieces between blocks in use / reserved memory, where most is allocated: the median of the upper quarter of
    #: the samples. Between the steps' peaks free pieces are only waiting for their use.
    split_ratio: float | None = None
    rounding_bytes: int | None = None  #: allocated beyond what was asked for, where most is allocated
    rounding_ratio: float | None = None  #: that / allocated
    retries: int | None = None  #: allocations of the judged steps that succeeded only after the cache was given back


class PageFaults(msgspec.Struct, frozen=True):
    """Pages that the training thread got fresh from the system in the judged steps.

    per_step: how many.
    share: of the thread's time, that in the kernel, with as much of its waiting for a processor.
    each_ns: time in the kernel for one of them, whatever else the thread did there.
    """

    samples: int
    per_step: float
    share: float
    each_ns: float


class CopiedPages(msgspec.Struct, frozen=True):
    """Pages that one worker process shared with the process that forked it, and copied."""

    counts: int
    private_bytes: int
    shared_bytes: int
    copied_bytes: int  #: between the fork and the last count; where the fork is not known, since the first count
    #: Of that, the most between two counts. One garbage collection writes to every object of Python's.
    at_once_bytes: int
    first_step: int  #: step of the fork or of the first count
    last_step: int  #: step of the last one


class MemoryUse(msgspec.Struct, frozen=True):
    """What memory costs the judged rank beside its size."""

    zeroed: ZeroedGradients | None = None
    offload: Offload | None = None
    #: What the recomputed forward code of a step keeps for its backward pass; it would stay alive from the forward pass
    #: on if nothing were recomputed. ``None`` without memory instants.
    recomputed_bytes: int | None = None
    allocator: AllocatorUse | None = None
    #: Of the environment, empty for torch's own; ``None`` where the environment is not known.
    allocator_settings: str | None = None
    #: How the memory of the rank ran out; ``None`` where it did not, or nobody could tell.
    oom: OutOfMemory | None = None
    faults: PageFaults | None = None
    copied: CopiedPages | None = None


#: Share of the samples, those with most allocated, that represent the peaks of the steps: a sample each second falls
#: anywhere in a step (a choice).
NEAR_THE_PEAK = 0.25


def allocator_use(samples: Sequence[Sample], log: StepLog) -> AllocatorUse | None:
    """What the samples taken in the judged steps say; ``None`` where there is none, or the allocator keeps no count."""
    low, high = log.window
    inside = [known for sample in samples if (known := sample.allocator) and low <= sample.t_ns < high]
    seen = sorted((known for known in inside if known.reserved_bytes), key=lambda known: known.allocated_bytes or 0)
    if not seen:
        return None
    near = seen[-max(round(NEAR_THE_PEAK * len(seen)), 1) :]
    split = [
        known.inactive_split_bytes / known.reserved_bytes
        for known in near
        if known.inactive_split_bytes is not None and known.reserved_bytes
    ]
    allocated, requested = seen[-1].allocated_bytes, seen[-1].requested_bytes
    rounding = None if not allocated or requested is None else max(allocated - requested, 0)
    retries = [known.alloc_retries for known in seen if known.alloc_retries is not None]
    return AllocatorUse(
        samples=len(seen),
        allocated_bytes=_largest([(known.allocated_bytes, known.allocated_peak_bytes) for known in seen]),
        reserved_bytes=_largest([(known.reserved_bytes, known.reserved_peak_bytes) for known in seen]),
        split_ratio=median(np.array(split)) if split else None,
        rounding_bytes=rounding,
        rounding_ratio=None if rounding is None or not allocated else rounding / allocated,
        retries=max(retries) - min(retries) if retries else None,
    )


def _largest(pairs: Sequence[tuple[int | None, int | None]]) -> int | None:
    """The largest number told, of the moment or of a peak."""
    return max((value for pair in pairs for value in pair if value is not None), default=None)


def page_faults(samples: Sequence[Sample], log: StepLog) -> PageFaults | None:
    """The faults of the judged steps; ``None`` where no sample counts them."""
    low, high = log.window
    seen = [(sample.t_ns, sample.host) for sample in samples if sample.host is not None]
    inside = [host for (before, _), (t_ns, host) in pairwise(seen) if before >= low and t_ns <= high]
    told = [known for host in inside if (known := _told(host)) is not None]
    if not told or not log.steady.any():
        return None
    per_s, in_kernel, share = (sum(column) / len(told) for column in zip(*told, strict=True))
    return PageFaults(
        samples=len(told),
        per_step=per_s * float(log.time[log.steady].mean()) / 1e9,
        share=share,
        each_ns=in_kernel * 1e9 / per_s if per_s else 0.0,
    )


def _told(host: HostSample) -> tuple[float, float, float] | None:
    """Faults per second, share of the time in the kernel, and that with its part of the waiting for a processor."""
    faults, in_kernel, on_core = host.thread_faults_per_s, host.thread_system_ratio, host.thread_cpu_ratio
    if faults is None or in_kernel is None or on_core is None:
        return None
    queued = (host.thread_queue_ratio or 0.0) * in_kernel / on_core if on_core else 0.0
    return faults, in_kernel, min(in_kernel + queued, 1.0)


def counted_pages(samples: Sequence[Sample], workers: Collection[int]) -> list[tuple[int, WorkerPages]]:
    """When the pages of a worker were counted, ns, and what was found: of the one that was counted most often."""
    every = [(sample.t_ns, pages) for sample in samples if sample.host and (pages := sample.host.worker_pages)]
    seen = [(t_ns, pages) for t_ns, pages in every if pages.pid in workers]
    most = Counter(pages.pid for _, pages in seen).most_common(1)
    return [(t_ns, pages) for t_ns, pages in seen if pages.pid == most[0][0]]


def copied_pages(samples: Sequence[Sample], log: StepLog, workers: Collection[int]) -> CopiedPages | None:
    """What a worker copied since it was forked, or else since the first count; ``None`` where only one is known."""
    counted = counted_pages(samples, workers)
    seen = counted if (begun := _at_the_fork(samples, counted)) is None else [begun, *counted]
    if len(seen) < 2:
        return None
    private = np.array([pages.private_bytes for _, pages in seen], dtype=np.int64)
    own = np.array([pages.anonymous_bytes for _, pages in seen], dtype=np.int64)
    # What is new was never shared.
    copied = np.diff(private) - np.maximum(np.diff(own), 0)
    at_ns = np.array([t_ns for t_ns, _ in seen], dtype=np.int64)
    step = np.interp(at_ns, log.start, log.index)
    return CopiedPages(
        counts=len(counted),
        private_bytes=int(private[-1]),
        shared_bytes=max(int(own[-1] - private[-1]), 0),
        copied_bytes=int(copied.sum()),
        at_once_bytes=int(copied.max()),
        first_step=round(float(step[0])),
        last_step=round(float(step[-1])),
    )


def _at_the_fork(
    samples: Sequence[Sample], counted: Sequence[tuple[int, WorkerPages]]
) -> tuple[int, WorkerPages] | None:
    """Return the worker's pages as it began: those of the training process, all shared; ``None`` where not known."""
    if not counted or counted[0][1].private_bytes >= counted[0][1].anonymous_bytes / 2:
        return None
    t_ns, first = counted[0]
    before = [(sample.t_ns, sample.host.process_own_bytes) for sample in samples if sample.host and sample.t_ns < t_ns]
    at_ns, own = before[-1] if before else (t_ns, None)
    return None if own is None else (at_ns, WorkerPages(first.pid, own, 0))


#: The optimizer's own annotation, and the frame of a module's method, which has none.
_CLEARS = re.compile(r"^Optimizer\.zero_grad#|\.py\(\d+\): zero_grad$")
_FILLS = re.compile(r"^aten::(?:zero_|_foreach_zero_)$")
_FILLS_MANY = re.compile(r"^aten::_foreach_zero_$")
_ACCUMULATES = re.compile(r"^torch::autograd::AccumulateGrad$")
_ADDS = re.compile(r"^aten::add_$")


def zeroed_gradients(view: TraceView) -> ZeroedGradients | None:
    """What filling the gradients costs in the steady steps; ``None`` where no call clears any there.

    With torch 2.13 dropped gradients leave a call without operators, and backward keeps the first gradient of each
    parameter instead of adding it: both kinds of operators are gone.
    """
    columns, window = view.columns, view.steps.steady
    line = ThreadLine.of(columns)
    if line is None or not len(window):
        return None
    issuing = view.steps.by_host.steady

    def judged(pattern: re.Pattern[str], *categories: Category) -> I64:
        rows = np.flatnonzero(named(columns, pattern, *categories))
        return rows[covered(issuing, columns.ts_ns[rows])]

    calls = judged(_CLEARS, Category.ANNOTATION, Category.PYTHON)
    if not len(calls):
        return None
    fills = _within(columns, line, judged(_FILLS, Category.CPU_OP), calls)
    adds = _within(columns, line, judged(_ADDS, Category.CPU_OP), judged(_ACCUMULATES, Category.CPU_OP))
    length = max(window.total_ns, 1)
    each = not named(columns, _FILLS_MANY, Category.CPU_OP)[fills].any()
    filling = _work(view, line, fills)
    adding = subtract(_work(view, line, adds), filling)
    return ZeroedGradients(
        per_step=len(fills) / len(window),
        share=filling.total_ns / length,
        added_share=adding.total_ns / length,
        spared_ratio=min(len(fills) / len(adds), 1.0) if each and len(adds) else None,
    )


def _within(columns: TraceColumns, line: ThreadLine, rows: I64, around: I64) -> I64:
    """Those of ``rows`` that start within one of ``around`` on its thread, and lie in no other of them."""
    if not len(rows) or not len(around):
        return rows[:0]
    rows = rows[covered(line.spans(columns, around), line.extents(columns, rows)[0])]
    start, end = line.extents(columns, rows)
    order = np.lexsort((-end, start))
    nested = np.zeros(len(rows), dtype=np.bool_)
    nested[order[1:]] = end[order[1:]] <= np.maximum.accumulate(end[order])[:-1]
    return rows[~nested]


def _work(view: TraceView, line: ThreadLine, operators: I64) -> Spans:
    """When the operators run; with a device, when what they launched runs, or nothing while they are issued."""
    if not len(operators):
        return EMPTY
    columns, launches, window = view.columns, view.launches, view.steps.steady
    issuing = intersect(union(columns.ts_ns[operators], columns.end_ns[operators]), window)
    if view.device_rows is None:
        return issuing
    rows = np.flatnonzero(view.device_rows & (launches >= 0))
    call = launches[rows]
    mine = rows[covered(line.spans(columns, operators), line.place(columns.thread[call], columns.ts_ns[call]))]
    ran, idle = union(columns.ts_ns[mine], columns.end_ns[mine]), subtract(issuing, view.busy)
    return intersect(union(np.r_[ran.start, idle.start], np.r_[ran.end, idle.end]), window)


def offloaded(columns: TraceColumns, rows: I64, count: int) -> Offload | None:
    """The offload copies ``rows`` of the steady window, per step of ``count``; ``None`` without any.

    Copies of unknown size count as empty.
    """
    if not len(rows):
        return None
    direction, size = directions(columns, rows), np.maximum(columns.bytes[rows], 0)
    pageable, total = are_pageable(columns, rows), int(size.sum())
    time = np.where(are_of_memory(columns, rows, "pinned"), columns.dur_ns[rows], 0)
    return Offload(
        to_device_bytes=int(size[direction == TO_DEVICE].sum()) / count,
        to_host_bytes=int(size[direction == TO_HOST].sum()) / count,
        pageable_ratio=int(size[pageable].sum()) / total if total else float(pageable.mean()),
        pinned_ns=max(int(time[direction == way].sum()) for way in (TO_DEVICE, TO_HOST)) / count,
    )


def recomputed_bytes(columns: TraceColumns, steps: TraceSteps, on_device: Bools) -> int | None:
    """Bytes that the recomputed forward code of a steady step leaves allocated, all its stretches together, mean.

    Backward frees them again before the next stretch is recomputed, so that they are never alive at once. ``None``
    without memory instants.
    """
    instants = columns.memory
    step = in_step(instants.ts_ns, steps.start, steps.end)
    judged = on_device & (step >= 0)
    judged[judged] = steps.judged[step[judged]]
    if not judged.any():
        return None
    found = reruns(columns)
    if found is None or not len(found[1]):
        return 0
    line, again = found
    place = line.place(instants.thread[judged], instants.ts_ns[judged])
    inside = covered(again, place)
    left = np.zeros(len(again), dtype=np.int64)
    np.add.at(left, index_at(again, place[inside]), instants.bytes[judged][inside])
    return int(np.maximum(left, 0).sum()) // max(len(steps.steady), 1)


def memory_use_of(
    known: MemoryUse, record: RankRecord | None, log: StepLog | None, environment: Mapping[str, str] | None
) -> MemoryUse:
    """What a trace knows, with what a rank's samples and the run's environment tell."""
    settings = None
    if environment is not None:  # the name without CUDA, of torch 2.9, wins
        settings = environment.get("PYTORCH_ALLOC_CONF") or environment.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    if record is None or log is None:
        return revise(known, allocator_settings=settings, oom=record.oom if record else None)
    return revise(
        known,
        allocator_settings=settings,
        oom=record.oom,
        allocator=allocator_use(record.samples, log),
        faults=page_faults(record.samples, log),
        copied=copied_pages(record.samples, log, {worker.pid for worker in record.workers}),
    )
