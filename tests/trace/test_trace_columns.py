"""What the columns say of well-formed files of every release and device."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_recipes import plain, span, write

from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import Category, CollectiveArgs, DeviceProperties, ProcessGroup, Wanted


@pytest.fixture
def read(tmp_path):
    return lambda events, **fields: read_trace(write(tmp_path, plain(events, **fields)), wanted=Wanted.EVERYTHING)


CATEGORIES = {
    "kernel": Category.KERNEL,
    "Kernel": Category.KERNEL,
    "mtia_ccp_events": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "Memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "Memset": Category.MEMSET,
    "cpu_op": Category.CPU_OP,
    "Operator": Category.CPU_OP,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "Runtime": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "user_annotation": Category.ANNOTATION,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    "cuda_sync": Category.SYNC,
    "python_function": Category.PYTHON,
    "overhead": Category.OVERHEAD,
    "Trace": Category.OTHER,
    "something new": Category.OTHER,
}


@pytest.mark.parametrize(("text", "category"), CATEGORIES.items())
def test_every_dialect_has_one_category(read, text, category):
    columns = read([span("n", cat=text, pid="Spans", tid="PyTorch Profiler"), span("m", cat="Trace")])
    assert columns.category.tolist() == [category, Category.OTHER]


@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#12",
        "ProfilerStep*",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "Optimizer.step#SGD.step",
        "Optimizer.zero_grad#Adam.zero_grad",
    ],
)
@pytest.mark.parametrize("cat", ["Operator", "cpu_op", "user_annotation"])
def test_annotations_among_the_operators_are_annotations(read, name, cat):
    columns = read([span(name, cat=cat), span(f"not {name}", cat="cpu_op"), span(name, cat="kernel")])
    assert columns.category.tolist() == [Category.ANNOTATION, Category.CPU_OP, Category.KERNEL]


def test_a_queue_of_mtia_waits_copies_and_works(read):
    names = ("event_wait", "event_record", "dma_request", "pe_exe", "merge")
    columns = read([span(name, cat="mtia_ccp_events") for name in names] + [span("dma_request", cat="kernel")])
    kinds = [Category.SYNC, Category.SYNC, Category.MEMCPY, *[Category.KERNEL] * 3]
    assert columns.category.tolist() == kinds


def test_legacy_list_is_classified_by_process(tmp_path):
    events = [
        {"name": "aten::empty", "ph": "X", "ts": 434.706, "dur": 4.5, "tid": 1, "pid": "CPU functions", "args": {}},
        {"name": "sgemm", "ph": "X", "ts": 440.0, "dur": 1.25, "tid": 0, "pid": "CUDA functions", "args": {}},
        {"name": "x", "ph": "X", "ts": 441.0, "dur": 1.0, "tid": 0, "pid": "other", "args": {}},
    ]
    columns = read_trace(write(tmp_path, json.dumps(events)))
    assert columns.category.tolist() == [Category.CPU_OP, Category.KERNEL, Category.OTHER]
    assert columns.ts_ns.tolist() == [434706, 440000, 441000]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (7, 7),
        ("7", 7),
        ("0x0", 0),
        ("0x1f", 31),
        (4294967295, 4294967295),
        (2**63 - 1, 2**63 - 1),
        (2**63, -1),
        (2**64 - 1, -1),
        (2**128, -1),
        (12.0, 12),
        (12.5, -1),
        (None, -1),
        ("INVALID", -1),
        ("", -1),
        ([1], -1),
    ],
)
@pytest.mark.parametrize(
    ("column", "key"), [("stream", "stream"), ("correlation", "correlation"), ("external_id", "External id")]
)
def test_odd_ids_are_read_or_unknown(read, written, value, column, key):
    columns = read([span("k", cat="kernel", **{key: written}), span("k", cat="kernel", **{key: 3})])
    assert getattr(columns, column).tolist() == [value, 3]
    assert columns.damage.dropped == 0


@pytest.mark.parametrize(("written", "value"), [(0, 0), ("1", 1), (None, -1), (2**31, -1), (2**40, -1), (-1, -1)])
def test_device_fits_its_column_or_is_unknown(read, written, value):
    assert read([span("k", cat="kernel", device=written)]).device.tolist() == [value]


@pytest.mark.parametrize(
    ("written", "value"), [(60, 60), ("60", 60), (2**40, 2**40), (60.0, 60), (None, -1), ("many", -1)]
)
def test_bytes_may_be_text(read, written, value):
    assert read([span("c", cat="gpu_memcpy", bytes=written), span("c")]).bytes.tolist() == [value, -1]


def test_absent_args_are_minus_one(read):
    columns = read([span("a"), {"ph": "X", "name": "b", "ts": 1, "dur": 1}])
    shapes = ("input_types", "input_dims", "concrete_inputs")
    for column in ("correlation", "external_id", "stream", "device", "bytes", *shapes):
        assert getattr(columns, column).tolist() == [-1, -1], column
    assert columns.threads == (("1", "1"), ("", ""))


def test_external_id_of_2021_is_read_in_both_spellings(read):
    operator, call = span("op", cat="Operator"), span("cudaLaunchKernel", cat="Runtime")
    operator["args"], call["args"] = {"External id": 4}, {"external id": 4, "correlation": 9}
    assert read([operator, call]).external_id.tolist() == [4, 4]


def test_pid_and_tid_of_any_type_name_one_thread_by_text(read):
    columns = read(
        [
            span(pid=7, tid=1),
            span(pid="7", tid="1"),
            span(pid="Spans", tid="PyTorch Profiler"),
            span(pid="", tid=None),
            span(pid=7, tid="stream 7"),
        ]
    )
    assert columns.thread.tolist() == [0, 0, 1, 2, 3]
    assert columns.threads == (("7", "1"), ("Spans", "PyTorch Profiler"), ("", ""), ("7", "stream 7"))


def test_thread_is_named_by_itself_or_else_by_its_process(read):
    def naming(what, name, pid, tid):
        return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 1, "args": {"name": name}}

    columns = read(
        [
            span(pid=1, tid=1),
            span(pid=1, tid=2),
            span(pid=2, tid=1),
            naming("process_name", "python", 1, 0),
            naming("thread_name", "stream 7 ", "1", "2"),
            naming("thread_name", "elsewhere", 9, 9),
            {"ph": "M", "name": "process_labels", "pid": 2, "tid": 0, "ts": 1, "args": {"labels": "GPU 0"}},
        ]
    )
    assert columns.thread_names == {0: "python", 1: "stream 7"}
    assert len(columns.threads) == 3


def test_shapes_and_types_are_interned_as_their_text(tmp_path):
    text = (
        '{"traceEvents": ['
        '{"ph": "X", "cat": "cpu_op", "name": "mm", "ts": 1, "dur": 1,'
        ' "args": {"Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"]}},'
        '{"ph": "X", "cat": "cpu_op", "name": "mm", "ts": 2, "dur": 1, "args": {"Input Dims": [[2, 3], []]}},'
        '{"ph": "X", "cat": "kernel", "name": "k", "ts": 3, "dur": 1, "args": {}}]}'
    )
    columns = read_trace(write(tmp_path, text), wanted=Wanted.EVERYTHING)
    assert [columns.strings[i] if i >= 0 else None for i in columns.input_dims] == [
        "[[2, 3], []]",
        "[[2, 3], []]",
        None,
    ]
    assert columns.input_dims[0] == columns.input_dims[1]
    assert [columns.strings[i] if i >= 0 else None for i in columns.input_types] == ['["float", "Scalar"]', None, None]


def test_shapes_of_views_are_left_out_and_those_of_what_does_work_are_read(read):
    names = ["aten::view", "aten::t", "aten::empty_like", "detach", "aten::tanh", "aten::copy_", "aten::slice_backward"]
    columns = read([span(name, **{"Input Dims": [[2]], "Input type": ["float"]}) for name in names])
    assert (columns.input_dims >= 0).tolist() == (columns.input_types >= 0).tolist() == [False] * 4 + [True] * 3


@pytest.mark.parametrize("spoilt", [False, True], ids=["whole chunk", "event by event"])
@pytest.mark.parametrize("category", ["cpu_op", "Operator"])
def test_arguments_of_convolutions_and_attention_are_read_and_of_no_other_operator(tmp_path, category, spoilt):
    passed = {
        "aten::cudnn_convolution": '["", "", "[1, 1]"]',
        "aten::slice": '["", "7"]',
        "aten::_flash_attention_forward": '["", "True"]',
    }
    call = '{{"ph": "X", "cat": "Runtime", "name": "{}", "ts": 1, "dur": 1, "args": {{"external id": 3}}}}'
    event = '{{"ph": "X", "cat": "{}", "name": "{}", "ts": 1, "dur": 1, "args": {{{}, "Concrete Inputs": {}}}}}'
    events = [event.format(category, name, '"Input Dims": []', values) for name, values in passed.items()]
    events += [call.format("launch")] if category == "Operator" else []
    events += ['{"ph": "X", "name": "b\\q"}'] if spoilt else []
    columns = read_trace(write(tmp_path, f'{{"traceEvents": [{", ".join(events)}]}}'), wanted=Wanted.SHAPES)
    found = {
        columns.strings[name]: json.loads(columns.strings[values]) if values >= 0 else None
        for name, values in zip(columns.name[:3], columns.concrete_inputs[:3], strict=True)
    }
    assert found == {
        "aten::cudnn_convolution": ["", "", "[1, 1]"],
        "aten::slice": None,
        "aten::_flash_attention_forward": ["", "True"],
    }
    if category == "Operator":
        assert columns.external_id.tolist()[3] == 3


@pytest.mark.parametrize("spoilt", [False, True], ids=["whole chunk", "event by event"])
def test_collective_metadata_is_kept_with_its_row(tmp_path, spoilt):
    full = {
        "Collective name": "_allgather_base",
        "In msg nelems": 10,
        "Out msg nelems": 20,
        "dtype": "Float",
        "Group size": 2,
        "Process Group Name": "0",
        "Seq": 5,
    }
    events = [
        span("a"),
        span("impossible", dur=-4, **full),
        {"ph": "s", "id": 1, "name": "f", "cat": "ac2g", "pid": 1, "tid": 1, "ts": 1},
        span("record_param_comms", **full),
        span("ncclDevKernel_Generic", cat="kernel", **{"Collective name": "allreduce"}),
    ]
    text = plain(events)
    columns = read_trace(write(tmp_path, text.replace('"name": "a"', '"name": "a\\q"') if spoilt else text))
    assert columns.damage.repaired == int(spoilt)
    assert columns.collectives == (
        CollectiveArgs(1, "_allgather_base", 10, 20, "Float", 2, "0", 5),
        CollectiveArgs(2, "allreduce"),
    )


def test_flows_are_kept_with_their_kind(read):
    def flow(phase, number, kind, tid, ts):
        return {"ph": phase, "id": number, "cat": kind, "name": kind, "pid": 1, "tid": tid, "ts": ts, "bp": "e"}

    flows = read([span(), flow("s", 4, "ac2g", 1, 5), flow("f", 4, "ac2g", 2, 6), flow("s", 9, "fwdbwd", 1, 7)]).flows
    rows = sorted(zip(flows.id.tolist(), flows.starts.tolist(), flows.ts_ns.tolist(), strict=True))
    assert rows == [(4, False, 6000), (4, True, 5000), (9, True, 7000)]


def test_flows_are_in_the_order_of_the_file(read):
    links = [
        {"ph": "s" if index % 3 else "f", "id": index, "cat": "ac2g", "name": "f", "pid": 1, "tid": 1, "ts": index}
        for index in range(50)
    ]
    flows = read([span(), *links]).flows
    assert flows.id.tolist() == list(range(50))
    assert flows.starts.tolist() == [index % 3 > 0 for index in range(50)]


def test_flow_kinds_are_string_ids(read):
    columns = read([span(), {"ph": "s", "id": 4, "cat": "async_cpu_to_gpu", "name": "f", "pid": 1, "tid": 1, "ts": 5}])
    assert [columns.strings[kind] for kind in columns.flows.kind] == ["async_cpu_to_gpu"]
    assert columns.flows.thread.tolist() == [0]


@pytest.mark.parametrize("cat", [{}, {"cat": "cpu_instant_event"}], ids=["2021", "today"])
def test_memory_instants_are_kept_and_other_instants_are_not(read, cat):
    instant = {"ph": "i", "s": "t", "pid": 1, "tid": 1, **cat}
    columns = read(
        [
            span(),
            instant | {"name": "[memory]", "ts": 1.5, "args": {"Device Type": 1, "Device Id": 0, "Bytes": 512}},
            instant
            | {
                "name": "[memory]",
                "ts": 2.5,
                "tid": 9,
                "args": {
                    "Device Type": 0,
                    "Device Id": -1,
                    "Bytes": -512,
                    "Total Allocated": 7,
                    "Total Reserved": 8,
                    "Addr": 139926520725504,
                },
            },
            instant | {"name": "Iteration Start: PyTorch Profiler", "ts": 3, "s": "g"},
        ]
    )
    memory = columns.memory
    assert memory.ts_ns.tolist() == [1500, 2500]
    assert memory.bytes.tolist() == [512, -512]
    assert (memory.allocated.tolist(), memory.reserved.tolist()) == ([-1, 7], [-1, 8])
    assert (memory.device_type.tolist(), memory.device.tolist()) == ([1, 0], [0, -1])
    assert memory.address.tolist() == [-1, 139926520725504]
    assert [columns.threads[thread] for thread in memory.thread] == [("1", "1"), ("1", "9")]


def test_metadata_is_read(read):
    meta = read(
        [span()],
        distributedInfo={"backend": "nccl", "rank": 0, "world_size": 2},
        deviceProperties=[
            {"id": 4, "name": "NVIDIA H100", "totalGlobalMem": 85, "computeMajor": 9, "computeMinor": 0, "numSms": 132}
        ],
        record_shapes=1,
        with_stack=0,
        cuda_runtime_version=12040,
        host_name="node7",
        baseTimeNanoseconds=1711964646000000000,
    ).meta
    assert (meta.rank, meta.world_size, meta.backend, meta.host) == (0, 2, "nccl", "node7")
    assert meta.devices == (DeviceProperties(4, "NVIDIA H100", 85, 9, 0, 132),)
    assert meta.recorded == {"record_shapes"}
    assert meta.versions == {"schemaVersion": "1", "cuda_runtime_version": "12040"}
    assert meta.base_time_ns == 1711964646000000000


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"deviceProperties": [], "distributedInfo": {}},
        {"deviceProperties": None, "distributedInfo": None, "baseTimeNanoseconds": None},
        {"deviceProperties": "x", "distributedInfo": [], "baseTimeNanoseconds": "soon", "host_name": 5},
        {"deviceProperties": [5, None], "distributedInfo": {"rank": None, "world_size": "many", "backend": 3}},
        {"distributedInfo": {"rank": -1, "backend": "undefined"}},
        {"distributedInfo": {"pg_config": "x"}},
        {"distributedInfo": {"pg_config": [5, None, "x"]}},
    ],
)
def test_odd_metadata_is_unknown(read, fields):
    meta = read([span()], **fields).meta
    assert (meta.rank, meta.world_size, meta.backend, meta.host, meta.base_time_ns) == (None,) * 5
    assert (meta.devices, meta.groups) == ((), ())


def test_process_groups_are_read_and_only_small_ones_with_their_members(read):
    found = [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 300, "ranks": list(range(300))},
        {"pg_name": 7, "pg_desc": "mesh_tp", "pg_size": 2, "ranks": [4, 5]},
        {"pg_name": None, "pg_desc": 3, "ranks": [1, "x", -1]},
    ]
    meta = read([span()], distributedInfo={"rank": 0, "pg_config": found}).meta
    assert meta.groups == (
        ProcessGroup("0", "default_pg", 300),
        ProcessGroup("7", "mesh_tp", 2, (4, 5)),
        ProcessGroup("", "", 1, (1,)),
    )
    many = read([span()], distributedInfo={"pg_config": found[1:2] * 10_000}).meta
    assert len(many.groups) == 256


HOSTILE = [
    "</script><script>alert(1)</script>",
    '"',
    "\\",
    "\0",
    "\u2028",
    "😀",
    "},{",
    "]}",
    '"traceEvents": [',
    "a" * 100_000,
]


def test_hostile_names_come_back_as_they_are(read):
    columns = read([span(name) for name in HOSTILE])
    assert [columns.strings[i] for i in columns.name] == HOSTILE


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(), st.integers(0, 2**40), st.integers(0, 2**40)), min_size=1, max_size=30))
def test_any_names_and_times_survive_the_round_trip(tmp_path_factory, rows):
    events = [span(name, ts=ts, dur=dur) for name, ts, dur in rows]
    columns = read_trace(write(tmp_path_factory.mktemp("trace"), plain(events)))
    found = zip(
        [columns.strings[i] for i in columns.name], columns.ts_ns.tolist(), columns.dur_ns.tolist(), strict=True
    )
    printable = [name.encode("utf-8", "replace").decode() for name, _, _ in rows]
    assert list(found) == [(name, ts * 1000, dur * 1000) for name, (_, ts, dur) in zip(printable, rows, strict=True)]


def test_text_columns_can_always_be_written(read):
    bad = "a\ud800"
    columns = read([span(bad, pid=bad, tid=bad, **{"Collective name": bad, "dtype": bad})], host_name=bad)
    everything = [*columns.strings, *columns.threads[0], columns.collectives[0].name, columns.meta.host]
    assert all(text.encode() for text in everything)


def test_every_column_has_the_contract_types(read):
    columns = read([span(), {"ph": "s", "id": 4, "cat": "ac2g", "pid": 1, "tid": 1, "ts": 5}])
    dtypes = {
        "int8": ["category"],
        "int32": ["name", "thread", "device", "input_types", "input_dims", "concrete_inputs"],
        "int64": ["ts_ns", "dur_ns", "correlation", "external_id", "stream", "bytes"],
        "float32": ["blocks_per_sm"],
    }
    for dtype, names in dtypes.items():
        for name in names:
            assert getattr(columns, name).dtype == dtype, name
            assert getattr(columns, name).shape == (1,), name
    assert [columns.flows.id.dtype, columns.flows.kind.dtype, columns.flows.thread.dtype] == ["int64", "int32", "int32"]
    assert [columns.memory.bytes.dtype, columns.memory.device.dtype, columns.flows.starts.dtype] == [
        "int64",
        "int32",
        "bool",
    ]


@pytest.mark.parametrize("odd", [{"In msg nelems": 1.5}, {"dtype": 5}, {"Group size": None}, {"Seq": "x"}])
def test_odd_collective_metadata_costs_its_value_and_nothing_else(read, odd):
    flow = {"ph": "s", "id": 1, "cat": "ac2g", "pid": 1, "tid": 1, "ts": 5}
    columns = read([span("a"), flow, span("b", **{"Collective name": "allreduce"}, **odd), span("c")])
    assert [columns.strings[i] for i in columns.name] == ["a", "b", "c"]
    assert [(found.row, found.name) for found in columns.collectives] == [(1, "allreduce")]
    assert columns.collectives[0].in_elements is None
    assert len(columns.flows.id) == 1
    assert columns.damage.dropped == 0


@pytest.mark.parametrize("wanted", [Wanted.NOTHING, Wanted.EVERYTHING])
def test_which_stream_waits_for_which_is_read_from_sync_rows(tmp_path, wanted):
    events = [
        span("Stream Wait Event", "cuda_sync", 70 + stream, 1, stream=stream, wait_on_stream=awaited)
        for stream, awaited in ((7, 20), (20, 7), (7, 20))
    ]
    events.append(span("Stream Sync", "cuda_sync", 70, 1, stream=7))
    found = read_trace(write(tmp_path, plain(events)), wanted=wanted)
    assert found.stream_waits == {(7, 20), (20, 7)}
    assert len(found) == 4


def test_the_ends_of_events_are_computed_once(read):
    columns = read([span("a", ts=5.0, dur=2.0), span("b", ts=9.0, dur=0.5)])
    assert columns.end_ns.tolist() == (columns.ts_ns + columns.dur_ns).tolist()
    assert columns.end_ns is columns.end_ns


def test_an_event_is_in_any_of_the_categories_asked_for(read):
    columns = read([span("a", cat="kernel"), span("b", cat="gpu_memcpy"), span("c", cat="cpu_op")])
    assert columns.is_a(Category.KERNEL, Category.MEMCPY).tolist() == [True, True, False]
    assert columns.is_a().tolist() == [False, False, False]


@pytest.mark.parametrize(
    ("written", "value"), [(0.25, 0.25), (3, 3.0), (None, 0.0), ("1", 0.0), (-1, 0.0), (1e30, 0.0), (True, 1.0)]
)
def test_blocks_for_each_multiprocessor_are_a_positive_number_or_unknown(read, written, value):
    columns = read([span("k", cat="kernel", **{"blocks per SM": written}), span("k")])
    assert columns.blocks_per_sm.tolist() == [value, 0.0]
