"""Any trace file into TraceColumns: the table of readers and the choice between them."""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, cast

from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.trace.blocks import first_plain_bytes
from profilerkit.trace.columns import ANALYZED, TraceColumns, Wanted
from profilerkit.trace.readers import kineto

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


# Asked in this order; the first that claims a file reads it.
READERS: tuple[Reader, ...] = (cast(Reader, kineto),)


def read_trace(path: str | Path, *, wanted: Wanted = ANALYZED, strict: bool = False) -> TraceColumns:
    """Return the columns of a trace file of any known format, chosen by its content and never by its name.

    Args:
        path: the file.
        wanted: what is read beside the complete events of host and device.
        strict: whether the first damage is an error that names its place; otherwise what is whole or can be repaired
            is read, and ``TraceColumns.damage`` counts the rest.

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
    try:
        head = first_plain_bytes(path)
        reader = _reader_of(head)
        if reader is not None:
            return reader.read(path, wanted=wanted, strict=strict)
    except OSError as error:
        raise UnreadableInputError(f"{path} cannot be read", cause=error.strerror or str(error)) from error
    raise UnreadableInputError(
        f"{path} is not a trace of a known format",
        cause=_what_it_looks_like(head),
        hint="known formats: " + ", ".join(reader.name for reader in READERS),
    )


def _reader_of(head: bytes) -> Reader | None:
    for reader in READERS:
        if reader.sniff(head):
            return reader
    for found in entry_points(group=ENTRY_POINTS):
        reader = cast(Reader, found.load())
        if reader.sniff(head):
            return reader
    return None


def _what_it_looks_like(head: bytes) -> str:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start:
        return "the file is empty"
    if start.startswith(b"{"):
        return "it is JSON, but without a 'traceEvents' list"
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "its text is UTF-16; traces are UTF-8"
    if start.startswith(b"SQLite format 3\0"):
        return "it is an SQLite database"
    return "its first bytes are neither JSON nor gzip"
