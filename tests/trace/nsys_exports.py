"""Small exports of Nsight Systems as SQLite files, with the tables and columns of schema 3.25 or fewer of them."""

import sqlite3
from contextlib import closing

MS = 1_000_000
PID, OTHER_PID, TID = 125, 126, 130

SCHEMA = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
        "greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
        "demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, gridX INTEGER, "
        "gridY INTEGER, gridZ INTEGER, graphNodeId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, graphId INTEGER, streamId INTEGER, "
        "correlationId INTEGER, globalPid INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER, streamId INTEGER, "
        "correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, "
        "value INTEGER, bytes INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, "
        "nameId INTEGER NOT NULL, returnValue INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, "
        "syncType INTEGER, eventId INTEGER, eventSyncId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": (
        "deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, eventId INTEGER, "
        "eventSyncId INTEGER"
    ),
    "NVTX_EVENTS": (
        "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, text TEXT, "
        "globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER"
    ),
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "TARGET_INFO_GPU": "vmId INTEGER, id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER, pid INTEGER, uuid TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "EXPORT_META_DATA": "name TEXT, value TEXT",
    "ENUM_CUDA_MEM_KIND": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
}

KERNEL, GRAPH = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
MEMCPY, MEMSET = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME, SYNC = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
CUDA_EVENT = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
NVTX = "NVTX_EVENTS"


def global_id(pid=PID, tid=0):
    return (1 << 56) | (pid << 24) | tid


class Export:
    """Rows of the tables; a table comes into being with its first row, as in exports that are made lazily."""

    def __init__(self):
        self.tables = {}
        self.strings = {}
        self.correlation = 0

    def add(self, table, **values):
        self.tables.setdefault(table, []).append(values)
        return self

    def string(self, text):
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.add("StringIds", id=self.strings[text], value=text)
        return self.strings[text]

    def call(self, name, start, end, *, pid=PID, tid=TID, correlation=None):
        self.correlation += 1
        correlation = self.correlation if correlation is None else correlation
        ids = {"globalTid": global_id(pid, tid), "correlationId": correlation, "nameId": self.string(name)}
        self.add(RUNTIME, start=start, end=end, **ids)
        return correlation

    def launch(self, name, at, start, end, *, pid=PID, tid=TID, device=0, stream=7, grid=(8, 1, 1)):
        """A kernel and the call that launched it."""
        correlation = self.call("cudaLaunchKernel_v7000", at, at + 5_000, pid=pid, tid=tid)
        x, y, z = grid
        return self.add(
            KERNEL,
            **_place(start, end, device, stream, correlation, pid),
            contextId=1,
            demangledName=self.string(name),
            shortName=self.string(name.partition("<")[0]),
            gridX=x,
            gridY=y,
            gridZ=z,
        )

    def copy(self, start, end, *, kind=1, source=1, target=2, size=1 << 20, device=0, stream=7, pid=PID, tid=TID):
        """A copy and its call: by default 1 MiB of pinned memory to the device."""
        correlation = self.call("cudaMemcpyAsync_v3020", start - 10_000, start - 5_000, pid=pid, tid=tid)
        place = _place(start, end, device, stream, correlation, pid)
        return self.add(MEMCPY, **place, bytes=size, copyKind=kind, srcKind=source, dstKind=target)

    def range(self, text, start, end, *, pid=PID, tid=TID, kind=59, domain=0):
        return self.add(
            NVTX, start=start, end=end, eventType=kind, text=text, globalTid=global_id(pid, tid), domainId=domain
        )

    def gpu(self, number=0, name="NVIDIA H100 80GB HBM3", sms=132):
        return self.add("TARGET_INFO_GPU", vmId=1, id=number, name=name, totalMemory=80 << 30, smCount=sms)

    def write(self, path, *, without=(), schema=SCHEMA, before=(), after=()):
        """Write the file: ``without`` names of columns; statements ``before`` and ``after`` the rows."""
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            for statement in before:
                connection.execute(statement)
            for table, rows in self.tables.items():
                declared = [column.partition(" ") for column in schema[table].split(", ")]
                declared = {name: kind for name, _, kind in declared if name not in without}
                listed = ", ".join(f'"{name}" {kind}' for name, kind in declared.items())
                connection.execute(f"CREATE TABLE {table} ({listed})")
                marks = ", ".join("?" * len(declared))
                values = [[row.get(name) for name in declared] for row in rows]
                connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
            for statement in after:
                connection.execute(statement)
            connection.commit()
        return path


def _place(start, end, device, stream, correlation, pid):
    return {
        "start": start,
        "end": end,
        "deviceId": device,
        "streamId": stream,
        "correlationId": correlation,
        "globalPid": global_id(pid),
    }


def training(n_steps=8, *, step_ms=10, pid=PID, device=0, export=None, ranges="step {}", busy_ms=8):
    """Steps of a batch copy and eight kernels that keep a device busy for ``busy_ms`` of each, under a range each."""
    export = export or Export().gpu(device)
    for step in range(n_steps):
        began = (step + 1) * step_ms * MS
        if ranges:
            export.range(ranges.format(step), began, began + step_ms * MS - MS // 2, pid=pid)
        export.copy(began + MS // 10, began + MS // 5, pid=pid, device=device)
        for number in range(8):
            start = began + MS // 4 + number * busy_ms * MS // 8
            at = began + MS // 4 + number * MS // 20 - MS // 50
            name = "ampere_bf16_gemm<128>" if number % 2 else "void at::native::elementwise_kernel<add>"
            export.launch(name, at, start, start + busy_ms * MS // 8 - 1_000, pid=pid, device=device)
    return export
