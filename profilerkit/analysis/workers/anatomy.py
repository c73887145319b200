"""Follow the batches of worker processes: what their time goes to, and how evenly they are made."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.events import EVENT_DTYPE, NOT_A_WAIT
from profilerkit.analysis.intervals import Spans, time_within, union
from profilerkit.analysis.steps.find import in_step
from profilerkit.analysis.steps.log import StepLog
from profilerkit.model.finding import Source
from profilerkit.model.run import WorkerPart, WorkerPartName, Workers, WorkerStage
from profilerkit.rundir.layout import UNKNOWN_US, EventFlag, EventKind, WorkerState
from profilerkit.rundir.reader import RankRecord, WorkerRecord
from profilerkit.trace.columns import I64

_STAGES = ("samples", "collate", "handover")
#: numpy twin of ``rundir.layout.WORKER``: times of each stage are wall, CPU and run queue.
WORKER_DTYPE = np.dtype(
    [
        *(("start", "<i8"), ("batch", "<i4"), ("items", "<u4"), ("idle", "<u4")),
        *((stage, "<u4", (3,)) for stage in _STAGES),
        *((name, "<i8") for name in ("read", "stored", "size", "memory")),
    ]
)
#: Between two looks at the queue lie at least so many fetches where capture has left some out; fewer where another
#: loader is fetched from meanwhile. It leaves out 448 of each 512, earlier 192 of each 256, and all once looking has
#: become too dear.
_LEFT_OUT = 128


class Fetches(msgspec.Struct, frozen=True):
    """The judged fetches of batches from workers, all arrays ``(n_fetches,)``."""

    start: I64
    end: I64
    cpu: I64
    ready: I64
    pid: I64
    row: I64
    batch: I64
    count: float


def judged_fetches(events: bytes, log: StepLog, records: npt.NDArray[np.void], pids: I64) -> Fetches:
    """The fetches in steady steps whose loader has workers; ``records`` and ``pids`` are of all workers' batches."""
    table = np.frombuffer(events, dtype=EVENT_DTYPE)
    looks = table[(table["kind"] == EventKind.QUEUE) & ((table["flags"] & EventFlag.OTHER_THREAD) == 0)]
    waits = table[(table["kind"] == EventKind.WAIT) & ((table["flags"] & EventFlag.OTHER_THREAD) == 0)]
    waits = waits[np.argsort(waits["start"], kind="stable")]
    looks = looks[np.argsort(looks["start"], kind="stable")]
    # A look is the last thing before its fetch: it is of the first fetch that ends after it, whatever fetch that is.
    ends, at = waits["start"].astype(np.int64) + waits["dur"], looks["start"].astype(np.int64)
    held = np.searchsorted(ends, at, side="right")
    step = in_step(waits["start"], log.start, log.stop)
    judged = ((waits["flags"] & NOT_A_WAIT) == 0) & (step >= 0) & log.steady[np.maximum(step, 0)]
    place = np.cumsum(judged) - 1  # among the judged ones
    last = np.r_[held[1:] != held[:-1], True][: len(held)]  # the fetch of an earlier look has raised
    kept = last & np.r_[judged, False][held]
    waits, looks, wait = waits[judged], looks[kept], place[held[kept]]
    start = waits["start"].astype(np.int64)
    end = start + waits["dur"]
    value = looks["value"].astype(np.int64)
    pid = looks["name"].astype(np.int64)
    batch = value >> 32
    row = latest_records(records, pids, pid, batch, end[wait])
    cpu = waits["value"][wait].astype(np.int64)
    ready, count = value & 0xFFFF, _count(wait, len(waits))
    return Fetches(start=start[wait], end=end[wait], cpu=cpu, ready=ready, pid=pid, row=row, batch=batch, count=count)


def _count(looked: I64, waits: int) -> float:
    """How many of so many fetches are of the kind that was looked at, by the stretches in which capture looked."""
    apart = np.diff(np.r_[-1, looked, waits])
    left_out = int((apart[apart >= _LEFT_OUT] - 1).sum())
    return len(looked) * waits / max(waits - left_out, 1)


def latest_records(records: npt.NDArray[np.void], pids: I64, pid: I64, batch: I64, before: I64) -> I64:
    """Index of the last record of each (pid, batch) that began before a time; -1 without one."""
    process = np.r_[pids, pid]
    number = np.r_[records["batch"].astype(np.int64), batch]
    time = np.r_[records["start"].astype(np.int64), before]
    is_query = np.r_[np.zeros(len(pids), dtype=bool), np.ones(len(pid), dtype=bool)]
    order = np.lexsort((is_query, time, number, process))
    last = np.maximum.accumulate(np.where(is_query[order], -1, np.arange(len(order))))
    asked = np.flatnonzero(is_query[order])
    candidate = last[asked]
    there = candidate >= 0
    asked, query = asked[there], order[asked[there]]
    found = order[candidate[there]]
    same = (process[found] == process[query]) & (number[found] == number[query])
    out = np.full(len(pid), -1, dtype=np.int64)
    out[query[same] - len(pids)] = found[same]
    return out


def sent_at(records: npt.NDArray[np.void], pids: I64) -> I64:
    """When each batch had been sent, ``(n,)`` int64 ns; ``records`` and ``pids`` are of all workers' batches.

    A thread of the worker sends one after the other. A hand-over is recorded from where the batch was made, or the one
    before it sent: two made at 10 and 20 whose hand-overs take 30 and 30 were sent at 40 and 70.
    """
    start = records["start"].astype(np.int64)
    order = np.lexsort((start, pids))
    samples, collate, handover = (records[stage][order, 0].astype(np.int64) * 1000 for stage in _STAGES)
    spent = np.cumsum(handover)
    # With all it has sent taken off, each batch begins where it was made, or where the latest of those before it did.
    begun = start[order] + samples + collate - (spent - handover)
    worker = np.cumsum(np.r_[False, np.diff(pids[order]) != 0])
    apart = worker * (np.ptp(begun) + 1)  # so that no worker hears of the ones before
    sent = np.empty_like(start)
    sent[order] = np.maximum.accumulate(begun + apart) - apart + spent
    return sent


def at_one_time(pid: I64, rows: npt.NDArray[np.void], sent: I64) -> tuple[int, float]:
    """The most workers there were at one time, and how many on average while there were any.

    A worker is there from the beginning of its first batch of an epoch to the end of its last one. Those of a map-style
    dataset end together, those of an iterable one each with its own part: of two workers that make 5 batches and 1 of
    them side by side, there are 2 for the first batch and then 1, on average 1.2. That many make batches as fast as
    these two do. Workers of the next epoch, others or the same, are no more: its batches are counted from 0 again.
    """
    start, number = rows["start"].astype(np.int64), rows["batch"].astype(np.int64)
    order = np.lexsort((start, pid))
    begins = np.flatnonzero(np.r_[True, (np.diff(pid[order]) != 0) | (np.diff(number[order]) <= 0)])
    first = np.minimum.reduceat(start[order], begins)
    last = np.maximum.reduceat(sent[order], begins)
    there = np.searchsorted(np.sort(first), start, side="right") - np.searchsorted(np.sort(last), start, side="left")
    return int(there.max()), int((last - first).sum()) / max(union(first, last).total_ns, 1)


def all_records(workers: Sequence[WorkerRecord]) -> tuple[npt.NDArray[np.void], I64]:
    """The batches of all workers, and the process of each."""
    tables = [np.frombuffer(entry.batches, dtype=WORKER_DTYPE) for entry in workers]
    pids = [np.full(len(table), entry.pid, dtype=np.int64) for table, entry in zip(tables, workers, strict=True)]
    if not tables:
        return np.empty(0, dtype=WORKER_DTYPE), np.empty(0, dtype=np.int64)
    return np.concatenate(tables), np.concatenate(pids)


class StageTimes(msgspec.Struct, frozen=True):
    """One stage of many batches, ``(n,)`` int64 ns each; ``queued`` is ``None`` where the kernel does not keep it."""

    wall: I64
    cpu: I64
    queued: I64 | None
    blocked: I64


def stage_times(records: npt.NDArray[np.void], stage: str) -> StageTimes:
    """The times of a stage. Clocks of threads and of the wall differ a little: no part is negative or exceeds it."""
    wall, cpu, queued = (records[stage][:, column].astype(np.int64) * 1000 for column in range(3))
    known = bool((queued != UNKNOWN_US * 1000).all())
    cpu = np.minimum(cpu, wall)
    queued = np.minimum(queued, wall - cpu) if known else np.zeros_like(wall)
    return StageTimes(wall, cpu, queued if known else None, wall - cpu - queued)


_REAL_WAIT_NS = 500_000  #: a wait shorter than this takes a batch that is there; receiving it is all there is to divide
_BATCHES_FOR_P99 = 100  #: below so many batches the 99th percentile is no more than the largest value
_FEWEST_LOOKS = 5  #: fewer looks at blocked workers say nothing
NAMING_SHARE = 0.5  #: share of the producer time from which one kind of it names the wait
#: What the wait is, by the kind that names it; a core that is not there names nothing of the loader's own.
_LEAVES: dict[str, tuple[WorkerPartName, ...]] = {
    "input.fetch": ("fetch",),
    "input.prep": ("prep",),
    "input.ipc": ("collate", "handover"),
}


def worker_facts(record: RankRecord, log: StepLog) -> Workers | None:
    """What the workers did for the judged steps; ``None`` where no fetch could be joined to a worker's record."""
    records, pids = all_records(record.workers)
    if not len(records):
        return None
    fetches = judged_fetches(record.events, log, records, pids)
    joined = fetches.row >= 0
    if not joined.any():
        return None
    rows = records[fetches.row[joined]]
    samples, collate, handover = (stage_times(rows, stage) for stage in ("samples", "collate", "handover"))
    # What the hand-over is blocked is room that the training has not made yet, no work on the batch.
    sending = handover.wall - handover.blocked
    producer = samples.wall + collate.wall + sending
    judged = union(log.start[log.steady], log.stop[log.steady])
    steady_ns = int(log.time[log.steady].sum())
    cpu = samples.cpu + collate.cpu + handover.cpu
    sent = sent_at(records, pids)
    feeds = np.isin(pids, fetches.pid[joined])
    count, active = at_one_time(pids[feeds], records[feeds], sent[feeds])
    waited, delivery = _waiting(fetches, rows, samples, collate, sent[fetches.row[joined]])
    per_step = fetches.count / max(int(log.steady.sum()), 1)
    return Workers(
        count=count,
        active=active,
        batches=int(joined.sum()),
        batches_per_step=per_step,
        producer_ns=round(float(producer.mean())),
        interval_ns=round(float(np.maximum(samples.wall + collate.wall, sending).mean())),
        cpu_ns=round(float(cpu.mean())),
        parts=_parts(samples, collate, handover, float(producer.mean())),
        stages=(_stage("samples", samples), _stage("collate", collate), _stage("handover", handover)),
        busy_ratio=_busy(rows, judged, samples.wall + collate.wall, sending),
        cpu_cores=float(cpu.mean()) * fetches.count / steady_ns if steady_ns else None,
        variation_ratio=float(producer.std() / max(producer.mean(), 1.0)) if len(producer) > 1 else None,
        p99_ns=round(float(np.quantile(producer, 0.99))) if len(producer) >= _BATCHES_FOR_P99 else None,
        batch_bytes=_mean(rows["size"]),
        read_bytes=(read := _mean(rows["read"])),
        storage_bytes=_mean(rows["stored"]),
        read_bytes_per_s=read * fetches.count / (steady_ns * 1e-9) if read is not None and steady_ns else None,
        memory_bytes=int(rows["memory"].max()) if (rows["memory"] >= 0).any() else None,
        queue_empty_ratio=float((fetches.ready == 0).mean()),
        queue_ready=float(fetches.ready.mean()),
        queue_p10=float(np.quantile(fetches.ready, 0.1)),
        queue_p90=float(np.quantile(fetches.ready, 0.9)),
        waited_ratio=waited,
        locked_ratio=_locked(record.events, log, np.unique(fetches.pid[joined])),
        delivery_ns=delivery,
    )


def on_its_way(workers: Workers, cpu_ratio: float | None) -> float:
    """Share of the wait in which the awaited batch was made and on its way to the training loop.

    Time in which a thread at either end waited for a core is not the way's: ``cpu_ratio`` is CPU time of the loop's
    thread / its wait, which bounds what it takes to receive the batch.
    """
    sending = next(stage for stage in workers.stages if stage.stage == "handover")
    queued = (sending.run_queue_ns or 0) / max(sending.time_ns, 1)
    late = workers.waited_ratio
    return late.get("handover", 0.0) * (1.0 - queued) + min(late.get("arriving", 0.0), cpu_ratio or 0.0)


def named_wait(workers: Workers, cpu_ratio: float | None) -> str:
    """The input leaf of the wait for batches of worker processes, by what making a batch mostly is."""
    if on_its_way(workers, cpu_ratio) >= NAMING_SHARE:
        return "input.ipc"
    together = {leaf: workers.share(*parts) for leaf, parts in _LEAVES.items()}
    name = max(together, key=lambda leaf: together[leaf])
    return name if together[name] >= NAMING_SHARE else "input.wait"


def _parts(samples: StageTimes, collate: StageTimes, handover: StageTimes, total: float) -> tuple[WorkerPart, ...]:
    times: dict[WorkerPartName, I64] = {"fetch": samples.blocked, "prep": samples.cpu}
    if samples.queued is not None and collate.queued is not None and handover.queued is not None:
        times["core"] = samples.queued + collate.queued + handover.queued
    times |= {"collate": collate.cpu + collate.blocked, "handover": handover.cpu}
    # Where the kernel does not keep the time in the run queue, what is blocked holds it.
    source: Source = "measured" if "core" in times else "derived"
    means, whole = [(name, float(time.mean())) for name, time in times.items()], total or 1.0
    return tuple(WorkerPart(part=name, time_ns=round(ns), share=ns / whole, source=source) for name, ns in means)


def _stage(name: str, times: StageTimes) -> WorkerStage:
    return WorkerStage(
        stage="samples" if name == "samples" else "collate" if name == "collate" else "handover",
        time_ns=round(float(times.wall.mean())),
        cpu_ns=round(float(times.cpu.mean())),
        run_queue_ns=round(float(times.queued.mean())) if times.queued is not None else None,
        blocked_ns=round(float(times.blocked.mean())),
    )


def _busy(rows: npt.NDArray[np.void], judged: Spans, making: I64, sending: I64) -> float | None:
    """Share of the workers' time with a batch to make: on the thread that makes it, or sends it if that is more."""
    known = rows["idle"] != UNKNOWN_US
    if not known.any():
        return None
    start, waited = rows["start"][known], rows["idle"][known].astype(np.int64) * 1000
    idle = float(time_within(judged, start - waited, start).sum())
    made = float(making[known].sum())
    whole = idle + made
    return min(max(made, float(sending[known].sum())) / whole, 1.0) if whole else None


def _locked(events: bytes, log: StepLog, pids: I64) -> float | None:
    """Share of the looks at these workers, while they were blocked in judged steps, that found them at a lock."""
    table = np.frombuffer(events, dtype=EVENT_DTYPE)
    looks = table[(table["kind"] == EventKind.LOOK) & np.isin(table["name"], pids)]
    step = in_step(looks["start"], log.start, log.stop)
    looks = looks[(step >= 0) & log.steady[np.maximum(step, 0)]]
    blocked = looks["value"] != WorkerState.RUNNING
    if blocked.sum() < _FEWEST_LOOKS:
        return None
    return float((looks["value"][blocked] == WorkerState.LOCK).mean())


def _mean(values: I64) -> int | None:
    """Mean of the values that were measured."""
    known = values[values >= 0]
    return round(float(known.mean())) if len(known) else None


def _waiting(
    fetches: Fetches, rows: npt.NDArray[np.void], samples: StageTimes, collate: StageTimes, sent: I64
) -> tuple[dict[str, float], int | None]:
    """What the awaited batch was going through during the waits, and how long it takes to arrive."""
    joined = fetches.row >= 0
    start, end = fetches.start[joined], fetches.end[joined]
    real = end - start >= _REAL_WAIT_NS
    if not real.any():
        return {}, None
    start, end = start[real], end[real]
    begun = rows["start"].astype(np.int64)[real]
    there = begun + samples.wall[real]
    made, sent = there + collate.wall[real], sent[real]
    total = float((end - start).sum())
    edges = {"samples": (begun, there), "collate": (there, made), "handover": (made, sent), "arriving": (sent, end)}
    within = {name: np.minimum(end, high) - np.maximum(start, low) for name, (low, high) in edges.items()}
    shares = {name: float(np.maximum(time, 0).sum()) / total for name, time in within.items()}
    shares["not begun"] = max(0.0, 1.0 - sum(shares.values()))
    late = made > start
    return shares, round(float(np.median((end - made)[late]))) if late.any() else None
