"""Find the reader of a file by its content, and the files of a directory by the names that readers know."""

import logging
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args

from profilerkit.errors import UnreadableInputError, UsageError, raised, unread
from profilerkit.formats import readers
from profilerkit.formats.blocks import SNIFFED_BYTES, BlockSource
from profilerkit.trace.columns import ANALYZED, TraceColumns, Wanted
from profilerkit.trace.logs import FlightDump, Log

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "profilerkit.readers"

logger = logging.getLogger(__name__)

#: What a reader makes of a file: the columns of a trace, a log beside traces, or a dump of a flight recorder.
Kind = Literal["trace", "log", "dump"]
#: What readers of each kind return.
_RECORDS: dict[Kind, tuple[type, ...]] = {"trace": (TraceColumns,), "log": get_args(Log), "dump": (FlightDump,)}


class Reader(Protocol):
    """One format: a module or an object with a name and two functions.

    It may have ``suffixes``, the endings of names that only its files have, and ``shared_suffixes``, which others have
    too: of a directory, files with the first are read, and those with the second that ``sniff`` recognises. Its
    ``kind`` is ``trace`` unless it says otherwise; readers of other kinds take the path alone.
    """

    @property
    def name(self) -> str:
        """The format in a word or two."""

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


@cache
def _own_readers() -> tuple[Reader, ...]:
    names = [found.name for found in pkgutil.iter_modules(readers.__path__)]
    return tuple(cast(Reader, import_module(f"{readers.__name__}.{name}")) for name in sorted(names))


def entry_points(group: str) -> "tuple[EntryPoint, ...]":
    """Return the entry points of a group.

    To import ``importlib.metadata`` and to search it takes 15 ms: that is left out where no package names the group.
    """
    named = _named(tuple((place, _changed(Path(place))) for place in sys.path))
    if named is not None and group.encode() not in named:
        return ()
    from importlib.metadata import entry_points as found

    return tuple(found(group=group))


def _changed(place: Path) -> int:
    """When something was installed or removed there last."""
    try:
        return place.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(1)
def _named(places: tuple[tuple[str, int], ...]) -> bytes | None:
    """Text of all entry points in these places, as of then; ``None`` with an archive or an egg, which may hold any."""
    paths = [Path(place) for place, _ in places]
    if any(path.suffix == ".egg" or path.is_file() for path in paths):
        return None
    texts = [b""]
    for path in paths:
        for found in path.glob("*.*-info/entry_points.txt"):
            with suppress(OSError):
                texts.append(found.read_bytes())
    return b"\n".join(texts)


def package_of(entry: "EntryPoint") -> str:
    """Return the name of the package that an entry point is of, or of its module."""
    return entry.dist.name if entry.dist is not None else entry.module


class InstalledReader:
    """A reader of another package: what it raises costs the file that it looked at, and is told with its names.

    Raises whatever the package raises when it is imported, and an error for what is no reader.
    """

    def __init__(self, entry: "EntryPoint") -> None:
        reader = entry.load()
        self.package = package_of(entry)
        self._logged: set[str] = set()
        self.name: str = reader.name
        self.kind = _kind_of(reader)
        if self.kind not in _RECORDS:
            raise ValueError(f"its kind is {self.kind!r}, and not one of {', '.join(_RECORDS)}")
        self.suffixes, self.shared_suffixes = (
            (found,) if isinstance(found, str) else tuple(found)
            for found in (getattr(reader, "suffixes", ()), getattr(reader, "shared_suffixes", ()))
        )
        self._sniff, self._read = reader.sniff, reader.read

    def sniff(self, head: bytes) -> bool:
        """Return whether the reader claims a file; one that fails claims none, and is logged."""
        try:
            return bool(self._sniff(head))
        except (Exception, SystemExit) as error:  # code of strangers
            logger.debug("sniff of %s failed", self.name, exc_info=True)
            said = self._failed("sniff", error)
            if said not in self._logged:  # a file is looked at more than once
                logger.warning("%s", said)
            self._logged.add(said)
            return False

    def read(self, path: Path, **how: Any) -> Any:
        """Return what the reader makes of a file. Raises ``UnreadableInputError`` for everything that it raises."""
        try:
            read = self._read(path, **how)
            if not isinstance(read, _RECORDS[self.kind]):
                wanted = " or ".join(known.__name__ for known in _RECORDS[self.kind])
                raise TypeError(f"it must return {wanted}, not {type(read).__name__}")
        except UnreadableInputError:
            raise
        except (Exception, SystemExit) as error:  # code of strangers
            raise UnreadableInputError(
                f"{path} cannot be read",
                cause=self._failed("read", error),
                hint="report this to the authors of that package",
            ) from error
        return read

    def _failed(self, what: str, error: BaseException) -> str:
        return f"{what} of the reader {self.name} of the package {self.package} raised {raised(error)}"


@cache
def installed_readers() -> tuple[tuple[InstalledReader, ...], tuple[str, ...]]:
    """Return the readers of other packages, and a note about each that cannot be used.

    They are looked for once.
    """
    usable: list[InstalledReader] = []
    notes: list[str] = []
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            usable.append(InstalledReader(entry))
        except (Exception, SystemExit) as error:  # code of strangers
            logger.debug("the reader %s cannot be used", entry.name, exc_info=True)
            notes.append(f"The reader {entry.name} of the package {package_of(entry)} was left out: {raised(error)}.")
            logger.warning("%s", notes[-1])
    return tuple(usable), tuple(notes)


def readers_of(kind: Kind) -> Iterator[Reader]:
    """Yield the readers of a kind: those of this package by name, then those of others, loaded only then."""
    yield from (reader for reader in _own_readers() if _kind_of(reader) == kind)
    yield from (reader for reader in installed_readers()[0] if _kind_of(reader) == kind)


def _kind_of(reader: Reader) -> Kind:
    kind: Kind = getattr(reader, "kind", "trace")
    return kind


def suffixes(kind: Kind, attribute: Literal["suffixes", "shared_suffixes"] = "suffixes") -> tuple[str, ...]:
    """Return how the names of files of a kind end."""
    return tuple(suffix for reader in readers_of(kind) for suffix in getattr(reader, attribute, ()))


def reader_of(path: Path, kind: Kind) -> Reader | None:
    """Return the reader of a kind that claims a file; ``None`` for another file, or one that cannot be read at all."""
    if not path.is_file():
        return None
    try:
        head = BlockSource(path).beginning()
    except OSError:
        return None
    return _claiming(head, kind)


def _claiming(head: bytes, kind: Kind) -> Reader | None:
    return next((reader for reader in readers_of(kind) if reader.sniff(head)), None)


def files_of(paths: Sequence[Path], kind: Kind) -> dict[Path, list[tuple[Path, Reader]]]:
    """Return the files of a kind that each path is or holds, with their readers; a path without any is left out.

    A file that is named may have any name; of a directory those are looked at whose names the readers know.
    """
    found = {}
    for path in paths:
        named = suffixes(kind) + suffixes(kind, "shared_suffixes") if path.is_dir() else ()
        files = sorted(file for file in path.iterdir() if file.name.endswith(named)) if path.is_dir() else [path]
        known = [(file, reader) for file in files if (reader := reader_of(file, kind)) is not None]
        if known:
            found[path] = known
    return found


def read_files(
    found: dict[Path, list[tuple[Path, Reader]]], *, strict: bool
) -> tuple[list[Any], list[tuple[Path, UnreadableInputError]]]:
    """Read the logs or dumps of ``files_of``. One of a directory that cannot be read is left out, unless ``strict``.

    Raises:
        UnreadableInputError: a file that was named cannot be read.
    """
    read: list[Any] = []
    left_out: list[tuple[Path, UnreadableInputError]] = []
    for path, known in found.items():
        for file, reader in known:
            try:
                read.append(_read(file, reader))
            except UnreadableInputError as error:
                if strict or file == path:
                    raise
                left_out.append((file, error))
    return read, left_out


def _read(file: Path, reader: Any) -> Any:
    try:
        return reader.read(file)
    except OSError as error:
        raise unread(file, error) from error


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
    if not path.is_file():
        raise UnreadableInputError(
            f"{path} is not a file",
            cause="it is a pipe or a device, and traces are read twice",
            hint="save it to a file and name that file",
        )
    source = BlockSource(path)
    try:
        head = source.beginning()
        reader = _claiming(head, "trace")
        if reader is not None:
            return reader.read(path, wanted=wanted, strict=strict)
    except OSError as error:
        raise unread(path, error) from error
    formats = (reader.name for kind in _RECORDS for reader in readers_of(kind))
    raise UnreadableInputError(
        f"{path} is not a trace of a known format",
        cause=_what_it_looks_like(head, source),
        hint=f"pass a trace of torch.profiler; known formats: {', '.join(formats)}",
    )


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
