"""Torch walks its tables of hooks on the program's threads: what we hang into them never ends such a walk."""

import os
import sys
import threading
import time
from unittest.mock import MagicMock

import pytest

from profilerkit.capture import patches, session
from profilerkit.capture.environment import StartUpWatch
from profilerkit.capture.guard import Guard
from profilerkit.capture.hooks import GraphWatch, Hooks
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventKind
from tests import programs

pytestmark = pytest.mark.torch


def elsewhere(work):
    """Do it on another thread, while the caller waits and has given the interpreter to whoever wants it."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.fixture
def users():
    """Two hooks of the program's before each optimizer step and two after it; the first of each calls ``users.now``."""
    optim = pytest.importorskip("torch.optim.optimizer")
    called = MagicMock(now=None, count=0)

    def first(*_step):
        now, called.now = called.now, None
        if now is not None:
            now()

    def second(*_step):
        called.count += 1

    for table in (optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks):
        for key in [key for key, hook in table.items() if hook is patches.nothing]:  # places that other tests left
            del table[key]
    pre, post = optim.register_optimizer_step_pre_hook, optim.register_optimizer_step_post_hook
    handles = [register(hook) for register in (pre, post) for hook in (first, second)]
    yield called
    for handle in handles:
        handle.remove()


def entries():
    """All hooks in torch's tables."""
    optim = sys.modules["torch.optim.optimizer"]
    return [list(table.values()) for table in (optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks)]


def of_the_program():
    return [[hook for hook in found if hook is not patches.nothing] for found in entries()]


@pytest.fixture
def hooks_of():
    """Hooks of a tracker's, which are removed in the end."""
    made = []

    def make(tracker):
        made.append(Hooks(lambda _record: None, tracker, MagicMock(), Guard("a test")))
        return made[-1]

    yield make
    for hooks in made:
        hooks.remove()


@pytest.mark.parametrize("by", [elsewhere, lambda work: work()], ids=["another thread", "a hook of the program's"])
def test_hooks_come_and_go_while_the_training_thread_walks_its_own(toy, users, hooks_of, by):
    tracker = StepTracker(lambda _record: None)
    hooks, before = hooks_of(tracker), of_the_program()
    users.now = lambda: by(hooks.install_torch)
    toy.train(toy.batch())  # the step in which they come
    assert [len(found) for found in entries()] == [3, 3]
    toy.train(toy.batch())
    assert tracker.optimizer_seen
    users.now = lambda: by(hooks.remove)
    toy.train(toy.batch())
    assert users.count == 6
    assert of_the_program() == before
    again = hooks_of(StepTracker(lambda _record: None))
    again.install_torch()
    again.remove()
    assert [len(found) for found in entries()] == [3, 3]  # places that were left are taken again


def test_hooks_that_come_in_a_step_inside_of_a_walk_wait_for_one_that_is_not(toy, users, hooks_of):
    hooks, inner = hooks_of(StepTracker(lambda _record: None)), toy.torch.optim.SGD(toy.model.parameters())
    hooks.install_torch()
    users.now = inner.step
    toy.train(toy.batch())
    toy.train(toy.batch())
    assert [len(found) for found in entries()] == [3, 3]
    hooks.remove()


def test_steps_of_another_thread_end_no_walk_and_lose_no_hook(toy, users, hooks_of):
    hooks = hooks_of(StepTracker(lambda _record: None))
    users.now = lambda: time.sleep(0.001)
    errors, ends = [], threading.Event()

    def trains():
        optimizer = toy.torch.optim.SGD([toy.torch.nn.Parameter(toy.torch.zeros(1))])
        try:
            while not ends.is_set():
                users.now = lambda: time.sleep(0.0001)
                optimizer.step()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=trains)
    thread.start()
    for _ in range(300):
        hooks.install_torch()
        hooks.remove()
        hooks = hooks_of(StepTracker(lambda _record: None))
    ends.set()
    thread.join()
    assert errors == []


def test_the_writer_thread_switches_off_inside_of_a_step(light, toy, users, recorded, monkeypatch):
    fails = threading.Event()
    beat = session.Session._look_around

    def failing(self):
        beat(self)
        if fails.is_set():
            raise ValueError("no luck")

    monkeypatch.setattr(session.Session, "_look_around", failing)

    def wait():
        fails.set()
        until = time.monotonic() + 5
        while session.active()._guard.failure is None and time.monotonic() < until:
            time.sleep(0.01)

    def train():
        for batch in toy.loader():
            toy.train(batch)
        users.now = wait
        toy.train(toy.batch())

    # The recording ends first: its writer thread may warn late.
    with pytest.warns(RuntimeWarning, match="no luck"), light() as prof:
        train()
    assert users.count == 18
    assert len(recorded(prof.directory).of(EventKind.OPTIMIZER)) in (7, 8)


def test_a_capture_of_a_graph_adds_and_removes_nothing(toy, users, hooks_of):
    tracker = StepTracker(lambda _record: None)
    hooks = hooks_of(tracker)
    hooks.install_torch()
    toy.train(toy.batch())
    watch, before = GraphWatch(hooks, tracker), entries()
    users.now = lambda: elsewhere(lambda: (watch._begins(None), watch._ends(toy.model)))
    toy.train(toy.batch())
    assert entries() == before
    hooks.remove()


def test_what_notes_the_first_model_goes_while_another_one_is_made(toy):
    module = sys.modules["torch.nn.modules.module"]
    watch, seen = StartUpWatch(MagicMock(spans=[], own_ns={}, aside=None)), []
    watch.begin()
    handles = [
        module.register_module_parameter_registration_hook(hook)
        for hook in (lambda *_given: elsewhere(watch._patches.remove), lambda *_given: seen.append(1))
    ]
    toy.torch.nn.Linear(1, 1)
    for handle in handles:
        handle.remove()
    assert seen == [1, 1]


def test_the_finder_that_timed_imports_goes_from_no_list_that_an_import_walks(monkeypatch):
    finder = MagicMock(spans=[], own_ns={}, aside=None)
    walked = [finder, *sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", walked)
    StartUpWatch(finder).end()
    assert sys.meta_path == walked[1:]
    assert walked[0] is finder


UNDER_RUN = """
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
calls = []
for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook):
    register(lambda *step: calls.append(step))
parameter = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([parameter])
for _ in range(20):
    parameter.grad = torch.ones(1)
    optimizer.step()
print(len(calls))
"""


def test_a_program_below_run_whose_first_sign_of_training_is_a_step_with_hooks(tmp_path):
    (tmp_path / "train.py").write_text(UNDER_RUN)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PROFILERKIT")}
    words = ("-m", "profilerkit", "run", "-q", "--no-deep", "--no-analyze", "--", sys.executable, "train.py")
    done = programs.run(*words, cwd=tmp_path, env=variables)
    assert (done.returncode, done.stdout.split()[0]) == (0, "40"), done.stderr
