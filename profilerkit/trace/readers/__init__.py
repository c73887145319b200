"""Any trace file into TraceColumns: the table of readers and the choice between them."""

import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, cast

from profilerkit.errors import UnreadableInputError, UsageError, unread
from profilerkit.trace.blocks import SNIFFED_BYTES, BlockSource
from profilerkit.trace.columns import ANALYZED, TraceColumns, Wanted
from profilerkit.trace.kineto.parts import Ahead
from profilerkit.trace.readers import kineto, nsys, xplane
from profilerkit.trace.readers.logs import LOG_READERS

ENTRY_POINTS = "profilerkit.readers"


class Reader(Protocol):
    """One format: a module or an object with a name and two functions."""

    @property
    def name(self) -> str:
        """The format in one word."""

    def sniff(self, head: bytes, /) -> bool:
        """Return whether a file whose plain text begins with ``head`` is of this format; must not raise."""

    def read(self, path: Path, /, *, wanted: Wanted, strict: bool) -> TraceColumns:
        """Return the columns of the file, or raise ``UnreadableInputError`` when it holds no events.

        Args:
            path: the file.
            wanted: what is read beside the complete events; more may be read, and ``TraceColumns.read`` says it.
            strict: whether the first damage is an ``UnreadableInputError`` rather than repaired or dropped.
        """


# What else lies where traces do.
_KNOWN_STARTS = {
    b"<": "it is HTML or XML",
    b"\x1f\x8b": "it is gzip within gzip",
    b"PK\x03\x04": "it is a zip archive",
    b"BZh": "it is compressed with bzip2",
    b"\xfd7zXZ": "it is compressed with xz",
    b"\x28\xb5\x2f\xfd": "it is compressed with zstd",
    b"SQLite format 3\0": "it is an SQLite database",
    **{bytes([0x80, protocol]): "it is a pickle, and no CUDA memory snapshot" for protocol in range(2, 6)},
    b"version https://git-lfs": "it is a Git LFS pointer, not the file it stands for",
}

#: What ``export_memory_timeline`` of torch.profiler writes, raw or not.
_LIST_OF_LISTS = re.compile(rb"\[\s*\[")
_SINGLE_VALUE = re.compile(rb'(?:null|true|false|-?\d[\d.eE+-]*|"[^"\\]*")\s*\Z')

# Asked in this order; the first that claims a file reads it.
READERS: tuple[Reader, ...] = (cast(Reader, kineto), cast(Reader, nsys), cast(Reader, xplane))


def read_trace(
    path: str | Path, *, wanted: Wanted = ANALYZED, strict: bool = False, ahead: Ahead | None = None
) -> TraceColumns:
    """Return the columns of a trace file of any known format, chosen by its content and never by its name.

    Args:
        path: the file.
        wanted: what is read beside the complete events of host and device.
        strict: whether the first damage is an error that names its place; otherwise what is whole or can be repaired
            is read, and ``TraceColumns.damage`` counts the rest.
        ahead: a later part of the file that another process reads with the same ``wanted``; the columns are the same.

    Raises:
        UsageError: there is no such file.
        UnreadableInputError: the file cannot be read, is of no known format, or holds no events; or it is damaged
            and ``strict`` is set.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"{path} does not exist", hint="check the path")
    if path.is_dir():
        raise UnreadableInputError(f"{path} is a directory, not a trace file", hint="name a file inside it")
    if not path.is_file():
        raise UnreadableInputError(
            f"{path} is not a file",
            cause="it is a pipe or a device, and traces are read twice",
            hint="save it to a file and name that file",
        )
    source = BlockSource(path)
    try:
        head = source.beginning()
        reader = _reader_of(head)
        if ahead is not None and reader is READERS[0]:
            return kineto.read(path, wanted=wanted, strict=strict, ahead=ahead)
        if reader is not None:
            return reader.read(path, wanted=wanted, strict=strict)
    except OSError as error:
        raise unread(path, error) from error
    raise UnreadableInputError(
        f"{path} is not a trace of a known format",
        cause=_what_it_looks_like(head, source),
        hint=f"pass a trace of torch.profiler; known formats: {', '.join(_known_formats())}",
    )


def _known_formats() -> list[str]:
    """What can be analysed, with what is read beside a trace or instead of one."""
    return [*(reader.name for reader in READERS), *(reader.name for reader in LOG_READERS), "flight recorder dump"]


def _reader_of(head: bytes) -> Reader | None:
    for reader in READERS:
        if reader.sniff(head):
            return reader
    for found in entry_points(group=ENTRY_POINTS):
        reader = cast(Reader, found.load())
        if reader.sniff(head):
            return reader
    return None


def _what_it_looks_like(head: bytes, source: BlockSource) -> str:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start:
        return source.notes[0] if source.notes else "the file is empty"
    for magic, what in _KNOWN_STARTS.items():
        if start.startswith(magic):
            return what
    if not start.strip(b"\0"):
        return "it begins with zero bytes"
    if b"\0" in start[:4]:
        return "its text is UTF-16; traces are UTF-8"
    if start.startswith(b"{"):
        seen = f" in its first {SNIFFED_BYTES // 1024} KiB" if len(head) >= SNIFFED_BYTES else ""
        return f"it is JSON, but without a 'traceEvents' list{seen}"
    if _LIST_OF_LISTS.match(start):
        return "it is a list of lists, as a memory timeline is: how much memory was used when, and no events"
    if start.startswith(b"["):
        return "it is a JSON list, but not one of events"
    if _SINGLE_VALUE.match(start):
        return "it is JSON, but a single value instead of a trace"
    return "its first bytes are neither JSON nor gzip"
