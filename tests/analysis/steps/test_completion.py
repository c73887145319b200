"""Steps of hosts that run ahead of their device; times of the recipe are µs."""

import numpy as np
import pytest

from profilerkit.analysis.host.names import HostNames
from profilerkit.analysis.replay.changes import HostTime
from profilerkit.analysis.replay.graph import replay
from profilerkit.analysis.steps.completion import issued_at
from profilerkit.analysis.steps.find import find_steps
from profilerkit.api import analyze
from profilerkit.trace.launches import launch_of
from tests.recipes import US, WORKERS, Trace

#: Kernels of a step.
KERNELS = 10


def loop(steps=8, *, host=2_000, device=20_000, item=None, queued=0, wait=0, linked=True, marked=False, trailing=False):
    """A loop of ``host`` µs of launches a step and ``device`` of kernels on one stream, which runs them in order.

    The loss is read every ``item`` steps, or never. ``queued`` steps were issued before the recording began; their
    kernels have no launch. ``wait`` is what a batch takes before each step; ``marked`` steps are marked on the device
    as well; without ``linked`` no kernel shows its launch.
    """
    trace = Trace()
    at, free, each = 100_000, 100_000, device // KERNELS
    for _ in range(queued * KERNELS):
        trace.kernel(free, free + each)
        free += each
    for number in range(steps):
        begin = at
        if wait:
            trace.loader(at, at + wait, name=WORKERS)
            at += wait
        first = None
        for _ in range(KERNELS):
            launch = (at, at + host // KERNELS - 50)
            start = max(free, launch[1] + 5)
            if linked:
                trace.op(launch[0], launch[1], name="aten::mm")
            trace.kernel(start, start + each, launch=launch if linked else None)
            first, free, at = start if first is None else first, start + each, at + host // KERNELS
        if item and (number + 1) % item == 0:
            done = free + 10
            trace.copy(free + 5, done, kind="DtoH", memory="Device -> Pageable", size=4, launch=(at, done + 5))
            at = free = done + 10
        if marked:
            trace.event(f"ProfilerStep#{number}", "gpu_user_annotation", first, free, pid=0, tid=7)
        trace.step(number, begin, at)
    if trailing:
        trace.step(steps, at, at + 30)
    return trace


def of(trace):
    columns = trace.read()
    return find_steps(columns, HostNames.of(columns), None, launch_of(columns))


def times(found):
    return ((found.end - found.start)[found.judged] / US).tolist()


def test_where_the_host_never_waits_a_step_is_what_the_device_takes_for_it():
    found = of(loop())
    assert times(found) == [20_000.0] * 7
    assert found.state == ("warmup", *["steady"] * 7)  # the device was done with the last one
    assert found.ahead_ns == pytest.approx(8 * 18_000 * US, rel=0.02)
    assert np.diff(found.by_host.start).tolist() == [2_000 * US] * 7


def test_a_queue_that_is_drained_at_intervals_makes_no_step_longer():
    found = of(loop(25, item=10))
    assert times(found) == pytest.approx([20_000.0] * 24, rel=0.02)
    assert max(np.diff(found.by_host.start)) > 150_000 * US


@pytest.mark.parametrize("queued", [0, 1])
def test_a_lag_that_stays_the_same_leaves_the_hosts_marks(queued):
    trace = loop(item=1, queued=queued) if not queued else loop(device=2_000, queued=queued)
    found = of(trace)
    assert found.issuing is None
    assert found.ahead_ns is None
    assert found.by_host is found
    edges = sorted(int(event["ts"]) * US for event in trace.events if event["name"].startswith("ProfilerStep"))
    assert found.start.tolist() == edges


@pytest.mark.parametrize(("device", "by_device"), [(2_090, False), (2_120, True)])
def test_the_device_is_the_clock_from_a_twentieth_of_the_judged_steps_on(device, by_device):
    assert (of(loop(30, device=device)).issuing is not None) == by_device


def test_what_was_queued_before_the_recording_belongs_to_no_step():
    found = of(loop(3, queued=5))
    assert times(found) == [20_000.0] * 3
    assert found.start[0] == (100_000 + 5 * 20_000) * US


def test_with_nothing_queued_the_first_step_begins_with_its_first_kernel():
    trace = loop(3)
    found = of(trace)
    kernels = [int(event["ts"]) for event in trace.events if event["cat"] == "kernel"]
    assert found.start[0] == min(kernels) * US
    assert times(found) == [20_000.0] * 3


@pytest.mark.parametrize("steps", [2, 3])
def test_what_the_host_does_before_the_first_kernel_is_of_the_first_step_where_the_device_waits_for_it(steps):
    trace, at = Trace(), 100_000
    for number in range(steps):
        trace.op(at, at + 50_000, name="aten::randn")
        trace.kernel(at + 50_010, at + 53_000 + 10 * number, launch=(at + 50_000, at + 50_005))
        trace.step(number, at, at + 52_000)
        at += 52_000
    found = of(trace)
    assert times(found) == [52_000.0, *[52_010.0] * (steps - 1)]
    assert found.start[0] == 101_000 * US  # as far behind its mark as the device is as the step ends


def test_a_mark_without_launches_behind_the_last_step_is_none():
    for count in (2, 8):
        found = of(loop(count, trailing=True))
        assert found.state[-1] == "cut"
        assert times(found)[-2:] == [20_000.0] * 2


def test_work_without_launches_is_told_by_the_marks_on_the_device():
    assert times(of(loop(linked=False, marked=True))) == [20_000.0] * 7
    assert of(loop(linked=False)).issuing is None  # nothing tells which step a kernel belongs to


def test_copies_on_a_stream_of_their_own_end_no_step():
    trace = loop()
    trace.copy(110_000, 900_000, kind="DtoH", stream=30, launch=(101_990, 101_995))
    assert times(of(trace)) == [20_000.0] * 7


def test_a_kernel_belongs_to_the_step_that_launched_it():
    trace = loop(4)
    columns = trace.read()
    launches = launch_of(columns)
    found = find_steps(columns, HostNames.of(columns), None, launches)
    judged = found.judged_events(columns, launches)
    assert judged[launches >= 0].sum() == 3 * KERNELS
    assert judged[launches[launches >= 0]].tolist() == judged[launches >= 0].tolist()


def test_a_stream_without_any_launch_was_issued_with_what_began_before_it():
    trace = Trace()
    trace.kernel(100, 200, launch=(10, 20))
    trace.kernel(300, 400, launch=(30, 40))
    trace.kernel(50, 60, stream=9)
    trace.kernel(250, 260, stream=9)
    columns = trace.read()
    issued = issued_at(columns, launch_of(columns))
    at = {int(columns.ts_ns[row]): int(issued[row]) for row in range(len(columns))}
    assert (at[100 * US], at[300 * US], at[250 * US]) == (10 * US, 30 * US, 10 * US)
    assert at[50 * US] < 0


def test_the_parts_are_those_of_the_device(tmp_path):
    facts = loop().facts()
    assert facts.totals.sum() == facts.window.total_ns == 7 * 20_000 * US
    report = analyze(loop().write(tmp_path / "trace.json"))
    assert report.verdict.bound == "compute-bound"
    assert report.steps.time_ns.median == 20_000 * US


def test_a_wait_for_data_that_the_device_works_through_costs_nothing():
    facts = loop(8, wait=10_000).facts()
    assert facts.totals.sum() == facts.window.total_ns
    assert facts.steps.ahead_ns > 0
    assert not facts.shares(facts.partition.per_step).keys() & {"input.wait", "input.fetch", "input.prep"}
    assert facts.input.fetches == facts.n_steady
    assert facts.input.held_ratio == pytest.approx(0.5, abs=0.02)


def test_what_the_host_does_in_a_step_is_counted_by_the_hosts_marks():
    trace = loop()
    for number in range(8):
        trace.malloc(100_001 + 2_000 * number, 100_002 + 2_000 * number)
    facts = trace.facts()
    assert facts.allocator.calls_per_step == 1.0
    assert facts.device.kernels_per_step == KERNELS


@pytest.mark.parametrize("queued", [0, 3])
def test_a_quicker_host_saves_nothing_where_the_device_is_the_clock(queued):
    facts = loop(12, queued=queued).facts()
    assert facts.replay.is_open
    assert abs(facts.replay.error) < 0.05
    assert facts.replay.plain_ns / facts.replay.steps == pytest.approx(20_000 * US, rel=0.02)
    idle_host = HostTime(("over.dispatch", "over.python"))(facts.replay.graph)
    assert replay(idle_host).step_ns(idle_host.shape).sum() == pytest.approx(facts.replay.plain_ns, rel=0.001)
