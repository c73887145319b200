"""What recording costs is compared with the steps; above the budget features are turned off, and the report says so."""

import time
from types import SimpleNamespace

import pytest

import profilerkit
from profilerkit.capture import clocks, overhead
from profilerkit.capture.guard import Guard
from profilerkit.capture.hooks import Hooks
from profilerkit.capture.loader import FetchTimer
from profilerkit.capture.overhead import Budget, RunningCost, Stage, stages
from profilerkit.capture.steps import StepTracker
from tests.recipes import NoTrace

SECOND_NS = 1_000_000_000


class Run:
    """A budget of 1 % on a clock that is set by hand, with stages that say when they were turned off."""

    def __init__(self, *names, missing=()):
        self.off = []
        self.now_ns = self.steps = 0

        def stage(name):
            return Stage(name, f"{name} was not there", lambda: self.off.append(name), lambda: name not in missing)

        self.budget = Budget(0.01, [stage(name) for name in names], clock=lambda: self.now_ns)
        self.second(steps=1, own_ns=None)

    def second(self, *, steps, own_ns):
        self.now_ns += SECOND_NS
        self.steps += steps
        self.budget.check(self.steps, lambda _steps: own_ns)


def test_nothing_is_turned_off_within_the_budget():
    run = Run("a")
    run.second(steps=1000, own_ns=10_000)
    assert run.off == []
    assert not run.budget.is_exceeded


def test_one_thing_after_another_is_turned_off_until_the_cost_fits():
    run = Run("a", "b", "c")
    run.second(steps=1000, own_ns=10_001)
    assert run.off == ["a"]
    run.second(steps=1000, own_ns=10_001)
    run.second(steps=1000, own_ns=9_999)
    assert run.off == ["a", "b"]
    assert run.budget.turned_off["b"] == (
        "from step 2001 on b was not there: recording cost 10.0 µs of a 1.00 ms step, above its budget of 1.0 %"
    )


def test_what_is_not_there_is_passed_over_and_the_end_is_said():
    run = Run("a", "b", missing=["a"])
    run.second(steps=1000, own_ns=50_000)
    assert run.off == ["b"]
    assert not run.budget.is_exceeded
    run.second(steps=1000, own_ns=50_000)
    assert run.budget.is_exceeded


def test_few_steps_and_an_unknown_cost_decide_nothing():
    run = Run("a")
    run.second(steps=20, own_ns=SECOND_NS)
    run.second(steps=1000, own_ns=None)
    assert run.off == []


@pytest.fixture
def soon(monkeypatch):
    """The comparison is made after 40 measured calls and 100 fetches, and at every beat."""
    monkeypatch.setattr(clocks, "_CALLS", 40)
    monkeypatch.setattr(overhead, "ALL_OF_FIRST", 100)
    monkeypatch.setattr(overhead, "_EVERY_NS", 1)


def test_near_empty_steps_turn_features_off_and_the_report_says_so(toy, light, recorded, soon):
    torch = toy.torch
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with light(host=True, overhead_budget=1e-6) as prof:
        until = time.monotonic() + 20
        for _ in prof.wrap(iter(int, 1)):
            weight.sum().backward()
            optimizer.step()
            if prof._session._budget.is_exceeded or time.monotonic() > until:
                break
        session = prof._session
    meta = recorded(prof.directory).rank.meta
    off = {name: feature.reason for name, feature in meta.features.items() if not feature.on}
    assert {"stacks", "samplers", "wait_cpu", "backward"} <= set(off)
    assert "above its budget of" in off["backward"]
    assert not session._hooks.watches_backward
    assert session._samplers["host"].period_seconds == 5
    assert not session._samplers["stacks"]._thread.is_alive()
    trust = profilerkit.analyze(prof.directory).trust
    assert sum("above its budget of" in note for note in trust.notes) == 4
    assert any(note.startswith("Recording every step cost more than its budget") for note in trust.notes)
    assert trust.cost.per_step_ns == meta.self_ns_per_step
    assert trust.cost.start_ns > 0
    assert trust.cost.close_ns > 0
    assert trust.cost.windows_ns is None


def test_steps_of_five_milliseconds_keep_everything(light, recorded, soon):
    with light(host=True) as prof:
        for _ in prof.wrap(range(500)):
            time.sleep(0.005)
        mark = prof._session._budget._mark
    assert mark[1] >= 100  # it was compared
    own = recorded(prof.directory).rank.meta.own_cost
    assert own.turned_off == ()
    assert own.budget_ratio == 0.01


def took(own_ns):
    return SimpleNamespace(median_ns=own_ns)


def test_running_cost_is_that_of_the_calls_since_it_was_asked_before():
    """The first 1,000 fetches are all looked at, and the questions of every fetch end with them."""
    tracker = SimpleNamespace(backwards=0)
    timer = SimpleNamespace(meter=took(10_000), fast_meter=took(2_000), fetches=0, slow_fetches=0, tracker=tracker)
    hooks = SimpleNamespace(meters=(took(7_000), took(None)), watches_backward=True)
    workers = SimpleNamespace(meter=took(8_000), sampled=0)
    clock = SimpleNamespace(meter=took(3_000), marks=0)
    cost = RunningCost(timer, hooks, clock, workers)
    unseen_ns = 1_500

    def goes_on(steps, *, asked, looked):
        timer.fetches += steps
        tracker.backwards += steps if hooks.watches_backward else 0
        timer.slow_fetches += asked
        workers.sampled += looked
        return cost.per_step_ns(timer.fetches)

    assert goes_on(0, asked=0, looked=0) is None
    assert goes_on(600, asked=600, looked=600) is None
    assert goes_on(600, asked=600, looked=600) is None
    backward_ns = 7_000 + unseen_ns
    looked_at = goes_on(800, asked=0, looked=100)
    assert looked_at == pytest.approx((2_000 + unseen_ns) + (8_000 + unseen_ns) / 8 + backward_ns)
    assert goes_on(800, asked=0, looked=0) == pytest.approx((2_000 + unseen_ns) + backward_ns)
    assert goes_on(0, asked=0, looked=0) is None
    rarely = RunningCost(timer, hooks, clock, workers)
    timer.fetches, timer.slow_fetches = 12, 12
    assert [rarely.per_step_ns(steps) for steps in (999, 1_500)] == [None, None]
    assert rarely.per_step_ns(1_600) == 0.0
    timer.fetches, timer.slow_fetches = 3_000, 1_200
    cost.per_step_ns(3_000)
    hooks.watches_backward = False
    assert goes_on(10, asked=5, looked=0) == pytest.approx((2_000 + 10_000) / 2 + unseen_ns)
    clock.marks += 2
    marked_ns = (3_000 + unseen_ns) / 5
    assert goes_on(10, asked=5, looked=0) == pytest.approx((2_000 + 10_000) / 2 + unseen_ns + marked_ns)


def test_budget_comes_from_the_environment_unless_it_is_given(light, recorded, monkeypatch):
    monkeypatch.setenv("PROFILERKIT_OVERHEAD_BUDGET", "0.2")
    for given, used in (({}, 0.2), ({"overhead_budget": 0.3}, 0.3)):
        with light(**given) as prof:
            pass
        assert recorded(prof.directory).rank.meta.own_cost.budget_ratio == used


def test_pauses_for_trace_windows_are_counted_without_their_steps(toy, deep):
    with deep(trace_steps=20) as prof:
        start_ns = time.perf_counter_ns()
        for batch in prof.wrap(toy.loader(batches=32)):
            toy.train(batch)
            time.sleep(0.02)
        whole_ns = time.perf_counter_ns() - start_ns
    cost = profilerkit.analyze(prof.directory).trust.cost
    # No pause lies in a step's sleep: with the window's 20 steps they would be longer than all that is no sleep.
    assert 0 < cost.windows_ns <= whole_ns - 32 * 20_000_000


def test_backward_passes_that_end_steps_are_timed_on():
    tracker = StepTracker([].append)
    timer = FetchTimer([].append, tracker, Guard("the test"), NoTrace())
    backward = stages(timer, Hooks([].append, tracker, timer, Guard("the test")), None, None, ())[-1]
    tracker.backward_ended(1)
    tracker.optimizer_stepped(1, 2)
    assert backward.is_on()
    tracker.backward_depth += 1
    tracker.optimizer_stepped(1, 3)
    tracker.backward_ended(4)
    assert not backward.is_on()


def test_nothing_is_said_of_a_budget_where_nothing_is_timed():
    run = Run()
    run.second(steps=1000, own_ns=50_000)
    assert not run.budget.is_exceeded
