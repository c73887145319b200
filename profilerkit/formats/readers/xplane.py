"""XPlane, the profile that JAX and TensorFlow write (``*.xplane.pb``), plain or gzip; without a protobuf library."""

import re
from array import array
from pathlib import Path

import numpy as np

from profilerkit.formats import limits, values
from profilerkit.formats.blocks import BlockSource
from profilerkit.formats.values import StringIds, ThreadIds, printable_text
from profilerkit.formats.xla import STEP_ANNOTATIONS, Role, device_number, of_xla, role_of
from profilerkit.formats.xspace import Event, Line, Losses, Message, Plane, events, is_xspace, line_at, planes
from profilerkit.trace.columns import (
    ANALYZED,
    Category,
    Damage,
    DeviceProperties,
    TraceColumns,
    TraceMeta,
    Wanted,
    trace_columns,
)
from profilerkit.units import format_bytes

name = "xplane"
# Beside a profile lies the same as JSON, of which a part may be left out.
suffixes = (".xplane.pb", ".xplane.pb.gz")
# Any message of protocol buffers: a profile that was renamed, or a model.
shared_suffixes = (".pb", ".pb.gz")

_PS = 1000
_LAST_NS = int(values.LAST_US) * 1000
_LONGEST_NS = int(values.LONGEST_DURATION_US) * 1000
_HOST = "/host:"
# Stats of the events that are looked at: the number of an annotated step, and how much a GPU's copy moves.
_STEP_NUMBER, _COPY_DETAILS = "step_num", "memcpy_details"
_COPY = "Memcpy"
_COPIED_BYTES = re.compile(r"\bsize:(\d{1,18})\b", re.ASCII)
_COLUMNS = ("name", "thread", "ts_ns", "dur_ns", "bytes")


def sniff(head: bytes) -> bool:
    """Return whether a file that begins like this is an XSpace."""
    return is_xspace(head)


def read(path: Path, *, wanted: Wanted = ANALYZED, strict: bool = False) -> TraceColumns:
    """Return the steps and the work of the device that worked most; what could not be read is counted in ``damage``.

    Times are picoseconds in the file. Start and end of an event are each cut to the nanosecond below, so that events
    that meet still meet; a duration is off by less than 1 ns.

    Args:
        path: the file.
        wanted: of no use here: an XPlane holds none of what it asks for.
        strict: whether the first damage is an error.

    Raises:
        UnreadableInputError: the file holds no work of a device, or is damaged and ``strict`` is set.
        OSError: the file cannot be opened or read.
    """
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
    """The events that are of use, in columns.

    Attributes:
        places: plane and line of each thread.
    """

    def __init__(self, losses: Losses) -> None:
        self.places: list[tuple[str, str]] = []
        self._losses = losses
        self._strings, self._threads = StringIds(), ThreadIds()
        self._values = {column: array("q") for column in _COLUMNS}
        self._devices: list[DeviceProperties] = []
        self._copies: set[int] = set()
        self._looked_at = self._several = 0

    def add(self, plane: Plane) -> None:
        """Take what is of use in a plane."""
        is_host = plane.name.startswith(_HOST)
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
        """Take the host's annotations of steps, named by their numbers."""
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
                if found.startswith(_COPY):
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
        """How much a GPU's copy moves, -1 where that is not said."""
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
        """Everything that was taken."""
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
    """What a plane says of its device; a GPU's plane does not name the model."""

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
