"""The wait of a fetch: what it holds beside the loader's own time."""

import os
import time

import pytest

from profilerkit.capture import loader, loader_patches
from profilerkit.capture.clocks import ThreadClock
from profilerkit.capture.guard import Guard
from profilerkit.capture.loader import FetchTimer
from profilerkit.capture.loader_patches import wrapped
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventKind
from tests.recipes import NoTrace

PAUSE_S = 0.2


class SlowWindow:
    """A trace window that opens, or is exported, at the start of a step, which takes long."""

    def __init__(self, step, opens):
        self._step, self._opens = step, opens
        self.window = None if opens else object()

    def step_started(self, number):
        if number == self._step:
            time.sleep(PAUSE_S)
            self.window = object() if self._opens else None

    def step_ended(self, number, dur_ns):
        pass

    def step_cut(self):
        pass

    def span(self, _name):
        return None

    def quiet(self):
        return None


@pytest.mark.parametrize("opens", [True, False])
def test_a_wait_holds_neither_the_opening_nor_the_export_of_a_window(opens):
    # So late that capture has stopped measuring itself, which takes one more look at the clock.
    step = 600
    window = SlowWindow(step, opens)
    records = []
    tracker = StepTracker(records.append, window)
    tracker.optimizer_seen = True  # the loader's iterations are steps
    timer = FetchTimer(records.append, tracker, Guard("the test"), window)
    for _ in wrapped(range(step + 5), timer):
        pass
    assert not timer.meter.is_open
    waits = [dur_ns for kind, _flags, _name, _start, dur_ns, _value in records if kind == EventKind.WAIT]
    assert len(waits) == step + 6
    assert max(waits) < PAUSE_S * 1e9 / 2


def test_a_program_that_closes_all_descriptors_keeps_its_loop_and_its_files(tmp_path):
    clock = ThreadClock()
    assert clock.now()[2] >= 0
    os.close(clock._file.number)
    with (tmp_path / "mine").open("w") as mine:
        assert mine.fileno() == clock._file.number  # the number is given again
        mine.write("a line of the program's own")
        mine.flush()
        assert clock.now()[2] == -1
        clock.__del__()
        mine.write(", and one more")
    assert (tmp_path / "mine").read_text() == "a line of the program's own, and one more"


def test_a_loop_hardly_waits_below_a_tenth_of_its_time_after_a_thousand_fetches(monkeypatch):
    now = [0]
    for module in (loader, loader_patches):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: now[0])
    tracker = StepTracker([].append)
    timer = FetchTimer([].append, tracker, Guard("the test"), NoTrace())

    def goes_on(fetches, wait_ns):
        """So many fetches, of which one begins each 10 ms."""

        def slow():
            for _ in range(fetches):
                now[0] += wait_ns
                yield

        for _ in wrapped(slow(), timer):
            now[0] += 10_000_000 - wait_ns
        timer.beat()
        return timer.hardly_waits

    assert not goes_on(900, 0)
    assert goes_on(100, 0)
    assert goes_on(100, 999_999)
    assert not goes_on(100, 1_000_000)
    assert goes_on(100, 500_000)


@pytest.mark.parametrize(("hardly_waits", "every"), [(False, 16), (True, 64)])
def test_where_hardly_any_time_is_waited_clocks_are_read_less_often(hardly_waits, every):
    records = []
    tracker = StepTracker(records.append)
    tracker.optimizer_seen = True
    timer = FetchTimer(records.append, tracker, Guard("the test"), NoTrace())
    timer.hardly_waits = hardly_waits
    for _ in wrapped(range(1000), timer):
        pass
    was_read = [value >= 0 for kind, *_, value in records if kind == EventKind.WAIT]
    # A wait that the machine makes long is read as well.
    assert 800 / every - 2 <= sum(was_read[200:]) < 1.9 * 800 / every
