"""What the lines of an XLA profile hold, the same for XPlane and for the JSON that is made of it: steps and work."""

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum

import numpy as np

from profilerkit.errors import UnreadableInputError
from profilerkit.model.change import revise
from profilerkit.trace.columns import I8, I32, I64, Bools, Category, StepMarks, TraceColumns
from profilerkit.trace.merged import only

FRAMEWORK = "JAX or TensorFlow"
#: The line in which a reader puts the host's step annotations.
STEP_ANNOTATIONS = "(step annotations)"

#: Runs of the module with most time stand for steps from this share of the time of all modules (a choice).
MODULE_SHARE = 0.5
FEWEST_RUNS = 2

# TensorFlow puts the host's name before a device's; a core of its own on a TPU has its name behind.
_DEVICE = re.compile(r"/device:((?:GPU|TPU):(\d{1,9}))\b(.*)", re.ASCII | re.DOTALL)
_HOST = re.compile(r"/host:(?:CPU|metadata|TPU-runtime|python-tracer|CUPTI|ROCTRACER)\b", re.ASCII)
_STREAM = re.compile(r"Stream #(\d{1,9})\b", re.ASCII)
# CUPTI's and rocprofiler's copies; XLA's own within a TPU, and between it and its host.
_COPY = re.compile(r"%?(?:Memcpy|copy-start|copy-done|async-copy|infeed|outfeed)")
_FEED = re.compile(r"%?(in|out)feed\b")
_DIRECTIONS = {"in": "HtoD", "out": "DtoH"}


class Role(IntEnum):
    """What a line holds."""

    UNUSED = 0
    STEPS = 1
    STREAM = 2  # kernels and copies of a GPU
    OPERATIONS = 3  # of a TPU; on a GPU they repeat what the streams hold
    MODULES = 4
    ANNOTATIONS = 5


_ROLES = {
    "Steps": Role.STEPS,
    "XLA Ops": Role.OPERATIONS,
    "XLA Modules": Role.MODULES,
}


def role_of(process: str, line: str) -> Role:
    """What a line of a process, or plane, holds.

    >>> [role_of("/device:GPU:0", line).name for line in ("Stream #16(Kernel)", "Steps", "Source code")]
    ['STREAM', 'STEPS', 'UNUSED']
    """
    if _DEVICE.search(process):
        return Role.STREAM if _STREAM.match(line) else _ROLES.get(line, Role.UNUSED)
    return Role.ANNOTATIONS if line == STEP_ANNOTATIONS else Role.UNUSED


def device_number(process: str) -> int | None:
    """The number of the device a plane or process is of, ``None`` for another."""
    found = _DEVICE.search(process)
    return int(found[2]) if found else None


def is_xla(processes: Iterable[str]) -> bool:
    """Whether processes are named as XLA's profiler names them."""
    return any(_DEVICE.search(name) or _HOST.search(name) for name in processes)


def of_xla(columns: TraceColumns, places: Sequence[tuple[str, str]]) -> TraceColumns:
    """The steps and the work of the device that worked most; ``places`` has process and line of each thread.

    An operation that holds others, a loop or a call, is left out: they stand for it. Copies and collectives in flight
    beside the operations of a TPU overlap each other: only the operations that begin and await them count.

    Raises:
        UnreadableInputError: no device worked.
    """
    roles = np.array([role_of(*place) for place in places], np.int8)
    found = [_DEVICE.search(process) for process, _ in places]
    known = sorted({(match[1], match[3]) for match in found if match})
    number = {device: index for index, device in enumerate(known)}
    devices = np.array([number[match[1], match[3]] if match else -1 for match in found], np.int64)
    role, device = roles[columns.thread], devices[columns.thread]
    works = _work(role, device) & (columns.dur_ns > 0)
    if not works.any():
        raise UnreadableInputError(
            f"{columns.meta.path} holds no device work",
            cause=f"it is a profile of {FRAMEWORK} without GPU or TPU work",
            hint="record while the device works; CPU-only runs are not supported yet",
        )
    busy = np.bincount(device[works], weights=columns.dur_ns[works], minlength=len(known))
    chosen = int(busy.argmax())
    mine = device == chosen
    works &= mine
    works[_holding(columns, np.flatnonzero(works & (role == Role.OPERATIONS)))] = False
    steps, marks = _steps(columns, role, mine)
    category = np.full(len(columns), Category.OTHER, np.int8)
    category[works] = _categories(columns)[columns.name[works]]
    category[steps] = Category.STEP
    id_of_device = int(known[chosen][0].partition(":")[2])
    streams = np.array([_stream(line) for _, line in places], np.int64)
    left_out = np.flatnonzero(busy).tolist()
    left_out.remove(chosen)
    read = revise(
        columns,
        category=category,
        device=np.where(works, id_of_device, -1).astype(np.int32),
        stream=np.where(works, streams[columns.thread], -1),
        strings=tuple(_spelt(text) for text in columns.strings),
        meta=revise(columns.meta, framework=FRAMEWORK, step_marks=marks),
        damage=revise(columns.damage, notes=(*columns.damage.notes, *_notes(known, chosen, left_out))),
    )
    return only(read, category != Category.OTHER)


def _work(role: I8, device: I64) -> Bools:
    """``(n,)`` which events are work of a device; of one with streams only those."""
    streamed = np.unique(device[role == Role.STREAM])
    on_stream = role == Role.STREAM
    by_operation = (role == Role.OPERATIONS) & ~np.isin(device, streamed)
    work: Bools = on_stream | by_operation
    return work


def _holding(columns: TraceColumns, rows: I64) -> I64:
    """Those of ``rows`` that hold another of them in their line; each of them takes time."""
    start, end, thread = columns.ts_ns[rows], columns.end_ns[rows], columns.thread[rows]
    order = np.lexsort((-end, start, thread))
    this, after = order[:-1], order[1:]
    holds = (thread[after] == thread[this]) & (start[after] < end[this]) & (end[after] <= end[this])
    found: I64 = rows[this[holds]]
    return found


def _categories(columns: TraceColumns) -> I8:
    """``(n_strings,)`` what work of each name is."""

    def category(text: str) -> Category:
        if text.startswith("Memset"):
            return Category.MEMSET
        return Category.MEMCPY if _COPY.match(text) else Category.KERNEL

    return np.array([category(text) for text in columns.strings], np.int8)


def _spelt(text: str) -> str:
    """The name, with where a copy between host and device goes."""
    feed = _FEED.match(text)
    return f"{text} ({_DIRECTIONS[feed[1]]})" if feed else text


def _stream(line: str) -> int:
    found = _STREAM.match(line)
    return int(found[1]) if found else -1


def _steps(columns: TraceColumns, role: I8, mine: Bools) -> tuple[I64, StepMarks | None]:
    """Rows of the step marks and what they are: the device's own line, else the host's, else runs of one module.

    Where one module runs as often as the host annotates steps, its runs are these steps on the device: JAX hands work
    over and goes on, and no event says which step that is of.
    """
    modules = np.flatnonzero(mine & (role == Role.MODULES))
    by_host, runs = np.flatnonzero(role == Role.ANNOTATIONS), _runs(columns, modules)
    by_device = (runs, StepMarks("runs of the XLA module with most time", inferred=True))
    for rows, marks in (
        (np.flatnonzero(mine & (role == Role.STEPS)), StepMarks("the profile's line of steps")),
        *((by_device,) if len(runs) == len(by_host) else ()),
        (by_host, StepMarks("step annotations")),
        by_device,
    ):
        if len(rows):
            return rows, marks
    return modules[:0], None


def _runs(columns: TraceColumns, modules: I64) -> I64:
    """Runs of the module with most time, where they repeat and take most of it."""
    if not len(modules):
        return modules
    names: I32 = columns.name[modules]
    time = np.bincount(names, weights=columns.dur_ns[modules])
    runs: I64 = modules[names == time.argmax()]
    return runs if len(runs) >= FEWEST_RUNS and time.max() >= MODULE_SHARE * time.sum() else modules[:0]


def _notes(known: Sequence[tuple[str, str]], chosen: int, left_out: Sequence[int]) -> tuple[str, ...]:
    name = known[chosen][0]
    notes = []
    if left_out:
        others = f"{len(left_out)} other devices that worked were" if len(left_out) > 1 else "another one was"
        notes.append(f"only {name}, which worked most, is judged; {others} left out")
    if name.startswith("TPU"):
        notes.append("what the TPU moves beside its operations counts only while an operation waits for it")
    return tuple(notes)
