"""Exports of Nsight Systems: the SQLite files of ``nsys export --type sqlite``, of any schema."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from profilerkit.errors import UnreadableInputError
from profilerkit.formats.blocks import GZIP_MAGIC
from profilerkit.formats.nsys import database as tables
from profilerkit.formats.nsys.assembly import (
    ANNOTATION,
    KERNEL,
    MEMCPY,
    MEMSET,
    RUNTIME,
    STREAM_WAIT,
    SYNC,
    WHOLE_GRAPH,
    Events,
    Names,
    assembled,
    memory_kinds,
    stream_waits,
)
from profilerkit.formats.nsys.database import MAGIC, Database, Rows, process_of, read_ranges, read_rows
from profilerkit.formats.nsys.meta import NO_OPERATORS, export_meta, on_machine, trained
from profilerkit.model.change import revise
from profilerkit.trace.columns import ANALYZED, I64, Damage, TraceColumns, Wanted
from profilerkit.trace.step_ranges import Ranges, StepRanges, step_ranges

name = "nsys"
suffixes = (".sqlite",)

#: Where the first page of the file says of which kind it is: pages of this kind only point at others.
_KIND_OF_PAGE, _POINTING = 100, 0x05
_ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be")  # of which a database has one
_OWN_TABLES = tuple(table.encode(encoding) for table in tables.READ for encoding in _ENCODINGS)
#: More of a range's name says no more about which ranges mark steps.
_LONGEST_NAME = 60
_TRACE_HINT = "record it with nsys profile --trace=cuda,nvtx, and export it with nsys export --type sqlite"
_STRICT_HINT = "read it without --strict (strict=False) to get all events that are whole"
_LIMITS = "an Nsight Systems export holds no tensor shapes, no Python frames, no memory and no waits of a loader"
_SLOWED = "its operators were recorded by emit_nvtx(), which slows the host: without it the GPU waits less for the host"


def sniff(head: bytes) -> bool:
    """Return whether a file that begins like this is an SQLite database with a table of an export.

    The tables are defined in the first page, or where they are too many in pages it points at, which may lie anywhere.
    """
    if not head.startswith(MAGIC) or len(head) <= _KIND_OF_PAGE:
        return False
    return head[_KIND_OF_PAGE] == _POINTING or any(table in head for table in _OWN_TABLES)


def read(path: Path, *, wanted: Wanted = ANALYZED, strict: bool = False) -> TraceColumns:
    """Return the columns of the processes of an export that trained; what could not be read is counted in ``damage``.

    Args:
        path: the file.
        wanted: what is read beside events, of which an export holds none.
        strict: whether the first damage is an error.

    Raises:
        UnreadableInputError: the file is no export, or one without GPU work, CUDA calls and operators; or it is damaged
            and ``strict`` is set.
        OSError: the file cannot be opened or read.
    """
    _require_plain(path)
    with Database(path, tables.READ) as database:
        if not database.tables:
            raise UnreadableInputError(
                f"{path} is not an export of Nsight Systems",
                cause="it is an SQLite database without the tables of an export",
                hint=_TRACE_HINT,
            )
        found = _read_events(database)
        if not found.tells_work:
            raise UnreadableInputError(f"{path} holds no GPU work", cause=_why_empty(database), hint=_TRACE_HINT)
        marked = [steps for process in found.processes if (steps := _mark_steps(process, found.names)) is not None]
        devices = np.concatenate([events.rows["deviceId"] for process in found.processes for events in process.device])
        several = len(found.processes) > 1
        meta = export_meta(
            path,
            database,
            devices,
            operators=found.has_operators,
            steps_called=marked[0].called[:_LONGEST_NAME] if marked else None,
            processes=tuple((str(process.pid), len(process)) for process in found.processes) if several else (),
        )
        waits = _stream_waits(database, found.processes)
    refused = found.names.strings.refused
    damaged = [*database.damage, *([f"{found.dropped} events have impossible times"] if found.dropped else [])]
    damaged += [f"{refused} names past the limit on distinct names were put together as one"] if refused else []
    if strict and damaged:
        raise UnreadableInputError(f"{path} is damaged", cause=damaged[0], hint=_STRICT_HINT)
    limits = [_LIMITS, _SLOWED if found.has_operators else f"{NO_OPERATORS}, so no kernel has an operator"]
    damage = Damage(
        dropped=found.dropped,
        truncated=bool(database.damage),
        notes=(*damaged, *found.notes, *limits),
    )
    events = [events for process in found.processes for events in process.all]
    return assembled(meta, damage, events, found.names, waits)


def _require_plain(path: Path) -> None:
    """Raise ``UnreadableInputError`` for a compressed file: SQLite needs to go back and forth in it."""
    with path.open("rb") as file:
        if file.read(len(GZIP_MAGIC)) == GZIP_MAGIC:
            raise UnreadableInputError(
                f"{path} is compressed",
                cause="it is an SQLite database inside gzip",
                hint="unpack it with gunzip first",
            )


class _Process(msgspec.Struct):
    """The events of a process.

    Attributes:
        pid: its number, -1 if not known.
        device: what ran on devices.
        calls, syncs, ranges: what its threads did.
    """

    pid: int
    device: list[Events]
    calls: Events
    syncs: Events
    ranges: Events

    @property
    def all(self) -> list[Events]:
        """All of them, in the order of the columns."""
        return [*self.device, self.calls, self.syncs, self.ranges]

    def __len__(self) -> int:
        return sum(len(events.rows) for events in self.all)


class _Found(msgspec.Struct):
    """The processes that are read.

    Attributes:
        processes: those that trained.
        names: of all events.
        dropped: events with times that cannot be true, of all processes.
        notes: what was left out and why.
    """

    processes: list[_Process]
    names: Names
    dropped: int
    notes: list[str]

    @property
    def has_operators(self) -> bool:
        """Whether there are operators among the ranges."""
        return any(bool(self.names.is_operator(process.ranges.name).any()) for process in self.processes)

    @property
    def tells_work(self) -> bool:
        """Whether anything shows what was computed: annotations alone do not."""
        work = any(len(events.rows) for process in self.processes for events in (*process.device, process.calls))
        return work or self.has_operators


def _read_events(database: Database) -> _Found:
    names = Names()
    read = {table: read_rows(database, table) for table in (*tables.DEVICE_TABLES, tables.RUNTIME, tables.SYNC)}
    ranges, unended = read_ranges(database, names.range)
    rows = {table: found for table, (found, _) in read.items()} | {tables.NVTX: ranges}
    chosen = trained([rows[table] for table in tables.DEVICE_TABLES], [rows[tables.RUNTIME], ranges])
    kernels, calls = rows[tables.KERNEL], rows[tables.RUNTIME]
    texts = (kernels["demangledName"], kernels["shortName"], calls["nameId"], ranges["textId"][ranges["text"] < 0])
    names.read_strings(database, texts)
    kinds = memory_kinds(database)
    notes = list(chosen.notes)
    if graphs := len(rows[tables.GRAPH]):
        notes.append(
            f"{graphs} launches of CUDA graphs were recorded as a whole, not by kernel: record them with "
            "nsys profile --cuda-graph-trace=node"
        )
    if unended:
        notes.append(f"{unended} NVTX ranges did not end while it was recorded and were left out")
    processes = []
    for pid in chosen.pids:
        own = {table: chosen.of(pid, found) for table, found in rows.items()}
        own |= {table: on_machine(database, pid, own[table]) for table in (*tables.DEVICE_TABLES, tables.SYNC)}
        processes.append(_process(pid, own, names, kinds))
    return _Found(processes, names, sum(dropped for _, dropped in read.values()), notes)


def _process(pid: int, rows: Mapping[str, Rows], names: Names, kinds: Mapping[int, str]) -> _Process:
    """Return the events of a process with their names; ``kinds`` are those of memory."""
    kernels, calls, ranges = rows[tables.KERNEL], rows[tables.RUNTIME], rows[tables.NVTX]
    graphs, copies, sets, syncs = (rows[t] for t in (tables.GRAPH, tables.MEMCPY, tables.MEMSET, tables.SYNC))
    return _Process(
        pid=pid,
        device=[
            Events(KERNEL, kernels, names.of(kernels["demangledName"], kernels["shortName"])),
            Events(KERNEL, graphs, np.full(len(graphs), names.strings[WHOLE_GRAPH], np.int32)),
            Events(MEMCPY, copies, names.of_copies(copies, kinds)),
            Events(MEMSET, sets, np.full(len(sets), names.strings["Memset (Device)"], np.int32)),
        ],
        calls=Events(RUNTIME, calls, names.of_calls(calls["nameId"])),
        syncs=Events(SYNC, syncs, names.of_syncs(syncs["syncType"])),
        ranges=Events(ANNOTATION, ranges, names.of_ranges(ranges["text"], ranges["textId"])),
    )


def _mark_steps(found: _Process, known: Names) -> StepRanges | None:
    """Rename the ranges that mark steps as ``torch.profiler`` would call them, where that is clear and needed."""
    if not len(found.ranges.rows):
        return None
    names, rows = list(known.strings), found.ranges.rows
    if any(names[name].startswith("ProfilerStep#") for name in np.unique(found.ranges.name).tolist()):
        return None
    _, thread = np.unique(np.stack([rows["pid"], rows["tid"]]), axis=1, return_inverse=True)
    # Of libraries' domains none marks a step.
    mine = np.flatnonzero(rows["domainId"] <= 0)
    ranges = Ranges(
        names=names,
        name=found.ranges.name[mine].astype(np.int64),
        start=rows["start"][mine],
        end=rows["end"][mine],
        thread=thread.ravel()[mine].astype(np.int64),
        own=~known.is_operator(found.ranges.name)[mine],
    )
    steps = step_ranges(ranges, _launched(found))
    if steps is not None:
        renamed = found.ranges.name.copy()
        renamed[mine[steps.rows]] = [known.strings[f"ProfilerStep#{number}"] for number in steps.number.tolist()]
        found.ranges = revise(found.ranges, name=renamed)
    return steps


def _launched(found: _Process) -> I64:
    """Return the sorted starts of the calls that launched what ran on a device; without calls of the work itself."""
    work = [events.rows for events in found.device if events.kind == KERNEL]
    launched = np.isin(found.calls.rows["correlationId"], np.concatenate([rows["correlationId"] for rows in work]))
    starts = found.calls.rows["start"][launched]
    return np.sort(starts if len(starts) else np.concatenate([rows["start"] for rows in work]))


def _stream_waits(database: Database, processes: Sequence[_Process]) -> frozenset[tuple[int, int]]:
    """Return which stream waited for which in any of the processes; none where it is not known of each of them."""
    recorded = database.numbers(tables.CUDA_EVENT, ("eventSyncId", "streamId", "globalPid"))
    pid = process_of(recorded["globalPid"])
    found = []
    for process in processes:
        mine = (pid == process.pid) | (pid < 0) | (process.pid < 0)
        own = {name: values[mine] for name, values in recorded.items()}
        found.append(stream_waits(process.syncs.rows, process.syncs.rows["syncType"] == STREAM_WAIT, own))
    return frozenset[tuple[int, int]]().union(*found) if all(found) else frozenset()


def _why_empty(database: Database) -> str:
    if database.damage:
        return database.damage[0]
    missing = [table for table in (tables.KERNEL, tables.RUNTIME) if table not in database.tables]
    if missing:
        return f"it has no table {' and none '.join(missing)}: CUDA was not traced, or nothing ran on a GPU"
    return "its tables of kernels and CUDA calls are empty"
