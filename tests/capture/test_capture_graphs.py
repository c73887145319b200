"""Whole steps that are replayed as a CUDA graph, on a class of graphs without CUDA."""

import gc

import pytest

from profilerkit.rundir.layout import EventKind

pytestmark = pytest.mark.torch


@pytest.fixture
def graph(toy, monkeypatch):
    """Makes graphs: what is captured runs as it is captured, a replay calls nothing of torch's."""

    class Graph:
        def __init__(self):
            self.replays = 0

        def capture_begin(self, pool=None):
            pass

        def capture_end(self):
            pass

        def replay(self):
            self.replays += 1

        def captured(self, work):
            self.capture_begin(pool=None)
            try:
                work()
            finally:
                self.capture_end()
            return self

    monkeypatch.setattr(toy.torch.cuda.graphs, "CUDAGraph", Graph)
    return Graph


def steps_of(run):
    return len(run.of(EventKind.STEP))


def test_a_graph_whose_capture_held_an_optimizer_steps_without_wrap(toy, graph, light, recorded):
    with light() as prof:
        whole = None
        for number, batch in enumerate(toy.loader(batches=64)):
            if number < 10:
                toy.train(batch)
            elif whole is None:
                whole = graph().captured(lambda batch=batch: toy.train(batch))
            else:
                whole.replay()
    run = recorded(prof.directory)
    assert whole.replays == 53
    assert steps_of(run) == 64
    assert run.rank.meta.features["graphs"].on
    assert run.rank.meta.steps_found_by == "optimizer step"
    optimizers = len(run.of(EventKind.OPTIMIZER))
    assert optimizers == 11  # a replay is a step and no optimizer's record


def test_replays_end_the_steps_of_a_loop_without_a_loader(toy, graph, light, recorded):
    with light() as prof:
        for _ in range(3):
            toy.train(toy.batch())
        whole = graph().captured(lambda: toy.train(toy.batch()))
        for _ in range(50):
            whole.replay()
    assert steps_of(recorded(prof.directory)) >= 50


def test_graphs_of_parts_of_a_step_leave_the_steps_to_the_optimizer(toy, graph, light, recorded):
    with light() as prof:
        part = graph().captured(lambda: toy.backward(toy.batch()))
        for number, batch in enumerate(toy.loader(batches=64)):
            part.replay()
            toy.backward(batch)
            if number % 4 == 3:
                toy.update()
    assert steps_of(recorded(prof.directory)) == 16


def test_graphs_that_evaluate_between_epochs_are_no_steps(toy, graph, light, recorded):
    with light() as prof:
        evaluates = graph().captured(lambda: toy.model(toy.batch()[0]))
        for _ in range(3):
            for batch in toy.loader():
                toy.train(batch)
            for _batch in toy.loader(batches=32):
                evaluates.replay()
    assert steps_of(recorded(prof.directory)) == 24


@pytest.mark.parametrize("trains_too", [False, True])
def test_a_graph_older_than_the_recording_steps_where_nothing_else_trains(toy, graph, light, recorded, trains_too):
    old = graph().captured(lambda: toy.train(toy.batch()))
    with light() as prof:
        for batch in toy.loader(batches=64):
            if trains_too:
                toy.train(batch)
            old.replay()
    assert steps_of(recorded(prof.directory)) in ((64,) if trains_too else (55, 56))


def test_nothing_is_left_in_torch_after_a_capture_that_failed(toy, graph, light):
    from torch.optim import optimizer

    hooks = dict(optimizer._global_optimizer_post_hooks)
    methods = {name: vars(graph)[name] for name in ("capture_begin", "capture_end", "replay")}
    with light():
        graph().capture_begin()
    assert dict(optimizer._global_optimizer_post_hooks) == hooks
    assert {name: vars(graph)[name] for name in methods} == methods


def test_a_graph_is_not_kept_alive(toy, graph, light):
    with light():
        graph().captured(lambda: toy.train(toy.batch())).replay()
        gc.collect()
        assert not [found for found in gc.get_objects() if type(found) is graph]
