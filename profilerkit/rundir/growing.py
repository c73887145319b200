"""Files that another process writes: what was appended since the last look, and documents that are replaced.

Nothing is locked and nothing is kept open. A record that is cut at the end of the file is not whole yet: it is read
once the rest of it is there.
"""

import os
from collections import deque
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec

from profilerkit.rundir.files import read_document
from profilerkit.rundir.layout import FORMAT_VERSION, HEADER

_Document = TypeVar("_Document", bound=msgspec.Struct)
#: Lines that came since the last look are read up to this size, the latest ones: 4 MB are two hours of samples.
_MOST_LINE_BYTES = 4_000_000


class _News(NamedTuple):
    """What a look at a file found.

    Attributes:
        head: the beginning of the file, as long as it was asked for or as the file is.
        data: what was appended.
        is_another: the file is not the one that was read before.
        is_cut: something before ``data`` was left out.
    """

    head: bytes = b""
    data: bytes = b""
    is_another: bool = False
    is_cut: bool = False


class _Growing:
    """Where the next look at a file begins; ``head_bytes`` at its beginning are read at each look."""

    def __init__(self, path: Path, head_bytes: int) -> None:
        self._path = path
        self._head_bytes = self._offset = head_bytes

    def _news(self, unit: int, most_bytes: int) -> _News:
        """What was appended; of more than ``most_bytes`` only the end, from a whole number of units on.

        A file that is shorter than before is another one, or was cut back by a writer whose disk is full: it is read
        again.
        """
        try:
            with self._path.open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                is_another = size < self._offset > self._head_bytes
                if is_another:
                    self._offset = self._head_bytes
                head = file.read(self._head_bytes)
                whole = (size - self._offset) // unit * unit
                left_out = max(0, whole - most_bytes // unit * unit)
                self._offset += left_out
                file.seek(self._offset)
                return _News(head, file.read(max(0, size - self._offset)), is_another, left_out > 0)
        except OSError:  # not there yet, or a file server that is away for a moment
            return _News()


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
        news = self._news(self._record_bytes, self._most_bytes)
        if news.is_another or news.is_cut:
            self._kept = b""
        if len(news.head) < HEADER.size or HEADER.unpack(news.head) != self._format:
            return self._kept
        whole = news.data[: len(news.data) - len(news.data) % self._record_bytes]
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
        news = self._news(1, _MOST_LINE_BYTES)
        if news.is_another:
            self._kept.clear()
        end = news.data.rfind(b"\n") + 1
        if not end and len(news.data) >= _MOST_LINE_BYTES:
            end = len(news.data)  # no record is that long
        self._offset += end
        *lines, _ = news.data[:end].split(b"\n")
        for line in lines[1:] if news.is_cut else lines:
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
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._state, self._value = state, None
        return self._value
