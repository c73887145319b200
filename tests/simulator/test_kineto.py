"""The files the simulator writes look like those of a profiler."""

import json

import pytest
from simulator.job import Comm, Job, Odd, Recording
from simulator.kineto import document, text_of
from simulator.parallel import simulate

from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import Category
from profilerkit.trace.launches import launch_of
from tests.recipes import replace

EVERYTHING = Recording(sync_rows=True, stacks=True, flows=True, instants=True, offsets_ns=(0, 5_000_000))


@pytest.fixture(scope="module")
def job():
    return Job(3, comm=Comm("ddp", ranks=2), odd=Odd(overhead_us=50.0), recording=EVERYTHING)


@pytest.fixture(scope="module")
def ranks(job):
    return simulate(job)


@pytest.fixture(scope="module")
def columns(job, ranks, tmp_path_factory):
    path = tmp_path_factory.mktemp("kineto") / "trace.json"
    path.write_text(text_of(job, ranks[0]), "utf-8")
    return read_trace(path)


def of(events, category):
    return [event for event in events if event.get("cat") == category]


def test_a_reader_finds_nothing_to_repair(columns):
    assert not columns.damage.repaired
    assert not columns.damage.dropped
    assert columns.meta.world_size == 2
    assert columns.meta.devices[0].multiprocessors == 108


def test_every_kind_of_row_is_there(job, ranks):
    events = document(job, ranks[0])["traceEvents"]
    kinds = {(event["ph"], event.get("cat")) for event in events}
    categories = (
        "cpu_op", "user_annotation", "cuda_runtime", "kernel", "gpu_memcpy", "gpu_user_annotation", "cuda_sync",
        "overhead", "python_function",
    )  # fmt: skip
    assert {("X", category) for category in categories} <= kinds
    assert {("s", "ac2g"), ("f", "ac2g"), ("i", "cpu_instant_event"), ("M", None)} <= kinds


def test_every_kernel_of_a_whole_capture_has_its_launch(columns):
    kernels = columns.is_a(Category.KERNEL)
    assert kernels.sum() > 300
    assert (launch_of(columns)[kernels] >= 0).all()


def test_times_survive_the_file_to_the_nanosecond(job, ranks, columns):
    works = [work for work in ranks[0].works if work.category == "kernel" and work.start >= ranks[0].marks[2][1]]
    rows = columns.is_a(Category.KERNEL)
    offset = columns.ts_ns[rows].min() - works[0].start
    written = {(work.start + offset, work.end - work.start) for work in works}
    assert written <= set(zip(columns.ts_ns[rows].tolist(), columns.dur_ns[rows].tolist(), strict=True))


def test_the_profilers_own_rows_stand_apart_from_the_program(job, ranks):
    rows = of(document(job, ranks[0])["traceEvents"], "overhead")
    assert rows
    assert {(row["pid"], row["tid"]) for row in rows} == {(-1, 0)}


def test_a_wait_between_streams_names_both(job, ranks):
    rows = of(document(job, ranks[0])["traceEvents"], "cuda_sync")
    waits = {(r["args"]["stream"], r["args"]["wait_on_stream"]) for r in rows if "wait_on_stream" in r["args"]}
    assert waits == {(20, 7), (7, 20)}


def test_collectives_say_on_every_rank_which_one_they_are(job, ranks):
    def sequences(rank):
        rows = of(document(job, rank)["traceEvents"], "kernel")
        return [(r["args"]["Process Group Name"], r["args"]["Seq"]) for r in rows if "Collective name" in r["args"]]

    first, second = map(sequences, ranks)
    assert first == second
    assert len(first) == len(set(first)) > 20


def test_clocks_differ_by_their_offsets(job, ranks):
    plain = replace(job, recording=replace(EVERYTHING, offsets_ns=(0, 0)))
    ends = [of(document(which, ranks[1])["traceEvents"], "kernel")[-1]["ts"] for which in (plain, job)]
    assert ends[1] - ends[0] == pytest.approx(5_000)


def test_a_graph_is_one_launch_of_many_kernels_without_operators():
    job = Job(3, odd=Odd(graph=True))
    (rank,) = simulate(job)
    events = document(job, rank)["traceEvents"]
    kernels = of(events, "kernel")
    launches = [event for event in of(events, "cuda_runtime") if event["name"] == "cudaGraphLaunch"]
    assert len(kernels) > 20 * len(launches) > 0
    assert all(kernel["args"]["graph node id"] for kernel in kernels)
    assert not any("External id" in kernel["args"] for kernel in kernels)


def test_what_was_not_recorded_is_not_there():
    job = Job(3, recording=Recording(has_device=False, has_launches=False, shapes=False))
    (rank,) = simulate(job)
    events = document(job, rank)["traceEvents"]
    assert not of(events, "kernel")
    assert not of(events, "cuda_runtime")
    assert of(events, "cpu_op")
    assert "Input Dims" not in json.dumps(events)


def test_a_cut_capture_begins_with_kernels_that_have_no_launch():
    job = Job(3, before=3, recording=Recording(cut_start=True))
    (rank,) = simulate(job)
    events = document(job, rank)["traceEvents"]
    called = {event["args"]["correlation"] for event in of(events, "cuda_runtime")}
    unlinked = [event for event in of(events, "kernel") if event["args"]["correlation"] not in called]
    assert unlinked
    assert max(event["ts"] for event in unlinked) < min(event["ts"] for event in of(events, "kernel")) + 20_000
