"""Models that are put into evaluation mode and back inside a block."""

import threading
import time

import pytest

from profilerkit.capture.evaluations import EvaluationWatch
from profilerkit.capture.patches import Patches
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventKind

pytestmark = pytest.mark.torch


def evaluated(toy, seconds=0.02):
    """A hand-written evaluation, as in ``estimate_loss``."""
    toy.model.eval()
    with toy.torch.no_grad():
        toy.model(toy.batch()[0])
    time.sleep(seconds)
    toy.model.train()


def test_an_evaluation_without_loader_and_phase_is_recorded(toy, light, recorded):
    with light() as prof:
        for number in range(9):
            if number in (3, 6):
                evaluated(toy)
            toy.train(toy.batch())
    run = recorded(prof.directory)
    found = run.of(EventKind.EVALUATION)
    assert len(found) == 2
    assert all(20_000_000 < event.dur_ns < 2_000_000_000 for event in found)
    for event in found:
        assert any(step.start_ns <= event.start_ns < step.start_ns + step.dur_ns for step in run.steps)
    assert run.rank.meta.features["evaluations"].on


def test_without_one_the_reason_says_so(toy, light, recorded):
    with light() as prof:
        toy.model.eval()
    run = recorded(prof.directory)
    assert run.of(EventKind.EVALUATION) == []
    assert "into evaluation mode and back" in run.rank.meta.features["evaluations"].reason


def test_train_is_replaced_only_while_a_model_is_evaluated(toy, light):
    module = toy.torch.nn.Module
    before = module.eval, module.train
    with light():
        assert module.train is before[1]
        toy.model.eval()
        assert module.train is not before[1]
        toy.model.train()
        assert module.train is before[1]
        toy.model.eval()
    assert (module.eval, module.train) == before
    assert not toy.model.training


class Watched:
    """A watch that is hung, and what it records."""

    def __init__(self):
        self.records, self.patches = [], Patches()
        self.tracker = StepTracker(lambda _record: None)
        self.watch = EvaluationWatch(self.records.append, self.tracker)
        self.patches.hang(self.watch.hang)


@pytest.fixture
def watched(toy):
    made = Watched()
    yield made
    made.patches.remove()


def test_a_model_that_never_trains_again_is_waited_for_until_a_step_was_made(toy, watched):
    module, train = toy.torch.nn.Module, toy.torch.nn.Module.train
    teacher = toy.torch.nn.Linear(2, 2)
    teacher.eval()
    watched.watch.beat()
    assert module.train is not train
    watched.tracker.count += 1
    watched.watch.beat()
    assert module.train is train
    teacher.train()
    assert watched.records == []


def test_the_model_that_trains_again_is_the_one_that_was_evaluated(toy, watched):
    teacher, other = toy.torch.nn.Linear(2, 2), toy.torch.nn.Linear(2, 2)
    teacher.eval()
    toy.model.eval()
    other.train()
    assert watched.records == []
    toy.model.train()
    assert len(watched.records) == 1


def test_a_wrapper_that_trains_again_takes_its_model_with_it(toy, watched):
    wrapper = toy.torch.nn.Sequential(toy.model)
    toy.model.eval()
    wrapper.train()
    assert len(watched.records) == 1


def test_a_model_that_sets_its_parts_first_is_no_evaluation_yet(toy, watched):
    class PartsFirst(toy.torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part = toy.torch.nn.Linear(2, 2)

        def train(self, mode=True):
            self.part.train(mode)
            return super().train(mode)

    model = PartsFirst()
    assert model.eval() is model
    assert watched.records == []
    assert model.train(mode=True) is model
    assert len(watched.records) == 1


def test_other_threads_and_models_that_did_not_train_are_left_alone(toy, watched):
    module, train = toy.torch.nn.Module, toy.torch.nn.Module.train
    thread = threading.Thread(target=lambda: toy.model.eval().train())
    thread.start()
    thread.join()
    teacher = toy.torch.nn.Linear(2, 2)
    teacher.training = False
    teacher.eval()
    assert module.train is train
    assert watched.records == []


def test_a_model_that_is_gone_is_no_evaluation(toy, watched):
    toy.torch.nn.Linear(2, 2).eval()
    toy.torch.nn.Linear(2, 2).train()
    assert watched.records == []


def compiled_so_often(toy):
    """How often a model was compiled that is trained and evaluated by turns."""
    import torch._dynamo as dynamo

    dynamo.reset()
    dynamo.utils.counters.clear()
    model = toy.torch.compile(toy.model, backend="eager")
    for _ in range(3):
        model(toy.batch()[0]).sum().backward()
        model.eval()
        model(toy.batch()[0])
        model.train()
    return dict(dynamo.utils.counters["stats"]), dict(dynamo.utils.counters["graph_break"])


def test_compiled_models_are_compiled_as_often_as_without_it(toy, light, recorded):
    bare = compiled_so_often(toy)
    with light() as prof:
        assert compiled_so_often(toy) == bare
    assert len(recorded(prof.directory).of(EventKind.EVALUATION)) == 3


def test_a_compiled_function_that_evaluates_keeps_its_graphs(toy, light):
    import torch._dynamo as dynamo

    def step(x):
        toy.model.eval()
        found = toy.model(x)
        toy.model.train()
        return found

    def graphs():
        dynamo.reset()
        dynamo.utils.counters.clear()
        toy.torch.compile(step, backend="eager", fullgraph=True)(toy.batch()[0])
        return dict(dynamo.utils.counters["stats"])

    bare = graphs()
    with light():
        assert graphs() == bare
