"""The device's time of each step, on a device made of numbers."""

import pytest

from profilerkit.capture.device_clock import DeviceClock
from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventFlag, EventKind

MS = 1_000_000


class Fake:
    """A device that works its queue off ``behind`` steps later, one step in ``step_ms``."""

    def __init__(self, behind=0, step_ms=4.0):
        self.used, self.capturing, self.number, self.behind, self.step_ms = True, False, 0, behind, step_ms
        self.recorded, self.made, self.queries = 0, 0, 0
        self.stopped = False

    def in_use(self):
        return self.used

    def is_capturing(self):
        return self.capturing

    def current(self):
        return self.number

    def event(self):
        self.made += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device):
        self.device, self.place = device, None

    def record(self):
        self.device.recorded += 1
        self.place = self.device.recorded

    def query(self):
        device = self.device
        assert not device.capturing, "a query ruins the capture"
        device.queries += 1
        return not device.stopped and device.recorded - self.place >= device.behind

    def elapsed_time(self, end):
        return (end.place - self.place) * self.device.step_ms


class Loop:
    """Steps under a clock."""

    def __init__(self, device):
        self.records, self.device, self.patches = [], device, Patches()
        self.tracker = StepTracker(self.records.append)
        self.clock = DeviceClock(self.records.append, self.tracker, device)
        self.patches.hang(self.clock.hang)

    def steps(self, count):
        for _ in range(count):
            self.tracker.step()

    def device_records(self):
        return [record for record in self.records if record[0] == EventKind.DEVICE]


def test_each_step_has_the_devices_time_from_event_to_event():
    loop = Loop(Fake())
    loop.steps(10)
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


def test_events_are_used_again_and_bounded():
    loop = Loop(Fake(behind=3))
    loop.steps(500)
    assert loop.device.made <= 6
    loop.device.stopped = True
    loop.steps(500)
    assert loop.device.made <= 64
    before = len(loop.device_records())
    loop.device.stopped = False
    loop.steps(10)
    numbers = [record[5] for record in loop.device_records()[before:]]
    assert len(numbers) > 60  # those under way, but none across the gap
    assert 999 not in numbers
    assert max(record[4] for record in loop.device_records()) == 4 * MS


def test_nothing_is_touched_while_a_graph_is_captured():
    loop = Loop(Fake())
    loop.steps(5)
    loop.device.capturing = True
    recorded = loop.device.recorded
    loop.steps(5)
    assert loop.device.recorded == recorded
    loop.device.capturing = False
    loop.steps(5)
    assert {record[5] for record in loop.device_records()} == {1, 2, 3, 4, 11, 12, 13}


def test_another_device_has_no_time_between_its_events_and_the_others():
    loop = Loop(Fake())
    loop.steps(5)
    loop.device.number = 1
    loop.steps(5)
    loop.clock.close()
    assert {record[5] for record in loop.device_records()} == {1, 2, 3, 4, 6, 7, 8, 9}


def test_it_starts_with_the_first_beat_after_the_device_and_ends_with_the_block():
    device = Fake()
    device.used = False
    loop = Loop(device)
    window = loop.tracker._window
    loop.steps(3)
    assert loop.clock.reason() == "CUDA is not in use"
    assert loop.tracker._window is window  # steps cost what they cost without a clock
    device.used = True
    loop.clock.beat()
    loop.steps(3)
    loop.patches.remove()
    assert loop.tracker._window is window
    assert loop.device_records()


def test_a_device_that_fails_ends_the_clock_alone():
    loop = Loop(Fake())
    loop.steps(3)
    loop.device.current = lambda: 1 / 0
    with pytest.warns(RuntimeWarning, match="device clock switched itself off"):
        loop.steps(3)
    assert "ZeroDivisionError" in loop.clock.reason()
    assert len([record for record in loop.records if record[0] == EventKind.STEP]) == 6


@pytest.mark.torch
def test_a_run_on_the_cpu_has_none_and_says_why(toy, light, recorded):
    with light() as prof:
        for batch in prof.wrap(toy.loader()):
            toy.train(batch)
    run = recorded(prof.directory)
    assert run.of(EventKind.DEVICE) == []
    assert run.rank.meta.features["device_clock"].reason == "CUDA is not in use"
