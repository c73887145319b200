import doctest
import time

import numpy as np
import pytest

from profilerkit.analysis.communication import log as log_module
from profilerkit.analysis.communication.log import KINDS, Channel, _first_tensor, collective_log, payload_bytes
from profilerkit.analysis.communication.registry import built_in, bus_factor, with_patterns
from profilerkit.analysis.communication.table import collective_table
from profilerkit.analysis.device.formulas import arguments
from profilerkit.analysis.intervals import EMPTY
from profilerkit.analysis.ranks.job import compare
from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import CollectiveArgs, Wanted
from profilerkit.trace.launches import launch_of
from tests.analysis.communication.jobs import ALL_TO_ALL, job
from tests.analysis.communication.test_waiting import ranks_of
from tests.recipes import ALL_REDUCE, Trace, training

GENERIC = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"


def log_of(trace, tmp_path, *, registry=None, on_host=False):
    registry = registry or built_in()
    columns = read_trace(trace.write(tmp_path / "trace.json"), wanted=Wanted.EVERYTHING)
    communicates = np.array([registry.communicates(text) for text in columns.strings])
    device = None if on_host else columns.device >= 0
    return collective_log(columns, communicates, launch_of(columns), registry, device=device)


def kinds_of(log):
    return [KINDS[kind] for kind in log.kind]


def launched(trace, start, *, name, annotation=None, tid=100, **args):
    """A collective launched inside an annotation of its back-end."""
    if annotation:
        trace.annotation(annotation, start, start + 10, tid=tid)
    trace.collective(start + 50, start + 90, name=name, launch=(start + 2, start + 6), **args)


def test_a_trace_without_collectives_has_no_log(tmp_path):
    assert log_of(training(2), tmp_path) is None


def test_metadata_says_what_a_collective_is_and_how_much_it_moves(tmp_path):
    trace = Trace()
    trace.collective(
        100,
        200,
        name=GENERIC,
        elements=1000,
        dtype="BFloat16",
        **{"Collective name": "_allgather_base", "Out msg nelems": 8000, "Group size": 8},
        **{"Process Group Name": "tp", "Seq": 17},
    )
    log = log_of(trace, tmp_path)
    assert kinds_of(log) == ["all_gather"]
    assert (log.start[0], log.end[0]) == (100_000, 200_000)
    assert (log.bytes[0], log.measured[0], log.size[0], log.sequence[0]) == (16_000, True, 8, 17)
    assert log.channels == (Channel("tp", 0),)
    assert (log.names[log.title[0]], log.names[log.name[0]]) == ("_allgather_base", GENERIC)


def test_without_metadata_the_annotation_around_the_launch_says_it(tmp_path):
    trace = Trace()
    launched(trace, 100, name=ALL_TO_ALL, annotation="nccl:all_to_all")
    launched(trace, 300, name=ALL_TO_ALL, annotation="nccl:send 0->1")
    launched(trace, 500, name=ALL_TO_ALL)
    # The launch of this one lies in an annotation of another thread.
    trace.annotation("nccl:broadcast", 700, 800, tid=999)
    launched(trace, 700, name=ALL_REDUCE)
    assert kinds_of(log_of(trace, tmp_path)) == ["all_to_all", "send_recv", "unknown", "all_reduce"]


def test_a_kernel_launched_before_the_trace_began_is_what_all_others_of_its_name_are(tmp_path):
    trace = Trace()
    trace.collective(10, 40, name=ALL_TO_ALL)
    launched(trace, 100, name=ALL_TO_ALL, annotation="nccl:all_to_all")
    launched(trace, 300, name=ALL_TO_ALL, annotation="nccl:all_to_all")
    assert kinds_of(log_of(trace, tmp_path)) == ["all_to_all"] * 3


def test_without_any_witness_the_name_decides(tmp_path):
    trace = Trace()
    trace.collective(10, 40, name=ALL_TO_ALL)
    trace.collective(50, 60, name=GENERIC)
    trace.collective(70, 80, name="hcom_send__1")
    # NCCL runs all-to-all with the kernel of point-to-point transfers.
    assert kinds_of(log_of(trace, tmp_path)) == ["unknown", "unknown", "send_recv"]


def test_the_users_patterns_make_a_kernel_a_collective(tmp_path):
    trace = training(2)
    trace.kernel(90_000, 90_500, name="my_exchange<4>", stream=9)
    log = log_of(trace, tmp_path, registry=with_patterns(["all_to_all=^my_exchange"]))
    assert kinds_of(log) == ["all_to_all"]


def shaped(trace, start, *, external, dims, types, name="record_param_comms", kernel=ALL_REDUCE):
    shapes = {"External id": external, "Input Dims": dims, "Input type": types}
    trace.event(name, "cpu_op", start, start + 10, **shapes)
    trace.collective(start + 50, start + 90, name=kernel, **{"External id": external})


def test_bytes_come_from_the_operators_shapes_where_the_metadata_is_missing(tmp_path):
    trace = Trace()
    shaped(trace, 100, external=5, dims=[[1024, 256], []], types=["c10::BFloat16", ""])
    shaped(trace, 300, external=6, dims=[[], [7]], types=["", "float"])
    shaped(trace, 500, external=7, dims=[[8]], types=["float"], name="aten::add")
    log = log_of(trace, tmp_path)
    assert log.bytes.tolist() == [1024 * 256 * 2, 28, -1]
    assert not log.measured.any()
    assert [log.names[index] if index >= 0 else None for index in log.dtype] == ["BFloat16", "Float", None]


def test_a_gathered_size_needs_the_size_of_the_group(tmp_path):
    trace = Trace()
    gather = "ncclDevKernel_AllGather_RING_LL"
    shaped(trace, 100, external=5, dims=[[100]], types=["float"], kernel=gather)
    assert log_of(trace, tmp_path).bytes.tolist() == [-1]


@pytest.mark.parametrize(
    "dims",
    [
        "[[4294967296, 4294967296, 4294967296]]",
        "[[-4]]",
        "[[1e400]]",
        '["x"]',
        "{}",
        "[[[4]]]",
        "[" * 50,
        "[[0]]",
        "[[true, 3.5]]",
    ],
)
def test_shapes_that_make_no_sense_are_no_bytes(dims):
    assert _first_tensor(arguments(dims, '["float"]', "")) is None


def test_a_tensor_larger_than_any_memory_counts_as_the_largest():
    args = CollectiveArgs(row=0, name="allreduce", in_elements=1 << 70, out_elements=1, dtype="Float")
    assert payload_bytes(args) == 1 << 50


def test_what_an_all_gather_is_said_to_gather_is_no_more_than_any_memory(tmp_path):
    trace = Trace()
    gathers = {"Collective name": "_allgather_base", "Group size": 1_000_000, "External id": 5}
    trace.event(
        "record_param_comms",
        "cpu_op",
        100,
        110,
        **{"External id": 5, "Input Dims": [[1 << 40]], "Input type": ["float"]},
    )
    trace.collective(150, 190, name=GENERIC, **gathers)
    assert log_of(trace, tmp_path).bytes.tolist() == [1 << 50]


@pytest.mark.parametrize("key", ["Seq", "Group size", "In msg nelems", "Out msg nelems"])
@pytest.mark.parametrize("value", [-(10**30), 10**30, 1 << 63, -5, 1e300, "x", None, [1]])
def test_numbers_that_make_no_sense_harm_nobody(key, value):
    traces = job(2, 6, group=lambda _: "0", numbered=True)
    hostile = [trace.changed(lambda event: {**event, "args": {**event["args"], key: value}}) for trace in traces]
    assert compare(ranks_of(hostile), 2).communication.of <= 6


@pytest.mark.parametrize("streams", [True, False])
def test_a_stream_or_a_name_for_each_collective_takes_no_longer(streams, tmp_path):
    trace = Trace()
    for index in range(6_000):
        name = ALL_REDUCE if streams else f"hcom_allReduce__{index}"
        trace.collective(100 + 10 * index, 105 + 10 * index, name=name, stream=20 + index * streams)
    columns = read_trace(trace.write(tmp_path / "trace.json"), wanted=Wanted.EVERYTHING)
    communicates = np.ones(len(columns.strings), dtype=np.bool_)
    began = time.process_time()
    log = collective_log(columns, communicates, launch_of(columns), built_in(), device=columns.device >= 0)
    collective_table(log, np.ones(len(log), dtype=np.bool_), EMPTY)
    assert time.process_time() - began < 0.6


def test_transfers_of_gloo_stand_for_themselves_and_not_for_the_operators_that_start_them(tmp_path):
    trace = Trace(backend="gloo")
    for at in (100, 300):
        trace.op(at, at + 5, name="c10d::allreduce_")
        trace.event("gloo:all_reduce", "user_annotation", at + 5, at + 90, tid=103, **{"Input Dims": [[10]]})
    log = log_of(trace, tmp_path, on_host=True)
    assert kinds_of(log) == ["all_reduce"] * 2
    assert log.channels == (Channel("", 0),)
    only = trace.changed(lambda event: [] if event["name"].startswith("gloo") else event)
    assert kinds_of(log_of(only, tmp_path, on_host=True)) == ["all_reduce"] * 2


def test_streams_without_group_names_are_channels_and_a_named_stream_lends_its_name(tmp_path):
    trace = Trace()
    trace.collective(10, 20, stream=30)
    trace.collective(30, 40, stream=20)
    trace.collective(50, 60, stream=40)
    trace.collective(70, 80, stream=40, elements=4, **{"Process Group Name": "dp"})
    log = log_of(trace, tmp_path)
    assert [log.channels[index] for index in log.channel] == [
        Channel("", 1),
        Channel("", 0),
        Channel("dp", 0),
        Channel("dp", 0),
    ]


@pytest.mark.parametrize(
    ("kind", "size", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 4, 0.75),
        ("broadcast", None, 1.0),
        ("send_recv", 2, 1.0),
        ("all_reduce", None, None),
        ("all_reduce", 1, None),
        ("unknown", 8, None),
        ("barrier", 8, None),
    ],
)
def test_bus_bandwidth_follows_the_factors_of_nccl_tests(kind, size, factor):
    assert bus_factor(kind, size) == factor


def test_examples_of_the_docstrings_hold():
    assert doctest.testmod(log_module).failed == 0


def test_shapes_longer_than_any_real_operators_are_not_read(tmp_path):
    trace = Trace()
    shaped(trace, 100, external=5, dims=[[4], *[[1]] * 40_000], types=["float"])
    shaped(trace, 300, external=6, dims=[[4]], types=["float"])
    assert log_of(trace, tmp_path).bytes.tolist() == [-1, 16]
