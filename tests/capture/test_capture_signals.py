"""Signals while a block runs: what their handlers raise reaches the program, and nothing of the recording stays."""

import contextlib
import functools
import gc
import os
import signal
import sys
import threading
import time

import pytest

from profilerkit.capture import session
from profilerkit.capture.guard import Guard, attempt
from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.capture.timed_calls import CollectionWatch
from profilerkit.rundir.layout import EventKind


class PreemptedError(Exception):
    """What a handler raises."""


@pytest.fixture
def handled():
    """Sets the handler of SIGUSR1, and SIGALRM's, for one test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGALRM)}

    def handle(handler):
        for number in before:
            signal.signal(number, handler)

    yield handle
    for number, handler in before.items():
        signal.signal(number, handler)


def preempt(*_args):
    raise PreemptedError


def preempt_once(number, _frame):
    signal.signal(number, signal.SIG_IGN)
    raise PreemptedError


class RudeError(Exception):
    """What an object raises that is asked for what it does not have."""


class Rude:
    """A handler that is set, and does not say what it is."""

    def __getattr__(self, name):
        raise RudeError

    def __call__(self, *_args):
        raise PreemptedError


class Job:
    """Handlers of every kind."""

    def method(self, *_args):
        raise PreemptedError

    def __call__(self, *_args):
        raise PreemptedError


@pytest.fixture
def watch():
    records = []
    watch = CollectionWatch(records.append, StepTracker(records.append))
    watch.records = records
    patches = Patches()
    patches.apply(watch.install)
    yield watch
    patches.remove()


def test_collections_are_timed_with_their_thread_and_generation(watch):
    heap = [[number] for number in range(300_000)]
    watch.beat()
    watch.records.clear()
    began_ns = time.perf_counter_ns()
    gc.collect()
    taken_ns = time.perf_counter_ns() - began_ns
    other = threading.Thread(target=gc.collect, args=(1,))
    other.start()
    other.join()
    watch.beat()
    whole = [record for record in watch.records if record[5] == 2]
    assert [record[:3] for record in whole] == [(EventKind.GC, 0, 0)]
    ((_, _, _, start_ns, dur_ns, _),) = whole
    assert began_ns <= start_ns
    assert 0.5 * taken_ns < dur_ns <= taken_ns
    assert len(heap) == 300_000


def test_a_collection_that_had_begun_before_is_left_out_and_the_next_is_told(watch):
    for callback in watch._callbacks:
        callback("stop", {"generation": 2, "collected": 0, "uncollectable": 0})
    assert list(watch._ended()) == []
    for phase in ("start", "stop"):
        for callback in watch._callbacks:
            callback(phase, {"generation": 1, "collected": 0, "uncollectable": 0})
    (found,) = watch._ended()
    assert (found[5], found[1]) == (1, 0)  # its generation, on the training thread
    assert 0 <= found[4] < 10_000_000


def collect_for_a_while():
    for _ in range(100):
        gc.collect()


@pytest.fixture
def no_callbacks():
    """Those of others, hypothesis among them, are written in Python, and lose what a handler raises in them."""
    before = gc.callbacks[:]
    gc.callbacks.clear()
    gc.freeze()  # what other tests have left would take most of each collection
    yield
    gc.callbacks[:] = before


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timers")
@pytest.mark.usefixtures("no_callbacks")
def test_a_signal_in_a_collection_reaches_the_program(light, handled):
    heap = [[number] for number in range(400_000)]
    handled(preempt)
    lost = []
    hook, sys.unraisablehook = sys.unraisablehook, lost.append
    try:
        with light():
            for _ in range(5):
                began = time.perf_counter()
                gc.collect()
                signal.setitimer(signal.ITIMER_REAL, (time.perf_counter() - began) / 2)
                with pytest.raises(PreemptedError):
                    collect_for_a_while()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = hook
    assert lost == []
    assert len(heap) == 400_000


@pytest.mark.parametrize("handler", [preempt, preempt_once, Job().method, Job(), functools.partial(preempt, 1)])
def test_what_a_handler_raises_in_code_of_ours_goes_on_and_is_no_failure(handled, handler):
    handled(handler)
    guard = Guard("recording")
    with pytest.raises(PreemptedError):
        guard.call(signal.raise_signal, signal.SIGUSR1)
    handled(handler)
    with pytest.raises(PreemptedError):
        attempt(signal.raise_signal, signal.SIGUSR1)
    assert guard.failure is None


def test_a_handler_that_does_not_say_what_it_is_costs_nothing(handled):
    handled(Rude())
    with pytest.raises(PreemptedError):
        attempt(signal.raise_signal, signal.SIGUSR1)
    assert attempt(int, "x") is None


def test_the_same_exception_of_our_own_is_a_failure(handled):
    handled(preempt)
    guard = Guard("recording")

    def fail():
        raise PreemptedError

    with pytest.warns(RuntimeWarning, match="switched itself off"):
        assert guard.call(fail) is None
    assert guard.failure.startswith("PreemptedError in ")


@pytest.mark.torch
def test_a_signal_in_an_export_ends_the_loop_and_leaves_nothing(toy, deep, handled, monkeypatch):
    handled(preempt)
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    monkeypatch.setattr(
        toy.torch.profiler.profile, "export_chrome_trace", lambda *_: signal.raise_signal(signal.SIGUSR1)
    )

    def train():
        with deep() as prof:
            for batch in prof.wrap(toy.loader()):
                toy.train(batch)

    with pytest.raises(PreemptedError):
        train()
    assert "KINETO_LOG_LEVEL" not in os.environ
    assert not toy.torch.autograd._profiler_enabled()
    assert session.active() is None


def time_out(*_args):
    raise TimeoutError  # an OSError


def test_a_handlers_os_error_is_no_unwritable_directory(light, handled, monkeypatch, tmp_path):
    handled(time_out)
    monkeypatch.setattr("profilerkit.capture.session.write_manifest", lambda *_: signal.raise_signal(signal.SIGUSR1))
    with pytest.raises(TimeoutError), light():
        pass
    monkeypatch.setattr("profilerkit.capture.session.claim", lambda *_: signal.raise_signal(signal.SIGUSR1))
    with pytest.raises(TimeoutError), light():
        pass
    assert session.active() is None


@pytest.mark.torch
def test_steps_go_on_after_a_handlers_exception_in_a_backward_pass(toy, light, recorded, handled, monkeypatch):
    handled(preempt)
    calls = []
    original = StepTracker.backward_ended

    def interrupted(self, now_ns):
        calls.append(now_ns)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGUSR1)
        original(self, now_ns)

    monkeypatch.setattr(StepTracker, "backward_ended", interrupted)
    with light() as prof:
        for _ in range(12):
            with contextlib.suppress(PreemptedError):
                toy.train(toy.batch())
    assert len(recorded(prof.directory).steps) >= 8


def ours():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("profilerkit-")]


@pytest.mark.torch
@pytest.mark.parametrize("where", ["enter", "leave"])
def test_an_interrupt_while_a_block_is_entered_or_left_leaves_nothing_behind(toy, light, monkeypatch, where):
    before = toy.torch.utils.data.DataLoader.__iter__, sys.exit, os._exit, list(gc.callbacks)
    original, interrupts = Patches.remove, []

    def interrupt(*_args):
        if not interrupts:
            interrupts.append(1)
            raise KeyboardInterrupt

    def remove(self):
        interrupt()
        original(self)

    if where == "enter":
        monkeypatch.setattr("profilerkit.capture.ending.Exits.install", interrupt)
    else:
        monkeypatch.setattr(Patches, "remove", remove)
    with pytest.raises(KeyboardInterrupt), light(host=True):
        toy.train(toy.batch())
    assert interrupts
    assert (toy.torch.utils.data.DataLoader.__iter__, sys.exit, os._exit, list(gc.callbacks)) == before
    assert session.active() is None
    deadline = time.monotonic() + 5
    while ours() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ours() == []
