"""Read the tables of an export as events: nothing in the file is run, and damage costs the rest of one table."""

import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import msgspec
import numpy as np

from profilerkit.errors import UnreadableInputError
from profilerkit.formats.kineto.repair import printable
from profilerkit.formats.limits import EVENT_BYTES
from profilerkit.formats.values import LAST_US, LONGEST_DURATION_US, whole_numbers
from profilerkit.trace.columns import I64, Bools

#: sqlite3 raises the second where its message repeats a name that is no UTF-8.
# SQLite says that memory ran out where a damaged row claims to be larger than any can be.
BROKEN = (sqlite3.Error, UnicodeDecodeError, MemoryError)

#: A row takes a pointer of 2 bytes, its length, its id, the length of its header, and a byte for each of its columns.
#: Pages that point at each other, or that many tables have in common, show more rows than that.
_ROW_BYTES = 8
#: Real exports are read at 20 MB/s and more. Pages that point at each other can keep SQLite busy for ever.
_LONGEST_S, _SLOWEST_BYTES_PER_S = 10.0, 1_000_000
_CHECK_EVERY = 1_000  # steps of SQLite's virtual machine, some 20 µs
_ROWS_AT_ONCE = 10_000
#: Texts that are kept as UTF-16 become half as long again as UTF-8, at most.
_TEXT_RATIO = 2
_MESSAGE_BYTES = 120
#: Real exports have some 60.
_MOST_TABLES = 10_000
#: Where the header of the file says how long a page is, and how many there are.
_PAGE_BYTES, _PAGES = slice(16, 18), slice(28, 32)
#: The number of pages holds where the file was not changed since by a release before 3.7, which left it alone.
_CHANGED, _COUNTED_AT = slice(24, 28), slice(92, 96)
_HEADER_BYTES = 100

_LIMITS = (
    (sqlite3.SQLITE_LIMIT_LENGTH, EVENT_BYTES),
    (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
    (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1),
)
#: ``writable_schema`` is what lets SQLite read a file that ends early; the file itself is opened for reading only.
_SETTINGS = ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "query_only=ON", "writable_schema=ON")
_RENEW = "export it again: nsys export --type sqlite"


class Database:
    """The tables of an SQLite file that are asked for by name; views and virtual tables are none.

    Attributes:
        tables: the names of the columns of each table, of those asked for.
        damage: what could not be read and why, one sentence each.
    """

    def __init__(self, path: Path, wanted: Collection[str]) -> None:
        """Open a file.

        Args:
            path: the file.
            wanted: names of tables.

        Raises:
            UnreadableInputError: SQLite cannot read the file.
            OSError: the file cannot be opened or read.
        """
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
            self._file_bytes = os.fstat(file.fileno()).st_size
        self.damage: list[str] = []
        if stated_bytes(header) > self._file_bytes:
            self.damage.append("the file ends early")
        self._deadline = time.monotonic() + _LONGEST_S + self._file_bytes / _SLOWEST_BYTES_PER_S
        self._text_bytes = _TEXT_RATIO * self._file_bytes
        self._rows_left = self._file_bytes // _ROW_BYTES
        # Immutable: no lock and no journal is looked for, so that nothing is written beside the file either.
        address = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
        try:
            self._connection = sqlite3.connect(address, uri=True, isolation_level=None)
        except BROKEN as error:
            raise _unreadable(path, error) from error
        try:
            self._secure()
            self.tables: Mapping[str, tuple[str, ...]] = {name: self._columns(name) for name in self._found(wanted)}
        except BROKEN as error:
            self._connection.close()
            raise _unreadable(path, error) from error

    def __enter__(self) -> "Database":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def rows(
        self, table: str, numbers: Sequence[str], texts: Sequence[str] = (), where: str = ""
    ) -> Iterator[list[tuple[object, ...]]]:
        """Yield the rows of a table in lists; none where the table or a column is missing.

        Args:
            table: its name.
            numbers: columns of numbers, ``None`` where they hold none.
            texts: columns that hold texts or numbers, ``None`` for anything else; they stand behind the numbers.
            where: a condition in SQL.
        """
        known = self.tables.get(table, ())
        if self._rows_left < 0 or not set(known).issuperset((*numbers, *texts)):
            return
        # Numbers come before texts and these before bytes, in SQLite's order of values of different types.
        chosen = [(name, "''") for name in numbers] + [(name, "x''") for name in texts]
        listed = ", ".join(f'CASE WHEN "{name}" < {bound} THEN "{name}" END' for name, bound in chosen)
        # No index is used: one may rest on an expression, or be damaged where the table is not.
        query = f'SELECT {listed} FROM "{table}" NOT INDEXED {where}'  # noqa: S608  names and conditions of our own
        rows: list[tuple[object, ...]] = []
        try:
            cursor = self._connection.execute(query)
            while True:
                rows = []
                rows.extend(islice(cursor, _ROWS_AT_ONCE))  # unlike fetchmany, this keeps the rows before damage
                self._rows_left -= len(rows)
                if not rows or self._rows_left < 0:
                    break
                yield rows
        except BROKEN as error:
            self.damage.append(f"the table {table} is damaged and was read in part ({_told(error)})")
            if rows:
                yield rows
        if self._rows_left < 0:
            self.damage.append(f"the table {table} shows more than the file can hold, and was the last to be read")

    def numbers(
        self,
        table: str,
        columns: Sequence[str],
        text: str | None = None,
        named: Callable[[object], int] = id,
        where: str = "",
    ) -> dict[str, I64]:
        """Return each column as ``(n_rows,)`` int64, -1 for what is no whole number and where the column is missing.

        Of a column of texts, named last, what ``named`` makes of each.
        """
        known = self.tables.get(table, ())
        present = [name for name in columns if name in known]
        texts = [name for name in (text,) if name in known]
        pieces: dict[str, list[I64]] = {name: [np.empty(0, np.int64)] for name in (*present, *texts)}
        for rows in self.rows(table, present, texts, where) if present else ():
            cells = list(zip(*rows, strict=True))
            for name, values in zip(present, cells, strict=False):
                pieces[name].append(whole_numbers(values))
            for name in texts:
                pieces[name].append(np.array([named(value) for value in cells[-1]], np.int64))
        found = {name: np.concatenate(pieces.pop(name)) for name in (*present, *texts)}
        count = len(found[present[0]]) if present else 0
        every = columns if text is None else (*columns, text)
        return {name: found[name] if name in found else np.full(count, -1, np.int64) for name in every}

    def _text(self, raw: bytes) -> str:
        self._text_bytes -= len(raw)
        if self._text_bytes < 0:
            raise sqlite3.DataError("it shows more text than the file can hold")
        return raw.decode("utf-8", "replace")

    def _secure(self) -> None:
        self._connection.text_factory = self._text
        for kind, limit in _LIMITS:
            self._connection.setlimit(kind, limit)
        for setting in _SETTINGS:
            self._connection.execute(f"PRAGMA {setting}")
        self._connection.set_authorizer(_may)
        self._connection.set_progress_handler(self._is_late, _CHECK_EVERY)

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _found(self, wanted: Collection[str]) -> list[str]:
        """Return which of the tables there are; SQLite writes the definition of any as ``CREATE TABLE``."""
        listed = self._connection.execute("SELECT type, name, sql FROM sqlite_master").fetchmany(_MOST_TABLES)
        return [
            name
            for kind, name, text in listed
            if kind == "table" and name in wanted and isinstance(text, str) and text.startswith("CREATE TABLE ")
        ]

    def _columns(self, table: str) -> tuple[str, ...]:
        listed = self._connection.execute(f'PRAGMA table_info("{table}")').fetchall()
        return tuple(str(name) for _, name, *_ in listed)


def stated_bytes(header: bytes) -> int:
    r"""Return how long a file is by its header; 0 where that does not say.

    >>> stated_bytes(b"SQLite format 3\0" + b"\x10\x00" + bytes(10) + b"\x00\x00\x00\x02" + bytes(68))
    8192
    """
    if header[_CHANGED] != header[_COUNTED_AT]:
        return 0
    page_bytes = int.from_bytes(header[_PAGE_BYTES], "big")
    return (65_536 if page_bytes == 1 else page_bytes) * int.from_bytes(header[_PAGES], "big")


def _may(action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
    """Whether SQLite may do something: select columns of tables and list them, never from within a view."""
    if source is None and (action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)):
        return sqlite3.SQLITE_OK
    listing = action == sqlite3.SQLITE_PRAGMA and first == "table_info"
    return sqlite3.SQLITE_OK if listing else sqlite3.SQLITE_DENY


def _told(error: Exception) -> str:
    text = "a row claims more than fits into memory" if isinstance(error, MemoryError) else str(error)
    return printable(text.encode("utf-8", "replace")[:_MESSAGE_BYTES])


def _unreadable(path: Path, error: Exception) -> UnreadableInputError:
    return UnreadableInputError(f"{path} cannot be read", cause=f"SQLite says: {_told(error)}", hint=_RENEW)


KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
#: Graphs that were recorded as a whole (nsys profile --cuda-graph-trace=graph, its default).
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
CUDA_EVENT = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
NVTX = "NVTX_EVENTS"
STRINGS = "StringIds"
GPU, CUDA_DEVICE = "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE"
SESSION = "TARGET_INFO_SESSION_START_TIME"
#: The second is what old exports call it.
EXPORTS = ("META_DATA_EXPORT", "EXPORT_META_DATA")
MEMORY_KINDS = "ENUM_CUDA_MEM_KIND"

DEVICE_TABLES = (KERNEL, GRAPH, MEMCPY, MEMSET)
READ = frozenset(
    (*DEVICE_TABLES, RUNTIME, SYNC, CUDA_EVENT, NVTX, STRINGS, GPU, CUDA_DEVICE, SESSION, MEMORY_KINDS, *EXPORTS)
)

_TIMES = ("start", "end")
_PLACE = ("deviceId", "streamId", "correlationId", "globalPid")
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    KERNEL: (*_TIMES, *_PLACE, "demangledName", "shortName", "gridX", "gridY", "gridZ"),
    GRAPH: (*_TIMES, *_PLACE),
    MEMCPY: (*_TIMES, *_PLACE, "bytes", "copyKind", "srcKind", "dstKind"),
    MEMSET: (*_TIMES, *_PLACE, "bytes"),
    RUNTIME: (*_TIMES, "globalTid", "correlationId", "nameId"),
    SYNC: (*_TIMES, *_PLACE, "syncType", "eventSyncId"),
}
#: Ranges of a thread that were pushed and popped, and those that were started and ended anywhere.
_RANGES = "WHERE eventType IN (59, 60)"
_NVTX_COLUMNS = (*_TIMES, "globalTid", "textId", "domainId")

#: A serialized id holds 8 bits of the hypervisor, 8 of the machine, 24 of the process and 24 of the thread.
_THREAD_BITS, _ID_MASK = 24, 2**24 - 1
_LAST_NS, _LONGEST_NS = int(LAST_US) * 1000, int(LONGEST_DURATION_US) * 1000


class Rows(msgspec.Struct, frozen=True):
    """Events of one table: arrays of shape ``(n,)`` by the names of its columns, int64, -1 where a column is missing.

    ``pid`` and ``tid`` are -1 where not known.
    """

    table: str
    columns: Mapping[str, I64]

    def __len__(self) -> int:
        return len(self["start"])

    def __getitem__(self, name: str) -> I64:
        return self.columns[name]

    def only(self, keep: Bools) -> "Rows":
        """Return the rows in ``keep``."""
        return self if keep.all() else Rows(self.table, {name: values[keep] for name, values in self.columns.items()})


def read_rows(database: Database, table: str) -> tuple[Rows, int]:
    """Return the events of a table whose times can be true, and how many had others."""
    return _possible(table, database.numbers(table, _COLUMNS[table]))


def read_ranges(database: Database, named: Callable[[object], int]) -> tuple[Rows, int]:
    """Return the NVTX ranges that ended, and how many did not; ``text`` is the id of each one's own text, -1 for none.

    Args:
        database: the export.
        named: text to id.
    """
    where = _RANGES if "eventType" in database.tables.get(NVTX, ()) else ""
    return _possible(NVTX, database.numbers(NVTX, _NVTX_COLUMNS, "text", named, where))


def process_of(serialized: I64) -> I64:
    """Return the processes in serialized ids, -1 where one is not known."""
    return np.where(serialized != -1, (serialized >> _THREAD_BITS) & _ID_MASK, -1)


def _possible(table: str, columns: dict[str, I64]) -> tuple[Rows, int]:
    """Return the events with their process and thread, without those whose times cannot be true.

    CUPTI writes 0 for both times where it could not take them.
    """
    start, end = columns["start"], columns["end"]
    near = (np.minimum(start, end) > -_LAST_NS) & (np.maximum(start, end) < _LAST_NS)
    half = end // 2 - start // 2  # the whole may be more than an int64 holds
    possible = near & (end >= start) & (half < _LONGEST_NS // 2) & (start != -1) & (end != -1) & ((start | end) != 0)
    serialized = columns.get("globalTid", columns.get("globalPid", np.full(len(start), -1, np.int64)))
    found = Rows(
        table,
        {
            **columns,
            "pid": process_of(serialized),
            "tid": np.where(serialized != -1, serialized & _ID_MASK, -1),
        },
    )
    return found.only(possible), int(np.count_nonzero(~possible))
