"""Exports of Nsight Systems into columns: what stands where, in schemas of any age."""

import gzip
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from nsys_exports import (
    CUDA_EVENT,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    NVTX,
    OTHER_PID,
    PID,
    RUNTIME,
    SCHEMA,
    SYNC,
    TID,
    Export,
    global_id,
    training,
)

from profilerkit.errors import UnreadableInputError
from profilerkit.formats.readers import nsys
from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import Category
from profilerkit.trace.launches import launch_of
from profilerkit.trace.merged import by_process


def events(columns, *categories):
    """Name, start, duration, thread of the events of some categories."""
    rows = np.flatnonzero(columns.is_a(*categories)).tolist()
    return [
        (
            columns.strings[columns.name[row]],
            int(columns.ts_ns[row]),
            int(columns.dur_ns[row]),
            columns.threads[columns.thread[row]],
        )
        for row in rows
    ]


@pytest.fixture
def small(tmp_path):
    """One event of each kind."""
    export = Export().gpu()
    export.launch("void gemm<float>(float*)", 1_000, 20_000, 50_000, grid=(66, 2, 1))
    export.copy(100_000, 130_000, source=0)
    export.add(MEMSET, start=140_000, end=141_000, deviceId=0, streamId=7, correlationId=99, bytes=512)
    export.call("cudaDeviceSynchronize_v3020", 60_000, 90_000)
    export.add(SYNC, start=61_000, end=89_000, deviceId=0, streamId=7, correlationId=3, syncType=3)
    export.range("aten::mm, seq = 4, op_id = 17, sizes = [[2, 3], [3, 4]]", 500, 9_000)
    export.range("data", 0, 400, kind=60)
    export.range("a mark", 300, None, kind=34)
    return export


def test_each_table_becomes_its_category(tmp_path, small):
    columns = read_trace(small.write(tmp_path / "a.sqlite"))
    stream, thread = ("0", "stream 7"), (str(PID), str(TID))
    assert events(columns, Category.KERNEL) == [("void gemm<float>(float*)", 20_000, 30_000, stream)]
    assert events(columns, Category.MEMCPY) == [("Memcpy HtoD (Pageable -> Device)", 100_000, 30_000, stream)]
    assert events(columns, Category.MEMSET) == [("Memset (Device)", 140_000, 1_000, stream)]
    assert events(columns, Category.SYNC) == [("Stream Sync", 61_000, 28_000, stream)]
    assert events(columns, Category.RUNTIME) == [
        ("cudaLaunchKernel", 1_000, 5_000, thread),
        ("cudaMemcpyAsync", 90_000, 5_000, thread),
        ("cudaDeviceSynchronize", 60_000, 30_000, thread),
    ]
    assert events(columns, Category.CPU_OP) == [("aten::mm", 500, 8_500, thread)]
    assert events(columns, Category.ANNOTATION) == [("data", 0, 400, thread)]
    assert len(columns) == 9
    assert (columns.damage.dropped, columns.damage.truncated) == (0, False)


def test_copies_and_kernels_keep_their_bytes_blocks_and_launches(tmp_path, small):
    columns = read_trace(small.write(tmp_path / "a.sqlite"))
    kernel, copy = (int(np.flatnonzero(columns.category == kind)[0]) for kind in (Category.KERNEL, Category.MEMCPY))
    assert columns.bytes[[kernel, copy]].tolist() == [-1, 1 << 20]
    assert columns.blocks_per_sm[[kernel, copy]].tolist() == [1.0, 0.0]
    called = launch_of(columns)[[kernel, copy]]
    assert [columns.strings[columns.name[row]] for row in called.tolist()] == ["cudaLaunchKernel", "cudaMemcpyAsync"]
    assert columns.meta.devices[0].name == "NVIDIA H100 80GB HBM3"
    assert columns.meta.devices[0].memory_bytes == 80 << 30


@pytest.mark.parametrize(
    ("kind", "source", "target", "name"),
    [
        (1, 1, 2, "Memcpy HtoD (Pinned -> Device)"),
        (2, 2, 0, "Memcpy DtoH (Device -> Pageable)"),
        (8, 2, 2, "Memcpy DtoD (Device -> Device)"),
        (10, 2, 2, "Memcpy PtoP (Device -> Device)"),
        (1, None, None, "Memcpy HtoD"),
        (77, 1, 2, "Memcpy"),
    ],
)
def test_copies_are_named_by_direction_and_memory(tmp_path, kind, source, target, name):
    export = Export().copy(100_000, 200_000, kind=kind, source=source, target=target)
    assert events(read_trace(export.write(tmp_path / "a.sqlite")), Category.MEMCPY)[0][0] == name


def test_an_export_that_names_its_kinds_of_memory_is_believed(tmp_path):
    export = Export().copy(100_000, 200_000, source=5, target=6)
    for number, label in ((5, "Pageable"), (6, "Device"), (7, "<script>")):
        export.add("ENUM_CUDA_MEM_KIND", id=number, name="", label=label)
    columns = read_trace(export.write(tmp_path / "a.sqlite"))
    assert events(columns, Category.MEMCPY)[0][0] == "Memcpy HtoD (Pageable -> Device)"


OPTIONAL = (
    *("globalPid", "streamId", "correlationId", "deviceId", "demangledName", "gridX", "srcKind", "dstKind", "bytes"),
    *("copyKind", "globalTid", "nameId", "domainId", "textId", "text", "eventType", "syncType", "eventSyncId"),
    *("smCount", "totalMemory", "greenContextId"),
)


@pytest.mark.parametrize("column", OPTIONAL)
def test_any_column_but_the_times_may_be_missing(tmp_path, small, column):
    columns = read_trace(small.write(tmp_path / "a.sqlite", without=(column,)))
    assert len(events(columns, Category.KERNEL)) == 1
    assert len(events(columns, Category.RUNTIME)) == 3
    assert columns.damage.dropped == 0


@pytest.mark.parametrize("table", [KERNEL, MEMCPY, MEMSET, RUNTIME, SYNC, NVTX, "StringIds", "TARGET_INFO_GPU"])
def test_any_table_may_be_missing(tmp_path, small, table):
    whole = len(read_trace(small.write(tmp_path / "a.sqlite")))
    rows = {RUNTIME: 3, NVTX: 2, "StringIds": 0, "TARGET_INFO_GPU": 0}.get(table, 1)
    del small.tables[table]
    columns = read_trace(small.write(tmp_path / "a.sqlite"))
    assert len(columns) == whole - rows
    assert not columns.damage.truncated


def test_without_strings_events_have_no_name_but_their_times(tmp_path, small):
    del small.tables["StringIds"]
    columns = read_trace(small.write(tmp_path / "a.sqlite"))
    assert events(columns, Category.KERNEL)[0][:3] == ("(unnamed)", 20_000, 30_000)


def test_the_short_name_stands_in_for_the_whole_one(tmp_path):
    export = Export().launch("gemm<float>", 1_000, 20_000, 50_000)
    export.tables[KERNEL][0]["demangledName"] = 12_345
    assert events(read_trace(export.write(tmp_path / "a.sqlite")), Category.KERNEL)[0][0] == "gemm"


def test_graphs_that_were_recorded_as_a_whole_are_work_and_said(tmp_path):
    export = Export().gpu()
    number = export.call("cudaGraphLaunch_v10000", 1_000, 9_000)
    place = {"deviceId": 0, "streamId": 7, "correlationId": number, "globalPid": global_id()}
    export.add(GRAPH, start=10_000, end=90_000, **place)
    columns = read_trace(export.write(tmp_path / "a.sqlite"))
    assert events(columns, Category.KERNEL)[0][1:3] == (10_000, 80_000)
    assert any("--cuda-graph-trace=node" in note for note in columns.damage.notes)


def test_registered_texts_of_ranges_are_found(tmp_path):
    export = Export().launch("gemm", 1_000, 20_000, 50_000)
    number = export.string("aten::add, op_id = 3")
    export.add(NVTX, start=0, end=9_000, eventType=59, textId=number, globalTid=global_id(tid=TID), domainId=0)
    columns = read_trace(export.write(tmp_path / "a.sqlite"))
    assert [event[0] for event in events(columns, Category.CPU_OP)] == ["aten::add"]


def test_ranges_of_a_back_end_and_of_the_profiler_are_annotations(tmp_path):
    export = Export().launch("gemm", 1_000, 20_000, 50_000)
    for text in ("nccl:all_reduce", "Optimizer.step#SGD.step", "enumerate(DataLoader)#_SingleProcess.__next__"):
        export.range(f"{text}, op_id = 5", 0, 9_000)
    columns = read_trace(export.write(tmp_path / "a.sqlite"))
    assert len(events(columns, Category.ANNOTATION)) == 3


def test_streams_wait_for_the_stream_that_recorded_the_event(tmp_path):
    export = Export().launch("gemm", 1_000, 20_000, 50_000)
    export.add(CUDA_EVENT, deviceId=0, streamId=7, globalPid=global_id(), eventId=4, eventSyncId=31)
    export.add(SYNC, start=1, end=2, deviceId=0, streamId=20, globalPid=global_id(), syncType=2, eventSyncId=31)
    path = tmp_path / "a.sqlite"
    assert read_trace(export.write(path)).stream_waits == {(20, 7)}
    export.add(SYNC, start=1, end=2, deviceId=0, streamId=20, globalPid=global_id(), syncType=2, eventSyncId=99)
    assert read_trace(export.write(path)).stream_waits == frozenset()


def test_ranges_that_did_not_end_are_said(tmp_path):
    export = Export().launch("gemm", 1_000, 20_000, 50_000).range("step 1", 5, None)
    columns = read_trace(export.write(tmp_path / "a.sqlite"))
    assert not events(columns, Category.ANNOTATION)
    assert any(note.startswith("1 NVTX ranges did not end") for note in columns.damage.notes)


@pytest.mark.parametrize(
    ("start", "end"), [(50, 40), (0, 0), (None, 60), (5, None), (-(2**63), 2**63 - 1), (2**63 - 1, 2**63 - 1)]
)
def test_impossible_times_are_dropped_and_counted(tmp_path, start, end):
    export = Export().launch("gemm", 1_000, 20_000, 50_000)
    schema = {table: text.replace(" NOT NULL", "") for table, text in SCHEMA.items()}
    export.add(KERNEL, start=start, end=end, deviceId=0, streamId=7, globalPid=global_id())
    path = export.write(tmp_path / "a.sqlite", schema=schema)
    columns = read_trace(path)
    assert len(events(columns, Category.KERNEL)) == 1
    assert columns.damage.dropped == 1
    with pytest.raises(UnreadableInputError, match="damaged") as caught:
        read_trace(path, strict=True)
    assert caught.value.cause == "1 events have impossible times"


def test_what_the_format_cannot_hold_is_said(tmp_path):
    notes = read_trace(training(2).write(tmp_path / "a.sqlite")).damage.notes
    assert any("no tensor shapes" in note and "loader" in note for note in notes)
    assert any("no operators" in note for note in notes)
    export = training().range("aten::mm, op_id = 1", 0, 5)
    assert not any("no operators" in note for note in read_trace(export.write(tmp_path / "b.sqlite")).damage.notes)


def test_an_export_tells_its_versions_and_when_it_began(tmp_path):
    export = training(2).add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
    export.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.25.0")
    export.add("META_DATA_EXPORT", name="EXPORT_USER", value="somebody")
    meta = read_trace(export.write(tmp_path / "a.sqlite")).meta
    assert meta.base_time_ns == 1_700_000_000_000_000_000
    assert meta.versions == {"export schema": "3.25.0"}
    old = training(2).add("EXPORT_META_DATA", name="EXPORT_PRODUCT_VERSION", value="2022.4")
    assert read_trace(old.write(tmp_path / "a.sqlite")).meta.versions == {"Nsight Systems": "2022.4"}


@pytest.mark.parametrize(
    ("gpus", "device", "named"),
    [
        ({0: "A", 1: "B"}, 1, "B"),
        ({4: "A", 5: "A"}, 0, "A"),
        ({4: "A", 5: "B"}, 0, None),
        ({}, 0, None),
    ],
)
def test_a_device_is_named_by_its_number_or_where_all_are_alike(tmp_path, gpus, device, named):
    export = training(2, device=device, export=Export())
    for number, name in gpus.items():
        export.gpu(number, name)
    devices = read_trace(export.write(tmp_path / "a.sqlite")).meta.devices
    assert [entry.name for entry in devices] == ([named] if named else [])
    assert [entry.id for entry in devices] == ([device] if named else [])


def test_a_process_may_number_its_devices_itself(tmp_path):
    export = training(2, export=Export().gpu(0, "A").gpu(1, "B"))
    export.add("TARGET_INFO_CUDA_DEVICE", gpuId=1, cudaId=0, pid=PID)
    export.add("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=OTHER_PID)
    assert read_trace(export.write(tmp_path / "a.sqlite")).meta.devices[0].name == "B"


def two_processes(busy_ms):
    export = Export().gpu(0).gpu(1)
    training(4, pid=PID, device=1, export=export)
    return training(4, pid=OTHER_PID, device=0, export=export, busy_ms=busy_ms)


def kernels(columns):
    return columns.is_a(Category.KERNEL)


@pytest.mark.parametrize("busy_ms", [8, 0.1])
def test_each_process_is_a_rank_in_the_order_of_devices_however_long_its_work_takes(tmp_path, busy_ms):
    parts = by_process(read_trace(two_processes(busy_ms).write(tmp_path / "a.sqlite")))
    assert [(part.meta.process, part.meta.rank, part.meta.world_size) for part in parts] == [
        (str(OTHER_PID), 0, 2),
        (str(PID), 1, 2),
    ]
    for device, part in enumerate(parts):
        assert set(part.device[kernels(part)].tolist()) == {device}
        assert kernels(part).sum() == (launch_of(part)[kernels(part)] >= 0).sum() == 32
        assert [part.strings[name] for name in part.name[part.category == Category.ANNOTATION].tolist()] == [
            f"ProfilerStep#{step}" for step in range(4)
        ]


def test_processes_that_each_call_their_gpu_the_first_keep_their_work_apart(tmp_path):
    """As where CUDA_VISIBLE_DEVICES gives every rank one GPU: numbers of device, stream and call are the same."""
    export = Export().gpu(0, "A").gpu(1, "B")
    for pid, gpu in ((PID, 1), (OTHER_PID, 0)):
        export.correlation = 0
        training(4, pid=pid, export=export, busy_ms=8 if gpu else 2)
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=pid)
    parts = by_process(read_trace(export.write(tmp_path / "a.sqlite")))
    assert [part.meta.process for part in parts] == [str(OTHER_PID), str(PID)]
    assert [set(part.dur_ns[kernels(part)].tolist()) for part in parts] == [{249_000}, {999_000}]
    assert [entry.name for entry in parts[0].meta.devices] == ["A", "B"]
    del export.tables["TARGET_INFO_CUDA_DEVICE"]
    parts = by_process(read_trace(export.write(tmp_path / "a.sqlite")))
    assert [part.meta.process for part in parts] == [str(PID), str(OTHER_PID)]
    assert [set(part.dur_ns[kernels(part)].tolist()) for part in parts] == [{999_000}, {249_000}]


def test_a_process_without_calls_or_ranges_has_its_work(tmp_path):
    export = two_processes(8)
    for table in (RUNTIME, NVTX):
        export.tables[table] = [row for row in export.tables[table] if row["globalTid"] >> 24 & 0xFFFFFF == PID]
    parts = by_process(read_trace(export.write(tmp_path / "a.sqlite")))
    assert [int(kernels(part).sum()) for part in parts] == [32, 32]


def test_a_process_that_does_little_on_a_gpu_is_no_rank(tmp_path):
    export = training(4)
    export.launch("decode", 1_000, 20_000, 90_000_000, pid=OTHER_PID)
    (found,) = by_process(read_trace(export.write(tmp_path / "a.sqlite")))
    assert {pid for pid, _ in found.threads} == {"0", str(PID)}
    assert any(f"were left out: {OTHER_PID}" in note for note in found.damage.notes)


def test_one_process_on_several_devices_is_said(tmp_path):
    export = training(4, device=0)
    training(4, device=1, export=export, ranges=None)
    columns = read_trace(export.write(tmp_path / "a.sqlite"))
    assert set(columns.device[columns.is_a(Category.KERNEL)].tolist()) == {0, 1}
    assert any("used 2 GPUs (0, 1); the busiest is judged" in note for note in columns.damage.notes)


def test_work_of_no_known_process_is_read_as_one(tmp_path):
    columns = read_trace(two_processes(8).write(tmp_path / "a.sqlite", without=("globalPid",)))
    assert set(columns.device[columns.is_a(Category.KERNEL)].tolist()) == {0, 1}
    assert any("does not say which process" in note for note in columns.damage.notes)


def test_of_more_processes_than_a_machine_has_the_first_are_read(tmp_path):
    export = Export()
    for pid in range(1, 101):
        export.launch("gemm", 1_000, 20_000, 50_000, pid=pid)
    parts = by_process(read_trace(export.write(tmp_path / "a.sqlite")))
    assert [part.meta.process for part in parts] == [str(pid) for pid in range(1, 65)]


@pytest.mark.parametrize("odd", ["a b.sqlite", "a?mode=rw#x.sqlite", "a%20b.sqlite", "ä\udcff.sqlite", "trace.json"])
def test_the_name_of_the_file_does_not_matter_and_nothing_is_written(tmp_path, odd):
    path = training(2).write(tmp_path / "a.sqlite").rename(tmp_path / odd)
    content = path.read_bytes()
    path.chmod(0o400)
    assert len(read_trace(path))
    assert [entry.name for entry in tmp_path.iterdir()] == [odd]
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_no_export(tmp_path):
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE runs (id INTEGER)")
    with pytest.raises(UnreadableInputError) as caught:
        read_trace(path)
    assert caught.value.cause == "it is an SQLite database"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN")
        for number in range(200):
            connection.execute(f"CREATE TABLE runs_{number} (id INTEGER, a_rather_long_name_{number} TEXT)")
        connection.commit()
    with pytest.raises(UnreadableInputError, match="not an export of Nsight Systems") as caught:
        read_trace(path)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("tables", "cause"),
    [((), "it has no table CUPTI_ACTIVITY_KIND_KERNEL"), ((KERNEL, RUNTIME), "its tables of kernels and CUDA calls")],
)
def test_an_export_without_work_says_what_is_missing(tmp_path, tables, cause):
    export = Export().range("epoch 1", 0, 5_000)
    empty = [f"CREATE TABLE {table} (start INTEGER, end INTEGER)" for table in tables]
    with pytest.raises(UnreadableInputError, match="holds no GPU work") as caught:
        read_trace(export.write(tmp_path / "a.sqlite", before=empty))
    assert caught.value.cause.startswith(cause)
    assert "nsys profile --trace=cuda,nvtx" in caught.value.hint


def test_a_compressed_export_is_to_be_unpacked(tmp_path):

    path = tmp_path / "a.sqlite.gz"
    path.write_bytes(gzip.compress(training(2).write(tmp_path / "a.sqlite").read_bytes()))
    with pytest.raises(UnreadableInputError, match="compressed") as caught:
        read_trace(path)
    assert "gunzip" in caught.value.hint


def test_the_sniffer_asks_for_tables():
    page = b"SQLite format 3\0" + bytes(84)
    assert nsys.sniff(page + b"\x0d" + b"CREATE TABLE NVTX_EVENTS")
    assert nsys.sniff(page + b"\x05")
    assert not nsys.sniff(page + b"\x0d" + b"CREATE TABLE runs")
    assert not nsys.sniff(b"SQLite format 3\0")
    assert not nsys.sniff(b'{"traceEvents": []}')


def test_times_are_exact(tmp_path):
    start = 2**53 + 1
    export = Export().launch("gemm", start - 10, start, start + 3)
    columns = read_trace(export.write(tmp_path / "a.sqlite"))
    assert events(columns, Category.KERNEL)[0][1:3] == (start, 3)
    assert len(columns) == 2
