"""The one place that knows the files of a run directory, their names and their record formats.

    RUN/launch.json                 Launch, created by the first rank to arrive: how the ranks of one job meet
        run.json                    RunManifest, written by rank 0 (beside and renamed)
        report.html  report.json
        rank_00003/meta.json        RankMeta (beside and renamed; rewritten when a feature or the loader becomes known)
                   events.bin       HEADER then fixed-size EVENT records, append-only
                   names.jsonl      {"id": 1, "name": "checkpoint"}: names that records carry, appended at first use
                   samples.jsonl    one Sample per line, append-only
                   worker.<pid>.<id>.bin     HEADER then fixed-size WORKER records, by a DataLoader's worker
                   worker.<pid>.<id>.failed  why that worker stopped recording; only if it did
                   windows/000123/  status.json (WindowStatus), trace.json or trace.json.gz (.part until complete)
                   end.json         RankEnd, only on a clean close; missing means the process was killed

Times are nanoseconds of ``time.perf_counter_ns`` (one clock for all processes of a Linux host); ``RankMeta`` holds
the anchor that turns them into unix time.
"""

import struct
from enum import IntEnum
from pathlib import Path

import msgspec

from profilerkit.model.run import Loader

FORMAT_VERSION = 1
LAUNCH = "launch.json"
MANIFEST = "run.json"
REPORT_HTML = "report.html"
REPORT_JSON = "report.json"
META = "meta.json"
EVENTS = "events.bin"
NAMES = "names.jsonl"
SAMPLES = "samples.jsonl"
END = "end.json"
WINDOWS = "windows"
WINDOW_STATUS = "status.json"
WINDOW_TRACE = "trace.json"
WINDOW_TRACE_GZ = "trace.json.gz"
PART_SUFFIX = ".part"
RANK_PREFIX = "rank_"

#: magic, format version, record size, padding to 64 bytes
HEADER = struct.Struct("<8sII48x")
MAGIC = b"PKEVENTS"
#: kind, flags, name id, start_ns, dur_ns, value
EVENT = struct.Struct("<HHIqqq")

WORKER_PREFIX = "worker."
WORKER_SUFFIX = ".bin"
FAILED_SUFFIX = ".failed"
WORKER_MAGIC = b"PKWORKER"
#: One batch in the process that made it: start_ns of its fetch; number of the batch in its epoch; its samples; idle µs
#: before it; then wall, CPU and run-queue µs of getting the samples, of collating them, and of handing the batch over;
#: bytes read, those of them that came from storage, bytes of the batch, and memory the worker took since it started.
WORKER = struct.Struct("<qiI10I4q")
#: A duration that was not measured; byte counts that were not are -1.
UNKNOWN_US = 0xFFFFFFFF
#: How often a rank writes its events, and takes a sample: after a kill its record ends so much earlier than its life.
#: 0.25 s of a 1 ms step with four records each is 1,000 records, packed in 0.5 ms.
FLUSH_SECONDS = 0.25
SAMPLE_SECONDS = 1.0

#: Spans that capture puts into a window's trace: around fetches of a batch, and around named phases.
INPUT_SPAN = "profilerkit.input"
PHASE_SPAN_PREFIX = "profilerkit.phase."


class EventKind(IntEnum):
    """What an event record is, and what its ``value`` holds."""

    STEP = 1  # value: step number, counted from 0
    WAIT = 2  # input wait; value: CPU ns of the waiting thread, -1 if not measured
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
    DEVICE = 15  # what the device did of a step, by its own clock; start: the step's on the host; value: step number


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
    CAUGHT_UP = 64  # on DEVICE: as the host ended the step, the device had done all of the steps before


#: ``RankMeta.steps_found_by`` where the user put the ends of the steps himself.
BY_STEP_CALLS = "step()"
BY_WRAPPED_LOADER = "wrapped loader"


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """``launch.json``: equal for the ranks of one job, different for any other run."""

    id: str


class RunManifest(msgspec.Struct, frozen=True, kw_only=True):
    """``run.json``: what was started. ``environment`` holds allow-listed variables only."""

    format_version: int
    profilerkit_version: str
    created_unix_ns: int
    argv: tuple[str, ...]
    world_size: int
    settings: dict[str, str]
    environment: dict[str, str]
    versions: dict[str, str]


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """A part of capture that was on, or off with the reason."""

    on: bool
    reason: str = ""


class RankMeta(msgspec.Struct, frozen=True, kw_only=True):
    """``meta.json``: one rank of the run.

    Attributes:
        anchor_perf_ns: ``perf_counter_ns`` at the moment of ``anchor_unix_ns``.
        usable_cores: from the scheduling affinity and the cgroup quota.
        features: feature name to state: light, deep, nvml, host, loader, optimizer …
        self_ns_per_step: capture's own light-tier time per step; ``None`` until measured.
        steps_found_by: what marks the steps: ``BY_STEP_CALLS``, ``BY_WRAPPED_LOADER``, ``optimizer step`` or ``backward
            pass``; ``None`` until a step was recorded.
    """

    format_version: int
    rank: int
    local_rank: int
    pid: int
    host: str
    anchor_unix_ns: int
    anchor_perf_ns: int
    usable_cores: float
    device_name: str | None = None
    device_uuid: str | None = None
    features: dict[str, Feature] = {}
    loader: Loader | None = None
    self_ns_per_step: float | None = None
    steps_found_by: str | None = None


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of one device; ``None`` means unsupported or failed."""

    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    temperature_c: int | None = None
    throttle_reasons: int | None = None


class HostSample(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of the host and of this process; ``None`` means unsupported or failed."""

    cpu_ratio: float | None = None
    process_cpu_cores: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    process_rss_bytes: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None
    cpu_pressure_ratio: float | None = None
    io_pressure_ratio: float | None = None
    cpu_throttled_ratio: float | None = None


class AllocatorSample(msgspec.Struct, frozen=True, kw_only=True):
    """What torch's CUDA allocator says of one device; ``None`` where this torch does not say.

    Peaks are since the start or since the user reset them; ``alloc_retries`` and ``ooms`` count since the start.
    """

    allocated_bytes: int | None = None
    allocated_peak_bytes: int | None = None
    reserved_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    active_bytes: int | None = None
    inactive_split_bytes: int | None = None
    alloc_retries: int | None = None
    ooms: int | None = None


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``samples.jsonl``; ``t_ns`` is ``perf_counter_ns``."""

    t_ns: int
    gpu: GpuSample | None = None
    host: HostSample | None = None
    allocator: AllocatorSample | None = None


class WindowStatus(msgspec.Struct, frozen=True, kw_only=True):
    """``windows/N/status.json``: whether a deep window holds a usable trace, and why not.

    ``first_step`` to ``last_step`` are the whole steps in the trace, inclusive; a ``ProfilerStep`` outside that range
    was cut. ``last_step`` is ``first_step - 1`` when no step was whole.
    """

    first_step: int
    last_step: int
    ok: bool
    reason: str = ""
    trace: str | None = None
    size_bytes: int | None = None
    start_perf_ns: int | None = None
    end_perf_ns: int | None = None


class RankEnd(msgspec.Struct, frozen=True, kw_only=True):
    """``end.json``: how the recording ended. ``reason`` is finished, exception or switched_off.

    ``switched_off_because`` names the internal failure that ended the recording before the training.
    """

    reason: str
    exception: str | None
    steps: int
    dropped_records: int
    end_perf_ns: int
    switched_off_because: str | None = None


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
