"""Put the events of an export into the columns of a trace, in the words of Kineto's traces."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from profilerkit.formats.nsys import database as tables
from profilerkit.formats.nsys.database import Database, Rows
from profilerkit.formats.values import StringIds, ThreadIds, as_int32
from profilerkit.trace.classify import classify
from profilerkit.trace.columns import (
    F32,
    I32,
    I64,
    Bools,
    Damage,
    DeviceProperties,
    TraceColumns,
    TraceMeta,
    trace_columns,
)

NAMELESS = "(unnamed)"
WHOLE_GRAPH = "CUDA graph (recorded as a whole)"

#: The release in which a call got its present meaning, and which default stream it uses: ``cudaLaunchKernel_v7000``.
_RELEASE = re.compile(r"(?:_pt[sd][zs])?_v\d+$")
#: What torch.autograd.profiler.emit_nvtx appends to the name of an operator.
_OF_OPERATOR = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = ")
#: Ranges of a communication library's back-end, which are annotations in Kineto's traces too.
_OF_BACKEND = ("nccl:", "rccl:", "gloo:", "ucc:", "mpi:")

#: ``ENUM_CUDA_MEMCPY_OPER``, the same numbers as CUpti_ActivityMemcpyKind; 11 to 13 are moves of managed memory.
_TO = ("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP", "HtoD", "DtoH", "DtoD")
_DIRECTIONS = dict(enumerate(_TO, 1))
#: ``ENUM_CUDA_MEM_KIND`` of export schemas 3.x, where the export has no table of that name.
_MEMORY_KINDS = dict(enumerate(("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")))
#: ``ENUM_CUPTI_SYNC_TYPE``.
_SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
STREAM_WAIT = 2


class Names:
    """Texts to ids, of the export's own strings and of what is put together here.

    Attributes:
        strings: all names.
        operators: ids of the names that operators have, and no other range.
    """

    def __init__(self) -> None:
        self.strings = StringIds()
        self.operators: set[int] = set()
        self._texts: dict[int, str] = {}

    def range(self, text: object) -> int:
        """Return the id of a range's name, -1 for none. An operator goes by its name without what tells its call."""
        if not isinstance(text, str) or not text:
            return -1
        found = _OF_OPERATOR.search(text)
        if found is None:
            return self.strings[text]
        name = self.strings[text[: found.start()]]
        if not text.startswith(_OF_BACKEND):
            self.operators.add(name)
        return name

    def read_strings(self, database: Database, wanted: Iterable[I64]) -> None:
        """Read those strings of the export whose ids are wanted: an export holds all output of its programs too."""
        needed = {number for ids in wanted for number in np.unique(ids).tolist() if number >= 0}
        for rows in database.rows(tables.STRINGS, ("id",), ("value",)):
            for number, text in rows:
                if isinstance(number, int) and number in needed and isinstance(text, str):
                    self._texts[number] = text

    def of(self, *ids: I64) -> I32:
        """Return ``(n,)`` ids of the first of an event's strings that the export holds."""
        return self._filled(self._first(ids, lambda text: self.strings[text]))

    def of_calls(self, ids: I64) -> I32:
        """Return ``(n,)`` ids of runtime calls, without their release."""
        return self._filled(self._first((ids,), lambda text: self.strings[_RELEASE.sub("", text)]))

    def of_ranges(self, own: I64, ids: I64) -> I32:
        """Return ``(n,)`` ids of ranges that have a text of their own, or one of the export's strings."""
        return self._filled(np.where(own >= 0, own, self._first((ids,), self.range)))

    def of_copies(self, rows: Rows, memory_kinds: Mapping[int, str]) -> I32:
        """Return ``(n,)`` ids of copies, with the kinds of memory where both are known."""

        def name(kind: int, source: int, target: int) -> str:
            direction = _DIRECTIONS.get(kind)
            memories = (memory_kinds.get(source), memory_kinds.get(target))
            between = f" ({memories[0]} -> {memories[1]})" if all(memories) else ""
            return f"Memcpy {direction}{between}" if direction else "Memcpy"

        kinds = np.stack([rows["copyKind"], rows["srcKind"], rows["dstKind"]], axis=1)
        return _ids(kinds, lambda *kind: self.strings[name(*kind)]).astype(np.int32)

    def of_syncs(self, kinds: I64) -> I32:
        """Return ``(n,)`` ids of synchronizations."""
        return _ids(kinds, lambda kind: self.strings[_SYNC_KINDS.get(kind, "Sync")]).astype(np.int32)

    def is_operator(self, name: I32) -> Bools:
        """Return ``(n,)`` which of the names are operators'."""
        return np.isin(name, np.fromiter(self.operators, np.int64, len(self.operators)))

    def _first(self, columns: Iterable[I64], named: Callable[[str], int]) -> I64:
        found: I64 | None = None
        for ids in columns:
            mine = _ids(ids, lambda number: named(self._texts[number]) if number in self._texts else -1)
            found = mine if found is None else np.where(found >= 0, found, mine)
        return np.empty(0, np.int64) if found is None else found

    def _filled(self, found: I64) -> I32:
        nameless = found < 0
        if nameless.any():
            found = np.where(nameless, self.strings[NAMELESS], found)
        return found.astype(np.int32)


def _ids(rows: I64, make: Callable[..., int]) -> I64:
    """Return ``(n,)`` what is made of each of ``(n,)`` numbers or ``(n, m)`` rows of numbers, once of equal ones."""
    if not len(rows):
        return np.empty(0, np.int64)
    used, place = np.unique(rows, axis=0 if rows.ndim > 1 else None, return_inverse=True)
    made = [make(*row) for row in used.reshape(len(used), -1).tolist()]
    return np.array(made, np.int64)[place.ravel()]


def memory_kinds(database: Database) -> Mapping[int, str]:
    """Return what the numbers of kinds of memory mean in an export."""
    known = set(_MEMORY_KINDS.values())
    told = {
        number: label
        for rows in database.rows(tables.MEMORY_KINDS, ("id",), ("label",))
        for number, label in rows
        if isinstance(number, int) and isinstance(label, str) and label in known
    }
    return told or _MEMORY_KINDS


#: Kineto's words for the kinds of events, which ``classify`` knows.
KERNEL, MEMCPY, MEMSET, RUNTIME, SYNC, OPERATOR, ANNOTATION = KINDS = (
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_runtime",
    "cuda_sync",
    "cpu_op",
    "user_annotation",
)
#: As many as Kineto's traces are believed to have: 2**31 blocks on a device with a single multiprocessor.
_MOST_BLOCKS_PER_SM = 2.0**31


class Events(msgspec.Struct, frozen=True):
    """Rows of one kind with their names, ``(n,)`` ids."""

    kind: str
    rows: Rows
    name: I32

    def column(self, name: str) -> I64:
        """Return a column of the table, -1 where it has none of that name."""
        return self.rows[name] if name in self.rows.columns else np.full(len(self.rows), -1, np.int64)


def assembled(
    meta: TraceMeta, damage: Damage, events: Sequence[Events], names: Names, waits: frozenset[tuple[int, int]]
) -> TraceColumns:
    """Return the columns of some events, one kind after the other."""
    threads = ThreadIds()
    thread = np.concatenate([_threads(found, threads) for found in events])
    name = np.concatenate([found.name for found in events])
    kind = np.concatenate([_kinds(found, names) for found in events])
    start, end = (np.concatenate([found.rows[column] for found in events]) for column in ("start", "end"))
    strings = tuple(names.strings)
    return trace_columns(
        meta,
        strings,
        tuple(threads.texts),
        name=name,
        category=classify(name, kind, thread, strings=strings, kinds=KINDS, threads=tuple(threads.texts)),
        ts_ns=start,
        dur_ns=end - start,
        thread=thread,
        correlation=_joined(events, "correlationId"),
        stream=_joined(events, "streamId"),
        device=as_int32(_joined(events, "deviceId")),
        bytes=np.maximum(_joined(events, "bytes"), -1),
        blocks_per_sm=np.concatenate([_blocks_per_sm(found, meta.devices) for found in events]),
        damage=damage,
        stream_waits=waits,
    )


def stream_waits(syncs: Rows, waiting: Bools, recorded: Mapping[str, I64]) -> frozenset[tuple[int, int]]:
    """Return which stream waited for which; empty unless the recorded event of every wait is known.

    Args:
        syncs: synchronizations.
        waiting: which of them make a stream wait for an event.
        recorded: the stream and the synchronization id of each event that was recorded.
    """
    event, stream = syncs["eventSyncId"][waiting], syncs["streamId"][waiting]
    order = np.argsort(recorded["eventSyncId"], kind="stable")
    known = recorded["eventSyncId"][order]
    if not len(event) or not len(known):
        return frozenset()
    at = np.minimum(np.searchsorted(known, event), len(known) - 1)
    if not ((known[at] == event) & (event > 0)).all():
        return frozenset()
    return frozenset(zip(stream.tolist(), recorded["streamId"][order[at]].tolist(), strict=True))


def _joined(events: Sequence[Events], name: str) -> I64:
    return np.concatenate([found.column(name) for found in events])


def _kinds(events: Events, names: Names) -> I32:
    kind = np.full(len(events.rows), KINDS.index(events.kind), np.int32)
    if events.kind == ANNOTATION:
        kind[names.is_operator(events.name)] = KINDS.index(OPERATOR)
    return kind


def _threads(events: Events, threads: ThreadIds) -> I32:
    on_device = "streamId" in events.rows.columns
    keys = [events.rows[name] for name in (("deviceId", "streamId") if on_device else ("pid", "tid"))]
    prefix = "stream " if on_device else ""
    return _ids(np.stack(keys, axis=1), lambda one, other: threads[str(one), f"{prefix}{other}"]).astype(np.int32)


def _blocks_per_sm(events: Events, devices: Sequence[DeviceProperties]) -> F32:
    """Return ``(n,)`` blocks of each kernel's grid for each multiprocessor, 0 where not known."""
    out = np.zeros(len(events.rows), np.float32)
    if events.kind != KERNEL:
        return out
    grid = np.ones(len(out))
    for axis in ("gridX", "gridY", "gridZ"):
        grid *= np.maximum(events.column(axis), 0)
    for device in devices:
        if device.multiprocessors:
            mine = (events.rows["deviceId"] == device.id) & (grid <= _MOST_BLOCKS_PER_SM * device.multiprocessors)
            out[mine] = grid[mine] / device.multiprocessors
    return out
