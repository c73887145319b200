"""The user's objects may raise where they are only asked, and capture's own code may fail where it is in the way."""

import logging
import warnings
from types import SimpleNamespace

import pytest

from profilerkit.capture.guard import Guard, announce, attempt
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventKind


class RudeError(Exception):
    def __str__(self):
        raise RuntimeError("no")


def raising(*_args):
    raise RudeError


def test_answer_of_the_users_object_is_passed_on_and_an_exception_is_none():
    assert attempt(len, [1, 2]) == 2
    assert attempt(raising, 1) is None
    with pytest.raises(KeyboardInterrupt):
        attempt(iter_interrupt)


def iter_interrupt():
    raise KeyboardInterrupt


def test_failure_that_cannot_be_printed_trips_the_guard_all_the_same():
    guard = Guard("profilerkit")
    with pytest.warns(RuntimeWarning, match="switched itself off"):
        assert guard.call(raising) is None
    assert guard.failure == "RudeError in raising: None"


def test_warning_hook_that_raises_does_not_end_the_training(monkeypatch, caplog):
    monkeypatch.setattr(warnings, "showwarning", raising)
    with caplog.at_level(logging.WARNING):
        announce("something is off")
    assert "something is off" in caplog.text


@pytest.mark.torch
@pytest.mark.parametrize("wrapped", [True, False])
def test_sampler_whose_length_raises_is_iterated_as_without_capture(toy, deep, recorded, wrapped):
    class Sampler:
        def __iter__(self):
            return iter([[index] for index in range(8)])

        def __len__(self):
            return 1 // 0

    loader = toy.torch.utils.data.DataLoader(toy.data, batch_sampler=Sampler())
    with deep() as prof:
        for batch in prof.wrap(loader) if wrapped else loader:
            toy.train(batch)
    run = recorded(prof.directory)
    assert len(run.steps) == 8
    assert run.rank.end.reason == "finished"


def test_loader_whose_attributes_raise_is_described_as_far_as_it_answers(light, recorded):
    class Odd:
        batch_size = 4

        @property
        def num_workers(self):
            raise RuntimeError("not yet")

        def __iter__(self):
            return iter(range(4))

    with light() as prof:
        assert list(prof.wrap(Odd())) == [0, 1, 2, 3]
    loader = recorded(prof.directory).rank.meta.loader
    assert (loader.kind, loader.batch_size, loader.num_workers) == ("Odd", 4, None)


class BrokenSpan:
    def __init__(self, where):
        self.where = where

    def __enter__(self):
        if self.where == "enter":
            raise RuntimeError("broken span")

    def __exit__(self, *_error):
        if self.where == "exit":
            raise RuntimeError("broken span")


@pytest.mark.parametrize("where", ["enter", "exit"])
def test_span_that_fails_around_a_fetch_switches_off_and_leaves_no_fetch_open(light, where):
    with light() as prof:
        prof._session._timer.trace = SimpleNamespace(window=object(), span=lambda _name: BrokenSpan(where))
        with pytest.warns(RuntimeWarning, match="broken span"):
            assert list(prof.wrap(range(4))) == [0, 1, 2, 3]
        assert not prof._session._timer.here.doing.fetching


@pytest.mark.parametrize("where", ["enter", "exit"])
def test_span_that_fails_around_a_phase_passes_the_block_through(light, monkeypatch, where):
    with light() as prof:
        monkeypatch.setattr(prof._session._window, "span", lambda _name: BrokenSpan(where))
        phase = prof.phase("evaluation")
        with pytest.warns(RuntimeWarning, match="broken span"), phase:
            done = True
    assert done


def test_exception_of_the_loader_leaves_no_fetch_open(light, recorded):
    def batches():
        yield 1
        raise ValueError("bad sample")

    with light() as prof:
        with pytest.raises(ValueError, match="bad sample"):
            list(prof.wrap(batches()))
        assert not prof._session._timer.here.doing.fetching
        assert list(prof.wrap([1, 2])) == [1, 2]
    assert len(recorded(prof.directory).waits) == 4


def test_phase_whose_name_cannot_be_shown_is_recorded_under_a_stand_in(light, recorded):
    class Name:
        def __str__(self):
            raise ZeroDivisionError

    with light() as prof:
        for name in (Name(), "half \ud800"):
            with prof.phase(name):
                pass
    run = recorded(prof.directory)
    names = [run.rank.names[event.name] for event in run.of(EventKind.PHASE)]
    assert names == ["(a name that cannot be shown)", "half ?"]


def test_phase_may_be_left_without_having_been_entered(light, recorded):
    with light() as prof:
        prof.phase("evaluation").__exit__(None, None, None)
    assert recorded(prof.directory).of(EventKind.PHASE) == []


def test_failure_in_the_middle_of_a_fetch_still_gives_the_batch(light, monkeypatch):
    monkeypatch.setattr(StepTracker, "exhausted", raising)
    with pytest.warns(RuntimeWarning, match="RudeError"), light() as prof:
        assert list(prof.wrap(range(3))) == [0, 1, 2]
