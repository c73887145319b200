"""The device's time of each step, on a device made of numbers."""

import time
from itertools import accumulate
from types import SimpleNamespace

import pytest

from profilerkit.capture.device_clock import DeviceClock
from profilerkit.capture.guard import Guard
from profilerkit.capture.hooks import Hooks
from profilerkit.capture.overhead import stages
from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventFlag, EventKind

MS = 1_000_000


class Fake:
    """A device that works ``behind`` steps after the host, each for ``step_ms``; at -1 it has done all."""

    def __init__(self, behind=0, step_ms=4.0):
        self.used, self.capturing, self.number, self.behind, self.step_ms = True, False, 0, behind, step_ms
        self.worked, self.recorded, self.made = 0, 0, 0
        self.stream_name = "current"
        self.stopped = False

    def in_use(self):
        return self.used

    def is_capturing(self):
        return self.capturing

    def work(self):
        """The host gives it a step's work."""
        self.worked += 1

    def stream(self, device):
        return SimpleNamespace(device_index=self.number if device is None else device.index, name=self.stream_name)

    def event(self):
        self.made += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device):
        self.device, self.place, self.stream = device, None, None

    def record(self, stream):
        assert not self.device.capturing
        self.device.recorded += 1
        self.place, self.stream = self.device.worked, stream

    def query(self):
        device = self.device
        assert not device.capturing, "a query ruins the capture"
        return not device.stopped and device.worked - self.place > device.behind

    def elapsed_time(self, end):
        assert self.stream.device_index == end.stream.device_index
        return (end.place - self.place) * self.device.step_ms


def optimizer_on(kind, index=0):
    """An optimizer with a parameter on this device."""
    device = SimpleNamespace(type=kind, index=index)
    return SimpleNamespace(param_groups=[{"params": []}, {"params": [SimpleNamespace(device=device)]}])


class Loop:
    """Steps under a clock."""

    def __init__(self, device):
        self.records, self.device, self.patches = [], device, Patches()
        self.taken, self.lost = [], []
        self.tracker = StepTracker(self.records.append)
        lost = self.lost.append
        self.clock = DeviceClock(self.records.append, self.tracker, device, self.take, lambda: lost(True))
        self.start()

    def start(self):
        if self.clock.is_ready():
            self.patches.apply(self.clock.install)

    def take(self, *taken):
        self.taken.append(taken)

    def steps(self, count):
        for _ in range(count):
            self.device.work()
            self.tracker.step()

    def device_records(self):
        return [record for record in self.records if record[0] == EventKind.DEVICE]


def test_each_step_has_the_devices_time_from_event_to_event():
    loop = Loop(Fake())
    loop.steps(10)
    loop.device.behind = -1
    loop.clock.close()
    found = loop.device_records()
    assert [record[5] for record in found] == list(range(1, 10))
    assert {record[4] for record in found} == {4 * MS}
    starts = {record[5]: record[3] for record in loop.records if record[0] == EventKind.STEP}
    assert all(starts[number] <= start for _, _, _, start, _, number in found)
    assert loop.clock.reason() == ""


@pytest.mark.parametrize(("behind", "caught_up"), [(0, True), (1, False), (5, False)])
def test_a_device_that_lags_is_told_from_one_that_waits(behind, caught_up):
    loop = Loop(Fake(behind))
    loop.steps(20)
    flags = {record[1] for record in loop.device_records()[behind + 1 :]}
    assert flags == {EventFlag.CAUGHT_UP if caught_up else 0}


def spans(records):
    """How many steps each record spans, its last step, and its time in ms."""
    return [(steps, number, duration_ns / MS) for _, _, steps, _, duration_ns, number in records]


def test_few_events_are_made_and_used_again():
    loop = Loop(Fake(behind=3))
    loop.steps(500)
    assert loop.device.made <= 6
    loop.device.stopped = True
    loop.steps(5000)
    assert len(loop.clock._under_way) <= 64


@pytest.mark.parametrize("behind", [70, 1000])
def test_a_host_far_ahead_loses_no_time_of_its_device(behind):
    loop = Loop(Fake(behind))
    loop.steps(5000)
    loop.device.behind = -1
    loop.steps(200)
    found = spans(loop.device_records())
    assert all(duration_ms == 4 * steps for steps, _, duration_ms in found)
    assert [number for _, number, _ in found] == list(accumulate(steps for steps, _, _ in found))
    assert found[-1][1] >= 5198
    assert max(steps for steps, _, _ in found) <= 2 * max(1, behind // 32)
    assert {steps for steps, _, _ in found[-100:]} == {1}


def test_a_device_that_is_marked_seldom_says_how_many_steps_its_time_spans():
    loop = Loop(Fake())
    loop.steps(5)
    stage = stages(SimpleNamespace(tracker=loop.tracker), None, loop.clock, None, ())[0]
    assert stage.is_on()
    stage.turn_off()
    loop.steps(40)
    found = spans(loop.device_records())
    assert found[-4:] == [(1, 5, 4.0), (8, 13, 32.0), (8, 21, 32.0), (8, 29, 32.0)]


@pytest.mark.parametrize("plain", [False, True])
def test_what_steps_took_is_told_with_the_step_that_the_host_has_ended(plain):
    """A plain fetch counts the step before it marks it, the tracker after."""
    loop = Loop(Fake(behind=2))
    loop.steps(3)
    for _ in range(3):
        loop.device.work()
        if plain:
            loop.tracker.count += 1
            loop.tracker.mark(loop.tracker.count - 1, 0)
        else:
            loop.tracker.step()
    assert [(number, steps, at) for number, steps, _, at in loop.taken[-2:]] == [(1, 1, 4), (2, 1, 5)]


def test_what_seldom_marked_steps_took_is_told_of_all_of_them():
    loop = Loop(Fake())
    loop.clock.every = 8
    loop.steps(40)
    assert [(number, steps, took_ns) for number, steps, took_ns, _ in loop.taken[-2:]] == [
        (16, 8, 32 * MS),
        (24, 8, 32 * MS),
    ]


def test_nothing_is_touched_while_a_graph_is_captured():
    loop = Loop(Fake())
    loop.steps(5)
    loop.device.capturing = True
    loop.steps(5)
    loop.device.capturing = False
    loop.steps(5)
    ends = [1, 2, 3, 4, 10, 11, 12, 13]
    assert [(steps, number) for steps, number, _ in spans(loop.device_records())][:8] == [
        (6 if number == 10 else 1, number) for number in ends
    ]


def test_an_evaluation_between_two_steps_is_the_earlier_ones():
    loop = Loop(Fake(behind=2))
    feed = loop.tracker.fetch_started
    for epoch in range(2):
        for _ in range(3):
            feed(time.perf_counter_ns(), 1, False)
            loop.device.work()
            loop.tracker.optimizer_stepped(1, time.perf_counter_ns())
        feed(time.perf_counter_ns(), 1, False)
        loop.tracker.exhausted(1, False)
        for _ in range(100 * (1 - epoch)):
            loop.device.work()
    loop.device.behind = -1
    loop.clock.close()
    found = spans(loop.device_records())
    assert [(number, took) for steps, number, took in found if steps] == [(number, 4.0) for number in range(6)]
    assert [(number, took) for steps, number, took in found if not steps and took] == [(2, 400.0)]


def test_a_wait_is_marked_so_that_the_time_the_device_stood_still_is_known():
    """The host waits for each batch; the device has done its work before the batch comes, and 6 ms pass."""
    loop = Loop(Fake(behind=-1))
    ended_ns = time.perf_counter_ns()
    for _ in range(5):
        loop.device.worked += 1.5  # what passes on the device's clock
        loop.tracker.fed_late(time.perf_counter_ns() - ended_ns)  # all since the step, however busy the machine is
        loop.device.work()
        loop.tracker.step()
        ended_ns = time.perf_counter_ns()
    found = loop.device_records()
    starved = [record for record in found if record[1] & EventFlag.STARVED]
    assert spans(starved) == [(0, number, 6.0) for number in range(4)]
    assert spans([record for record in found if record not in starved]) == [(1, number, 4.0) for number in range(1, 4)]


def test_a_wait_behind_work_of_its_own_step_is_not_marked():
    """A loop that ends steps at its top waits for batches when all of a step is queued."""
    loop = Loop(Fake())
    for _ in range(10):
        loop.tracker.step()
        loop.device.work()
        time.sleep(0.001)  # what issuing the work takes
        loop.tracker.fed_late(0)
    assert not any(record[1] & EventFlag.STARVED for record in loop.device_records())


def test_the_stream_is_marked_that_the_optimizer_stepped_on():
    loop = Loop(Fake())
    hooks = Hooks(loop.records.append, loop.tracker, SimpleNamespace(), Guard("the test"))
    starts, ends = hooks.optimizer_hooks()
    optimizer = optimizer_on("cuda")
    for _ in range(5):
        loop.device.stream_name = "training"
        starts(optimizer, (), {})
        ends(optimizer, (), {})
        loop.device.stream_name = "copies"
        loop.steps(1)
    assert {event.stream.name for event, *_ in (loop.clock._before, *loop.clock._under_way)} == {"training"}


@pytest.mark.parametrize(("kind", "marked"), [("cuda", 1), ("cpu", 0), (None, 0)])
def test_the_device_is_marked_that_trains_and_not_the_current_one(kind, marked):
    """Parameters on the host, as where the optimizer's state is offloaded, and graphs say nothing of a device."""
    loop = Loop(Fake())
    loop.tracker.optimizer_starts(kind and optimizer_on(kind, index=1))
    loop.steps(5)
    assert {device for _, device, *_ in (loop.clock._before, *loop.clock._under_way)} == {marked}


def test_a_device_that_cannot_say_whether_it_captures_costs_the_clock_alone():
    """CUDA raises at every call once a kernel has failed an assertion."""
    loop = Loop(Fake())
    loop.steps(5)
    loop.clock._is_capturing = lambda: 1 / 0
    with pytest.warns(RuntimeWarning, match="device clock switched itself off"):
        loop.clock.catch_up()
    assert "ZeroDivisionError" in loop.clock.reason()


def test_another_device_has_no_time_between_its_events_and_the_others():
    loop = Loop(Fake())
    loop.steps(5)
    loop.device.number = 1
    loop.steps(5)
    loop.device.behind = -1
    loop.clock.close()
    assert {record[5] for record in loop.device_records()} == {1, 2, 3, 4, 6, 7, 8, 9}


def test_it_starts_after_the_device_and_ends_with_the_block():
    device = Fake()
    device.used = False
    loop = Loop(device)
    loop.steps(3)
    assert loop.clock.marks == 0
    device.used = True
    loop.start()
    loop.steps(3)
    loop.patches.remove()
    marks = loop.clock.marks
    loop.steps(3)
    assert loop.clock.marks == marks
    assert loop.device_records()


def test_a_device_that_fails_ends_the_clock_alone():
    loop = Loop(Fake())
    loop.steps(3)
    loop.device.event = lambda: 1 / 0
    loop.device.stopped = True
    with pytest.warns(RuntimeWarning, match="device clock switched itself off"):
        loop.steps(3)
    assert "ZeroDivisionError" in loop.clock.reason()
    assert loop.lost == [True]
    assert len([record for record in loop.records if record[0] == EventKind.STEP]) == 6


@pytest.mark.torch
def test_a_run_on_the_cpu_has_none_and_says_why(toy, light, recorded):
    with light() as prof:
        for batch in prof.wrap(toy.loader()):
            toy.train(batch)
    run = recorded(prof.directory)
    assert run.of(EventKind.DEVICE) == []
    assert run.rank.meta.features["device_clock"].reason == "CUDA is not in use"
