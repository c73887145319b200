"""The one place that knows the files of a run directory, their names and their record formats.

    RUN/launch.json                 Launch, created by the first rank to arrive: how the ranks of one job meet
        run.json                    RunManifest, written by rank 0 (beside and renamed)
        report.html  report.json
        windows/KIND.request        WindowRequest, created once by a rank that wants all of them to trace the same steps
        rank_00003/meta.json        RankMeta (beside and renamed; rewritten when a feature or the loader becomes known)
                   events.bin       HEADER then fixed-size EVENT records, append-only
                   names.jsonl      {"id": 1, "name": "checkpoint"}: names that records carry, appended at first use
                   samples.jsonl    one Sample (rundir/sampled.py) per line, append-only
                   stacks.jsonl     one StackSample per line, append-only: where the training thread was
                   clock.jsonl      one ClockAnchor per line, append-only
                   flight.json      Flight: the last collectives of the run, from torch's flight recorder
                   ddp.json         DdpRecord: what DistributedDataParallel says of itself
                   worker.<pid>.<id>.bin     HEADER then fixed-size WORKER records, by a DataLoader's worker
                   worker.<pid>.<id>.stacks.jsonl     as stacks.jsonl, of that worker
                   worker.<pid>.<id>.failed  why that worker stopped recording; only if it did
                   windows/000123/  status.json (WindowStatus), trace.json or trace.json.gz (.part until complete),
                                    flight.json (Flight: the last collectives at the window's end)
                   oom.json         OutOfMemory, only when the rank ended by running out of memory
                   fault.txt        what Python's faulthandler says of a signal that ends the process; else empty
                   end.json         RankEnd, only on a clean close; missing means the process was killed. Its room is
                                    taken at the start (end.json.part), so that a full disk cannot refuse it

Times are nanoseconds of ``time.perf_counter_ns`` (one clock for all processes of a Linux host); ``clock.jsonl``
holds the anchors that turn them into unix time, and ``RankMeta`` the first of them.
"""

import re
import struct
from enum import IntEnum
from pathlib import Path
from typing import Literal

import msgspec

from profilerkit.model.run import Loader
from profilerkit.rundir.sampled import GpuFacts, StartUp, TimeNs

FORMAT_VERSION = 1
LAUNCH = "launch.json"
MANIFEST = "run.json"
REPORT_HTML = "report.html"
REPORT_JSON = "report.json"
TRIAL = "trial.json"
META = "meta.json"
EVENTS = "events.bin"
NAMES = "names.jsonl"
SAMPLES = "samples.jsonl"
CLOCK = "clock.jsonl"
STACKS = "stacks.jsonl"
FLIGHT = "flight.json"
DDP = "ddp.json"
END = "end.json"
OOM = "oom.json"
FAULT = "fault.txt"
WINDOWS = "windows"
WINDOW_STATUS = "status.json"
WINDOW_TRACE = "trace.json"
WINDOW_TRACE_GZ = "trace.json.gz"
REQUEST_SUFFIX = ".request"
PART_SUFFIX = ".part"
RANK_PREFIX = "rank_"
#: Above every job known, of some 100,000 devices (a choice): a manifest with more ranks is damaged, or means harm.
MOST_RANKS = 1 << 20

#: magic, format version, record size, padding to 64 bytes
HEADER = struct.Struct("<8sII48x")
MAGIC = b"PKEVENTS"
EVENT = struct.Struct("<HHIqqq")  #: kind, flags, name id, start_ns, dur_ns, value

WORKER_PREFIX = "worker."
WORKER_SUFFIX = ".bin"
FAILED_SUFFIX = ".failed"
WORKER_MAGIC = b"PKWORKER"
#: One batch in the process that made it: start_ns of its fetch; number of the batch in its epoch; its samples; idle µs
#: before it; then wall, CPU and run-queue µs of getting the samples, of collating them, and of handing the batch over;
#: bytes read, those of them that came from storage, bytes of the batch, and memory the worker took since it started.
WORKER = struct.Struct("<qiI10I4q")
UNKNOWN_US = 0xFFFFFFFF  #: a duration that was not measured; byte counts that were not are -1
#: How often a rank writes its events, and takes a sample: after a kill its record ends so much earlier than its life.
#: Waking up for it costs 0.2 to 0.4 ms of CPU time beside a training; 0.5 s of a 1 ms step with four records each is
#: 2,000 records, packed in 1 ms. Ranks are compared by when they wrote, and ask each other for windows; one that is
#: alone has no need of it.
FLUSH_SECONDS = 0.5
ALONE_FLUSH_SECONDS = 1.0
SAMPLE_SECONDS = 1.0

#: Spans that capture puts into a window's trace: around fetches of a batch, and around named phases.
INPUT_SPAN = "profilerkit.input"
PHASE_SPAN_PREFIX = "profilerkit.phase."
#: Named phases that are evaluations: capture takes no steps in them, the analysis tells them apart from training.
EVALUATION = re.compile(r"\b(?:eval|evaluate|evaluation|validate|validation)\b", re.IGNORECASE)


class EventKind(IntEnum):
    """What an event record is, and what its ``value`` holds.

    A DEVICE lasts on the device from one mark in its queue to the next: ``value`` is the number of the last step that
    had ended there, ``start_ns`` is when that step began on the host, and the name id is how many steps ended since the
    mark before. More than one did where the host is far ahead, or the budget small. None did where the mark lies
    behind something between two steps, which belongs to the step before, or, with ``STARVED``, behind a wait for a
    batch, which belongs to the step that begins. The steps that the device works at as a recording ends have no record.
    """

    STEP = 1  # value: step number, counted from 0
    WAIT = 2  # input wait; value: CPU ns of the waiting thread, -1 if not measured; name id: wait_queue_field
    PHASE = 3  # named phase; name id set; value: 0
    OPTIMIZER = 4  # one optimizer step; value: 0
    BACKWARD = 5  # one backward pass; value: 0
    WINDOW = 6  # a deep window was open; value: step number at its start
    GC = 7  # one garbage collection; value: generation
    QUEUE = 8  # batches under way as a fetch begins; name id: pid of the worker that makes the next; value: queue_value
    LOOK = 9  # what a loader's worker is doing at a moment; name id: its pid; value: a WorkerState
    SAVE = 10  # a checkpoint was written; name id: the function that wrote it; value: 0
    COMPILE = 11  # torch.compile compiled; name id: torch's number of what was compiled; value: 0
    SYNC = 12  # the host waited in a call for the device; name id: the function; value: 0
    COPY = 13  # a call that copied to a device; name id: the function; value: bytes, -1 if not known
    COLLECTIVE = 14  # a call of torch.distributed; name id: the function; value: bytes, -1 if not known
    DEVICE = 15  # the device's time of steps, by its own clock; name id: how many; value: the last one's number
    INSERTED = 16  # steps that are not the program's own; earlier versions put some in, this one writes none
    EVALUATION = 17  # a model that trained was put into evaluation mode, and trained again by the next step; value: 0
    PADDING = 18  # a look at a batch; name id: tokens of it beyond the longest row; value: padding_value


def padding_value(tokens: int, padded: int) -> int:
    """The value of a PADDING record: tokens that were looked at, and how many of them fill rows up."""
    return tokens << 32 | padded


def wait_queue_field(queued_ns: int | None) -> int:
    """The name id of a WAIT record: µs in which the waiting thread was ready and got no processor, and one; 0 without.

    >>> wait_queue_field(3_000), wait_queue_field(0), wait_queue_field(None)
    (4, 1, 0)
    """
    return 0 if queued_ns is None else min(max(queued_ns, 0) // 1000 + 1, UNKNOWN_US)


class WorkerState(IntEnum):
    """What a worker's thread does at a moment, by the place in the kernel where it waits."""

    RUNNING = 0
    LOCK = 1
    BLOCKED = 2  # anywhere else: reading, polling, sleeping


class EventFlag(IntEnum):
    """Bits of an event record's ``flags``.

    Neither ``OTHER_LOADER`` nor ``IN_PHASE`` is set on the wrapped loader that marks the steps, nor on the loader
    whose batch was the last one fetched before the latest backward pass: a batch fetched there is trained on, whatever
    phase is open around it.
    """

    INFERRED = 1  # seen by a hook, not given by the user
    FIRST = 2  # first fetch of a loader's iteration: includes worker start
    LAST = 4  # the fetch that found the loader exhausted: includes worker shutdown
    OTHER_THREAD = 8  # not on the training thread
    OTHER_LOADER = 16  # a DataLoader that was not wrapped while a wrapped one marks the steps: not the training input
    IN_PHASE = 32  # fetched inside a named phase, not for the training: the phase's time
    STARVED = (
        128  # on DEVICE: from the end of the step before to the end of a wait for a batch, in which nothing was queued
    )
    GRAPHS = 256  # on WAIT: autograd has recorded operators since the fetch before, and no backward pass came between
    CAUGHT_UP = 64  # on DEVICE: as the host ended the step, the device had reached the ends of all steps marked before


#: ``RankMeta.steps_found_by`` where the user put the ends of the steps himself.
BY_STEP_CALLS = "step()"
BY_WRAPPED_LOADER = "wrapped loader"


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """``launch.json``: equal for the ranks of one job, different for any other run."""

    id: str


class RunManifest(msgspec.Struct, frozen=True, kw_only=True):
    """``run.json``: what was started. ``environment`` holds allow-listed variables only.

    ``command`` are the words that ``profilerkit run`` was given, for ``profilerkit try``; empty for another recording.
    """

    format_version: int
    profilerkit_version: str
    created_unix_ns: int
    argv: tuple[str, ...]
    world_size: int
    settings: dict[str, str]
    environment: dict[str, str]
    versions: dict[str, str]
    command: tuple[str, ...] = ()


OFF_BY_SETTINGS = "switched off by the settings"  #: the reason of a feature that nobody wanted


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """A part of capture that was on, or off with the reason."""

    on: bool
    reason: str = ""


class ProcessMark(msgspec.Struct, frozen=True, kw_only=True):
    """What tells a process from every other one on every host, and its control group from every other one."""

    boot_id: str
    pid_namespace: str
    start_ticks: int
    cgroup: int | None = None  #: number of the directory of its memory control group; ``None`` where it has none
    #: Processes that the kernel killed in that group for want of memory, until the recording began.
    oom_kills: int | None = None


class OwnCost(msgspec.Struct, frozen=True, kw_only=True):
    """What the recording was allowed to cost, and did beside its time per step."""

    budget_ratio: float
    start_ns: TimeNs
    turned_off: tuple[str, ...] = ()
    is_exceeded: bool = False  #: it cost more even so


class RankMeta(msgspec.Struct, frozen=True, kw_only=True):
    """``meta.json``: one rank of the run."""

    format_version: int
    rank: int
    local_rank: int
    pid: int
    host: str
    anchor_unix_ns: TimeNs
    anchor_perf_ns: TimeNs
    usable_cores: float  #: from the scheduling affinity and the cgroup quota
    device_name: str | None = None
    device_uuid: str | None = None
    features: dict[str, Feature] = {}
    loader: Loader | None = None
    self_ns_per_step: float | None = None  #: capture's own light-tier time per step; ``None`` until measured
    own_cost: OwnCost | None = None
    #: What marks the steps: ``BY_STEP_CALLS``, ``BY_WRAPPED_LOADER``, ``optimizer step`` or ``backward pass``; ``None``
    #: until a step was recorded.
    steps_found_by: str | None = None
    #: When the process began; ``None`` where that is not known, or where it did other work before: a notebook's kernel,
    #: a process that recorded before.
    process_start_perf_ns: TimeNs | None = None
    process: ProcessMark | None = None
    node: int | None = None
    #: Rank and size of the process group that it joined after the recording had begun as rank 0 of 1: the other ranks
    #: recorded elsewhere. ``None`` for a rank that knew its place.
    joined: tuple[int, int] | None = None
    gpu: GpuFacts | None = None
    #: Intra-op threads of torch; ``None`` while torch is not loaded, and in recordings of older versions.
    threads: int | None = None
    processor: str | None = None
    start_up: StartUp | None = None
    #: Switches made for debugging that were on all along, as ``NAME`` or ``NAME=value``; ``None`` in recordings of
    #: older versions.
    switches: tuple[str, ...] | None = None
    host_cores: int | None = None  #: all of the host, whoever may use them; ``None`` in recordings of older versions


#: Why a window was opened: to see the typical step, or slow ones that recur.
WindowKind = Literal["scheduled", "anomaly"]

#: Why a trace of a device holds no kernel, as far as the process can see: torch was built without CUPTI, the
#: environment has another tool loaded into the process, the driver lets administrators alone profile, or WSL. As far as
#: a trace tells: nobody asked for them, it is of a device that takes another profiler, or the file is cut off.
NoKernels = Literal["not_built", "other_tool", "permission", "wsl", "unknown", "not_asked", "mps", "npu", "cut"]

#: Why nothing was traced, where somebody else profiles: sessions cannot be nested.
RIVAL = "another profiler was active"


class WindowStatus(msgspec.Struct, frozen=True, kw_only=True):
    """``windows/N/status.json``: whether a deep window holds a usable trace, and why not.

    ``first_step`` to ``last_step`` are the whole steps in the trace, inclusive; a ``ProfilerStep`` outside that range
    was cut. ``last_step`` is ``first_step - 1`` when no step was whole. ``reason`` also says what a usable trace lacks.
    ``kernels`` is ``None`` where no device was asked for, or nobody counted.
    """

    first_step: int
    last_step: int
    ok: bool
    reason: str = ""
    trace: str | None = None
    size_bytes: int | None = None
    start_perf_ns: TimeNs | None = None
    end_perf_ns: TimeNs | None = None
    kind: WindowKind = "scheduled"
    trigger: str = ""
    slow_step: int | None = None
    kernels: int | None = None
    no_kernels: NoKernels | None = None


class WindowRequest(msgspec.Struct, frozen=True):
    """``windows/KIND.request``: ``rank`` asks all of them to trace from ``first_step`` on, at most ``steps`` steps.

    The step before ``first_step`` only warms the profiler up.
    """

    first_step: int
    steps: int
    kind: WindowKind
    trigger: str
    rank: int = 0


class RankEnd(msgspec.Struct, frozen=True, kw_only=True):
    """``end.json``: how the recording ended: finished, exception, interrupted (by Ctrl-C), exit or switched_off.

    ``left_by`` is of an exit the call and its code, for example ``sys.exit(3)`` or ``os._exit(0)``.
    """

    reason: str
    exception: str | None
    steps: int
    dropped_records: int
    end_perf_ns: TimeNs
    switched_off_because: str | None = None
    left_by: str | None = None
    exit_code: int | None = None
    stopped_because: str | None = None
    closed_perf_ns: TimeNs | None = None


def queue_value(batch: int, outstanding: int, ready: int) -> int:
    """The value of a QUEUE record: number of the batch that is fetched, batches not yet received, batches ready.

    >>> hex(queue_value(batch=3, outstanding=4, ready=2))
    '0x300040002'
    """
    return (batch << 32) | ((outstanding & 0xFFFF) << 16) | (ready & 0xFFFF)


def worker_file(rank_path: Path, pid: int, number: int) -> Path:
    """Where one worker process of a DataLoader writes."""
    return rank_path / f"{WORKER_PREFIX}{pid}.{number}{WORKER_SUFFIX}"


def rank_directory(run: Path, rank: int) -> Path:
    """Where one rank writes."""
    return run / f"{RANK_PREFIX}{rank:05d}"


def window_directory(rank_path: Path, first_step: int) -> Path:
    """Where one deep window of a rank is kept."""
    return rank_path / WINDOWS / f"{first_step:06d}"


def request_file(run: Path, kind: WindowKind) -> Path:
    """Where one rank asks the others for a window of this kind; there is at most one of each."""
    return run / WINDOWS / f"{kind}{REQUEST_SUFFIX}"
