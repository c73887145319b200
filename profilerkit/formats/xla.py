"""The lines of an XLA profile, the same for XPlane and for the JSON that is made of it: steps and work."""

import re
from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path

import numpy as np

from profilerkit.errors import UnreadableInputError
from profilerkit.formats import limits, values
from profilerkit.formats.blocks import BlockSource
from profilerkit.formats.values import StringIds, ThreadIds, printable_text
from profilerkit.formats.xspace import Event, Line, Losses, Message, Plane, events, line_at, planes
from profilerkit.model import revise
from profilerkit.trace.columns import (
    I8,
    I32,
    I64,
    Bools,
    Category,
    Damage,
    DeviceProperties,
    StepMarks,
    TraceColumns,
    TraceMeta,
    trace_columns,
)
from profilerkit.trace.merged import only
from profilerkit.units import format_bytes

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
    """Return the steps and the work of the device that worked most; ``places`` has process and line of each thread.

    An operation that holds others, a loop or a call, is left out. Of what is in flight beside the operations of a TPU
    only the operations that begin and await it count. Raises ``UnreadableInputError`` where no device worked.
    """
    roles = np.array([role_of(*place) for place in places], np.int8)
    found = [_DEVICE.search(process) for process, _ in places]
    known = sorted({(match[1], match[3]) for match in found if match})
    number = {device: index for index, device in enumerate(known)}
    devices = np.array([number[match[1], match[3]] if match else -1 for match in found], np.int64)
    role, device = roles[columns.thread], devices[columns.thread]
    on_stream = role == Role.STREAM  # where a device has streams, its operations repeat what they hold
    by_operation = (role == Role.OPERATIONS) & ~np.isin(device, device[on_stream])
    works = (on_stream | by_operation) & (columns.dur_ns > 0)
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
        collectives=(),  # arguments of NCCL, whose rows are about to be left out
        meta=revise(columns.meta, framework=FRAMEWORK, step_marks=marks),
        damage=revise(columns.damage, notes=(*columns.damage.notes, *_notes(known, chosen, left_out))),
    )
    return only(read, category != Category.OTHER)


def _holding(columns: TraceColumns, rows: I64) -> I64:
    """Those of ``rows`` that hold another of them in their line; each of them takes time."""
    start, end, thread = columns.ts_ns[rows], columns.end_ns[rows], columns.thread[rows]
    order = np.lexsort((-end, start, thread))
    this, after = order[:-1], order[1:]
    holds = (thread[after] == thread[this]) & (start[after] < end[this]) & (end[after] <= end[this])
    found: I64 = rows[this[holds]]
    return found


def _categories(columns: TraceColumns) -> I8:
    def category(text: str) -> Category:
        if text.startswith("Memset"):
            return Category.MEMSET
        return Category.MEMCPY if _COPY.match(text) else Category.KERNEL

    return np.array([category(text) for text in columns.strings], np.int8)


def _spelt(text: str) -> str:
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


_PS = 1000
_LAST_NS = int(values.LAST_US) * 1000
_LONGEST_NS = int(values.LONGEST_DURATION_US) * 1000
_HOST_PLANE = "/host:"
# Stats of the events that are looked at: the number of an annotated step, and how much a GPU's copy moves.
_STEP_NUMBER, _COPY_DETAILS = "step_num", "memcpy_details"
_GPU_COPY = "Memcpy"
_COPIED_BYTES = re.compile(r"\bsize:(\d{1,18})\b", re.ASCII)
_COLUMNS = ("name", "thread", "ts_ns", "dur_ns", "bytes")


def columns_of(path: Path, *, strict: bool) -> TraceColumns:
    """Return the columns of an XSpace as the reader of its format does."""
    losses = Losses(str(path), strict=strict)
    rows = _Rows(losses)
    content = _content(path, losses)
    for plane in planes(content, losses):
        rows.add(plane)
    if content.fields_left < 0:
        losses.say("it has more fields than a file of its size is read for, and the rest was left out", truncated=True)
    return of_xla(rows.columns(), rows.places)


def _content(path: Path, losses: Losses) -> Message:
    """The message, no longer than a file of this size may be once it is unpacked."""
    source, data = BlockSource(path), Message()
    stored = path.stat().st_size
    most = min(limits.MESSAGE_BYTES, max(limits.FREE_MESSAGE_BYTES, limits.MESSAGE_RATIO * stored))
    for block in source.blocks():
        if len(data) + len(block) > most:
            losses.say(f"only the first {format_bytes(len(data))} of it were read", truncated=True)
            break
        data += block
    data.fields_left = limits.FREE_FIELDS + limits.FIELDS_PER_BYTE * stored
    for note in source.notes:
        losses.say(note, truncated=source.truncated)
    return data


class _Rows:
    """The events that are of use, in columns; ``places`` has plane and line of each thread."""

    def __init__(self, losses: Losses) -> None:
        self.places: list[tuple[str, str]] = []
        self._losses = losses
        self._strings, self._threads = StringIds(), ThreadIds()
        self._values = {column: array("q") for column in _COLUMNS}
        self._devices: list[DeviceProperties] = []
        self._copies: set[int] = set()
        self._looked_at = self._several = 0

    def add(self, plane: Plane) -> None:
        is_host = plane.name.startswith(_HOST_PLANE)
        stat = plane.stat_named(_STEP_NUMBER if is_host else _COPY_DETAILS)
        if is_host and stat is None:
            return
        number = device_number(plane.name)
        if number is not None:
            self._devices.append(_properties(plane, number))
        texts: dict[int, int] = {}
        for place in plane.lines:
            line = line_at(plane, place)
            shown = STEP_ANNOTATIONS if is_host else line.name
            role = role_of(plane.name, shown)
            if role is Role.UNUSED or line.events is None:
                continue
            thread = self._thread(plane.name, line, shown)
            if role is Role.ANNOTATIONS:
                self._add_annotations(plane, line, thread, stat)
            else:
                self._add_work(plane, line, thread, stat, texts)

    def _thread(self, plane: str, line: Line, shown: str) -> int:
        thread = self._threads[plane, line.id]
        if thread == len(self.places):
            self.places.append((printable_text(plane), printable_text(shown)))
        return thread

    def _add_annotations(self, plane: Plane, line: Line, thread: int, stat: int | None) -> None:
        for event in events(plane, line, stats=True):
            if not self._may_look_on():
                return
            number = plane.stat(event.stats, stat)
            if isinstance(number, int):
                self._append(event, line, thread, self._strings[str(number)])

    def _add_work(self, plane: Plane, line: Line, thread: int, stat: int | None, texts: dict[int, int]) -> None:
        """Take everything in the line of a device; ``texts`` has the ids of the plane's names that were met."""
        for event in events(plane, line, stats=stat is not None):
            if not self._may_look_on():
                return
            text = texts.get(event.name)
            if text is None:
                found = plane.event_name(event.name)
                if found is None:
                    self._losses.lose("events without a name were")
                    continue
                text = texts[event.name] = self._strings[printable_text(found)]
                if found.startswith(_GPU_COPY):
                    self._copies.add(text)
            if event.offset_ps is None:
                self._several += 1
            else:
                moved = self._bytes(plane, event, stat) if text in self._copies else -1
                self._append(event, line, thread, text, moved)

    def _may_look_on(self) -> bool:
        self._looked_at += 1
        if self._looked_at == limits.XPLANE_EVENTS:
            self._losses.say(f"only the first {limits.XPLANE_EVENTS:,} events were read", truncated=True)
        return self._looked_at < limits.XPLANE_EVENTS

    def _bytes(self, plane: Plane, event: Event, stat: int | None) -> int:
        details = plane.stat(event.stats, stat)
        found = _COPIED_BYTES.search(details) if isinstance(details, str) else None
        return int(found[1]) if found else -1

    def _append(self, event: Event, line: Line, thread: int, text: int, moved_bytes: int = -1) -> None:
        start_ps = event.offset_ps or 0
        ts_ns = line.start_ns + start_ps // _PS
        dur_ns = line.start_ns + (start_ps + event.duration_ps) // _PS - ts_ns
        if not (-_LAST_NS <= ts_ns <= _LAST_NS and 0 <= dur_ns <= _LONGEST_NS):
            self._losses.lose("events with a time that no clock can show were")
            return
        for column, value in zip(_COLUMNS, (text, thread, ts_ns, dur_ns, moved_bytes), strict=True):
            self._values[column].append(value)

    def columns(self) -> TraceColumns:
        losses = self._losses
        found = {column: np.array(self._values.pop(column), np.int64) for column in _COLUMNS}
        damage = Damage(
            dropped=losses.counts.total(), truncated=losses.truncated, notes=(*losses.notes(), *self._notes())
        )
        return trace_columns(
            TraceMeta(path=losses.path, devices=tuple(self._devices)),
            tuple(self._strings),
            tuple(self._threads.texts),
            category=Category.OTHER,
            damage=damage,
            thread_names=dict(enumerate(line for _, line in self.places)),
            name=found["name"],
            thread=found["thread"],
            ts_ns=found["ts_ns"],
            dur_ns=found["dur_ns"],
            bytes=found["bytes"],
        )

    def _notes(self) -> list[str]:
        notes = []
        if self._several:
            notes.append(f"{self._several:,} events that stand for several have no time of their own and were left out")
        refused = self._strings.refused + self._threads.refused
        if refused:
            notes.append(f"{refused:,} names past the limit on distinct names were put together as one")
        return notes


def _properties(plane: Plane, number: int) -> DeviceProperties:
    def stat(wanted: str) -> int | str | None:
        return plane.stat(plane.stats, plane.stat_named(wanted))

    def count(wanted: str) -> int | None:
        found = stat(wanted)
        return found if isinstance(found, int) and found >= 0 else None

    kind = stat("device_type_string")
    return DeviceProperties(
        id=number,
        name=printable_text(kind) if isinstance(kind, str) else "",
        memory_bytes=count("memory_size"),
        compute_major=count("compute_cap_major"),
        compute_minor=count("compute_cap_minor"),
        multiprocessors=count("core_count"),
    )
