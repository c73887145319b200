"""Recordings with known answers: kineto-shaped traces, step logs, run directories, and facts.

Times of recipes are microseconds, as trace files write them; answers are nanoseconds, as the analysis gives them.
"""

import copy
import dataclasses
import gzip
import tempfile
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import msgspec

from profilerkit.analysis.device.compute import compute_leaves
from profilerkit.analysis.device.device_facts import AllocatorFacts, DeviceFacts, SyncFacts
from profilerkit.analysis.device.kernels import KernelNames
from profilerkit.analysis.facts import Facts
from profilerkit.analysis.host.host_facts import InputFacts
from profilerkit.analysis.host.names import HostNames
from profilerkit.analysis.intervals import EMPTY
from profilerkit.analysis.partition import judged_device_rows, partition_and_host, ran_on_a_device
from profilerkit.analysis.trace_facts import trace_facts
from profilerkit.formats.registry import read_trace
from profilerkit.model import revise
from profilerkit.model.run import Loader, Trust, WorkerPart, Workers, WorkerStage
from profilerkit.model.step import LEAVES, PARTS, Part, Rank, StepRow, Steps, StepTimes
from profilerkit.rundir.documents import Flight, FlightEntry, FlightGroup
from profilerkit.rundir.layout import (
    EVENT,
    FORMAT_VERSION,
    UNKNOWN_US,
    WORKER,
    EventKind,
    Feature,
    RankEnd,
    RankMeta,
    RunManifest,
    WindowStatus,
    queue_value,
    wait_queue_field,
)
from profilerkit.rundir.reader import RankRecord
from profilerkit.rundir.writer import RankWriter, write_manifest
from profilerkit.trace.columns import Category
from profilerkit.trace.launches import launch_of

US = 1_000
MS = 1_000_000
S = 1_000_000_000

HOST = 100
MAIN = 100
AUTOGRAD = 101
LOADER_THREAD = 102
GLOO = 103

GEMM = "ampere_sgemm_128x64_tn"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
OTHER_KERNEL = "my_custom_kernel"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"

_JSON = msgspec.json.Encoder(decimal_format="number")


def replace(record, **changes):
    """Return a copy of a record, or of a rule, with some fields changed."""
    return (dataclasses.replace if dataclasses.is_dataclass(record) else revise)(record, **changes)


class Trace:
    """A kineto-shaped trace, built event by event. Starts and ends are µs, with at most three decimals.

    Attributes:
        events: the JSON events, ``ts`` and ``dur`` as ``Decimal`` µs.
        fields: what the document says beside them.
    """

    def __init__(self, *, rank=None, world_size=None, backend="nccl", devices=(), **fields):
        self.events = []
        self.fields = {"schemaVersion": 1, **fields}
        if devices:
            self.fields["deviceProperties"] = list(devices)
        if rank is not None:
            self.fields["distributedInfo"] = {"backend": backend, "rank": rank, "world_size": world_size}
        self._correlation = 0

    def event(self, name, category, start, end, *, tid=MAIN, pid=HOST, **args):
        """One complete event."""
        start, end = Decimal(str(start)), Decimal(str(end))
        event = {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, "ts": start, "dur": end - start}
        self.events.append({**event, "args": args} if args else event)

    def step(self, number, start, end, *, copied_to_gpu=False):
        self.event(f"ProfilerStep#{number}", "user_annotation", start, end)
        if copied_to_gpu:
            self.event(f"ProfilerStep#{number}", "gpu_user_annotation", start + 5, end + 40, pid=0, tid=7)

    def steps(self, *edges):
        """Steps from edge to edge, numbered from 0."""
        for number, (start, end) in enumerate(pairwise(edges)):
            self.step(number, start, end)

    def annotation(self, name, start, end, *, tid=MAIN):
        self.event(name, "user_annotation", start, end, tid=tid)

    def loader(self, start, end, *, name=WORKERS, tid=MAIN):
        self.annotation(name, start, end, tid=tid)

    def phase(self, name, start, end, *, tid=MAIN):
        self.annotation(f"profilerkit.phase.{name}", start, end, tid=tid)

    def frame(self, name, start, end, *, tid=MAIN):
        """A frame of a Python stack."""
        self.event(name, "python_function", start, end, tid=tid)

    def optimizer(self, start, end):
        self.annotation("Optimizer.step#AdamW.step", start, end)

    def op(self, start, end, *, name="aten::add", tid=MAIN, dims=None, types=None, values=None):
        """An operator; ``dims``, ``types`` and ``values`` are its recorded arguments, all FP32 without ``types``."""
        passed = {}
        if dims is not None:
            types = types or ["float" if shape else "Scalar" for shape in dims]
            passed = {"Input Dims": dims, "Input type": types}
        if values is not None:
            passed["Concrete Inputs"] = values
        self.event(name, "cpu_op", start, end, tid=tid, **passed)

    def call(self, name, start, end, *, tid=MAIN, correlation=None):
        """A runtime call without device work of its own."""
        linked = {} if correlation is None else {"correlation": correlation}
        self.event(name, "cuda_runtime", start, end, tid=tid, **linked)

    def sync(self, start, end, *, name="cudaStreamSynchronize", tid=MAIN):
        self.call(name, start, end, tid=tid)

    def malloc(self, start, end, *, name="cudaMalloc", tid=MAIN):
        self.call(name, start, end, tid=tid)

    def _work(self, name, category, start, end, *, launch, call, tid, stream, device, **args):
        if launch is not None:
            self._correlation += 1
            self.call(call, *launch, tid=tid, correlation=self._correlation)
            args["correlation"] = self._correlation
        self.event(name, category, start, end, pid=device, tid=stream, stream=stream, device=device, **args)

    def kernel(self, start, end, *, name=GEMM, launch=None, tid=MAIN, stream=7, device=0, **args):
        """A kernel; ``launch`` is the (start, end) of the call that issued it, absent for an unlinked kernel."""
        where = {"tid": tid, "stream": stream, "device": device}
        self._work(name, "kernel", start, end, launch=launch, call="cudaLaunchKernel", **where, **args)

    def copy(self, start, end, *, kind="HtoD", memory="Pageable -> Device", size=1 << 20, launch=None, **where):
        where = {"tid": MAIN, "stream": 7, "device": 0, **where}
        name = f"Memcpy {kind} ({memory})"
        self._work(name, "gpu_memcpy", start, end, launch=launch, call="cudaMemcpyAsync", **where, bytes=size)

    def memset(self, start, end, *, launch=None, stream=7, device=0):
        where = {"tid": MAIN, "stream": stream, "device": device}
        self._work("Memset (Device)", "gpu_memset", start, end, launch=launch, call="cudaMemsetAsync", **where)

    def collective(self, start, end, *, name=ALL_REDUCE, launch=None, stream=20, device=0, elements=None, **args):
        """A communication kernel, with the metadata NCCL kernels carry where ``elements`` is given."""
        if elements is not None:
            args = {
                "Collective name": "allreduce",
                "In msg nelems": elements,
                "Out msg nelems": elements,
                "dtype": "Float",
                "Group size": 2,
                **args,
            }
        self.kernel(start, end, name=name, launch=launch, stream=stream, device=device, **args)

    def gloo(self, start, end, *, name="gloo:all_reduce", tid=GLOO):
        self.annotation(name, start, end, tid=tid)

    def memory(self, at, size, *, allocated, reserved, device_type=1, device=0, address=None, tid=MAIN):
        totals = {"Bytes": size, "Total Allocated": allocated, "Total Reserved": reserved}
        args = {**totals, "Device Type": device_type, "Device Id": device}
        if address is not None:
            args["Addr"] = address
        where = {"pid": HOST, "tid": tid}
        instant = {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "ts": Decimal(str(at)), **where}
        self.events.append({**instant, "args": args})

    def changed(self, change):
        """A copy whose events went through ``change(event)``, which may return one, several or no events."""
        other = copy.copy(self)
        other.events = []
        for event in self.events:
            found = change({**event, "args": {**event.get("args", {})}})
            other.events += found if isinstance(found, list) else [found]
        return other

    def bytes(self):
        return _JSON.encode({**self.fields, "traceEvents": self.events})

    def write(self, path):
        path = Path(path)
        path.write_bytes(gzip.compress(self.bytes()) if path.suffix == ".gz" else self.bytes())
        return path

    def read(self):
        """The columns, after a round through a file."""
        with tempfile.TemporaryDirectory() as directory:
            return read_trace(self.write(Path(directory) / "trace.json"))

    def facts(self):
        return trace_facts(self.read())

    def parts(self):
        """Part to ns over the steady window."""
        return named(self.facts().totals)


class NoTrace:
    """Where no trace is recorded."""

    window = None

    def span(self, name):
        """Nothing to do."""


def cut(columns, window, *, is_marked=True):
    """The partition of any window, of a trace whose device is not known."""
    names, kinds, launches = HostNames.of(columns), KernelNames.of(columns), launch_of(columns)
    ran = judged_device_rows(columns, window) if ran_on_a_device(columns) else columns.category == Category.CPU_OP
    _, work = compute_leaves(columns, kinds, launches, ran, None)
    between = EMPTY if is_marked else None
    return partition_and_host(columns, names, kinds, launches, window, work, between=between)[0]


def named(totals):
    """Totals per leaf as part to ns, without the empty ones."""
    return {name: int(value) for name, value in zip(LEAVES, totals, strict=True) if value}


def training(
    steps=6,
    *,
    kernels=10,
    kernel=100,
    name=GEMM,
    fetch=0,
    python=0,
    comm=0,
    batch_copy=0,
    gap=0,
    loader=WORKERS,
    start=1_000,
    **fields,
):
    """A loop whose every step is, in µs: fetch, Python, first launch (10), copy, kernels with gaps, a collective.

    The launch of the first device event leaves the device idle for 8 µs of dispatching and 2 of latency; the others
    are issued 10 µs apart while the device is busy, except for the ``gap`` before each kernel but the first, which is
    dispatching of an operator that ends as its kernel starts.
    """
    trace = Trace(**fields)
    at = start
    for number in range(steps):
        began = at
        if fetch:
            trace.loader(at, at + fetch, name=loader)
        host = at + fetch + python
        device = host + 10
        if batch_copy:
            trace.op(host, host + 8, name="aten::copy_")
            trace.copy(device, device + batch_copy, launch=(host + 2, host + 8))
            host, device = host + 10, device + batch_copy
        for index in range(kernels):
            if gap and (index or batch_copy):
                host, device = device, device + gap
                trace.op(host, device, name="aten::linear")
                trace.kernel(device, device + kernel, name=name, launch=(device - 2, device))
            else:
                trace.op(host, host + 8, name="aten::linear")
                trace.kernel(device, device + kernel, name=name, launch=(host + 2, host + 8))
            host, device = host + 10, device + kernel
        if comm:
            trace.op(host, host + 8, name="c10d::allreduce_")
            size = {"Group size": fields.get("world_size") or 2}
            trace.collective(device, device + comm, launch=(host + 2, host + 8), elements=1 << 22, **size)
            device += comm
        at = device
        trace.step(number, began, at)
    return trace


def host_training(steps=6, *, compute=100, fetch=0, python=0, comm=0, loader=SINGLE, start=1_000, **fields):
    """A loop without a device, whose every step is, in µs: fetch, Python, operators, a gloo transfer."""
    trace = Trace(**{"backend": "gloo", **fields})
    at = start
    for number in range(steps):
        began = at
        if fetch:
            trace.loader(at, at + fetch, name=loader)
        at += fetch + python
        trace.op(at, at + compute, name="aten::mm")
        at += compute
        if comm:
            trace.gloo(at, at + comm)
        at += comm
        trace.step(number, began, at)
    return trace


class Log:
    """Records of the light tier. Times are µs, records ns; steps follow each other without a hole."""

    def __init__(self, start=0):
        self.records = []
        self.names = {}
        self.at = start
        self.count = 0

    def record(self, kind, start, duration, value=0, *, flags=0, name=0):
        self.records.append((int(kind), int(flags), name, round(start * US), round(duration * US), value))

    def step(self, duration, *, wait=0, wait_cpu=None, wait_queue=None, wait_flags=0, phase=None, collect=0, flags=0):
        """One step: a wait at its start, then a named phase (name, µs), then a garbage collection."""
        start = self.at
        if wait:
            cpu = -1 if wait_cpu is None else round(wait_cpu * US)
            queued = wait_queue_field(None if wait_queue is None else round(wait_queue * US))
            self.record(EventKind.WAIT, start, wait, cpu, flags=wait_flags, name=queued)
        if phase:
            text, length = phase
            self.record(EventKind.PHASE, start + wait, length, name=self.name(text))
        if collect:
            self.record(EventKind.GC, start + duration - collect, collect, 2)
        self.record(EventKind.STEP, start, duration, self.count, flags=flags)
        self.at += duration
        self.count += 1
        return start

    def steps(self, count, duration, **parts):
        for _ in range(count):
            self.step(duration, **parts)
        return self

    def queue(self, start, pid, batch, *, ready=0, outstanding=2, flags=0):
        """What was under way for a loader with workers as the fetch of a batch began."""
        self.record(EventKind.QUEUE, start, 0, queue_value(batch, outstanding, ready), flags=flags, name=pid)

    def window(self, start, end, first_step):
        self.record(EventKind.WINDOW, start, end - start, first_step)

    def name(self, text):
        """The id of a phase name, given at its first use."""
        if text not in self.names.values():
            self.names[len(self.names) + 1] = text
        return next(number for number, known in self.names.items() if known == text)

    @property
    def data(self):
        return b"".join(EVENT.pack(*record) for record in self.records)


def worker_batch(start, number, *, idle=0, items=4, read=-1, stored=-1, size=-1, memory=-1, **stages):
    """One record of a worker. A stage is (wall, CPU, run queue) in µs, zero where it is not given; so is ``idle``."""
    times = [value for stage in ("samples", "collate", "handover") for value in stages.get(stage, (0, 0, 0))]
    idle, *times = (UNKNOWN_US if value is None else value for value in (idle, *times))
    return WORKER.pack(round(start * US), number, items, idle, *times, read, stored, size, memory)


LOADER = Loader(kind="DataLoader", num_workers=0, batch_size=32)


def rank_meta(rank=0, **changes):
    meta = RankMeta(
        format_version=FORMAT_VERSION,
        rank=rank,
        local_rank=rank,
        pid=4000 + rank,
        host="node0",
        anchor_unix_ns=1_800_000_000 * S,
        anchor_perf_ns=0,
        usable_cores=8.0,
        features={"light": Feature(on=True)},
        loader=LOADER,
    )
    return msgspec.structs.replace(meta, **changes)


def rank_record(log, **fields):
    """What one rank left, as it is read: the records of a log, and ``fields``."""
    bare = {"rank": 0, "path": None, "meta": rank_meta(), "samples": (), "windows": (), "end": None, "notes": ()}
    return RankRecord(**{**bare, "events": log.data, "names": log.names, **fields})


def flight(at, *, name="gloo:all_reduce", group="0", first=1, elements=1024, dtype="Float", size=None, durations=()):
    """What a flight recorder held of one group: collectives issued ``at``, µs of the rank's own clock."""
    entries = [
        FlightEntry(
            name=0,
            group=0,
            sequence=first + number,
            between=False,
            created_ns=rank_meta().anchor_unix_ns + round(instant * US),
            input_elements=elements,
            output_elements=elements,
            dtype=1,
            duration_ns=round(durations[number] * US) if durations else None,
        )
        for number, instant in enumerate(at)
    ]
    groups = (FlightGroup(name=group, description="default_pg" if group == "0" else "", size=size),)
    return Flight(made=len(entries), names=(name, dtype), groups=groups, entries=tuple(entries))


def write_run(run, logs, *, traces=None, world_size=None, ended=True, samples=(), **meta):
    """A run directory with one rank per log; ``traces`` maps a rank to its trace, or to raw bytes for a damaged one."""
    manifest = RunManifest(
        format_version=FORMAT_VERSION,
        profilerkit_version="0",
        created_unix_ns=0,
        argv=("train.py", "--lr", "1"),
        world_size=world_size or len(logs),
        settings={"trace_steps": "10"},
        environment={"OMP_NUM_THREADS": "1"},
        versions={"torch": "2.13.0"},
    )
    run.mkdir(parents=True, exist_ok=True)
    write_manifest(run, manifest)
    for rank, log in enumerate(logs):
        writer = RankWriter(run, rank)
        for number, text in log.names.items():
            writer.append_name(number, text)
        writer.append_events(log.records)
        for sample in samples:
            writer.append_sample(sample)
        writer.write("meta.json", rank_meta(rank, **meta))
        if traces and rank in traces:
            trace = traces[rank]
            writer.trace_part(0).write_bytes(trace if isinstance(trace, bytes) else trace.bytes())
            writer.finish_window(0, WindowStatus(first_step=0, last_step=9, ok=True, trace="trace.json"))
        if ended:
            end = RankEnd(reason="finished", exception=None, steps=log.count, dropped_records=0, end_perf_ns=1)
            writer.write("end.json", end)
        writer.close()
    return run


STEP_NS = 100 * MS


def parts(shares, *, step_ns=STEP_NS, source="measured"):
    """Parts from ``name: share``, largest first."""
    rows = [
        Part(part=name, family=PARTS[name][0], time_ns=round(share * step_ns), share=share, source=source)
        for name, share in shares.items()
    ]
    return tuple(sorted(rows, key=lambda part: -part.share))


def steps(steady=20, *, count=None, step_ns=STEP_NS, mean_ns=None, **fields):
    """Steady steps of ``step_ns`` after one of warm-up."""
    count = steady + 1 if count is None else count
    time = StepTimes(median=step_ns, mean=mean_ns or step_ns, cv_ratio=0.0) if steady else None
    rows = tuple(
        StepRow(index=i, start_ns=i * step_ns, time_ns=step_ns, state="steady" if i >= count - steady else "warmup")
        for i in range(count)
    )
    dropped = {"warmup": count - steady} if count > steady else {}
    fields = {"found_by": "ProfilerStep", "inferred": False, "time_ns": time, "rows": rows, **fields}
    return Steps(count=count, steady=steady, dropped=dropped, **fields)


DEVICE = DeviceFacts(
    name="NVIDIA A100-SXM4-80GB",
    kernels_per_step=1_000.0,
    median_kernel_ns=50_000.0,
    busy_ratio=0.9,
    queue_empty_ratio=0.05,
    between_ratio=0.0,
)
INPUT = InputFacts(cpu_ratio=None, fetches=20, single_process=False, source="measured", origin="step timers")
NO_SYNCS = SyncFacts(per_step=0.0, blocked_ns=0.0, culprits=(), awaited_ratio=0.0)
NO_CALLS = AllocatorFacts(calls_per_step=0.0)


def made(producer=4 * STEP_NS, *, count=4, queued=True, **changes):
    """Batches that take ``producer`` ns of a worker. Shares of that by part are ``changes``; the rest is ``prep``."""
    names = ("fetch", "prep", "core", "collate", "handover")
    shares = {name: changes.pop(name, 0.0) for name in names}
    shares["prep"] += max(1.0 - sum(shares.values()), 0.0)
    ns = {name: share * producer for name, share in shares.items()}
    rows = {"samples": (ns["prep"], ns["core"], ns["fetch"]), "collate": (ns["collate"], 0, 0)}
    rows["handover"] = (ns["handover"], 0, 0)
    stages = tuple(
        WorkerStage(
            stage=stage,
            time_ns=round(cpu + core + blocked),
            cpu_ns=round(cpu),
            run_queue_ns=round(core) if queued else None,
            blocked_ns=round(blocked),
        )
        for stage, (cpu, core, blocked) in rows.items()
    )
    known = tuple(
        WorkerPart(part=name, time_ns=round(ns[name]), share=shares[name]) for name in names if queued or name != "core"
    )
    cpu = ns["prep"] + ns["collate"] + ns["handover"]
    base = Workers(
        count=count,
        batches=20,
        batches_per_step=1.0,
        producer_ns=round(producer),
        interval_ns=round(producer),
        cpu_ns=round(cpu),
        parts=known,
        stages=stages,
        busy_ratio=0.98,
        cpu_cores=cpu / STEP_NS,
        queue_empty_ratio=0.9,
        queue_ready=0.1,
        active=float(count),
        waited_ratio={"samples": 1.0},
    )
    return revise(base, **changes)


def facts(shares=None, *, source="measured", steady=20, **changes):
    """A GPU run of 20 steady steps of 100 ms that computes all the time, except for ``shares``.

    What ``shares`` leaves of the step is ``compute.math``.
    """
    shares = dict(shares or {})
    rest = 1.0 - sum(shares.values())
    if rest > 1e-12:
        shares["compute.math"] = shares.get("compute.math", 0.0) + rest
    found = steps(steady)
    breakdown = parts(shares, source=source)
    base = Facts(
        mode="gpu",
        steps=found,
        step_ns=float(STEP_NS),
        step_error_ns=0.0,
        parts=breakdown,
        ranks=(Rank(rank=None, origin="trace.json", breakdown=breakdown, busy_ratio=0.9, step_ns=STEP_NS),),
        trust=Trust(mode="gpu", inflation_ratio=1.0),
        input=INPUT,
        device=DEVICE,
        syncs=NO_SYNCS,
        allocator=NO_CALLS,
    )
    return replace(base, **changes)
