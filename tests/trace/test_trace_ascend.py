"""Traces of torch_npu: what the streams and the collectives of an Ascend NPU did has no category."""

import json

import numpy as np
import pytest

from profilerkit.analysis.trace_facts import trace_facts
from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import Category
from profilerkit.trace.launches import launch_of

PROCESSES = {1: "Python", 20: "Ascend Hardware", 30: "HCCL", 40: "Overlap Analysis"}
LINES = {(20, 2): "Stream 2", (20, 4): "Stream 4", (30, 0): "Group 0 Communication", (30, 1): "Plane 0"}


def row(name, start, end, pid, tid, **fields):
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": f"{start}.000", "dur": end - start, **fields}


@pytest.fixture
def path(tmp_path):
    """Two kernels that an operator issues, an all-reduce made of pieces, and what torch_npu makes of them itself."""
    events = [
        *({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for pid, name in PROCESSES.items()),
        *(
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            for (pid, tid), name in LINES.items()
        ),
        row("ProfilerStep#5", 1_000, 2_000, 1, 1, cat="cpu_op"),
        row("aclnnMm", 1_100, 1_120, 1, 1, cat="cpu_op"),
        {"ph": "s", "id": 7, "name": "torch_to_npu", "pid": 1, "tid": 1, "ts": "1100.000", "cat": "async_npu"},
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
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(events))
    return path


def test_kernels_copies_and_collectives_of_an_npu_are_work_and_their_pieces_are_not(path):
    columns = read_trace(path)
    work = np.flatnonzero(columns.is_a(Category.KERNEL, Category.MEMCPY))
    assert [(columns.strings[columns.name[at]], int(columns.stream[at])) for at in work] == [
        ("aclnnMm_MatMulCommon_MatMulV2", 2),
        ("MEMCPY_ASYNC", 2),
        ("hcom_allReduce__868_0_1", -1),
    ]
    launches = launch_of(columns)[work].tolist()
    assert columns.strings[columns.name[launches[0]]] == "aclnnMm"
    assert launches[1:] == [-1, -1]


def test_the_collective_of_an_npu_is_exposed_communication(path):
    facts = trace_facts(read_trace(path))
    assert facts.shares(facts.partition.per_step)["comm.other"] == pytest.approx(0.49)
    assert facts.properties.name == "Ascend NPU"
