"""Writes one rank's part of a run directory."""

import threading
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path

import msgspec

from profilerkit.rundir import layout
from profilerkit.rundir.files import AppendFile, reserve, write_document
from profilerkit.rundir.process import ClockAnchor
from profilerkit.rundir.sampled import Sample

#: A block of a disk, which holds nearly every ``RankEnd``: its longest text is an exception's, cut to 2,000 characters.
_END_BYTES = 4096
#: A sampler's write may take so long at the end (a choice): what it appends later is given up.
_SAMPLE_SECONDS = 2.0
#: kind, flags, name id, start_ns, dur_ns, value: the fields of ``layout.EVENT``
Record = tuple[int, int, int, int, int, int]


def lines_of(records: Sequence[msgspec.Struct]) -> bytes:
    """Return one line of JSON for each record."""
    return b"".join([msgspec.json.encode(record) + b"\n" for record in records])


class RankWriter:
    """The files of one rank, open for appending; ``events`` says what became of the records."""

    def __init__(self, run: Path, rank: int) -> None:
        """Create the rank's directory and files.

        Raises:
            OSError: the directory cannot be created or written.
        """
        self.path = layout.rank_directory(run, rank)
        self.path.mkdir(parents=True, exist_ok=True)
        self._said_names = bytearray()
        self.events = AppendFile(
            self.path / layout.EVENTS,
            lambda: layout.HEADER.pack(layout.MAGIC, layout.FORMAT_VERSION, layout.EVENT.size),
            layout.EVENT.size,
        )
        self._names = AppendFile(self.path / layout.NAMES, lambda: bytes(self._said_names))
        self._samples = AppendFile(self.path / layout.SAMPLES)
        self._sampling = threading.Lock()  # each source of samples has a thread of its own
        self._clock = AppendFile(self.path / layout.CLOCK)
        self._refused: str | None = None
        if self.events.stopped is not None:
            raise OSError(f"cannot write {self.path / layout.EVENTS}: {self.events.stopped}")
        reserve(self.path / layout.END, _END_BYTES)

    @property
    def dropped_records(self) -> int:
        """Event records that were given up, or wait: the disk refuses."""
        return -(-self.events.unwritten_bytes // layout.EVENT.size)

    @property
    def stopped(self) -> str | None:
        """Why the records are not whole; ``None`` while all is written."""
        if self.events.removals:
            return f"{layout.EVENTS}: it was removed while it was written, and was made anew"
        if self._refused is None and self.events.unwritten_bytes:
            return f"{layout.EVENTS}: {self.events.refused}"
        return self._refused

    def stop(self, name: str, error: OSError) -> None:
        """Note that the disk refused ``name``."""
        self._refused = self.stopped or f"{name}: {error.strerror or error}"

    def append_events(self, records: Sequence[Record]) -> None:
        """Append event records in one write; they wait while the disk refuses."""
        self._names.look()  # the names of records go first
        self.events.append(b"".join(starmap(layout.EVENT.pack, records)))

    def append_name(self, name_id: int, name: str) -> None:
        """Append one phase name; call it before the first event that uses ``name_id``."""
        line = msgspec.json.encode({"id": name_id, "name": name}) + b"\n"
        self._said_names += line
        self._names.append(line)

    def append_sample(self, sample: Sample) -> None:
        """Append one line of ``samples.jsonl``, from any thread."""
        line = msgspec.json.encode(sample) + b"\n"
        with self._sampling:
            self._samples.append(line)

    def append_anchor(self, anchor: ClockAnchor) -> None:
        """Append one line of ``clock.jsonl``."""
        self._clock.append(msgspec.json.encode(anchor) + b"\n")

    def write(self, name: str, document: msgspec.Struct) -> None:
        """Write or replace ``meta.json``, ``end.json`` or ``oom.json``. Raises OSError when the disk refuses."""
        write_document(self.path / name, document)

    def trace_part(self, first_step: int) -> Path:
        """Where the trace of a window is to be exported before it counts; its directory exists afterwards."""
        directory = layout.window_directory(self.path, first_step)
        directory.mkdir(parents=True, exist_ok=True)
        return directory / (layout.WINDOW_TRACE + layout.PART_SUFFIX)

    def finish_window(self, first_step: int, status: layout.WindowStatus) -> None:
        """Rename the exported trace of a usable window (remove it otherwise) and write its status.

        torch 2.13 writes beside the name it is given, and leaves that there when the disk is full.
        """
        part = self.trace_part(first_step)
        if status.ok:
            part.replace(part.with_name(layout.WINDOW_TRACE))
        for left in part.parent.glob(f"{part.name}*"):
            left.unlink(missing_ok=True)
        write_document(part.with_name(layout.WINDOW_STATUS), status)

    def close(self) -> None:
        """Close the append-only files; that of the samples while no sampler is inside of a write that hangs."""
        for file in (self.events, self._names, self._clock):
            file.close()
        if self._sampling.acquire(timeout=_SAMPLE_SECONDS):
            self._samples.close()


def write_manifest(run: Path, manifest: layout.RunManifest) -> None:
    """Write ``run.json``. Raises OSError when the disk refuses."""
    write_document(run / layout.MANIFEST, manifest, mode=0o600)  # it holds the command line
