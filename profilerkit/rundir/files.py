"""Bring records to the disk and back: append whole ones, replace documents, read what was appended since.

A directory that somebody sent can hold links, pipes and devices, and files of holes. ``open_regular`` is how each of
its files is opened; nothing is written through a link.
"""

import errno
import os
import secrets
import stat
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Generic, TypeVar

import msgspec

from profilerkit.rundir.layout import EVENT, FORMAT_VERSION, HEADER, PART_SUFFIX, WORKER

_Document = TypeVar("_Document", bound=msgspec.Struct)
#: What is read of one file: of a document, and of records (30 million steps, or samples of a month).
DOCUMENT_BYTES, RECORDS_BYTES = 16 * 1024 * 1024, 1024 * 1024 * 1024
#: A file above this size of which the disk holds less than one byte in so many is made of holes. Compressing file
#: systems shrink records 5 to 20 times.
_SOLID_BYTES, _HOLES_RATIO = 64 * 1024 * 1024, 64
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path, most_bytes: int | None = None, *, named: bool = False) -> IO[bytes]:
    """Open a regular file, which may be hostile.

    Raises:
        OSError: it cannot be opened, is no regular file, is too large, or is made of holes; ``strerror`` says which.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # without O_NONBLOCK a pipe waits for its writer
    try:
        file = os.fdopen(os.open(path, flags if named else flags | os.O_NOFOLLOW), "rb", buffering=0)
    except IsADirectoryError as error:
        raise OSError(errno.EISDIR, "it is a directory", str(path)) from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            what = "a link" if error.errno == errno.ELOOP else "a socket or a device"
            raise OSError(error.errno, f"it is {what}", str(path)) from error
        raise
    found = os.fstat(file.fileno())
    why = ""
    if not stat.S_ISREG(found.st_mode):
        why = f"it is {_KINDS.get(stat.S_IFMT(found.st_mode), 'no file')}"
    elif most_bytes is not None and found.st_size > most_bytes:
        why = f"it has more than {most_bytes // 1024**2} MiB"
    elif found.st_size > _SOLID_BYTES and _has_holes(file.fileno(), found):
        why = f"it is made of holes: the disk holds {found.st_blocks * 512} of its {found.st_size} bytes"
    if why:
        file.close()
        raise OSError(errno.EINVAL, why, str(path))
    return file


def _has_holes(number: int, found: os.stat_result) -> bool:
    """Whether hardly anything of a file is on the disk, and not only because nothing of it is written back yet."""
    if found.st_blocks * 512 * _HOLES_RATIO >= found.st_size:
        return False
    is_hollow = os.lseek(number, 0, os.SEEK_HOLE) < found.st_size
    os.lseek(number, 0, os.SEEK_SET)
    return is_hollow


def read_regular(path: Path, most_bytes: int = DOCUMENT_BYTES, *, named: bool = False) -> bytes:
    """Return the content of a regular file. Arguments and errors are those of ``open_regular``."""
    with open_regular(path, most_bytes, named=named) as file:
        return file.read()


def private_mode() -> int:
    """Return the mode of a run directory: others of the machine read it only if they are let in.

    Root of a container records for somebody outside.
    """
    return 0o700 if os.getuid() else 0o777


class Descriptor:
    """A file that stays open. A program may close all descriptors, as daemons do, and their numbers become others'."""

    def __init__(self, path: str | Path, flags: int) -> None:
        """Open it, through no link. Raises OSError."""
        self.number = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        self._file = self._leads_to(self.number)

    def _leads_to(self, place: int | Path) -> tuple[int, int] | None:
        try:
            found = place.lstat() if isinstance(place, Path) else os.fstat(place)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @property
    def is_ours(self) -> bool:
        """Whether the number still leads to the file; 1 µs."""
        return self._file is not None and self._leads_to(self.number) == self._file

    def is_at(self, path: Path) -> bool:
        """Whether the file is still at a path: somebody may have removed it."""
        return self._leads_to(path) == self._file

    def close(self) -> None:
        """Close it, unless somebody has."""
        if self.is_ours:
            os.close(self.number)
        self._file = None


#: What waits while the disk refuses: as many events as the recorder keeps, 200,000 of 32 bytes.
_WAITING_BYTES = 6_400_000
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.25, 15.0  #: the next try after a refusal, s: doubled each time
_LOOK_SECONDS = 0.2  #: between two looks at whether the file is still there, each of which takes some µs


class AppendFile:
    """A file that only grows, by whole records; one thread at a time may append.

    Where the disk refuses (it is full, or does not answer) records wait, and writing is tried again. A file that was
    removed is made anew.

    Attributes:
        removals: how often it was removed, and made anew.
        stopped: why nothing is written now, for example ``No space left on device``; ``None`` while it works.
    """

    def __init__(self, path: Path, head: Callable[[], bytes] = bytes, record_bytes: int = 1) -> None:
        """Open it; ``head`` is what an empty file begins with. Raises OSError."""
        self._path = path.absolute()
        self._head, self._record_bytes = head, record_bytes
        self._waiting = bytearray()
        self._lost_bytes = 0
        self._pause = self._next_try = self._looked = 0.0
        self.stopped: str | None = None
        self.refused: str | None = None
        self.removals, self.is_closed = 0, False
        self._file = self._opened()
        if self._waiting:
            self._write()

    def _opened(self) -> Descriptor:
        file = Descriptor(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        if not os.fstat(file.number).st_size:
            head = self._head()
            if not (head and self._waiting.startswith(head)):
                del self._waiting[: len(self._waiting) % self._record_bytes]  # the rest of a torn record
                self._waiting[:0] = head
        return file

    @property
    def unwritten_bytes(self) -> int:
        """What waits, and what was given up because too much waited."""
        return self._lost_bytes + len(self._waiting)

    def append(self, data: bytes) -> None:
        """Append whole records, or let them wait; what no room is left for is given up."""
        if self._waiting and time.monotonic() >= self._next_try:
            self._write()
        if self.is_closed or len(self._waiting) + len(data) > _WAITING_BYTES:
            self._lost_bytes += len(data)
            return
        self._waiting += data
        if data and self.stopped is None:
            self._write()

    def look(self) -> None:
        """Make the file anew where somebody removed it, though there is nothing to append."""
        if self.stopped is None:
            self._write()

    def _write(self) -> None:
        try:
            if not self._file.is_ours:
                self._file = self._opened()
            if time.monotonic() - self._looked > _LOOK_SECONDS:
                self._look()
            while self._waiting:
                del self._waiting[: os.write(self._file.number, self._waiting)]
            self.stopped, self._pause = None, 0.0
        except OSError as error:
            if error.errno is None:  # a signal's handler raised it
                raise
            self.stopped = self.refused = os.strerror(error.errno)
            self._pause = min(2 * self._pause or _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
            self._next_try = time.monotonic() + self._pause

    def _look(self) -> None:
        """Make the file anew where somebody removed or emptied it."""
        is_first, self._looked = not self._looked, time.monotonic()
        is_empty = not is_first and not os.fstat(self._file.number).st_size and bool(self._head())
        if self._file.is_at(self._path) and not is_empty:
            return
        self.removals += 1
        for place in (self._path.parent.parent, self._path.parent):
            place.mkdir(private_mode(), parents=True, exist_ok=True)
        self._file.close()
        self._file = self._opened()

    def close(self) -> None:
        """Write what waits, if the disk takes it, and close the file; later appends keep nothing."""
        if self._waiting and not self.is_closed:
            self._write()
        self.is_closed = True
        self._file.close()


_LONGEST_NAME = 50  #: characters of four bytes each; a name may have 255 bytes


def _new_file(path: Path, mode: int = 0o644) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def write_document(path: Path, document: msgspec.Struct, mode: int = 0o644) -> None:
    """Write ``document`` as JSON beside ``path`` and rename it, so that no reader ever sees half of it."""
    data = msgspec.json.encode(document) + b"\n"
    part = path.with_name(path.name + PART_SUFFIX)
    # Not emptied first: a full disk still takes what fits into the room that `reserve` took.
    fd = _new_file(part, mode)
    try:
        done = 0
        while done < len(data):
            done += os.write(fd, data[done:])
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)
    part.replace(path)


def write_whole(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file beside its place, by a name that nobody knows, and rename it; write to a device as it is.

    Without a ``mode`` a file that is there keeps its own.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    beside = path.with_name(f".{path.name[:_LONGEST_NAME]}.{secrets.token_hex(8)}{PART_SUFFIX}")
    try:
        if mode is None and path.is_file():
            mode = stat.S_IMODE(path.stat().st_mode)
        created = 0o666 if mode is None else mode
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, created), "wb") as file:
            file.write(data)
        if mode is not None:
            beside.chmod(mode)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def reserve(path: Path, size_bytes: int) -> None:
    """Take the room that a document at ``path`` will need, so that it can be written when the disk is full."""
    fd = _new_file(path.with_name(path.name + PART_SUFFIX))
    try:
        os.write(fd, bytes(size_bytes))
    finally:
        os.close(fd)


def create_document(path: Path, document: msgspec.Struct) -> bool:
    """Write ``document`` to ``path`` unless somebody has; whether it was this process.

    A reader may find it empty for a moment: what it reads then is no document.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    try:
        os.write(fd, msgspec.json.encode(document))
    finally:
        os.close(fd)
    return True


def read_document(path: Path, kind: type[_Document]) -> _Document:
    """Read a document that ``write_document`` wrote."""
    data = read_regular(path)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:  # no ValueError in msgspec 0.19
        raise ValueError(str(error)) from error


#: The highest byte of a little-endian int64 of at most 2^60 ns, 36 years, from zero: clocks count from the machine's
#: start.
_OF_A_TIME = frozenset((*range(0x10), *range(0xF0, 0x100)))
_OF_A_LENGTH = frozenset(range(0x10))
#: Where these bytes are: of the start and the duration of an event, and of the start of a worker's batch.
_IN_EVENT = ((15, _OF_A_TIME), (23, _OF_A_LENGTH))
_IN_BATCH = ((7, _OF_A_TIME),)


def sound_events(events: bytes) -> bytes:
    """Whole records of ``layout.EVENT`` whose times can be true: the same bytes where all can, as is usual.

    >>> far, wrong = EVENT.pack(1, 0, 0, 1 << 62, 5, 0), EVENT.pack(1, 0, 0, 0, -5, 0)
    >>> sound_events(far + EVENT.pack(1, 0, 0, 7, 5, 0) + wrong) == EVENT.pack(1, 0, 0, 7, 5, 0)
    True
    """
    return _sound(events, EVENT.size, _IN_EVENT)


def sound_batches(batches: bytes) -> bytes:
    """Whole records of ``layout.WORKER`` whose times can be true."""
    return _sound(batches, WORKER.size, _IN_BATCH)


def _sound(data: bytes, size: int, bounds: tuple[tuple[int, frozenset[int]], ...]) -> bytes:
    if all(bound.issuperset(data[at::size]) for at, bound in bounds):
        return data
    records = (data[at : at + size] for at in range(0, len(data), size))
    return b"".join(record for record in records if all(record[at] in bound for at, bound in bounds))


#: Lines that came since the last look are read up to this size, the latest ones: 4 MB are two hours of samples.
_MOST_LINE_BYTES = 4_000_000


class _Growing:
    """Where the next look at a file begins; ``head_bytes`` at its beginning are read at each look."""

    def __init__(self, path: Path, head_bytes: int) -> None:
        self._path = path
        self._head_bytes = self._offset = head_bytes

    def _news(self, unit: int, most_bytes: int) -> tuple[bytes, bytes, bool, bool]:
        """Return the head and what was appended, at most the last ``most_bytes`` in whole units.

        Then whether the file is another one, as a shorter one is, and whether something was left out.
        """
        try:
            with open_regular(self._path, RECORDS_BYTES) as file:
                size = os.fstat(file.fileno()).st_size
                is_another = size < self._offset > self._head_bytes
                if is_another:
                    self._offset = self._head_bytes
                head = file.read(self._head_bytes)
                whole = (size - self._offset) // unit * unit
                left_out = max(0, whole - most_bytes // unit * unit)
                self._offset += left_out
                file.seek(self._offset)
                return head, file.read(max(0, size - self._offset)), is_another, left_out > 0
        except OSError:  # not there yet, or a file server that is away for a moment
            return b"", b"", False, False


class GrowingRecords(_Growing):
    """A file with a header and records of one size, of which the last ``most`` are kept."""

    def __init__(self, path: Path, magic: bytes, record_bytes: int, most: int) -> None:
        super().__init__(path, HEADER.size)
        self._format = (magic, FORMAT_VERSION, record_bytes)
        self._record_bytes = record_bytes
        self._most_bytes = most * record_bytes
        self._kept = b""

    def look(self) -> bytes:
        """The whole records that are kept; none of a file whose header is not one that this version reads."""
        head, data, is_another, is_cut = self._news(self._record_bytes, self._most_bytes)
        if is_another or is_cut:
            self._kept = b""
        if len(head) < HEADER.size or HEADER.unpack(head) != self._format:
            return self._kept
        whole = data[: len(data) - len(data) % self._record_bytes]
        self._offset += len(whole)
        if whole:
            self._kept = (self._kept + whole)[-self._most_bytes :]
        return self._kept


class GrowingLines(_Growing, Generic[_Document]):
    """A file of JSON lines, of which the last ``most`` are kept; those that cannot be read are left out."""

    def __init__(self, path: Path, kind: type[_Document], most: int) -> None:
        super().__init__(path, 0)
        self._decoder = msgspec.json.Decoder(kind)
        self._kept: deque[_Document] = deque(maxlen=most)

    def look(self) -> tuple[_Document, ...]:
        """The records that are kept, in file order."""
        _, data, is_another, is_cut = self._news(1, _MOST_LINE_BYTES)
        if is_another:
            self._kept.clear()
        end = data.rfind(b"\n") + 1
        if not end and len(data) >= _MOST_LINE_BYTES:
            end = len(data)  # no record is that long
        self._offset += end
        *lines, _ = data[:end].split(b"\n")
        for line in lines[1:] if is_cut else lines:
            try:
                self._kept.append(self._decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
        return tuple(self._kept)


class ReplacedDocument(Generic[_Document]):
    """A JSON document that its writer replaces as a whole: read again only when it was."""

    def __init__(self, path: Path, kind: type[_Document]) -> None:
        self._path = path
        self._kind = kind
        self._state: tuple[int, int, int] | None = None
        self._value: _Document | None = None

    def look(self) -> _Document | None:
        """The document; ``None`` while it is missing or damaged."""
        try:
            status = self._path.stat()
            state = (status.st_ino, status.st_mtime_ns, status.st_size)
            if state != self._state:
                self._value = read_document(self._path, self._kind)
                self._state = state
        except FileNotFoundError:
            self._state = self._value = None
        except OSError:
            self._state = None
        except ValueError:
            self._state, self._value = state, None
        return self._value
