"""How bytes reach the disk: append whole records until the disk refuses, or write beside and rename."""

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from profilerkit.rundir.layout import PART_SUFFIX

_Document = TypeVar("_Document", bound=msgspec.Struct)


class Descriptor:
    """A file that stays open. A program may close all descriptors, as daemons do, and their numbers become others'."""

    def __init__(self, path: str | Path, flags: int) -> None:
        """Open it. Raises OSError."""
        self.number = os.open(path, flags | os.O_CLOEXEC, 0o644)
        self._file = self._leads_to()

    def _leads_to(self) -> tuple[int, int] | None:
        try:
            found = os.fstat(self.number)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @property
    def is_ours(self) -> bool:
        """Whether the number still leads to the file; 1 µs."""
        return self._file is not None and self._leads_to() == self._file

    def close(self) -> None:
        """Close it, unless somebody has."""
        if self.is_ours:
            os.close(self.number)
        self._file = None


class AppendFile:
    """A file that only grows, by whole records.

    Attributes:
        stopped: why nothing is written any more, for example ``No space left on device``; ``None`` while it works.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._file = self._opened()
        self._size = os.fstat(self._file.number).st_size
        self.stopped: str | None = None

    def _opened(self) -> Descriptor:
        return Descriptor(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def append(self, data: bytes, record_bytes: int = 0) -> int:
        """Append ``data`` and return how many of its bytes are kept.

        When the disk refuses, the file is cut back to the last whole record (all of ``data`` counts as one record
        when ``record_bytes`` is 0) and stays as it is from then on.
        """
        if self.stopped is not None:
            return 0
        done = 0
        view = memoryview(data)
        try:
            if not self._file.is_ours:
                self._file = self._opened()
            while done < len(data):
                done += os.write(self._file.number, view[done:])
        except OSError as error:
            if error.errno is None:  # a signal's handler raised it
                raise
            self.stopped = os.strerror(error.errno)
            done -= done % record_bytes if record_bytes else done
            self._cut(self._size + done)
        self._size += done
        return done

    def _cut(self, size: int) -> None:
        """Drop a torn record; a file that cannot be cut keeps it, and the reader ignores it."""
        if not self._file.is_ours:
            return
        try:
            os.ftruncate(self._file.number, size)
        except OSError as error:
            self.stopped = f"{self.stopped}; {os.strerror(error.errno or 0)}"

    def close(self) -> None:
        """Close the file; later appends keep nothing."""
        self.stopped = self.stopped or "closed"
        self._file.close()


def write_document(path: Path, document: msgspec.Struct) -> None:
    """Write ``document`` as JSON beside ``path`` and rename it, so that no reader ever sees half of it.

    Raises:
        OSError: the disk refused; ``path`` is as it was.
    """
    data = msgspec.json.encode(document) + b"\n"
    part = path.with_name(path.name + PART_SUFFIX)
    # Not emptied first: a full disk still takes what fits into the room that `reserve` took.
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        done = 0
        while done < len(data):
            done += os.write(fd, data[done:])
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)
    part.replace(path)


def reserve(path: Path, size_bytes: int) -> None:
    """Take the room that a document at ``path`` will need, so that it can be written when the disk is full.

    Raises:
        OSError: the disk is full already.
    """
    path.with_name(path.name + PART_SUFFIX).write_bytes(bytes(size_bytes))


def create_document(path: Path, document: msgspec.Struct) -> bool:
    """Write ``document`` to ``path`` unless somebody has; whether it was this process.

    A reader may find it empty for a moment: what it reads then is no document.

    Raises:
        OSError: the disk refused.
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
    """Read a document that ``write_document`` wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: it does not hold a ``kind``.
    """
    return msgspec.json.decode(path.read_bytes(), type=kind)
