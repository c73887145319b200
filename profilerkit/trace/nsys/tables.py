"""The tables of an export that are read, and the rows of each as events, before anything has a name."""

from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from profilerkit.trace.clocks import LAST_US, LONGEST_DURATION_US
from profilerkit.trace.columns import I64, Bools
from profilerkit.trace.kineto.numbers import whole_numbers
from profilerkit.trace.nsys.database import Database

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
    present = [name for name in _NVTX_COLUMNS if name in database.tables.get(NVTX, ())]
    has_text = "text" in database.tables.get(NVTX, ())
    where = _RANGES if "eventType" in database.tables.get(NVTX, ()) else ""
    pieces: list[dict[str, I64]] = []
    for rows in database.rows(NVTX, present, ["text"] if has_text else [], where) if present else ():
        values = dict(zip(present, map(whole_numbers, zip(*rows, strict=True)), strict=False))
        texts = [named(row[-1]) for row in rows] if has_text else [-1] * len(rows)
        pieces.append({**values, "text": np.array(texts, np.int64)})
    count = sum(len(piece["text"]) for piece in pieces)
    absent = np.full(count, -1, np.int64)
    columns = {
        name: np.concatenate([piece[name] for piece in pieces]) if pieces and name in pieces[0] else absent
        for name in (*_NVTX_COLUMNS, "text")
    }
    return _possible(NVTX, columns)


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
