"""The processes of an export that trained, and what it says of itself, as columns."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from profilerkit.errors import UnreadableInputError
from profilerkit.formats.blocks import GZIP_MAGIC
from profilerkit.formats.nsys import assembly
from profilerkit.formats.nsys import database as tables
from profilerkit.formats.nsys.database import Database, Rows, process_of, read_ranges, read_rows
from profilerkit.formats.values import count_of, printable_text
from profilerkit.model import revise
from profilerkit.trace.classify import Ranges, StepRanges, step_ranges
from profilerkit.trace.columns import EMIT_NVTX, I64, Damage, DeviceProperties, StepMarks, TraceColumns, TraceMeta

#: Ranks of one job start about as many pieces of work on their devices, however long these take or wait. A process with
#: fewer than this share of the most does something else (a choice).
_SAME_WORK = 0.25
#: Machines have at most 16 GPUs; a hostile export any number of processes.
_MOST_PROCESSES = 64
_NAMED = 4


class Trained(msgspec.Struct, frozen=True):
    """The processes that are read.

    Attributes:
        pids: their numbers, rising; a single -1 when the export does not tell its processes apart.
        notes: what that leaves out, one sentence each.
    """

    pids: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def of(self, pid: int, rows: Rows) -> Rows:
        """Return the rows of one of them; the first also has those of no known process."""
        if pid < 0:
            return rows
        return rows.only((rows["pid"] == pid) | ((rows["pid"] < 0) & (pid == self.pids[0])))


def trained(device: Sequence[Rows], host: Sequence[Rows]) -> Trained:
    """Return the processes that used devices as training does; without any the one with most rows on the host.

    Args:
        device: what ran on devices.
        host: calls and ranges, the most telling first.
    """
    pid, number = (np.concatenate([rows[name] for rows in device]) for name in ("pid", "deviceId"))
    pids, counts = np.unique(pid[pid >= 0], return_counts=True)
    if len(pids):
        alike = counts >= _SAME_WORK * counts.max()
        alike[np.argsort(-counts, kind="stable")[_MOST_PROCESSES:]] = False
        several = [note for one in pids[alike].tolist() for note in _several_devices(one, number[pid == one])]
        return Trained(tuple(pids[alike].tolist()), (*_left_out(pids[~alike]), *several))
    notes: tuple[str, ...] = ()
    if len(pid):
        notes = ("it does not say which process the work of the GPUs is of: all of it is read as one process'",)
    for rows in host:
        pids, counts = np.unique(rows["pid"][rows["pid"] >= 0], return_counts=True)
        if len(pids):
            return Trained((int(pids[counts.argmax()]),), notes if len(pids) > 1 else ())
    return Trained((-1,))


def _left_out(pids: I64) -> tuple[str, ...]:
    if not len(pids):
        return ()
    return (f"processes that did less on a GPU were left out: {_listed(pids)}",)


def _several_devices(pid: int, numbers: I64) -> tuple[str, ...]:
    used = np.unique(numbers)
    if len(used) < 2:
        return ()
    return (f"process {pid} used {len(used)} GPUs ({_listed(used)}); the busiest is judged",)


def _listed(numbers: I64) -> str:
    return ", ".join(map(str, numbers[:_NAMED].tolist())) + (" …" if len(numbers) > _NAMED else "")


#: Machines have at most 16 GPUs; a hostile table any number of rows.
_MOST_DEVICES = 1_024
_LONGEST_TEXT = 100
_GPU_COLUMNS = ("id", "totalMemory", "computeMajor", "computeMinor", "smCount")
_VERSIONS = {"EXPORT_PRODUCT_VERSION": "Nsight Systems", "EXPORT_SCHEMA_VERSION": "export schema"}
NO_OPERATORS = "the Nsight Systems export has no operators: emit_nvtx() was not on"


def export_meta(
    path: Path,
    database: Database,
    devices: I64,
    *,
    operators: bool,
    steps_called: str | None,
    processes: tuple[tuple[str, int], ...],
) -> TraceMeta:
    """Return the metadata of an export; ``None`` where it does not say.

    Args:
        path: the file.
        database: the export.
        devices: the numbers of the devices that were used.
        operators: whether there are operators among the ranges.
        steps_called: what the ranges are called that mark the steps; ``None`` without any.
        processes: as ``TraceMeta.processes``.
    """
    began = database.numbers(tables.SESSION, ("utcEpochNs",))["utcEpochNs"]
    return TraceMeta(
        path=str(path),
        base_time_ns=int(began[0]) if len(began) and began[0] > 0 else None,
        devices=_devices(database, np.unique(devices[devices >= 0])[:_MOST_DEVICES].tolist()),
        versions={
            _VERSIONS[name]: _text(value)
            for table in tables.EXPORTS
            for rows in database.rows(table, (), ("name", "value"))
            for name, value in rows
            if isinstance(name, str) and name in _VERSIONS and isinstance(value, str)
        },
        no_operators=None if operators else NO_OPERATORS,
        recorder="nsys",
        processes=processes,
        step_marks=None if steps_called is None else StepMarks(f'ranges like "{steps_called}"', inferred=True),
        recorded=frozenset([EMIT_NVTX] if operators else []),
    )


def _devices(database: Database, used: Sequence[int]) -> tuple[DeviceProperties, ...]:
    gpus = _gpus(database)
    alike = len({gpu.name for gpu in gpus.values()}) == 1
    default = next(iter(gpus.values())) if alike else None
    found = ((number, gpus.get(number, default)) for number in used)
    return tuple(revise(gpu, id=number) for number, gpu in found if gpu is not None)


def _gpus(database: Database) -> dict[int, DeviceProperties]:
    present = [name for name in _GPU_COLUMNS if name in database.tables.get(tables.GPU, ())]
    if "id" not in present:
        return {}
    found: dict[int, DeviceProperties] = {}
    for rows in database.rows(tables.GPU, present, ["name"]):
        for row in rows[: _MOST_DEVICES - len(found)]:
            told = {name: count_of(value) for name, value in zip(present, row, strict=False)}
            if told["id"] is not None and isinstance(row[-1], str):
                found[told["id"]] = DeviceProperties(
                    id=told["id"],
                    name=_text(row[-1]),
                    memory_bytes=told.get("totalMemory") or None,
                    compute_major=told.get("computeMajor"),
                    compute_minor=told.get("computeMinor"),
                    multiprocessors=told.get("smCount") or None,
                )
    return found


def on_machine(database: Database, pid: int, rows: Rows) -> Rows:
    """Return a process's rows with the machine's numbers of its GPUs for its own, where the export says them all."""
    found = database.numbers(tables.CUDA_DEVICE, ("cudaId", "gpuId", "pid"))
    mine = (found["pid"] == pid) & (found["cudaId"] >= 0) & (found["gpuId"] >= 0)
    gpu = dict(zip(found["cudaId"][mine].tolist(), found["gpuId"][mine].tolist(), strict=True))
    used, place = np.unique(rows["deviceId"], return_inverse=True)
    if not len(used) or not gpu.keys() >= set(used.tolist()):
        return rows
    numbers = np.array([gpu[number] for number in used.tolist()], np.int64)
    return Rows(rows.table, {**rows.columns, "deviceId": numbers[place.ravel()]})


def _text(text: str) -> str:
    return printable_text(text[:_LONGEST_TEXT])


#: More of a range's name says no more about which ranges mark steps.
_LONGEST_NAME = 60
_TRACE_HINT = "record it with nsys profile --trace=cuda,nvtx, and export it with nsys export --type sqlite"
_STRICT_HINT = "read it without --strict (strict=False) to get all events that are whole"
_LIMITS = "an Nsight Systems export holds no tensor shapes, no Python frames, no memory and no waits of a loader"
_SLOWED = "its operators were recorded by emit_nvtx(), which slows the host: without it the GPU waits less for the host"


def columns_of(path: Path, *, strict: bool) -> TraceColumns:
    """Return the columns of an export as the reader of its format does."""
    _require_plain(path)
    with Database(path, tables.READ) as database:
        if not database.tables:
            raise UnreadableInputError(
                f"{path} is not an export of Nsight Systems",
                cause="it is an SQLite database without the tables of an export",
                hint=_TRACE_HINT,
            )
        processes, names, dropped, notes = _read_events(database)
        has_operators = any(bool(names.is_operator(process.ranges.name).any()) for process in processes)
        work = any(len(events.rows) for process in processes for events in (*process.device, process.calls))
        if not (work or has_operators):  # annotations alone do not show what was computed
            raise UnreadableInputError(f"{path} holds no GPU work", cause=_why_empty(database), hint=_TRACE_HINT)
        marked = [steps for process in processes if (steps := _mark_steps(process, names)) is not None]
        several = len(processes) > 1
        meta = export_meta(
            path,
            database,
            np.concatenate([events.rows["deviceId"] for process in processes for events in process.device]),
            operators=has_operators,
            steps_called=marked[0].called[:_LONGEST_NAME] if marked else None,
            processes=tuple((str(process.pid), len(process)) for process in processes) if several else (),
        )
        waits = _stream_waits(database, processes)
    refused = names.strings.refused
    damaged = [*database.damage, *([f"{dropped} events have impossible times"] if dropped else [])]
    damaged += [f"{refused} names past the limit on distinct names were put together as one"] if refused else []
    if strict and damaged:
        raise UnreadableInputError(f"{path} is damaged", cause=damaged[0], hint=_STRICT_HINT)
    limits = [_LIMITS, _SLOWED if has_operators else f"{NO_OPERATORS}, so no kernel has an operator"]
    damage = Damage(dropped=dropped, truncated=bool(database.damage), notes=(*damaged, *notes, *limits))
    return assembly.assembled(meta, damage, [events for process in processes for events in process.all], names, waits)


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
    device: list[assembly.Events]
    calls: assembly.Events
    syncs: assembly.Events
    ranges: assembly.Events

    @property
    def all(self) -> list[assembly.Events]:
        return [*self.device, self.calls, self.syncs, self.ranges]

    def __len__(self) -> int:
        return sum(len(events.rows) for events in self.all)


def _read_events(database: Database) -> tuple[list[_Process], assembly.Names, int, list[str]]:
    """Return the processes that trained, the names, how many events had impossible times, and what was left out."""
    names = assembly.Names()
    read = {table: read_rows(database, table) for table in (*tables.DEVICE_TABLES, tables.RUNTIME, tables.SYNC)}
    ranges, unended = read_ranges(database, names.range)
    rows = {table: found for table, (found, _) in read.items()} | {tables.NVTX: ranges}
    chosen = trained([rows[table] for table in tables.DEVICE_TABLES], [rows[tables.RUNTIME], ranges])
    kernels, calls = rows[tables.KERNEL], rows[tables.RUNTIME]
    texts = (kernels["demangledName"], kernels["shortName"], calls["nameId"], ranges["textId"][ranges["text"] < 0])
    names.read_strings(database, texts)
    kinds = assembly.memory_kinds(database)
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
    return processes, names, sum(dropped for _, dropped in read.values()), notes


def _process(pid: int, rows: Mapping[str, Rows], names: assembly.Names, kinds: Mapping[int, str]) -> _Process:
    kernels, calls, ranges = rows[tables.KERNEL], rows[tables.RUNTIME], rows[tables.NVTX]
    graphs, copies, sets, syncs = (rows[t] for t in (tables.GRAPH, tables.MEMCPY, tables.MEMSET, tables.SYNC))
    return _Process(
        pid=pid,
        device=[
            assembly.Events(assembly.KERNEL, kernels, names.of(kernels["demangledName"], kernels["shortName"])),
            assembly.Events(
                assembly.KERNEL, graphs, np.full(len(graphs), names.strings[assembly.WHOLE_GRAPH], np.int32)
            ),
            assembly.Events(assembly.MEMCPY, copies, names.of_copies(copies, kinds)),
            assembly.Events(assembly.MEMSET, sets, np.full(len(sets), names.strings["Memset (Device)"], np.int32)),
        ],
        calls=assembly.Events(assembly.RUNTIME, calls, names.of_calls(calls["nameId"])),
        syncs=assembly.Events(assembly.SYNC, syncs, names.of_syncs(syncs["syncType"])),
        ranges=assembly.Events(assembly.ANNOTATION, ranges, names.of_ranges(ranges["text"], ranges["textId"])),
    )


def _mark_steps(found: _Process, known: assembly.Names) -> StepRanges | None:
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
    work = [events.rows for events in found.device if events.kind == assembly.KERNEL]
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
        found.append(
            assembly.stream_waits(process.syncs.rows, process.syncs.rows["syncType"] == assembly.STREAM_WAIT, own)
        )
    return frozenset[tuple[int, int]]().union(*found) if all(found) else frozenset()


def _why_empty(database: Database) -> str:
    if database.damage:
        return database.damage[0]
    missing = [table for table in (tables.KERNEL, tables.RUNTIME) if table not in database.tables]
    if missing:
        return f"it has no table {' and none '.join(missing)}: CUDA was not traced, or nothing ran on a GPU"
    return "its tables of kernels and CUDA calls are empty"
