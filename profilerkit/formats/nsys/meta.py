"""Find what an export says beside its events, and which of its processes trained."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from profilerkit.formats.nsys import database as tables
from profilerkit.formats.nsys.database import Database, Rows
from profilerkit.formats.values import printable_text, whole_number
from profilerkit.model.change import revise
from profilerkit.trace.columns import EMIT_NVTX, I64, DeviceProperties, StepMarks, TraceMeta

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
        versions=_versions(database),
        no_operators=None if operators else NO_OPERATORS,
        recorder="nsys",
        processes=processes,
        step_marks=None if steps_called is None else StepMarks(f'ranges like "{steps_called}"', inferred=True),
        recorded=frozenset([EMIT_NVTX] if operators else []),
    )


def _devices(database: Database, used: Sequence[int]) -> tuple[DeviceProperties, ...]:
    """Return the properties of the devices that were used."""
    gpus = _gpus(database)
    alike = len({gpu.name for gpu in gpus.values()}) == 1
    default = next(iter(gpus.values())) if alike else None
    found = ((number, gpus.get(number, default)) for number in used)
    return tuple(revise(gpu, id=number) for number, gpu in found if gpu is not None)


def _gpus(database: Database) -> dict[int, DeviceProperties]:
    """Return the GPUs of the machine by their numbers."""
    present = [name for name in _GPU_COLUMNS if name in database.tables.get(tables.GPU, ())]
    if "id" not in present:
        return {}
    found: dict[int, DeviceProperties] = {}
    for rows in database.rows(tables.GPU, present, ["name"]):
        for row in rows[: _MOST_DEVICES - len(found)]:
            told = {name: _count(value) for name, value in zip(present, row, strict=False)}
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


def _versions(database: Database) -> dict[str, str]:
    return {
        _VERSIONS[name]: _text(value)
        for table in tables.EXPORTS
        for rows in database.rows(table, (), ("name", "value"))
        for name, value in rows
        if isinstance(name, str) and name in _VERSIONS and isinstance(value, str)
    }


def _text(text: str) -> str:
    return printable_text(text[:_LONGEST_TEXT])


def _count(value: object) -> int | None:
    number = whole_number(value)
    return number if number >= 0 else None
