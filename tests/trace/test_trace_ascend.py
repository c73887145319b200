"""Traces of torch_npu: what the streams and the collectives of an Ascend NPU did has no category."""

import json
import tracemalloc

import numpy as np
import pytest

import profilerkit
from profilerkit.analysis.device.kernels import used_a_device
from profilerkit.analysis.trace_facts import trace_facts
from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import Category
from profilerkit.trace.launches import launch_of

PROCESSES = {1: "Python", 20: "Ascend Hardware", 30: "HCCL", 40: "Overlap Analysis"}
LINES = {(20, 2): "Stream 2", (20, 4): "Stream 4", (30, 0): "Group 0 Communication", (30, 1): "Plane 0"}


def row(name, start, end, pid, tid, **fields):
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": f"{start}.000", "dur": end - start, **fields}


def named(processes=PROCESSES, lines=LINES):
    named = {(pid, 0): ("process_name", name) for pid, name in processes.items()}
    named = [*named.items(), *((place, ("thread_name", name)) for place, name in lines.items())]
    return [
        {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}} for (pid, tid), (kind, name) in named
    ]


SHAPES = {"Input Dims": [[256, 256], [256, 256]], "Input type": ["c10::Half", "c10::Half"]}
HOST = [
    row("ProfilerStep#5", 1_000, 2_000, 1, 1, cat="cpu_op"),
    row("aten::mm", 1_100, 1_120, 1, 1, cat="cpu_op", args=SHAPES),
    {"ph": "s", "id": 7, "name": "torch_to_npu", "pid": 1, "tid": 1, "ts": "1100.000", "cat": "async_npu"},
]
DEVICE = [
    {"ph": "f", "id": 7, "name": "torch_to_npu", "pid": 20, "tid": 2, "ts": "1200.000", "cat": "async_npu"},
    row("aclnnMm_MatMulCommon_MatMulV2", 1_200, 1_300, 20, 2),
    row("MEMCPY_ASYNC", 1_300, 1_310, 20, 2),
    row("EVENT_WAIT", 1_310, 1_800, 20, 2),
    row("Notify Wait", 1_310, 1_700, 20, 4),
    row("SDMA", 1_700, 1_800, 20, 4),
    row("hcom_allReduce__868_0_1", 1_310, 1_800, 30, 0),
    row("Notify_Wait", 1_310, 1_700, 30, 1),
    row("Computing", 1_200, 1_300, 40, 0),
]


@pytest.fixture
def write(tmp_path):
    def write(events):
        path = tmp_path / "trace_view.json"
        path.write_text(json.dumps(events))
        return path

    return write


@pytest.fixture
def path(write):
    """A kernel that an operator issues, an all-reduce made of pieces, and what torch_npu makes of them itself."""
    return write([*named(), *HOST, *DEVICE])


def test_kernels_copies_and_collectives_of_an_npu_are_work_and_their_pieces_are_not(path):
    columns = read_trace(path)
    work = np.flatnonzero(columns.is_a(Category.KERNEL, Category.MEMCPY))
    assert [(columns.strings[columns.name[at]], int(columns.stream[at])) for at in work] == [
        ("aclnnMm_MatMulCommon_MatMulV2", 2),
        ("MEMCPY_ASYNC", 2),
        ("hcom_allReduce__868_0_1", -1),
    ]
    launches = launch_of(columns)[work].tolist()
    assert columns.strings[columns.name[launches[0]]] == "aten::mm"
    assert launches[1:] == [-1, -1]


def test_the_collective_of_an_npu_is_exposed_communication(path):
    facts = trace_facts(read_trace(path))
    assert facts.shares(facts.partition.per_step)["comm.other"] == pytest.approx(0.49)
    assert facts.properties.name == "Ascend NPU"


def test_an_operator_that_issues_work_keeps_its_shapes_and_gets_a_call(path):
    columns = read_trace(path)
    found = np.flatnonzero([columns.strings[name] == "aten::mm" for name in columns.name])
    assert columns.category[found].tolist() == [Category.CPU_OP, Category.RUNTIME]
    assert profilerkit.analyze(path).compute.flops_per_step == 2 * 256**3


def test_a_call_of_cann_within_an_operator_issues_work_for_it(write):
    events = [*named(), *HOST[:2], row("aclnnMm", 1_105, 1_115, 1, 1, cat="cpu_op"), HOST[2] | {"ts": "1105.000"}]
    path = write([*events, *DEVICE])
    columns = read_trace(path)
    assert [columns.strings[name] for name in columns.name[columns.category == Category.RUNTIME]] == ["aclnnMm"]
    assert "aten::mm" in {kernel.operator for kernel in profilerkit.analyze(path).kernels}


@pytest.mark.parametrize("name", ["write_kv_kernel", "reduce_rows", "REDUCE_SUM_X", "event_wait", "sdma_kernel"])
def test_a_kernel_named_like_a_piece_of_a_collective_is_work(write, name):
    columns = read_trace(write([*named(), *HOST, *DEVICE, row(name, 1_900, 1_950, 20, 2)]))
    assert name in {columns.strings[index] for index in columns.name[columns.category == Category.KERNEL]}


@pytest.mark.parametrize(
    "name", ["EVENT_RECORD", "Write Value", "Notify_Record", "RDMASend", "Reduce_Inline", "Memcpy"]
)
def test_a_piece_of_a_collective_is_no_work(write, name):
    columns = read_trace(write([*named(), *HOST, *DEVICE, row(name, 1_900, 1_950, 20, 4)]))
    assert name not in {columns.strings[index] for index in columns.name[columns.category == Category.KERNEL]}


def test_a_process_of_a_very_long_name_costs_no_memory_for_each_event(write):
    names = PROCESSES | {50: "x" * 200_000}
    rows = [row("work", 1_000 + at, 1_001 + at, 50, 1, cat="cpu_op") for at in range(500)]
    path = write([*named(names), *HOST, *DEVICE, *rows])
    tracemalloc.start()
    try:
        read_trace(path)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000  # the name for each event takes 400 MB
    finally:
        tracemalloc.stop()


def test_each_process_of_hardware_is_a_device(write):
    processes = PROCESSES | {21: "Ascend Hardware", 31: "HCCL"}
    lines = LINES | {(21, 2): "Stream 2", (31, 0): "Group 0 Communication"}
    more = [row("aclnnMul", 1_200, 1_250, 21, 2), row("hcom_allReduce__868_0_1", 1_310, 1_800, 31, 0)]
    columns = read_trace(write([*named(processes, lines), *HOST, *DEVICE, *more]))
    work = np.flatnonzero(columns.is_a(Category.KERNEL, Category.MEMCPY))
    assert columns.device[work].tolist() == [0, 0, 0, 1, 1]
    assert [device.id for device in columns.meta.devices] == [0, 1]


@pytest.mark.parametrize("events", [HOST, [*HOST[:2], row("aclnnMm", 1_105, 1_115, 1, 1, cat="cpu_op")]])
def test_a_host_that_issued_work_to_an_npu_is_not_judged_as_a_cpu(write, events):
    path = write([*named({1: "Python"}, {}), *events])
    assert used_a_device(read_trace(path))
    assert profilerkit.analyze(path).verdict.headline == "The run used a device, but none of its events is in the trace"
