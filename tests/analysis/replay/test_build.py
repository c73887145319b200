"""Graphs of constructed and simulated traces: what is replayed, what decides, and when the gate closes."""

import json
import random

import numpy as np
import pytest
from simulator import whatifs
from simulator.job import Comm, Data, Host, Job, Model, Odd, Reads, Recording
from simulator.kineto import text_of
from simulator.parallel import COMM_STREAM, simulate
from simulator.truth import done_step_ns

from profilerkit.analysis.replay import changes
from profilerkit.analysis.replay.device_side import scope_of
from profilerkit.analysis.replay.gate import savings
from profilerkit.analysis.replay.graph import Wait
from profilerkit.analysis.trace_facts import trace_facts
from profilerkit.formats.registry import read_trace
from profilerkit.model.step import WAITS
from tests.recipes import host_training, replace

LEAN = Model(tokens=4096)


def facts_of(tmp_path, job, rank=0, **arguments):
    ranks = simulate(job)
    path = tmp_path / "trace.json"
    path.write_text(text_of(job, ranks[rank]), "utf-8")
    return trace_facts(read_trace(path), **arguments)


def replay_of(tmp_path, job, rank=0):
    found = facts_of(tmp_path, job, rank).replay
    assert found is not None
    return found


def truly_saved(job, better):
    return 1.0 - done_step_ns(better, simulate(better)[0]) / done_step_ns(job, simulate(job)[0])


@pytest.mark.parametrize(
    "job",
    [
        Job(1, model=LEAN),
        Job(2, model=LEAN, host=Host(readback=False, queue=30), before=5),
        Job(3, model=LEAN, comm=Comm("ddp", ranks=2), recording=Recording(sync_rows=True)),
        Job(4, model=Model(layers=2, tokens=4096), comm=Comm("fsdp", ranks=2, bytes=1 << 26)),
        Job(5, model=LEAN, odd=Odd(graph=True)),
        Job(6, model=LEAN, reads=Reads(4, 300.0)),
        Job(7, model=LEAN, data=Data(bytes=1 << 24, pinned=False, gb_per_s=6)),
    ],
    ids=["plain", "full queue", "ddp", "fsdp", "graph", "reads", "pageable"],
)
def test_unmodified_steps_come_out_as_they_were_traced(tmp_path, job):
    found = replay_of(tmp_path, job)
    assert found.is_open
    assert abs(found.error) < 0.002
    assert np.abs(found.step_errors).max() < 0.005
    assert found.steps >= 3


def test_the_gate_closes_where_the_events_that_were_waited_for_are_not_in_the_trace(tmp_path):
    job = Job(8, model=LEAN, comm=Comm("ddp", ranks=2, bytes=200 << 20, overlapped=False))
    assert replay_of(tmp_path, job).is_open
    blind = replace(job, recording=Recording(lost_streams=(COMM_STREAM,)))
    found = replay_of(tmp_path, blind)
    assert not found.is_open
    assert found.failing
    assert "off" in found.refused


def test_a_pipeline_is_not_replayed_from_one_stage(tmp_path):
    found = replay_of(tmp_path, Job(9, model=Model(lean=True), comm=Comm("pipeline", ranks=2)))
    assert "transfers between two ranks" in found.refused


def test_the_depth_of_a_full_queue_is_found_and_holds_a_quicker_host(tmp_path):
    job = Job(10, model=LEAN, host=Host(readback=False, queue=25, python_us=300.0), before=6)
    found = replay_of(tmp_path, job)
    kinds = found.graph.shape.join_kind
    assert (kinds == Wait.QUEUE).sum() > 20
    assert savings(found, [[changes.HostTime()]])[0] == pytest.approx(0.0, abs=0.003)


def test_quicker_kernels_save_what_the_simulator_says_and_become_launch_bound(tmp_path):
    job = Job(11, model=LEAN)
    found = replay_of(tmp_path, job)
    free = replace(found, graph=replace(found.graph, least_ns=np.zeros_like(found.graph.least_ns)))
    compute = ("compute.math", "compute.membw", "compute.small", "compute.other")
    for factor in (2.0, 8.0):
        (ours,) = savings(free, [[changes.Kernels(factor, compute)]])
        assert ours == pytest.approx(truly_saved(job, replace(job, faster=factor)), abs=0.01)


def test_kernels_are_never_faster_than_their_bytes(tmp_path):
    found = replay_of(tmp_path, Job(12, model=LEAN))
    faster = changes.Kernels(1e9, ("compute.membw",))(found.graph)
    assert (faster.dur_ns >= np.minimum(found.graph.least_ns, found.graph.dur_ns)).all()
    assert found.graph.least_ns.max() > 0


def test_a_faster_device_gains_nothing_where_the_workers_do_not_keep_up(tmp_path):
    job = Job(13, model=LEAN, data=Data(workers=1, produce_us=20_000.0), before=5)
    found = replay_of(tmp_path, job)
    compute = ("compute.math", "compute.membw", "compute.small", "compute.other")
    slow, fed, both = savings(
        found,
        [
            [changes.Kernels(2.0, compute)],
            [changes.LoaderWaits(0.0)],
            [changes.LoaderWaits(0.0), changes.Kernels(2.0, compute)],
        ],
    )
    assert slow == pytest.approx(0.0, abs=0.002)
    assert both > fed > 0.3


def test_what_is_kept_of_the_waits_is_taken_per_fetch(tmp_path):
    job = Job(14, model=LEAN, data=Data(workers=1, produce_us=20_000.0), before=5)
    found = replay_of(tmp_path, job)
    same, none = savings(found, [[changes.LoaderWaits(1.0)], [changes.LoaderWaits(0.0)]])
    assert same == pytest.approx(0.0, abs=1e-6)
    assert none == pytest.approx(found.graph.fetch_ns[1:].mean() / (found.plain_ns / found.steps), abs=0.03)


def test_a_host_alone_is_replayed_by_its_parts(tmp_path):
    path = host_training(6, compute=1_000, fetch=500).write(tmp_path / "trace.json")
    found = trace_facts(read_trace(path)).replay
    assert found is not None
    assert found.is_open
    assert len(found.graph.dur_ns) == 0
    (saved,) = savings(found, [[changes.LoaderWaits(0.0)]])
    assert saved == pytest.approx(sum(found.shares.get(part, 0.0) for part in WAITS), abs=0.01)
    assert saved == pytest.approx(1 / 3, abs=0.02)


def test_only_some_steps_are_kept_where_they_hold_many_events(tmp_path):
    job = Job(15, model=LEAN, steps=20)
    whole = facts_of(tmp_path, job)
    few = facts_of(tmp_path, job, replay_events=200)
    assert whole.replay.steps == whole.n_steady
    assert 3 <= few.replay.steps < whole.n_steady
    assert few.replay.of == whole.n_steady
    assert few.replay.is_open
    assert facts_of(tmp_path, job, replay_events=5).replay is None


def test_the_steps_in_the_middle_are_chosen_with_one_to_lead_in(tmp_path):
    facts = facts_of(tmp_path, Job(16, model=LEAN, steps=20))
    starts = np.sort(np.concatenate([facts.steps.start + 10 * k for k in range(50)]))
    scope = scope_of(facts.steps, starts, 300)
    assert not scope.judged[0]
    assert scope.judged[1:].all()
    judged = scope.number[1:]
    middle = facts.steps.index[facts.steps.judged].mean()
    assert abs(judged.mean() - middle) <= 2
    assert scope.of == facts.steps.judged.sum()


def test_the_order_of_events_in_the_file_does_not_matter(tmp_path):
    job = Job(17, model=LEAN, comm=Comm("ddp", ranks=2))
    path = tmp_path / "trace.json"
    document = json.loads(text_of(job, simulate(job)[0]))
    found = []
    for _ in range(2):
        path.write_text(json.dumps(document), "utf-8")
        replay = trace_facts(read_trace(path)).replay
        found.append((replay.plain_ns, *savings(replay, [[whatifs.Wire(2.0)], [changes.Syncs()]])))
        random.Random(1).shuffle(document["traceEvents"])
    assert found[0] == pytest.approx(found[1])


@pytest.mark.parametrize("code", ["W01", "W03", "W05", "W06", "W09", "W10", "W13", "G09", "G11", "G15", "G17"])
def test_a_draw_of_each_kind_of_fix_is_foretold_within_two_points(code):
    from simulator.foretold import POINTS, foretell

    draw = foretell(code, 6, 12)
    assert not draw.refused
    assert draw.foretold == pytest.approx(draw.saved, abs=POINTS)


def test_the_lost_edge_row_is_refused():
    from simulator.foretold import foretell

    assert foretell("W12", 6, 12).refused


def test_kernels_that_collectives_slow_close_the_gate_for_a_faster_wire():
    from simulator.foretold import foretell

    assert "the kernels beside them" in foretell("G20", 6, 12).refused
    # Nothing could be compared: kernels of no shape ran alone as well.
    assert "none ran alone" in foretell("G20", 4, 20).refused
    assert not foretell("G18", 6, 12).refused


def test_a_finding_promises_what_its_fix_saves():
    from simulator.foretold import POINTS, foretell

    for code in ("W09", "G10", "G15"):
        draw = foretell(code, 6, 12)
        assert draw.promised == pytest.approx(draw.saved, abs=POINTS)
    assert foretell("W07", 0, 12).promised is None


def test_every_row_has_a_change_that_does_something():
    assert len(whatifs.WHATIFS) == len(whatifs.BY_CODE) >= 36
    for row in whatifs.WHATIFS:
        job = row.draw(random.Random(3), 0.3)
        assert row.better(job) != job
        assert row.changes(job)
