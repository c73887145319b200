"""The workers' records of one rank to what a batch costs, part by part, and who is the limit."""

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.events import EVENT_DTYPE
from profilerkit.analysis.intervals import I64, Spans, time_within, union
from profilerkit.analysis.steps.find import in_step
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.workers.batches import (
    Fetches,
    StageTimes,
    all_records,
    at_one_time,
    judged_fetches,
    sent_at,
    stage_times,
)
from profilerkit.model.finding import Source
from profilerkit.model.workers import WorkerPart, WorkerPartName, Workers, WorkerStage
from profilerkit.rundir.layout import UNKNOWN_US, EventKind, WorkerState
from profilerkit.rundir.reader import RankRecord

#: A wait shorter than this takes a batch that is there; receiving it is all there is to divide.
_REAL_WAIT_NS = 500_000
#: Below so many batches the 99th percentile is no more than the largest value.
_BATCHES_FOR_P99 = 100
#: Fewer looks at blocked workers say nothing.
_FEWEST_LOOKS = 5
#: Share of the producer time from which one kind of it names the wait.
NAMING_SHARE = 0.5
#: What the wait is, by the kind that names it; a core that is not there names nothing of the loader's own.
_LEAF: dict[WorkerPartName, str] = {
    "fetch": "input.fetch",
    "prep": "input.prep",
    "collate": "input.ipc",
    "handover": "input.ipc",
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
    together: dict[str, float] = {}
    for part, leaf in _LEAF.items():
        together[leaf] = together.get(leaf, 0.0) + workers.share(part)
    name = max(together, key=lambda leaf: together[leaf])
    return name if together[name] >= NAMING_SHARE else "input.wait"


def _parts(samples: StageTimes, collate: StageTimes, handover: StageTimes, total: float) -> tuple[WorkerPart, ...]:
    times: dict[WorkerPartName, I64] = {"fetch": samples.blocked, "prep": samples.cpu}
    if samples.queued is not None and collate.queued is not None and handover.queued is not None:
        times["core"] = samples.queued + collate.queued + handover.queued
    times |= {"collate": collate.cpu + collate.blocked, "handover": handover.cpu}
    # Where the kernel does not keep the time in the run queue, what is blocked holds it.
    source: Source = "measured" if "core" in times else "derived"
    return tuple(
        WorkerPart(
            part=name,
            time_ns=round(float(time.mean())),
            share=float(time.mean()) / total if total else 0.0,
            source=source,
        )
        for name, time in times.items()
    )


def _stage(name: str, times: StageTimes) -> WorkerStage:
    return WorkerStage(
        stage="samples" if name == "samples" else "collate" if name == "collate" else "handover",
        time_ns=round(float(times.wall.mean())),
        cpu_ns=round(float(times.cpu.mean())),
        run_queue_ns=round(float(times.queued.mean())) if times.queued is not None else None,
        blocked_ns=round(float(times.blocked.mean())),
    )


def _busy(rows: npt.NDArray[np.void], judged: Spans, making: I64, sending: I64) -> float | None:
    """Share of the workers' time with a batch to make: on the thread that makes it, or that sends it if that is more.

    A worker that made 6 ms and then waited 2 ms for its next task, twice, was busy for 0.75 of its time. It waits as
    well while a trace is written: only what it waits in ``judged`` steps counts.
    """
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


def _mean(values: npt.NDArray[np.int64]) -> int | None:
    """Mean of the values that were measured."""
    known = values[values >= 0]
    return round(float(known.mean())) if len(known) else None


def _waiting(
    fetches: Fetches,
    rows: npt.NDArray[np.void],
    samples: StageTimes,
    collate: StageTimes,
    sent: I64,
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
    shares = {
        name: float(np.maximum(np.minimum(end, high) - np.maximum(start, low), 0).sum()) / total
        for name, (low, high) in edges.items()
    }
    shares["not begun"] = max(0.0, 1.0 - sum(shares.values()))
    late = made > start
    return shares, round(float(np.median((end - made)[late]))) if late.any() else None
