"""A loop that goes on as it did is recorded without the questions of every fetch, and what is recorded is the same."""

import contextlib
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profilerkit.capture import clocks as clock_module
from profilerkit.capture import clocks as meter_module
from profilerkit.capture import clocks as phase_module
from profilerkit.capture import hooks as hooks_module
from profilerkit.capture import loader as loader_module
from profilerkit.capture import loader_patches as patches_module
from profilerkit.capture.clocks import Phase
from profilerkit.capture.guard import Guard
from profilerkit.capture.hooks import Hooks
from profilerkit.capture.loader import FetchTimer
from profilerkit.capture.loader_patches import patched_next, wrapped
from profilerkit.capture.overhead import stages
from profilerkit.capture.steps import NEVER, Quiet, StepTracker
from profilerkit.rundir.layout import EventKind

BATCHES = 9


class Asking(FetchTimer):
    """Asks at every fetch."""

    __slots__ = ()

    def _enter_fast_path(self, *_of):
        pass


class Measuring(FetchTimer):
    """Measures what plain fetches cost."""

    __slots__ = ()


class AskingHooks(Hooks):
    """Ask at every backward pass and optimizer step."""

    __slots__ = ()

    def _need_not_ask(self):
        return False


class Told:
    """What a window is told."""

    def __init__(self, opens_at):
        self.of = []
        self._opens_at = opens_at
        self.window = None

    def step_started(self, number):
        self.of.append(("started", number))
        if number in self._opens_at:
            self.window = object()
        elif number - 3 in self._opens_at:
            self.window = None

    def step_ended(self, number, dur_ns):
        self.of.append(("ended", number, dur_ns))

    def step_cut(self):
        self.of.append(("cut",))

    def span(self, name):
        self.of.append(("span", name))

    def quiet(self):
        return None


class Resting(Told):
    """Keeps what it is told, and when it was told what it has to know at once."""

    #: A longer step is told at once.
    LONGEST_NS = 1_900_000

    def __init__(self, opens_at, rests=True):
        super().__init__(opens_at)
        self._rests = rests
        self._last = -1
        self.ended, self.at_once = [], []
        self.now = None

    def step_started(self, number):
        super().step_started(number)
        if number in self._opens_at or self.window is not None:
            self.at_once.append(("started", number, self.now()))

    def step_ended(self, number, dur_ns):
        super().step_ended(number, dur_ns)
        self.ended.append((number, dur_ns))
        self._last = number
        if dur_ns > self.LONGEST_NS or self.window is not None:
            self.at_once.append(("ended", number, dur_ns, self.now()))

    def step_cut(self):
        super().step_cut()
        self.ended.append(("cut",))
        self.at_once.append(("cut", self.now()))

    def quiet(self):
        if self.window is not None or not self._rests:
            return None
        return Quiet(min((at for at in self._opens_at if at > self._last), default=NEVER), self.LONGEST_NS, 40)


class Batches:
    """Stands for an iterator of torch's."""

    def __init__(self, rig, sampler):
        self._rig = rig
        self._num_yielded = 0
        self._index_sampler = sampler

    def __iter__(self):
        return self

    def __next__(self):
        if self._num_yielded >= BATCHES:
            raise StopIteration
        self._num_yielded += 1
        self._rig.now_ns += self._rig.late_ns
        self._rig.late_ns = 0
        if self._rig.broken:
            self._rig.broken = False
            raise OSError


class Rig:
    """A recording of a loop that a test drives; time passes between its acts alone."""

    def __init__(self, kind, wraps, window=(), told=Told):
        self.now_ns = self.late_ns = 0
        self.records, self.told = [], told(window or ())
        self.told.now = lambda: (self.now_ns, len(self.records))
        told = None if window is None else self.told
        self.tracker = StepTracker(self.records.append, told, lambda: self.now_ns)
        self.marks = []
        self.tracker.mark, self.tracker.mark_at = self.mark, 0
        self.guard = Guard("the test")
        self.timer = kind(self.records.append, self.tracker, self.guard, self.told)
        self.timer.meter.is_open = False
        self.timer.fast_meter.is_open = kind is Measuring
        hooks = AskingHooks if kind is Asking else Hooks
        self.hooks = hooks(self.records.append, self.tracker, self.timer, self.guard)
        for meter in self.hooks.meters:
            meter.is_open = False
        self._starts, self._ends = self.hooks.optimizer_hooks()
        self._wraps = wraps
        self._sources = {"a": range(BATCHES), "b": list(range(BATCHES))}
        self._iterators = {}
        self._all = []  # so that no two have the same id, one after the other
        self._phase = Phase(self.records.append, "mine", 1, lambda: None, self.timer.here, self.guard)
        self._in_phase = self.broken = False
        self._seen = type("Seen", (Batches,), {"__next__": patched_next(self.timer, Batches.__next__)})
        self._run = self.hooks.timed_backward(lambda: [self.act(name) for name in self._inside.pop()])
        self._inside = []

    def mark(self, number, start_ns):
        """Mark every second step on the device."""
        self.marks.append((number, start_ns, self.now_ns))
        self.tracker.mark_at = number + 2

    def act(self, name):
        self.now_ns += 1000
        getattr(self, name, lambda: self.fetch(name))()

    def fetch(self, name):
        iterator = self._iterators.get(name)
        if iterator is None:
            source = self._sources[name]
            iterator = iter(wrapped(source, self.timer)) if name in self._wraps else self._seen(self, source)
            if name.upper() in self._wraps:
                assert wrapped(iterator, self.timer) is iterator
            self._iterators[name] = iterator
            self._all.append(iterator)
        try:
            next(iterator)
        except StopIteration:
            del self._iterators[name]
        except OSError:
            pass
        assert not self.timer.here.doing.fetching

    def elsewhere(self):
        """Another thread fetches from a loader of its own."""
        iterator = self._seen(self, range(BATCHES))
        self._all.append(iterator)

        def fetch():
            with contextlib.suppress(OSError):
                next(iterator)

        thread = threading.Thread(target=fetch)
        thread.start()
        thread.join()

    def left(self):
        """Leave the loop over the first loader."""
        self.tracker.left_behind(self._iterators.pop("a", None))

    def backward(self, *inside):
        self._inside.append(inside)
        self._run()

    def within(self):
        """A backward pass in which an optimizer steps."""
        self.backward("optimizer")

    def nested(self):
        """A backward pass inside another one."""
        self.backward("backward", "optimizer")

    def optimizer(self, which="first"):
        self._starts(which, (), {})
        self._ends(which, (), {})

    def another(self):
        """Another optimizer's step."""
        self.optimizer("second")

    def again(self):
        """Iterate the first loader anew, by the same iterator: its workers stay."""
        kept = self._iterators.get("a")
        if isinstance(kept, Batches):
            self.timer.iterate(lambda: kept, self._sources["a"])
            self.tracker.left_behind(kept)
            kept._num_yielded = 0

    def slow(self):
        """The next batch is late."""
        self.late_ns = 2_000_000

    def stalls(self):
        """Something takes long."""
        self.now_ns += 2_000_000

    def fails(self):
        """The next batch cannot be made."""
        self.broken = True

    def step(self):
        self.tracker.step()

    def phase(self):
        if self._in_phase:
            self._phase.__exit__()
        else:
            self._phase.__enter__()
        self._in_phase = not self._in_phase


@pytest.fixture
def quickly(monkeypatch):
    """Loops settle at once, and are asked again soon."""
    monkeypatch.setattr(loader_module, "_AFTER_LONG_WAIT", 1)
    monkeypatch.setattr(loader_module, "_READ_EVERY", 5)


def drive(monkeypatch, kind, acts, wraps, window=(), told=Told):
    rig = Rig(kind, wraps, window, told)
    for module in (loader_module, patches_module, hooks_module, phase_module, clock_module):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: rig.now_ns)
    for module in (loader_module, clock_module):
        monkeypatch.setattr(module, "thread_time_ns", lambda: rig.now_ns // 2)
    monkeypatch.setattr(clock_module.ThreadClock, "_queued_ns", lambda _self: -1)
    short = 0
    for act in acts:
        short += bool(rig.tracker.fast or rig.tracker.measured)
        rig.act(act)
    rig.tracker.close()
    assert rig.guard.failure is None
    return rig, short


LOOP = ["a", "backward", "optimizer"]
OTHER = ["b", "backward", "optimizer"]
#: Loaders that are wrapped; in capitals those whose iterators are, which are torch's.
WRAPS = ["", "a", "A", "ab", "Ab"]
ACTS = ["a", "a", "a", "b", "backward", "backward", "optimizer", "optimizer", "another"]
ACTS += ["left", "again", "fails", "slow", "step", "phase", "within", "nested", "stalls", "elsewhere"]


@pytest.mark.parametrize("wraps", WRAPS)
@pytest.mark.parametrize(
    "loop",
    [
        LOOP,
        ["a", "backward", *LOOP],
        [*LOOP, "step"],
        [*LOOP, "another"],
        ["a", "b", "backward", "optimizer"],
        ["a", "within"],
        [*LOOP, "elsewhere"],
    ],
    ids=["plain", "accumulating", "with step()", "two optimizers", "two loaders", "optimizer in backward", "threads"],
)
@pytest.mark.parametrize("window", [(20, 30), None])
@pytest.mark.parametrize("kind", [FetchTimer, Measuring])
def test_a_loop_that_goes_on_is_recorded_as_if_every_fetch_was_asked(monkeypatch, quickly, wraps, loop, window, kind):
    asked, never = drive(monkeypatch, Asking, 60 * loop, wraps, window)
    found, often = drive(monkeypatch, kind, 60 * loop, wraps, window)
    assert (found.records, found.told.of, found.marks) == (asked.records, asked.told.of, asked.marks)
    assert found.tracker.backwards == asked.tracker.backwards
    assert sum(record[0] == EventKind.STEP for record in found.records) >= 45
    assert never == 0
    assert often > 24 * len(loop) or "b" in loop or window  # two loaders are asked each time whose batch it is


@pytest.mark.parametrize("wraps", ["", "A"])
def test_a_loop_of_which_nobody_else_wants_to_know_goes_the_plain_way(monkeypatch, quickly, wraps):
    rig, _ = drive(monkeypatch, FetchTimer, 3 * LOOP, wraps, None)
    plain = quick = 0
    for act in 40 * LOOP:
        plain += bool(rig.tracker.fast)
        quick += bool(rig.tracker.fast_thread)
        rig.act(act)
    assert plain > 60
    assert rig.tracker.unreported is None  # it would grow
    assert quick > 40
    starts = {record[5]: record[3] for record in rig.records if record[0] == EventKind.STEP}
    ended = [number for number, start_ns, _ in rig.marks if starts.get(number) == start_ns]
    assert len(ended) > 15
    assert ended[-1] >= rig.tracker.count - 2


@pytest.mark.parametrize("wraps", ["", "A"])
def test_the_first_plain_fetches_are_measured_without_their_waits(monkeypatch, quickly, wraps):
    monkeypatch.setattr(meter_module, "_CALLS", 20)
    rig, _ = drive(monkeypatch, Measuring, 3 * LOOP, wraps, None)
    rig.tracker.mark_at = NEVER
    ticks = iter(range(10_000))  # a clock that goes on by 1 each time it is read: a plain fetch reads it twice
    monkeypatch.setattr(patches_module, "perf_counter_ns", lambda: rig.now_ns + next(ticks))
    for act in 90 * LOOP:
        assert not (rig.tracker.fast and rig.timer.fast_meter.is_open)
        rig.late_ns = 300_000
        rig.act(act)
    assert rig.timer.fast_meter.median_ns == 2
    assert 0 < rig.timer.slow_fetches < rig.timer.fetches - 20
    assert not rig.timer.fast_meter.is_open
    plain = 0
    for act in 20 * LOOP:
        plain += bool(rig.tracker.fast)
        rig.act(act)
    assert plain > 20


def give_up_backward(rig):
    stages(rig.timer, rig.hooks, None, None, ())[-1].turn_off()


def remove(rig):
    """While another thread trains, which settles just before it cannot any more."""
    rig.hooks._patches.on_remove(lambda: setattr(rig.tracker, "fast_thread", rig.tracker.thread))
    rig.hooks.remove()


@pytest.mark.parametrize("end", [give_up_backward, remove])
def test_hooks_that_are_no_longer_wanted_ask_again(monkeypatch, quickly, end):
    rig, _ = drive(monkeypatch, FetchTimer, 40 * LOOP, "", None)
    rig.act("a")
    while not rig.tracker.fast_thread:
        for act in LOOP:
            rig.act(act)
    end(rig)
    before = len(rig.records)
    rig.act("backward")
    assert len(rig.records) == before
    for act in 20 * LOOP:
        rig.act(act)
        assert not rig.tracker.fast_thread


class Looks:
    """Looks at the first 30 of each 100 fetches."""

    def __init__(self, rig):
        self._timer, self.at, self.asked = rig.timer, [], 0

    def sample_queue(self, _iterator):
        self.asked += 1
        if self._timer.fetches % 100 < 30:
            self.at.append(self._timer.fetches)

    def fetches_to_skip(self, _iterator):
        place = self._timer.fetches % 100
        return 100 - place if place >= 30 else 0


@pytest.mark.parametrize("wraps", ["", "A"])
@pytest.mark.parametrize("kind", [FetchTimer, Measuring])
def test_no_look_at_the_workers_is_left_out(monkeypatch, wraps, kind):
    rig = Rig(kind, wraps, None)
    looks = Looks(rig)
    rig._seen.__next__ = patched_next(rig.timer, Batches.__next__, looks)
    monkeypatch.setattr(f"{__name__}.BATCHES", 500)
    for act in 400 * LOOP:
        rig.act(act)
    assert looks.at == [number for number in range(400) if number % 100 < 30]
    assert looks.asked < 200


def test_the_end_of_a_thread_unsettles_because_another_may_get_its_number():
    timer = Rig(FetchTimer, "").timer
    timer.tracker.fast = timer.tracker.measured = timer.tracker.fast_thread = 7

    def look(trains):
        assert not timer.here.doing.fetching
        if trains:
            timer.tracker.thread = threading.get_ident()

    for trains, left in ((False, 7), (True, 0)):
        thread = threading.Thread(target=look, args=(trains,))
        thread.start()
        thread.join()
        assert [timer.tracker.fast, timer.tracker.measured, timer.tracker.fast_thread] == 3 * [left]


@pytest.mark.parametrize("wraps", ["", "A", "Ab"])
@pytest.mark.parametrize("steps", range(9, 15))
@pytest.mark.parametrize(
    "aside",
    [
        ["a", "phase", "b", "phase", "backward", "b"],
        ["a", "b"],
        ["a", "backward", "b"],
        ["phase", "a", "b", "phase"],
        ["a", "fails", "a"],
        ["slow", "a"],
    ],
    ids="-".join,
)
def test_what_plain_fetches_leave_undone_is_caught_up_with(monkeypatch, quickly, wraps, steps, aside):
    acts = [*steps * LOOP, *aside, "backward", "optimizer", *9 * [*LOOP, "b"], *9 * LOOP]
    asked, _ = drive(monkeypatch, Asking, acts, wraps, None)
    found, _ = drive(monkeypatch, FetchTimer, acts, wraps, None)
    assert found.records == asked.records
    assert (found.timer.fetches, found.timer.waited_ns) == (asked.timer.fetches, asked.timer.waited_ns)


examples = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
ANY_LOOP = st.lists(
    st.one_of(
        st.sampled_from(ACTS).map(lambda act: [act]),
        st.integers(1, 12).map(lambda n: n * LOOP),
        st.integers(1, 12).map(lambda n: n * OTHER),
        st.integers(1, 12).map(lambda n: n * [*LOOP, "elsewhere"]),
    )
).map(lambda parts: [act for part in parts for act in part])


@examples
@given(
    acts=ANY_LOOP,
    wraps=st.sampled_from(WRAPS),
    window=st.one_of(st.none(), st.lists(st.integers(0, 40), max_size=3)),
    kind=st.sampled_from([FetchTimer, Measuring]),
)
def test_any_loop_is_recorded_as_if_every_fetch_was_asked(monkeypatch, quickly, acts, wraps, window, kind):
    asked, _ = drive(monkeypatch, Asking, acts, wraps, window)
    found, _ = drive(monkeypatch, kind, acts, wraps, window)
    assert (found.records, found.told.of, found.marks) == (asked.records, asked.told.of, asked.marks)
    assert found.tracker.backwards == asked.tracker.backwards


@examples
@given(
    acts=ANY_LOOP,
    wraps=st.sampled_from(WRAPS),
    window=st.lists(st.integers(0, 40), max_size=3),
    kind=st.sampled_from([FetchTimer, Measuring]),
)
def test_a_window_that_rests_is_told_all_it_has_to_know_in_time(monkeypatch, quickly, acts, wraps, window, kind):
    asked, _ = drive(monkeypatch, Asking, acts, wraps, window, lambda opens_at: Resting(opens_at, rests=False))
    found, _ = drive(monkeypatch, kind, acts, wraps, window, Resting)
    assert found.records == asked.records
    assert found.told.ended == asked.told.ended
    assert found.told.at_once == asked.told.at_once


@pytest.mark.parametrize("wraps", ["", "A"])
def test_a_loop_whose_window_rests_goes_the_plain_way_until_it_is_woken(monkeypatch, quickly, wraps):
    rig, _ = drive(monkeypatch, FetchTimer, 3 * LOOP, wraps, (100,), Resting)
    plain = 0
    for act in 60 * LOOP:
        plain += bool(rig.tracker.fast)
        rig.act(act)
    assert plain > 90
    assert len(rig.told.ended) >= rig.tracker.count - loader_module._READ_EVERY
    rig.tracker.leave_fast_path()
    rig.act("a")
    assert rig.told.ended[-1][0] == rig.tracker.count - 1
    for act in 60 * LOOP:
        rig.act(act)
    assert [number for word, number, *_ in rig.told.at_once if word == "started"] == [100, 101, 102]
