"""The timeline of the median step: its numbers are those of the partition of that step."""

from pathlib import Path

import numpy as np
import pytest

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.analysis.steps.find import TraceSteps
from profilerkit.analysis.steps.lanes import MOST_GAPS, MOST_STREAMS, median_row, median_step
from profilerkit.analysis.trace_facts import trace_facts
from profilerkit.api import analyze
from profilerkit.formats.registry import read_trace
from profilerkit.model.events import CELLS
from profilerkit.model.step import LEAVES, PARTS
from profilerkit.report import json as report_json
from profilerkit.rundir.reader import read_run
from tests.recipes import AUTOGRAD, GLOO, US, Log, host_training, named, training, write_run

TRACES = Path(__file__).resolve().parents[4] / "shared" / "traces"


def step_of(facts, rank):
    return median_step(facts.lanes, facts.steps, facts.partition, rank)


def told(trace, rank=0):
    return step_of(trace.facts(), rank)


def lane(found, name):
    return next(entry for entry in found.lanes if entry.name == name)


def times(entry):
    return {track.family: track.time_ns for track in entry.tracks}


def test_the_gap_of_a_step_has_the_causes_the_partition_gave_it():
    found = told(training(fetch=300, python=50))
    assert (found.mode, found.time_ns, found.idle_ns) == ("gpu", 1_360 * US, 360 * US)
    causes = {"input.wait": 300, "over.python": 50, "over.dispatch": 8, "over.launch": 2}
    assert found.causes == {part: time * US for part, time in causes.items()}
    (gap,) = found.gaps
    assert (gap.start_ns, gap.end_ns, gap.part, gap.part_ns) == (0, 360 * US, "input.wait", 300 * US)
    assert found.gap_count == 1


def test_lanes_are_the_partition_the_streams_the_loader_and_the_main_thread():
    found = told(training(fetch=300, python=50, comm=40, batch_copy=20))
    assert [entry.name for entry in found.lanes] == ["Step", "Stream 7", "Stream 20", "Loader", "Main thread"]
    assert [entry.kind for entry in found.lanes] == ["step", "stream", "stream", "loader", "thread"]
    assert times(lane(found, "Stream 7")) == {"input": 20 * US, "compute": 1_000 * US}
    assert times(lane(found, "Stream 20")) == {"communication": 40 * US}
    assert times(lane(found, "Loader")) == {"input": 300 * US}
    assert sum(times(lane(found, "Step")).values()) == found.time_ns


def test_communication_behind_kernels_is_on_its_stream_and_not_in_the_partition():
    trace = training(kernels=10)
    for number in range(6):
        at = 1_000 + number * 1_010
        trace.collective(at + 100, at + 400, launch=(at + 40, at + 42))
    found = told(trace)
    assert times(lane(found, "Stream 20")) == {"communication": 300 * US}
    assert "communication" not in times(lane(found, "Step"))


MANY = {
    "fed late": training(fetch=300, python=50),
    "gaps": training(gap=13, batch_copy=30),
    "communicating": training(comm=70, gap=3, kernels=4),
    "never idle but for a launch": training(),
    "on the host": host_training(fetch=40, python=9),
    "on the host with gloo": host_training(fetch=40, python=9, comm=30),
}


@pytest.mark.parametrize("name", MANY)
def test_its_numbers_are_those_of_the_partition_of_that_step(name):
    agrees(MANY[name].facts())


def agrees(facts):
    found = step_of(facts, None)
    row = facts.steps.index.tolist().index(found.step)
    parts = named(facts.partition.per_step[row])
    assert found.time_ns == sum(parts.values())
    assert sum(found.causes.values()) == found.idle_ns <= found.time_ns
    assert all(time <= parts[part] for part, time in found.causes.items())
    only_idle = [part for part in parts if part.startswith(("over.", "input.wait", "idle.", "sync.drain"))]
    assert {part: found.causes[part] for part in only_idle} == {part: parts[part] for part in only_idle}
    families = {}
    for part, time in parts.items():
        families[PARTS[part][0]] = families.get(PARTS[part][0], 0) + time
    assert times(found.lanes[0]) == families
    lengths = [gap.end_ns - gap.start_ns for gap in found.gaps]
    assert lengths == sorted(lengths, reverse=True)
    assert all(0 <= gap.start_ns < gap.end_ns <= found.time_ns for gap in found.gaps)
    if found.gap_count <= MOST_GAPS:
        assert sum(lengths) == found.idle_ns
    for entry in found.lanes:
        for track in entry.tracks:
            assert len(track.levels) == CELLS
            drawn = sum(track.levels) / 255 / CELLS * found.time_ns
            assert track.time_ns - CELLS <= drawn <= track.time_ns + found.time_ns / 255 + CELLS
    return found


def test_levels_say_where_in_the_step_a_lane_worked():
    found = told(host_training(compute=100, fetch=200))
    (track,) = [track for track in found.lanes[0].tracks if track.family == "input"]
    assert track.levels == bytes([255] * 200 + [0] * 100)


def test_without_a_device_idle_is_what_is_no_computation():
    found = told(host_training(fetch=40, python=10, compute=100))
    assert (found.mode, found.time_ns, found.idle_ns) == ("cpu", 150 * US, 50 * US)
    assert found.causes == {"input.wait": 40 * US, "over.python": 10 * US}
    assert [entry.name for entry in found.lanes] == ["Step"]


def test_other_threads_of_a_run_without_a_device_have_their_lanes():
    trace = host_training(compute=100, comm=30)
    for number in range(6):
        at = 1_000 + 130 * number
        trace.op(at + 5, at + 65, name="autograd::engine::evaluate_function: AddmmBackward0", tid=AUTOGRAD)
    found = told(trace)
    assert [entry.name for entry in found.lanes] == ["Step", "Main thread", "Backward", f"Thread {GLOO}"]
    assert times(lane(found, "Main thread")) == {"compute": 100 * US}
    assert times(lane(found, "Backward")) == {"compute": 60 * US}
    assert times(lane(found, f"Thread {GLOO}")) == {"communication": 30 * US}


def test_a_host_thread_that_waits_for_the_device_has_no_overhead():
    trace = training(kernels=10)
    for number in range(6):
        at = 1_000 + number * 1_010
        trace.sync(at + 200, at + 900)
    found = told(trace)
    assert times(lane(found, "Main thread")) == {"overhead": 80 * US, "other": 700 * US}


def test_the_busiest_streams_are_shown_and_the_others_counted():
    trace = training(kernels=10)
    for number in range(6):
        at = 1_000 + number * 1_010
        for stream in range(30, 40):
            trace.kernel(at + 20, at + 20 + stream, stream=stream)
    found = told(trace)
    shown = [entry.name for entry in found.lanes if entry.kind == "stream"]
    assert shown == ["Stream 7", *(f"Stream {number}" for number in range(39, 39 - MOST_STREAMS + 1, -1))]
    assert found.streams_left_out == 11 - MOST_STREAMS


def steps_of(times, state):
    end = np.cumsum(times)
    index = np.arange(len(times))
    return TraceSteps(index, end - times, end, state, np.zeros(len(times), dtype=bool), "ProfilerStep", inferred=False)


def test_the_step_is_the_steady_one_closest_to_the_median():
    steady = ("warmup", "warmup", "steady", "steady", "steady")
    assert median_row(steps_of(np.array([100, 900, 120, 101, 90]), steady)) == 3
    assert median_row(steps_of(np.array([100, 70, 50, 50]), ("steady",) * 4)) == 1
    assert median_row(steps_of(np.array([100, 0]), ("cut", "steady"))) is None


def test_the_judged_ranks_step_is_in_the_facts():
    facts = Facts([rank_facts("trace.json", training(fetch=300, rank=3, world_size=8).facts(), None)])
    assert (facts.median_step.rank, facts.median_step.idle_ns) == (3, 310 * US)


def test_communication_that_was_divided_between_ranks_is_divided_here_too():
    shape = {"compute": 100, "world_size": 2, "backend": "gloo"}
    traces = (host_training(8, python=wait, comm=200 - wait, rank=rank, **shape) for rank, wait in enumerate((10, 18)))
    facts = Facts([rank_facts("trace.json", trace.facts(), None) for trace in traces], told=0)
    row = next(row for row in facts.steps.rows if row.index == facts.median_step.step)
    assert facts.median_step.causes["comm.skew"] == 8 * US
    assert facts.median_step.causes == {part: time for part, time in row.parts.items() if part != "compute.math"}


def test_a_run_of_the_light_tier_has_none(tmp_path):
    record = read_run(write_run(tmp_path / "run", [Log().steps(20, 1_000, wait=300)]))
    assert Facts([rank_facts("rank_00000", None, record.ranks[0])]).median_step is None


def test_names_of_lanes_are_short():
    trace = host_training(compute=100)
    for number in range(6):
        trace.op(1_000 + 100 * number, 1_050 + 100 * number, tid="x" * 5_000)
    names = [entry.name for entry in told(trace).lanes]
    assert max(map(len, names)) == 60


@pytest.mark.shared_traces
@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no shared traces beside the repository, at {TRACES}")
@pytest.mark.parametrize("name", ["sam_launch_bound", "bert_small_h100", "cpu_only_gloo", "resnet50_workers0"])
def test_real_steps_agree_with_their_partition(name):
    found = agrees(trace_facts(read_trace(TRACES / name / f"{name}.json.gz")))
    assert set(found.causes) <= set(LEAVES)


@pytest.mark.shared_traces
@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no shared traces beside the repository, at {TRACES}")
def test_the_timeline_of_a_real_step_is_small():
    report = analyze(TRACES / "sam_launch_bound" / "sam_launch_bound.json.gz")
    assert report.median_step is not None
    alone = report_json.render(report)
    without = report_json.render(report_json.load(alone.replace('"median_step"', '"another"')))
    assert len(alone) - len(without) < 20_000
