"""Writes a simulated run as profilerkit's capture does: a run directory with or without a window; or a trace alone."""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from simulator import kineto
from simulator.job import Comm, Job, Recording
from simulator.kernels import H100

from device_loops import loop as actions
from device_loops.loop import Loop
from device_loops.program import MS, US, WINDOW_FIRST, WINDOW_STEPS, Mark, Recorded, chip_at
from profilerkit.capture import device_clock
from profilerkit.capture.device_clock import DeviceClock
from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.model.run import Loader
from profilerkit.rundir.layout import (
    FORMAT_VERSION,
    HEADER,
    UNKNOWN_US,
    WINDOW_TRACE,
    WORKER,
    WORKER_MAGIC,
    Feature,
    OwnCost,
    RankEnd,
    RankMeta,
    RunManifest,
    WindowStatus,
    worker_file,
)
from profilerkit.rundir.sampled import AllocatorSample, GpuFacts, GpuSample, HostSample, Sample
from profilerkit.rundir.writer import RankWriter, Record, write_manifest

S = 1_000_000_000
_UUID = "GPU-aaaaaaaa-0000-0000-0000-00000000000{}"
_GIB = 1 << 30


class _Tape:
    """The device of a simulated rank, as capture's clock asks for it; ``mark`` is where the host is."""

    def __init__(self) -> None:
        self.mark: Mark | None = None

    def in_use(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def stream(self, _device: object) -> Any:
        return SimpleNamespace(device_index=0)

    def event(self) -> "_Event":
        return _Event(self)


class _Event:
    def __init__(self, tape: _Tape) -> None:
        self._tape = tape
        self._at_ns = 0

    def record(self, _stream: object) -> None:
        assert self._tape.mark is not None
        self._at_ns = self._tape.mark.reached_ns

    def query(self) -> bool:
        return self._tape.mark is None or self._at_ns <= self._tape.mark.now_ns

    def elapsed_time(self, end: "_Event") -> float:
        return (end._at_ns - self._at_ns) / MS


def device_records(marks: Sequence[Mark]) -> list[Record]:
    """The DEVICE records that capture's own clock makes at these places of a loop."""
    tape, records = _Tape(), []  # type: ignore[var-annotated]
    tracker = StepTracker(lambda _record: None)
    clock, patches = DeviceClock(records.append, tracker, tape), Patches()
    patches.apply(clock.install)
    with patch.object(device_clock, "perf_counter_ns", lambda: tape.mark.now_ns if tape.mark is not None else 0):
        for tape.mark in marks:
            tracker.count = tape.mark.number + 1
            if tape.mark.is_fed:
                tracker.fed_late(tape.mark.now_ns - tape.mark.start_ns)
            elif tape.mark.number >= tracker.mark_at:
                tracker.mark(tape.mark.number, tape.mark.start_ns)
        tape.mark = None
        clock.close()
    return records


def device_steps_ns(recorded: Recorded) -> list[int]:
    """The truth: how long the device was at each step but the first, from completion to completion."""
    return [after.reached_ns - before.reached_ns for before, after in pairwise(recorded.ends)]


def write_run(path: Path, loop: Loop, ranks: Sequence[Recorded]) -> Path:
    """The run directory of all ranks."""
    path.mkdir(parents=True)
    write_manifest(path, RunManifest(
        format_version=FORMAT_VERSION, profilerkit_version="0", created_unix_ns=1_800_000_000 * S,
        argv=("train.py",), world_size=loop.ranks, settings={"trace_steps": str(WINDOW_STEPS)}, environment={},
        versions={"torch": "2.13.0", "python": "3.11.9"},
    ))  # fmt: skip
    for recorded in ranks:
        _write_rank(path, loop, recorded)
    return path


def _write_rank(path: Path, loop: Loop, recorded: Recorded) -> None:
    writer = RankWriter(path, recorded.rank.index)
    for number, text in recorded.names.items():
        writer.append_name(number, text)
    writer.append_events([*recorded.records, *device_records(recorded.marks)])
    for sample in _samples(loop, recorded):
        writer.append_sample(sample)
    writer.write("meta.json", _meta(loop, recorded))
    for worker, batches in recorded.batches.items():
        _write_worker(worker_file(writer.path, 5000 + worker, worker), batches)
    if recorded.window_ns is not None:
        _write_window(writer, loop, recorded)
    end = recorded.rank.now
    writer.write("end.json", RankEnd(
        reason="finished", exception=None, steps=len(recorded.ends), dropped_records=0, end_perf_ns=end,
        closed_perf_ns=end + 50 * MS,
    ))  # fmt: skip
    writer.close()


def _meta(loop: Loop, recorded: Recorded) -> RankMeta:
    rank = recorded.rank.index
    fetch = _first(loop, actions.Fetch)
    on = ("light", "nvml", "host", "loader", "optimizer", "backward", "clock", "device_clock", "allocator", "syncs")
    features = {name: Feature(on=True) for name in on}
    features["deep"] = Feature(on=recorded.window_ns is not None, reason="" if recorded.window_ns else "switched off")
    return RankMeta(
        format_version=FORMAT_VERSION, rank=rank, local_rank=rank, pid=4000 + rank, host="node0", node=0,
        anchor_unix_ns=1_800_000_000 * S, anchor_perf_ns=0, usable_cores=16.0, device_name=H100.name,
        device_uuid=_UUID.format(rank), features=features, threads=8,
        loader=Loader(kind="DataLoader", num_workers=fetch.workers, batch_size=32, prefetch_factor=2, pin_memory=True)
        if fetch is not None else None,
        self_ns_per_step=12_000.0, own_cost=OwnCost(budget_ratio=0.01, start_ns=3 * MS), steps_found_by=loop.found_by,
        gpu=GpuFacts(
            found_by="the UUID of the device that CUDA uses", driver_version="580.95.05", name=H100.name,
            uuid=_UUID.format(rank), pcie_generation=5, pcie_generation_max=5, pcie_width=16, pcie_width_max=16,
            power_limit_mw=loop.chip.power_limit_mw, power_limit_default_mw=700_000, sm_clock_max_mhz=1980,
        ),
    )  # fmt: skip


def _first(loop: Loop, kind: type[Any]) -> Any:
    """The first action of a kind, wherever it stands."""

    def search(step: tuple[actions.Action, ...]) -> Any:
        for action in step:
            nested = (*getattr(action, "actions", ()), *getattr(action, "others", ()))
            found = action if isinstance(action, kind) else search(nested)
            if found is not None:
                return found
        return None

    return search(loop.step)


def _samples(loop: Loop, recorded: Recorded) -> Iterator[Sample]:
    """Once per second; utilisation is of kernels, over the second before."""
    kernels = sorted((work.start, work.end) for work in recorded.rank.works if work.category == "kernel")
    busy = list(_union(kernels))
    starts, ends = [start for start, _ in busy], [end for _, end in busy]
    total = [0, *accumulate(end - start for start, end in busy)]
    step_starts = [mark.start_ns for mark in recorded.ends]

    def until(now: int) -> int:
        """Busy time before a moment."""
        whole = bisect_right(ends, now)
        return total[whole] + (max(now - starts[whole], 0) if whole < len(starts) else 0)

    for second in range(1, recorded.rank.now // S + 1):
        now = second * S
        use = round((until(now) - until(now - S)) / S, 2)
        step = max(bisect_left(step_starts, now) - 1, 0)
        chip = chip_at(loop, recorded.rank.index, step)
        retries = bisect_right(recorded.retries, now)
        power = chip.power_limit_mw if chip.power_throttle_ratio else round(90_000 + 480_000 * use)
        full = _first(loop, actions.Retry) is not None
        gpu = GpuSample(
            utilization_ratio=use, memory_utilization_ratio=round(0.5 * use, 2),
            memory_used_bytes=(78 if full else 40) * _GIB, memory_total_bytes=80 * _GIB, power_mw=power,
            power_limit_mw=chip.power_limit_mw, sm_clock_mhz=chip.clock_mhz, sm_clock_max_mhz=1980,
            memory_clock_mhz=2619, temperature_c=88 if chip.thermal_throttle_ratio else 62, pcie_generation=5,
            pcie_width=16, throttle_reasons=chip.reasons, power_throttle_ratio=chip.power_throttle_ratio,
            sw_thermal_throttle_ratio=chip.thermal_throttle_ratio, hw_thermal_throttle_ratio=0.0,
            other_processes=chip.neighbours, other_processes_bytes=None if chip.neighbours is None
            else chip.neighbours * 9 * _GIB, other_pids=tuple(range(90_001, 90_001 + (chip.neighbours or 0))),
        )  # fmt: skip
        host = HostSample(cpu_ratio=0.12, steal_ratio=0.0, running_tasks=3, process_cpu_cores=1.1,
                          thread_queue_ratio=0.001, thread_preemptions_per_s=5.0, memory_used_bytes=40 * _GIB,
                          memory_total_bytes=256 * _GIB, process_rss_bytes=4 * _GIB)  # fmt: skip
        allocator = AllocatorSample(
            allocated_bytes=(70 if full else 30) * _GIB, allocated_peak_bytes=(76 if full else 36) * _GIB,
            reserved_bytes=(77 if full else 38) * _GIB, reserved_peak_bytes=(78 if full else 39) * _GIB,
            active_bytes=(70 if full else 30) * _GIB, inactive_split_bytes=_GIB, alloc_retries=retries, ooms=0,
        )  # fmt: skip
        yield Sample(t_ns=now, gpu=gpu)
        yield Sample(t_ns=now, host=host)
        yield Sample(t_ns=now, allocator=allocator)


def _union(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    low, high = -1, -1
    for start, end in spans:
        if start > high:
            if high > low:
                yield low, high
            low, high = start, end
        high = max(high, end)
    if high > low:
        yield low, high


def _write_worker(path: Path, batches: Sequence[tuple[int, int, int]]) -> None:
    """What one worker process noted of its batches: nearly all of it is computing samples."""
    with path.open("wb") as file:
        file.write(HEADER.pack(WORKER_MAGIC, FORMAT_VERSION, WORKER.size))
        free = 0
        for start, length, number in batches:
            samples = round(0.97 * length) // US
            stages = (samples, samples, 0, length // US - samples, length // US - samples, 0, 20, 20, 0)
            idle = min(max(start - free, 0) // US, UNKNOWN_US - 1)
            file.write(WORKER.pack(start, number, 32, idle, *stages, 4 << 20, 0, 4 << 20, 0))
            free = start + length


def trace_of(loop: Loop, recorded: Recorded, *, alone: bool = False) -> bytes:
    """The window as Kineto writes it; ``alone`` leaves out the spans that only profilerkit's capture puts in."""
    comm = Comm("ddp", ranks=loop.ranks) if loop.ranks > 1 else Comm()
    seen = {"kernels": (True, True), "calls": (False, True), "nothing": (False, False)}[loop.cupti]
    recording = Recording(has_device=seen[0], has_launches=seen[1], annotations=loop.annotated,
                          window_ns=recorded.window_ns)  # fmt: skip
    document = kineto.document(Job(1, chip=H100, comm=comm, recording=recording), recorded.rank)
    if alone:
        document["traceEvents"] = [e for e in document["traceEvents"] if not e["name"].startswith("profilerkit.")]
    return json.dumps(document).encode()


def _write_window(writer: RankWriter, loop: Loop, recorded: Recorded) -> None:
    trace = trace_of(loop, recorded)
    low, high = recorded.window_ns or (0, 0)
    kernels = sum(work.category == "kernel" and low <= work.start < high for work in recorded.rank.works)
    if loop.cupti != "kernels":
        kernels = 0
    writer.trace_part(WINDOW_FIRST).write_bytes(trace)
    writer.finish_window(WINDOW_FIRST, WindowStatus(
        first_step=WINDOW_FIRST, last_step=WINDOW_FIRST + WINDOW_STEPS - 1, ok=True, trace=WINDOW_TRACE,
        reason="" if kernels else "the device was to be traced, but the trace has no kernel",
        size_bytes=len(trace), start_perf_ns=low, end_perf_ns=recorded.stopped_ns, trigger="after the warm-up",
        kernels=kernels,
    ))  # fmt: skip


def write_traces(path: Path, loop: Loop, ranks: Sequence[Recorded]) -> list[Path]:
    """One bare trace per rank."""
    path.mkdir(parents=True)
    files = [path / f"rank{recorded.rank.index}.json" for recorded in ranks]
    for file, recorded in zip(files, ranks, strict=True):
        file.write_bytes(trace_of(loop, recorded, alone=True))
    return files
