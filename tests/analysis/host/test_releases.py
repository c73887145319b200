"""What alone kept the device from computing, and what is hidden behind a transfer. Recipes are in µs."""

import pytest

from profilerkit.analysis.host.gaps import RELEASE_NS
from tests.recipes import US, WORKERS, Trace, training

COMM = 20


def held(trace):
    """Parts that held the device alone, and those hidden, µs over the steady window, without the computing itself."""
    facts = trace.facts()
    alone, hidden = (
        {name: round(share * facts.window.total_ns / US) for name, share in facts.shares(per_step).items()}
        for per_step in (facts.partition.alone, facts.partition.hidden)
    )
    return alone, hidden


def before_a_collective(*, launch, start=1_800, comm=(1_500, 1_800), stream=COMM):
    """A kernel, a collective from 1,500 that nothing hides, and a kernel launched when told."""
    trace = Trace()
    trace.step(0, 1_000, 2_000)
    trace.op(890, 895)
    trace.kernel(1_000, 1_500, launch=(990, 995))
    trace.collective(*comm, launch=(1_000, 1_005), stream=stream)
    trace.kernel(start, 2_000, launch=launch)
    return trace


def test_an_idle_device_is_held_by_its_cause_alone():
    trace = training(1, fetch=300)
    assert held(trace) == ({"input.wait": 300, "over.dispatch": 8, "over.launch": 2}, {})


def test_a_collective_that_a_launched_kernel_waits_for_holds_the_device_alone():
    assert held(before_a_collective(launch=(1_100, 1_105))) == ({"comm.other": 300}, {})


def test_while_the_next_kernel_is_not_launched_both_hold_the_device():
    trace = before_a_collective(launch=(1_690, 1_700))
    trace.loader(1_500, 1_600, name=WORKERS)
    alone, hidden = held(trace)
    assert alone == {"comm.other": 100}
    assert hidden == {"input.wait": 100, "over.python": 90, "over.dispatch": 10}


def test_a_kernel_that_starts_beside_the_collective_never_waited_for_it():
    trace = before_a_collective(launch=(1_690, 1_700), start=1_702)
    trace.loader(1_500, 1_600, name=WORKERS)
    assert trace.parts()["comm.other"] == 202 * US
    assert held(trace) == ({"input.wait": 100, "over.python": 90, "over.dispatch": 10}, {})


def test_a_host_that_is_later_than_the_collective_holds_the_device_and_hides_the_rest_behind_it():
    trace = before_a_collective(launch=(1_890, 1_900), start=1_902)
    trace.loader(1_700, 1_850, name=WORKERS)
    alone, hidden = held(trace)
    assert alone == {"input.wait": 50, "over.python": 40, "over.dispatch": 10, "over.launch": 2}
    assert hidden == {"over.python": 200, "input.wait": 100}


def test_a_host_that_waits_for_the_device_waits_for_the_collective():
    trace = before_a_collective(launch=(1_790, 1_795))
    trace.sync(1_400, 1_780)
    assert held(trace) == ({"comm.other": 300}, {})


def test_two_copies_in_a_row_hold_the_device_alone():
    trace = Trace()
    trace.step(0, 1_000, 2_000)
    trace.copy(1_010, 1_400, launch=(1_000, 1_005))
    trace.copy(1_402, 1_700, launch=(1_006, 1_008))
    trace.kernel(1_700, 2_000, launch=(1_009, 1_010))
    alone, hidden = held(trace)
    assert (alone["input.h2d"], hidden) == (5 + 390 + 298, {})


@pytest.mark.parametrize(("after", "waited"), [(RELEASE_NS // US, True), (RELEASE_NS // US + 1, False)])
def test_work_that_starts_long_after_a_collective_did_not_wait_for_it(after, waited):
    trace = before_a_collective(launch=(1_100, 1_105), start=1_800 + after)
    assert ("comm.other" in held(trace)[0]) is waited


@pytest.mark.parametrize(("awaited", "alone"), [(COMM, True), (21, False)])
def test_where_the_trace_says_which_stream_waits_for_which_nothing_is_inferred(awaited, alone):
    trace = before_a_collective(launch=(1_100, 1_105))
    trace.event("Stream Wait Event", "cuda_sync", 1_090, 1_091, pid=0, tid=7, stream=7, wait_on_stream=awaited)
    assert ("comm.other" in held(trace)[0]) is alone


def test_work_on_the_stream_of_the_collective_waits_for_it_without_being_told():
    trace = before_a_collective(launch=(1_100, 1_105), stream=7)
    trace.event("Stream Wait Event", "cuda_sync", 1_090, 1_091, pid=0, tid=7, stream=9, wait_on_stream=8)
    assert held(trace)[0] == {"comm.other": 300}


def test_where_a_step_ends_inside_a_collective_changes_nothing():
    trace = before_a_collective(launch=(1_690, 1_700))
    trace.loader(1_500, 1_600, name=WORKERS)
    before = held(trace)
    trace.events = [event for event in trace.events if event["name"] != "ProfilerStep#0"]
    trace.steps(1_000, 1_550, 2_000)
    assert held(trace) == before


def test_a_collective_with_nothing_after_it_holds_the_device_alone():
    trace = Trace()
    trace.step(0, 1_000, 2_000)
    trace.kernel(1_000, 1_500, launch=(990, 995))
    trace.collective(1_500, 2_000, launch=(1_000, 1_005))
    assert held(trace) == ({"comm.other": 500}, {})


def test_without_a_device_there_is_nothing_to_hold():
    trace = Trace()
    trace.step(0, 1_000, 2_000)
    trace.op(1_000, 1_500)
    assert held(trace) == ({}, {})
