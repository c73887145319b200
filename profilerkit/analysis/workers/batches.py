"""The batches that judged steps were fed with: each fetch joined to the record of the worker that made its batch."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.events import EVENT_DTYPE, NOT_A_WAIT
from profilerkit.analysis.intervals import I64, union
from profilerkit.analysis.steps.find import in_step
from profilerkit.analysis.steps.log import StepLog
from profilerkit.rundir.layout import UNKNOWN_US, EventFlag, EventKind
from profilerkit.rundir.reader import WorkerRecord

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

Flags = npt.NDArray[np.bool_]


class Fetches(msgspec.Struct, frozen=True):
    """The judged fetches of batches from workers, all arrays ``(n_fetches,)``.

    Attributes:
        start: int64 ns, sorted.
        end: int64 ns.
        cpu: int64 ns that the loop's thread computed meanwhile, -1 where that was not read.
        ready: batches that were ready as the fetch began.
        pid: the process that made the batch.
        row: its record, -1 where there is none.
        batch: its number in its epoch.
        count: how many there are with those whose queue capture did not look at.
    """

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
    """How many of so many fetches are of the kind that was looked at, by the stretches in which capture looked.

    Args:
        looked: ``(n,)`` places of those that were looked at, ascending.
        waits: all judged fetches.
    """
    apart = np.diff(np.r_[-1, looked, waits])
    left_out = int((apart[apart >= _LEFT_OUT] - 1).sum())
    return len(looked) * waits / max(waits - left_out, 1)


def latest_records(records: npt.NDArray[np.void], pids: I64, pid: I64, batch: I64, before: I64) -> I64:
    """Index of the last record of each (pid, batch) that began before a time; -1 without one.

    Persistent workers count their batches anew in every epoch, so the numbers alone do not tell.
    """
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
    """The most workers there were at one time, and how many in the mean of the time in which there were any.

    A worker is there from the beginning of its first batch of an epoch to the end of its last one. Those of a map-style
    dataset end together, those of an iterable one each with its own part: of two workers that make 5 batches and 1 of
    them side by side, there are 2 for the first batch and then 1, in the mean 1.2. That many make batches as fast as
    these two do. Workers of the next epoch, others or the same, are no more: its batches are counted from 0 again.

    Args:
        pid: ``(n,)`` that made the batches, n > 0; all batches of each, for those of the next epoch to be told.
        rows: ``(n,)`` their records.
        sent: ``(n,)`` int64 ns, when each was sent.
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
