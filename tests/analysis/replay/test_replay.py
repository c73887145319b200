"""The replay itself against a plain walk over all nodes, and the invariants of savings (§4.5, 11 to 13)."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.whatifs import Wire

from profilerkit.analysis.replay.changes import (
    HiddenCollectives,
    HiddenCopies,
    HostTime,
    Kernels,
    LoaderWaits,
    OneLaunch,
    OnlyKernels,
    Syncs,
)
from profilerkit.analysis.replay.gate import MOST_SLOWED, joint, savings
from profilerkit.analysis.replay.graph import Wait, replay
from tests.analysis.replay.smallest_graph import two_kernels
from tests.analysis.replay.steps import EVENTS, US, facts_of, graph_of, steps
from tests.recipes import replace

CHANGES = (
    LoaderWaits(0.5),
    HostTime(("over.python",), 0.5),
    Syncs(),
    Kernels(2.0, ("compute.math", "compute.membw")),
    HiddenCopies(),
    Wire(2.0),
    HiddenCollectives(),
    OneLaunch(0.0),
)


def walked(graph):
    """When each mark was reached and done, node by node as §3.2 of the method has it."""
    shape = graph.shape
    end, last, now = {}, {}, 0.0
    host, done = [], []
    for point in range(shape.n_points):
        now += graph.host_ns[point]
        for place in np.flatnonzero(shape.join_point == point):
            event = int(shape.join_event[place])
            at = end[event] - (graph.dur_ns[event] if shape.join_kind[place] == Wait.QUEUE else 0.0)
            now = max(now, at + graph.join_ns[place])
        for _ in np.flatnonzero(shape.marks == point):
            host.append(now)
            done.append(max([now, *last.values()]))
        for event in np.flatnonzero(shape.point == point).tolist():
            stream = int(shape.stream[event])
            start = max(now + graph.issue_ns[event], last.get(stream, -np.inf) + graph.gap_ns[event])
            for place in np.flatnonzero(shape.wait_event == event):
                start = max(start, end[int(shape.wait_for[place])] + graph.wait_ns[place])
            end[event] = last[stream] = start + graph.dur_ns[event]
    return np.array(host), np.array(done)


@settings(max_examples=150, deadline=None)
@given(steps(), st.sampled_from(CHANGES))
def test_stretches_give_what_a_walk_over_all_nodes_gives(graph, change):
    for version in (graph, change(graph)):
        ours, (host, done) = replay(version), walked(version)
        np.testing.assert_allclose(ours.host_ns, host, atol=1e-3)
        np.testing.assert_allclose(ours.done_ns, done, atol=1e-3)


@settings(max_examples=150, deadline=None)
@given(steps(), st.sampled_from(CHANGES))
def test_no_fix_makes_steps_longer_nor_saves_more_than_all_of_them(graph, change):
    (saved,) = savings(facts_of(graph), [[change]])
    assert -1e-9 <= saved <= 1.0


@settings(max_examples=150, deadline=None)
@given(
    EVENTS,
    st.sampled_from((Syncs(), Wire(2.0), HostTime(("over.python",), 0.5), Kernels(2.0))),
    st.integers(0, 500),
    st.integers(1, 2_000),
)
def test_a_saving_does_not_grow_when_another_serial_cause_does(events, change, serial_us, more_us):
    """§4.5, 11."""
    versions = [graph_of(events, 3, serial_us=length) for length in (serial_us, serial_us + more_us)]
    before, after = (savings(facts_of(version), [[change]])[0] for version in versions)
    assert after <= before + 1e-9


@settings(max_examples=100, deadline=None)
@given(steps(), st.floats(1.1, 8.0))
def test_a_faster_wire_saves_no_more_than_its_bound(graph, factor):
    """§4.5, 12: min of what is exposed and of what all collectives lose; exposed is what removing them saves."""
    facts = facts_of(graph)
    ours, all_of_it = savings(facts, [[Wire(factor)], [Wire(1e12)]])
    assert -1e-9 <= ours <= all_of_it + 1e-9


@settings(max_examples=80, deadline=None)
@given(steps(), st.lists(st.sampled_from(CHANGES), min_size=1, max_size=4, unique=True))
def test_fixes_together_save_at_least_the_best_and_their_parts_sum_to_the_whole(graph, chosen):
    """§4.5, 13."""
    found = joint(facts_of(graph), chosen, [1.0] * len(chosen), OnlyKernels())
    assert found.together >= max(found.alone) - 1e-6
    assert found.after[-1] == pytest.approx(found.together)
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(found.after))  # but for what rounding takes
    assert sum(found.fair) == pytest.approx(found.together, abs=1e-9)


def test_fused_kernels_move_fewer_bytes_and_faster_ones_the_same():
    graph = two_kernels(100.0, 100.0)
    graph = replace(graph, least_ns=graph.dur_ns, chained=graph.dur_ns > 0, fp32=graph.dur_ns > 0)
    assert Kernels(2.0, ("compute.math",), "chained")(graph).dur_ns.tolist() == [50.0, 50.0]
    assert Kernels(2.0, ("compute.math",), "fp32")(graph).dur_ns.tolist() == [100.0, 100.0]


def test_a_fix_that_takes_away_what_another_hides_behind_is_left_out():
    """Faster kernels on a second stream save nothing, and leave less to hide the collectives behind."""
    kinds = ("compute.math", "compute.math", "comm.other", "compute.math", "comm.other")
    kernels = [
        (1, length, kind, number == 3, False, False)
        for number, (length, kind) in enumerate(zip((1, 1, 3, 6, 2), kinds, strict=True))
    ]
    changes = [Kernels(2.0, ("compute.math", "compute.membw")), HiddenCollectives()]
    facts = facts_of(graph_of(kernels, 2))
    hidden, both = savings(facts, [changes[1:], changes])
    assert both < hidden
    assert joint(facts, changes, [1.0, 1.0], OnlyKernels()).together == hidden


def test_a_set_saves_no_more_than_its_bounds_together():
    graph = graph_of([(100, 50, "compute.math", False, True, False)], 3)
    found = joint(facts_of(graph), [HostTime(), Syncs()], [0.05, 0.02], OnlyKernels())
    assert found.together == pytest.approx(0.07)
    assert found.alone == pytest.approx((0.05, 0.02))


@settings(max_examples=60, deadline=None)
@given(steps())
def test_nothing_saves_more_than_leaving_only_the_kernels(graph):
    facts = facts_of(graph)
    floor, *others = savings(facts, [[OnlyKernels()], [Syncs()], [HostTime()], [Wire(4.0)], [LoaderWaits()]])
    assert all(value <= floor + 1e-9 for value in others)


def buckets(node, lengths=(100, 100, 100, 100)):
    """Steps that compute for 400 us, then send twice 100 us and wait: which node of backward each kernel belongs to."""
    kernels = [(1, length, "compute.math", False, False, False) for length in lengths]
    sent = [(1, 100, "comm.other", False, False, False), (1, 100, "comm.other", False, True, False)]
    graph = graph_of([*kernels, *sent], 3)
    return replace(graph, node=np.tile([*node, -1, -1], 3))


def hidden(graph):
    facts = facts_of(graph)
    return savings(facts, [[HiddenCollectives()]])[0] * facts.plain_ns / len(graph.shape.judged) / US


def test_collectives_hide_behind_the_backward_pass_alone():
    """Of 400 us the last 300 are backward: the first is ready after 150 of it and hidden, the last one is left."""
    assert hidden(buckets([-1, 0, 1, 2])) == pytest.approx(100, abs=2)
    # 50 us of backward hide no more than 25 us of the first.
    assert hidden(buckets([-1, -1, -1, 0], (150, 100, 100, 50))) == pytest.approx(25, abs=2)


def test_every_node_of_the_backward_pass_gives_as_many_gradients():
    """The first node takes nearly all of the pass: half of the gradients are there when the second one begins."""
    early, late = buckets([0, 0, 0, 1], (10, 10, 10, 370)), buckets([0, 0, 0, 1], (130, 130, 130, 10))
    assert hidden(early) == pytest.approx(100, abs=2)
    assert hidden(late) == pytest.approx(10, abs=2)


@pytest.mark.parametrize(
    ("slowed", "fix_class", "is_told"),
    [
        (0.0, "communication", True), (MOST_SLOWED, "communication", True), (0.021, "communication", False),
        (None, "communication", False), (None, "sync", True), (0.5, "kernels", True),
    ],
)  # fmt: skip
def test_collectives_that_slow_kernels_close_the_gate_for_changes_of_them(slowed, fix_class, is_told):
    facts = replace(facts_of(buckets([0, 1, 2, 3])), slowed=slowed)
    assert (facts.refuses(fix_class) == "") is is_told


def test_a_closed_gate_is_closed_for_every_change():
    facts = replace(facts_of(buckets([0, 1, 2, 3])), elsewhere=0.5)
    assert facts.refuses("sync") == facts.refused != ""
