"""Write what a rank did the way Kineto writes a recording of it."""

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

from simulator.job import US, Job
from simulator.loop import COMPUTE_STREAM
from simulator.machine import BACKWARD, MAIN, Event, Rank, Work
from simulator.parallel import group_of

#: Small enough that microseconds with three decimals survive in a float.
_BASE_US = 1_428_625_731_000
_PROCESS = 4_700
_THREADS = {MAIN: 0, BACKWARD: 92}
_SYNC_ROWS = {
    "cudaStreamSynchronize": "Stream Sync",
    "cudaDeviceSynchronize": "Context Sync",
    "cudaStreamWaitEvent": "Stream Wait Event",
}
_CONTEXT_STREAM = 4_294_967_295
_LEAD_NS = 300 * US

Record = dict[str, Any]


def text_of(job: Job, rank: Rank) -> str:
    """The whole file."""
    return json.dumps(document(job, rank))


def document(job: Job, rank: Rank) -> dict[str, Any]:
    """The trace of one rank."""
    return {**_header(job, rank), "traceEvents": list(_Writer(job, rank).records())}


def _header(job: Job, rank: Rank) -> dict[str, Any]:
    chip = job.chip
    devices = [
        {
            "id": index, "name": chip.name, "totalGlobalMem": chip.memory_bytes, "computeMajor": chip.major,
            "computeMinor": chip.minor, "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
            "warpSize": 32, "numSms": chip.sms,
        }
        for index in range(max(job.recording.devices, 1 + bool(job.extra.second_device_ratio)))
    ]  # fmt: skip
    head: dict[str, Any] = {
        "schemaVersion": 1, "deviceProperties": devices, "record_shapes": int(job.recording.shapes),
        "with_stack": int(job.recording.stacks), "profile_memory": int(job.recording.instants),
    }  # fmt: skip
    if job.comm.kind:
        name, description = group_of(job)
        group = {"pg_name": name, "pg_desc": description, "backend_config": "cuda:nccl", "pg_size": job.comm.ranks,
                 "ranks": list(range(job.comm.ranks))}  # fmt: skip
        head["distributedInfo"] = {
            "backend": "nccl", "rank": rank.index, "world_size": job.comm.ranks, "pg_count": 1, "pg_config": [group],
            "nccl_version": "2.21.5",
        }  # fmt: skip
    return {**head, "traceName": "trace.json", "displayTimeUnit": "ms", "baseTimeNanoseconds": 1751410836000000000}


def _start_ns(job: Job, rank: Rank) -> int:
    """When the recording starts: just before the first mark, or in the middle of the step before."""
    marks = {number: (start, end) for number, start, end in rank.marks}
    if job.recording.cut_start:
        start, end = marks[-1]
        return start + (end - start) // 2
    return marks[0][0] - _LEAD_NS


class _Writer:
    def __init__(self, job: Job, rank: Rank) -> None:
        self._job, self._rank = job, rank
        self._from, self._until = job.recording.window_ns or (_start_ns(job, rank), sys.maxsize)
        offsets = job.recording.offsets_ns
        self._offset = _BASE_US * US + (offsets[rank.index] if offsets else 0)
        self._pid = _PROCESS + 13 * rank.index
        self._random = random.Random(job.seed)
        self._lost: set[int] = set()

    def records(self) -> Iterator[Record]:
        """All records: names of rows, host, device, instants."""
        recording = self._job.recording
        yield from self._names()
        for event in self._rank.events:
            if self._from <= event.start < self._until:
                yield from self._host(event)
        if recording.stacks:
            yield from self._frames()
        if recording.has_device:
            lost = recording.lost_streams
            works = [w for w in self._rank.works if self._from <= w.start < self._until and w.stream not in lost]
            for work in works:
                yield from self._device(work)
            if recording.annotations:
                yield from self._annotations_on_device(works)
        for moment, args in self._rank.instants:
            if moment >= self._from:
                where = {"pid": self._pid, "tid": self._tid(MAIN), "ts": self._us(moment), "s": "t"}
                yield {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", **where,
                       "args": {**args, "Device Type": 1, "Device Id": 0, "Addr": 139_620_000_000_000}}  # fmt: skip

    def _us(self, ns: int) -> float:
        return round((ns + self._offset) / US, 3)

    def _span(self, start: int, end: int) -> Record:
        return {"ts": self._us(start), "dur": (end - start) / US}

    def _tid(self, thread: str) -> int:
        return self._pid + _THREADS[thread]

    def _names(self) -> Iterator[Record]:
        for pid, label in ((self._pid, "CPU"), (0, "GPU 0")):
            where = {"ph": "M", "ts": self._us(self._from), "pid": pid, "tid": 0}
            yield {"name": "process_name", **where, "args": {"name": "python3"}}
            yield {"name": "process_labels", **where, "args": {"labels": label}}
        for thread, name in ((MAIN, "python3"), (BACKWARD, "pt_autograd_0")):
            tid = self._tid(thread)
            yield {"name": "thread_name", "ph": "M", "ts": self._us(self._from), "pid": self._pid, "tid": tid,
                   "args": {"name": f"thread {tid} ({name})"}}  # fmt: skip

    def _host(self, event: Event) -> Iterator[Record]:
        recording = self._job.recording
        if event.category == "overhead":
            # Kineto gives the profiler's own rows a process of their own.
            yield {"ph": "X", "cat": "overhead", "name": event.name, "pid": -1, "tid": 0,
                   **self._span(event.start, event.end)}  # fmt: skip
            return
        where = {"pid": self._pid, "tid": self._tid(event.thread), **self._span(event.start, event.end)}
        if event.category == "cuda_runtime":
            correlation = event.args["correlation"]
            args = {"cbid": 211, **{key: value for key, value in event.args.items() if key != "streams"}}
            if not recording.has_launches or self._random.random() < recording.lost_launches:
                self._lost.add(correlation)
                return
            yield {"ph": "X", "cat": "cuda_runtime", "name": event.name, **where, "args": args}
            if recording.sync_rows and event.name in _SYNC_ROWS:
                yield self._sync_row(event)
            if recording.flows and "Launch" in event.name:
                start = {key: where[key] for key in ("pid", "tid", "ts")}
                yield {"ph": "s", "id": correlation, "cat": "ac2g", "name": "ac2g", **start}
            return
        yield {"ph": "X", "cat": event.category, "name": event.name, **where, "args": event.args}

    def _sync_row(self, event: Event) -> Record:
        kind = _SYNC_ROWS[event.name]
        stream, awaited = event.args.get("streams", (_CONTEXT_STREAM if kind == "Context Sync" else COMPUTE_STREAM, -1))
        correlation = event.args["correlation"]
        args: Record = {"cuda_sync_kind": kind, "stream": stream, "correlation": correlation, "device": 0, "context": 1}
        if kind == "Stream Wait Event":
            waits = {"wait_on_stream": awaited, "wait_on_cuda_event_record_corr_id": correlation - 1}
            args |= {**waits, "wait_on_cuda_event_id": 1}
        tid = -1 if kind == "Context Sync" else stream
        return {"ph": "X", "cat": "cuda_sync", "name": kind, "pid": 0, "tid": tid,
                **self._span(event.start, event.end), "args": args}  # fmt: skip

    def _device(self, work: Work) -> Iterator[Record]:
        args: Record = {"device": work.device, "context": 1, "stream": work.stream, "correlation": work.correlation}
        # Without a link by number the record of a call lost still leaves the correlation of the work.
        if work.external >= 0:
            args["External id"] = work.external
        where = {"pid": work.device, "tid": work.stream}
        queued = {"queued": 0} if work.category == "kernel" else {}
        yield {"ph": "X", "cat": work.category, "name": work.name, **where, **self._span(work.start, work.end),
               "args": {**queued, **args, **work.args}}  # fmt: skip
        if self._job.recording.flows and work.called >= self._from and work.correlation not in self._lost:
            yield {"ph": "f", "id": work.correlation, "cat": "ac2g", "name": "ac2g", "bp": "e", **where,
                   "ts": self._us(work.start)}  # fmt: skip

    def _annotations_on_device(self, works: list[Work]) -> Iterator[Record]:
        """Kineto repeats annotations on the rows of the device, and names collectives there."""
        for event in self._rank.events:
            if event.category != "user_annotation" or not self._from <= event.start < self._until:
                continue
            inside = [
                w for w in works if event.start <= w.called < event.end and w.device == 0 and w.stream == COMPUTE_STREAM
            ]
            if inside:
                yield {"ph": "X", "cat": "gpu_user_annotation", "name": event.name, "pid": 0, "tid": COMPUTE_STREAM,
                       **self._span(min(w.start for w in inside), max(w.end for w in inside)),
                       "args": {"External id": event.args["External id"]}}  # fmt: skip
        for work in works:
            if work.meeting is not None and "Collective name" in work.args:
                yield {"ph": "X", "cat": "gpu_user_annotation", "name": f"nccl:{work.args['Collective name']}",
                       "pid": 0, "tid": work.stream, **self._span(work.start, work.end),
                       "args": {"External id": work.external}}  # fmt: skip

    def _frames(self) -> Iterator[Record]:
        """Python frames: the loop, and the library calls in it that a reader would look for."""
        marks = [(start, end) for number, start, end in self._rank.marks if number >= 0]
        frames = [("train.py(31): main", marks[0][0], marks[-1][1])]
        for start, end in marks:
            frames.append(("train.py(58): train_step", start + 1_000, end - 1_000))
        for event in self._rank.events:
            if event.start >= marks[0][0] and event.name.startswith("enumerate(DataLoader)"):
                frames.append(("torch/utils/data/dataloader.py(733): __next__", event.start - 500, event.end + 500))
            if event.start >= marks[0][0] and event.name.startswith("Optimizer.step"):
                frames.append(("torch/optim/adamw.py(209): step", event.start + 500, event.end - 500))
        for number, (name, start, end) in enumerate(frames):
            args = {"Python id": number + 1, "Python parent id": 1, "Ev Idx": number}
            where = {"pid": self._pid, "tid": self._tid(MAIN)}
            yield {"ph": "X", "cat": "python_function", "name": name, **where, **self._span(start, end), "args": args}
