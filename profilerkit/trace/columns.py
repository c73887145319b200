"""TraceColumns: one rank's trace as a struct of numpy arrays."""

from collections.abc import Callable, Sequence
from enum import Flag, IntEnum, auto
from functools import cached_property, wraps
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
T = TypeVar("T")


class Category(IntEnum):
    """What an event is, the same for every dialect."""

    OTHER = 0
    KERNEL = 1
    MEMCPY = 2
    MEMSET = 3
    CPU_OP = 4
    RUNTIME = 5  # CUDA, HIP, XPU and MTIA runtime and driver calls
    ANNOTATION = 6  # user_annotation, host side
    GPU_ANNOTATION = 7
    SYNC = 8  # a device's queue that waits or marks its place: cuda_sync rows, events of MTIA
    PYTHON = 9  # python_function
    OVERHEAD = 10  # the profiler's own work
    STEP = 11  # a step as the format itself marks it, see ``TraceMeta.step_marks``


#: What runs on a device.
WORK = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


class Wanted(Flag):
    """What is read beside the complete events of host and device; it costs time and memory.

    Attributes:
        PYTHON: the frames of Python stacks, 60 to 90 % of the events of a trace recorded with stacks. Without it only
            frames of garbage collection and compilation are read.
        FLOWS: flow links. They are read without being asked for when device work has no correlation to be joined by.
        SHAPES: what was passed to operators, values of convolutions and attention alone, and blocks of a kernel.
    """

    NOTHING = 0
    PYTHON = auto()
    FLOWS = auto()
    MEMORY = auto()
    SHAPES = auto()
    EVERYTHING = PYTHON | FLOWS | MEMORY | SHAPES


# What the analysis uses.
ANALYZED = Wanted.PYTHON | Wanted.MEMORY | Wanted.SHAPES

#: What ``TraceMeta.recorded`` holds where operators are ranges of torch.autograd.profiler.emit_nvtx.
EMIT_NVTX = "emit_nvtx"

#: The note of a file that holds a second document, whose events are not read.
ANOTHER_FOLLOWS = "another document follows the first; only the first was read"


class Damage(msgspec.Struct, frozen=True):
    """What was wrong with the file and what was done about it.

    Attributes:
        repaired: events that were read after a repair of their text.
        dropped: events, or pieces of text in their place, that were given up.
        truncated: whether the file ends early, or what follows a damaged spot was given up.
        samples: the first places: event number, byte offset in the plain text, and the text itself. Hostile.
        notes: what was left out, repaired or ignored and why, one sentence each.
    """

    repaired: int = 0
    dropped: int = 0
    truncated: bool = False
    samples: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


#: Tools that record differently: torch.profiler and what writes like it, and Nsight Systems.
Recorder = Literal["torch", "nsys"]


class TraceMeta(msgspec.Struct, frozen=True):
    """What the file says beside its events; ``None`` means it does not say.

    ``devices`` are the ``deviceProperties`` records, ``groups`` the process groups that this rank is a member of.
    ``no_device`` says that the file lists the machine's devices, and there are none, ``no_operators`` why it holds no
    operators, ``unprofiled`` what the events are where none is of a profiler. ``framework`` is what was profiled where
    it is not PyTorch, ``step_marks`` what the events of ``Category.STEP`` are, or the ranges that the reader called
    ``ProfilerStep#N``. ``process`` is the number of the process whose steps are marked, ``recorder`` the tool that has
    to record more. ``processes`` are those that trained, each with how many events it has, one after the other.
    """

    path: str
    further: tuple[str, ...] = ()  # files of the later windows that were pooled with this one
    base_time_ns: int | None = None
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    host: str | None = None
    devices: tuple["DeviceProperties", ...] = ()
    no_device: bool = False
    recorded: frozenset[str] = frozenset()  # options of torch.profiler as it calls them, and EMIT_NVTX
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    groups: tuple["ProcessGroup", ...] = ()
    no_operators: str | None = None
    framework: str | None = None
    step_marks: "StepMarks | None" = None
    unprofiled: str | None = None
    process: str | None = None
    recorder: Recorder = "torch"
    processes: tuple[tuple[str, int], ...] = ()


class StepMarks(msgspec.Struct, frozen=True):
    """What marks the steps where the format does: in words, and whether that is inferred."""

    found_by: str
    inferred: bool = False


class ProcessGroup(msgspec.Struct, frozen=True):
    """One entry of ``pg_config``. ``ranks`` are its members in their order, left out of large groups."""

    name: str
    description: str
    size: int
    ranks: tuple[int, ...] = ()


class DeviceProperties(msgspec.Struct, frozen=True):
    """One entry of ``deviceProperties``."""

    id: int
    name: str
    memory_bytes: int | None = None
    compute_major: int | None = None
    compute_minor: int | None = None
    multiprocessors: int | None = None


class CollectiveArgs(msgspec.Struct, frozen=True):
    """Collective metadata of one event, row ``row`` of the columns; ``None`` means absent.

    ``source`` and ``target`` are ranks of the job; a send names whom it sends to, a receive from whom it gets.
    """

    row: int
    name: str
    in_elements: int | None = None
    out_elements: int | None = None
    dtype: str | None = None
    group_size: int | None = None
    group_name: str | None = None
    sequence: int | None = None
    source: int | None = None
    target: int | None = None


class Flows(msgspec.Struct, frozen=True):
    """Flow links (``ph`` s and f), all arrays of the same length."""

    id: I64
    kind: I32  # string id of the flow's category: ac2g, fwdbwd, async …
    starts: Bools  # True for ``s``, False for ``f``
    ts_ns: I64
    thread: I32

    @classmethod
    def none(cls) -> "Flows":
        """Of a format that has none."""
        long, short = np.empty(0, np.int64), np.empty(0, np.int32)
        return cls(long, short, np.empty(0, np.bool_), long, short)


class MemoryInstants(msgspec.Struct, frozen=True):
    """``[memory]`` instants, all arrays of the same length; -1 where the file does not say."""

    ts_ns: I64
    bytes: I64  # negative for a free
    allocated: I64
    reserved: I64
    device_type: I32  # 0 CPU, 1 CUDA
    device: I32
    address: I64  # of the block
    thread: I32  # ids into ``threads``

    @classmethod
    def none(cls) -> "MemoryInstants":
        """Of a format that has none."""
        long, short = np.empty(0, np.int64), np.empty(0, np.int32)
        return cls(long, long, long, long, short, short, long, short)


def kept(function: Callable[["TraceColumns"], T]) -> Callable[["TraceColumns"], T]:
    """Decorate a function of a trace alone: what it returns is computed once and kept beside the trace's fields."""
    key = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def once(columns: "TraceColumns") -> T:
        known = columns.__dict__
        if key not in known:
            known[key] = function(columns)
        found: T = known[key]
        return found

    return once


# Without slots: what is derived is kept beside the fields.
class TraceColumns(msgspec.Struct, frozen=True, dict=True):
    """Complete events (``ph`` X) of one trace in file order; every array has shape ``(n_events,)``.

    Attributes:
        name: int32 ids into ``strings``, as are ``input_types``, ``input_dims`` and ``concrete_inputs``, raw JSON.
        category: int8 values of ``Category``.
        ts_ns: int64 start on the trace's own clock, exact to the nanosecond.
        dur_ns: int64 duration, never negative; events with impossible durations were dropped and counted.
        thread: int32 ids into ``threads``; a (pid, tid) pair is one thread.
        correlation: int64, -1 where absent, as below. Links a runtime call to its kernels, many for graphs.
        external_id: int64. Links a runtime call to its CPU op.
        input_types: also -1 for operators that launch nothing themselves: views, allocations, calls of another one.
        concrete_inputs: also -1 for all operators but convolutions and attention.
        blocks_per_sm: float32 blocks of a kernel's grid for each multiprocessor, 0 where absent, as on AMD devices.
        strings: id to text. Hostile: escape before showing.
        stream_waits: (waiting, awaited) streams. Empty without ``cuda_sync`` rows.
        windows: when each of several windows begins that were put together, ns; empty for one recording.
        frames_left_out: Python frames in the file that are not among the events because they were not wanted.
    """

    meta: TraceMeta
    damage: Damage
    name: I32
    category: I8
    ts_ns: I64
    dur_ns: I64
    thread: I32
    correlation: I64
    external_id: I64
    stream: I64
    device: I32
    bytes: I64
    input_types: I32
    input_dims: I32
    concrete_inputs: I32
    blocks_per_sm: F32
    strings: tuple[str, ...]
    threads: tuple[tuple[str, str], ...]
    thread_names: dict[int, str]
    collectives: tuple[CollectiveArgs, ...]
    flows: Flows
    memory: MemoryInstants
    read: Wanted = Wanted.EVERYTHING
    frames_left_out: int = 0
    stream_waits: frozenset[tuple[int, int]] = frozenset()
    windows: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.ts_ns)

    @cached_property
    def end_ns(self) -> I64:
        """``(n_events,)`` int64 end of each event, computed at the first use and kept."""
        return self.ts_ns + self.dur_ns

    def is_a(self, *categories: Category) -> Bools:
        """``(n_events,)`` mask of the events in any of the categories."""
        chosen = np.zeros(len(self), dtype=np.bool_)
        for category in categories:
            chosen |= self.category == category
        return chosen


def names_of(columns: TraceColumns, *categories: Category) -> I64:
    """Sorted ids of the strings that name events of these categories."""
    known, mask = _names_by_category(columns), np.zeros(len(columns.strings), dtype=np.bool_)
    for category in categories:
        mask[known[category]] = True
    return np.flatnonzero(mask)


@kept
def _names_by_category(columns: TraceColumns) -> tuple[I64, ...]:
    both = columns.name.astype(np.int64) * len(Category) + columns.category
    name, category = np.divmod(np.flatnonzero(np.bincount(both)), len(Category))
    return tuple(name[category == each] for each in Category)


def saying(columns: TraceColumns, says: Callable[[str], object], *categories: Category) -> Bools:
    """``(n_strings,)`` mask of the names of events of these categories that ``says`` is true of."""
    mask = np.zeros(len(columns.strings), dtype=np.bool_)
    used = names_of(columns, *categories)
    mask[used] = [bool(says(columns.strings[index])) for index in used.tolist()]
    return mask


def trace_columns(
    meta: TraceMeta,
    strings: Sequence[str],
    threads: Sequence[tuple[str, str]],
    *,
    name: npt.ArrayLike,
    category: npt.ArrayLike,
    ts_ns: npt.ArrayLike,
    dur_ns: npt.ArrayLike,
    thread: npt.ArrayLike,
    correlation: npt.ArrayLike = -1,
    stream: npt.ArrayLike = -1,
    device: npt.ArrayLike = -1,
    bytes: npt.ArrayLike = -1,  # noqa: A002  as the column is called
    blocks_per_sm: npt.ArrayLike = 0,
    damage: Damage | None = None,
    thread_names: dict[int, str] | None = None,
    stream_waits: frozenset[tuple[int, int]] = frozenset(),
) -> TraceColumns:
    """Return the columns of a format that says no more than this; the arguments are as in ``TraceColumns``."""
    count = len(np.asarray(ts_ns))

    def column(values: npt.ArrayLike, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.broadcast_to(np.asarray(values, dtype), count).copy()

    absent = column(-1, np.int32)
    return TraceColumns(
        meta=meta,
        damage=damage or Damage(),
        name=column(name, np.int32),
        category=column(category, np.int8),
        ts_ns=column(ts_ns, np.int64),
        dur_ns=column(dur_ns, np.int64),
        thread=column(thread, np.int32),
        correlation=column(correlation, np.int64),
        external_id=column(-1, np.int64),
        stream=column(stream, np.int64),
        device=column(device, np.int32),
        bytes=column(bytes, np.int64),
        input_types=absent,
        input_dims=absent,
        concrete_inputs=absent,
        blocks_per_sm=column(blocks_per_sm, np.float32),
        strings=tuple(strings),
        threads=tuple(threads),
        thread_names=thread_names or {},
        collectives=(),
        flows=Flows.none(),
        memory=MemoryInstants.none(),
        stream_waits=stream_waits,
    )
