"""Models that are put into evaluation mode and back inside a block."""

import sys
import threading
import time
import weakref
from unittest.mock import MagicMock

import pytest

from profilerkit.capture import timed_calls
from profilerkit.capture.guard import Guard
from profilerkit.capture.hooks import Hooks
from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.capture.timed_calls import EvaluationWatch
from profilerkit.rundir.layout import EventKind

pytestmark = pytest.mark.torch


def evaluated(toy, seconds=0.02):
    """A hand-written evaluation, as in ``estimate_loss``."""
    toy.model.eval()
    with toy.torch.no_grad():
        toy.model(toy.batch()[0])
    time.sleep(seconds)
    toy.model.train()


def test_an_evaluation_without_loader_and_phase_is_recorded_where_it_begins(toy, light, recorded):
    began = []
    with light() as prof:
        for number in range(9):
            if number in (3, 6):
                began.append(time.perf_counter_ns())
                evaluated(toy)
            toy.train(toy.batch())
    run = recorded(prof.directory)
    found = run.of(EventKind.EVALUATION)
    assert [event.dur_ns for event in found] == [0, 0]
    for event, before_ns in zip(found, began, strict=True):
        assert before_ns < event.start_ns < before_ns + 20_000_000
    assert run.rank.meta.features["evaluations"].on


def test_weights_that_are_updated_by_hand_train_as_well(toy, light, recorded):
    with light() as prof:
        for number in range(30):
            if number in (10, 20):
                evaluated(toy, 0)
            toy.backward(toy.batch())
            with toy.torch.no_grad():
                for weight in toy.model.parameters():
                    weight.sub_(weight.grad, alpha=0.1)
                    weight.grad = None
    run = recorded(prof.directory)
    assert len(run.of(EventKind.EVALUATION)) == 2
    assert run.rank.meta.features["evaluations"].on


def test_a_loop_without_loader_and_optimizer_goes_on_behind_an_evaluation_with_a_loader(toy, light, recorded):
    with light() as prof:
        for number in range(60):
            if number == 20:
                toy.model.eval()
                for inputs, _ in toy.loader(batches=1):
                    toy.model(inputs)
                toy.model.train()
            toy.backward(toy.batch())
    run = recorded(prof.directory)
    assert 45 <= len(run.steps) <= 60
    assert len(run.of(EventKind.EVALUATION)) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_steps_that_are_only_recorded_hear_of_it_as_well(toy, light, recorded, workers):
    with light() as prof:
        for _ in range(3):
            for number, batch in enumerate(prof.wrap(toy.loader(batches=32, num_workers=workers))):
                toy.train(batch)
                if number in (10, 20):
                    evaluated(toy, 0.001)
    assert len(recorded(prof.directory).of(EventKind.EVALUATION)) == 6


def test_without_one_the_reason_says_so(toy, light, recorded):
    with light() as prof:
        toy.train(toy.batch())
        toy.model.eval()
    run = recorded(prof.directory)
    assert run.of(EventKind.EVALUATION) == []
    assert "back to training" in run.rank.meta.features["evaluations"].reason


def test_everything_is_left_as_it_was(toy, light):
    from torch.optim import optimizer

    module = toy.torch.nn.Module
    before = module.eval, module.train, dict(optimizer._global_optimizer_post_hooks)
    with light():
        assert module.eval is not before[0]
        assert module.train is before[1]
        toy.model.eval()
    assert (module.eval, module.train, dict(optimizer._global_optimizer_post_hooks)) == before


class Watched:
    """A watch that is hung, what it records, and an optimizer whose steps it hears."""

    def __init__(self, toy):
        self.records, self.patches = [], Patches()
        self.tracker = tracker = StepTracker(lambda _record: None)
        tracker.count = 1  # until then another thread may turn out to be the one that trains
        self.watch = EvaluationWatch(self.records.append, tracker)
        self.patches.apply(self.watch.install)
        starts, ends = Hooks(lambda _record: None, tracker, MagicMock(), Guard("a test")).optimizer_hooks()
        optim = sys.modules["torch.optim.optimizer"]
        self.patches.on_remove(optim.register_optimizer_step_pre_hook(starts).remove)
        self.patches.on_remove(optim.register_optimizer_step_post_hook(ends).remove)
        self.optimizer = toy.torch.optim.SGD([toy.torch.nn.Parameter(toy.torch.zeros(1))])

    def found(self):
        """How many evaluations an optimizer step now brings."""
        before = len(self.records)
        self.optimizer.step()
        return len(self.records) - before


@pytest.fixture
def watched(toy):
    made = Watched(toy)
    yield made
    made.patches.remove()


def test_a_model_that_does_not_train_with_the_next_step_was_not_evaluated(toy, watched):
    teacher = toy.torch.nn.Linear(2, 2).eval()
    assert watched.found() == 0
    teacher.train()
    assert watched.found() == 0


def test_frozen_layers_of_a_model_that_trains_are_no_evaluation(toy, watched):
    class Frozen(toy.torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = toy.torch.nn.BatchNorm1d(2)

        def train(self, mode=True):
            super().train(mode)
            self.norm.eval()
            return self

    model = Frozen()
    for _ in range(3):
        model.train()
        assert watched.found() == 0
    model.eval()
    model.train()
    assert watched.found() == 1


def test_one_gap_between_steps_holds_one_evaluation_from_the_first_eval_on(toy, watched):
    teacher = toy.torch.nn.Linear(2, 2).eval()
    before_ns = time.perf_counter_ns()
    for _ in range(3):
        toy.model.eval()
        toy.model.train()
        time.sleep(0.001)
    assert watched.found() == 1
    assert before_ns < watched.records[0][3] < before_ns + 1_000_000 < time.perf_counter_ns()
    assert watched.found() == 0
    assert not teacher.training


def test_the_method_looks_as_it_did(toy, watched):
    seen = toy.torch.nn.Module.eval
    assert (seen.__name__, seen.__qualname__) == ("eval", "Module.eval")
    assert "evaluation mode" in seen.__doc__


def test_a_record_that_cannot_be_kept_does_not_reach_the_optimizer_step(toy, watched):
    def full(_record):
        raise OSError("no space left")

    watched.watch._record = full
    toy.model.eval().train()
    watched.optimizer.step()
    assert watched.records == []


def test_an_optimizer_step_that_need_not_be_asked_is_asked_after_an_evaluation(toy, watched):
    watched.tracker.fast_thread = watched.tracker.thread = threading.get_ident()
    assert watched.found() == 0
    toy.model.eval().train()
    assert watched.tracker.fast_thread == 0
    assert watched.found() == 1


@pytest.mark.parametrize("way", ["train", "train(mode=True)", "wrapper", "attribute"])
def test_however_it_trains_again(toy, watched, way):
    wrapper = toy.torch.nn.Sequential(toy.model)
    assert toy.model.eval() is toy.model
    if way == "train":
        toy.model.train()
    elif way == "wrapper":
        wrapper.train()
    elif way == "attribute":
        toy.model.training = True
    else:
        toy.model.train(mode=True)
    assert watched.found() == 1


def test_other_threads_are_left_alone(toy, watched):
    def on_another(work):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    on_another(lambda: toy.model.eval().train())
    assert watched.found() == 0
    toy.model.eval().train()
    on_another(watched.optimizer.step)
    assert watched.records == []
    assert watched.found() == 1


def test_after_the_end_nothing_is_remembered_by_what_stayed_below_another_patch(toy, watched):
    below = toy.torch.nn.Module.eval
    watched.patches.remove()
    below(toy.model).train()
    assert watched.watch._left == []


def test_modules_are_not_kept_alive_and_not_without_number(toy, watched):
    linear = toy.torch.nn.Linear
    gone = [weakref.ref(linear(2, 2).eval()) for _ in range(3)]
    assert [ref() for ref in gone] == [None] * 3
    many = [linear(2, 2).eval() for _ in range(20)]
    assert len(watched.watch._left) == timed_calls._MOST_MODULES
    assert watched.found() == 0
    assert watched.watch._left == []
    assert len(many) == 20


# torch 2.13 warns of its own TorchScript, in 2.15 by another category.
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:.torch.jit:FutureWarning")
def test_modules_without_a_mode_or_with_one_that_raises_work_as_they_do_bare(toy, watched):
    torch = toy.torch

    class Odd(torch.nn.Module):
        @property
        def training(self):
            raise RuntimeError("not here")

        @training.setter
        def training(self, _mode):
            pass

    frozen = torch.jit.freeze(torch.jit.script(torch.nn.Linear(2, 2).eval()))
    assert frozen.eval() is frozen
    odd = Odd()
    assert odd.eval() is odd
    assert watched.found() == 0


def counted(toy, run):
    """What torch counts while it compiles and runs ``run``: graphs, frames, and why graphs break."""
    import torch._dynamo as dynamo

    dynamo.reset()
    dynamo.utils.counters.clear()
    run()
    return {name: dict(counts) for name, counts in dynamo.utils.counters.items() if name != "aot_autograd"}


# torch 2.13 warns of its own TorchScript, torch 2.15 of Python 3.13.0.
@pytest.mark.usefixtures("uncollected")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:Guards may run slower:RuntimeWarning")
def test_compiled_code_is_compiled_as_often_as_without_it(toy, light, recorded):
    model = toy.torch.compile(toy.model, backend="eager")

    def whole(inputs):
        toy.model.eval()
        found = toy.model(inputs)
        toy.model.train()
        return found

    def broken(inputs):
        toy.torch._dynamo.graph_break()
        return whole(inputs)

    def by_turns():
        for _ in range(3):
            model(toy.batch()[0]).sum().backward()
            model.eval()
            model(toy.batch()[0])
            model.train()
            toy.optimizer.step()

    runs = (
        by_turns,
        lambda: toy.torch.compile(whole, backend="eager", fullgraph=True)(toy.batch()[0]),
        lambda: toy.torch.compile(broken, backend="eager")(toy.batch()[0]),
    )
    try:
        for run in runs:
            counted(toy, run)  # what other tests left may be compiled in the first of these: seen once, bare
        bare = [counted(toy, run) for run in runs]
    except toy.torch._dynamo.exc.Unsupported:
        pytest.skip("this torch does not compile eval()")
    with light() as prof:
        assert [counted(toy, run) for run in runs] == bare
    assert len(recorded(prof.directory).of(EventKind.EVALUATION)) >= 3
