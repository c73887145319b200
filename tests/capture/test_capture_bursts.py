"""Where recording a step costs too much, steps are recorded in bursts, with rests that the analysis leaves out."""

import time
from types import SimpleNamespace

import pytest

import profilerkit
from profilerkit.capture import overhead
from profilerkit.capture import session as sessions
from profilerkit.capture.overhead import Budget, Bursts, Stage
from profilerkit.rundir.layout import EVENT, EventKind
from profilerkit.rundir.reader import read_run

S = 1_000_000_000


class Loop:
    """Hooks, tracker and clock of a loop of 1,000 steps a second."""

    def __init__(self):
        self.now, self.count, self.said, self.records, self.may_rest = 0, 0, [], [], True
        self.bursts = Bursts(self, self, self.records.append, lambda: self.may_rest, lambda: self.now)

    def rest(self):
        self.said.append(("rest", self.now // S))

    def wake(self, steps):
        self.rested(steps)
        self.said.append(("wake", self.now // S))

    def rested(self, steps):
        self.count += steps

    def passes(self, seconds):
        for _ in range(seconds):
            self.now += S
            self.count += 0 if self.bursts.rests else 1_000
            self.bursts.beat()


def test_a_burst_of_a_second_is_followed_by_a_rest_that_keeps_the_mean_within_the_budget():
    loop = Loop()
    loop.passes(3)
    assert loop.said == []
    loop.bursts.begin(4.0)
    loop.passes(9)
    assert loop.said == [("rest", 4), ("wake", 7), ("rest", 8), ("wake", 11), ("rest", 12)]
    assert loop.records == [(EventKind.REST, 0, 0, at * S, 3 * S, 3_000) for at in (4, 8)]
    assert loop.count == 12_000


def test_a_trace_window_is_not_rested_in():
    loop = Loop()
    loop.bursts.begin(4.0)
    loop.may_rest = False
    loop.passes(5)
    assert loop.said == []


def test_a_rest_that_lasts_to_the_end_is_recorded():
    loop = Loop()
    loop.bursts.begin(100.0)
    loop.passes(1)
    loop.now += 5 * S
    loop.bursts.close()
    assert loop.records == [(EventKind.REST, 0, 0, S, 5 * S, 5_000)]


def test_the_budget_says_how_much_too_much_it_was():
    now, seen = [0], []
    budget = Budget(0.01, [Stage("steps", "bursts", lambda: seen.append(budget.excess), lambda: True)], lambda: now[0])
    budget.check(1, lambda _steps: None)
    now[0] = S
    budget.check(1_001, lambda _steps: 50_000.0)
    assert seen == [pytest.approx(5.0)]
    budget.stop()
    now[0] = 9 * S
    budget.check(9_001, lambda _steps: 50_000.0)
    assert not budget.is_exceeded


def test_a_loop_goes_on_unwatched_in_a_rest_and_the_report_leaves_the_rests_out(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(overhead, "_BURST_NS", 200_000_000)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    loader = torch.utils.data.DataLoader(torch.randn(400, 8), batch_size=4)
    seen = SimpleNamespace(watched=0, unwatched=0)
    with profilerkit.profile(tmp_path / "run", deep=False, nvml=False, analyze=False) as prof:
        session = sessions.active()
        session._recorder.period_seconds = 0.05
        began = time.monotonic()
        while time.monotonic() - began < 3:
            for batch in prof.wrap(loader):
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
                time.sleep(0.001)
                is_watched = hasattr(torch.autograd._engine_run_backward, "__wrapped__") or (
                    torch.autograd._engine_run_backward.__module__.startswith("profilerkit")
                )
                seen.watched += is_watched
                seen.unwatched += not is_watched
            if session._bursts._rest_ns == 0:
                session._bursts.begin(3.0)
    assert seen.watched > 100
    assert seen.unwatched > 100
    rank = read_run(tmp_path / "run").ranks[0]
    records = list(EVENT.iter_unpack(rank.events))
    rests = [(start, start + dur) for kind, _, _, start, dur, _ in records if kind == EventKind.REST]
    steps = [(start, start + dur, number) for kind, _, _, start, dur, number in records if kind == EventKind.STEP]
    assert rests
    assert not any(start < end_of and begin < end for start, end, _ in steps for begin, end_of in rests)
    numbers = [number for *_, number in steps]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] > 1.3 * len(steps)
    report = profilerkit.analyze(tmp_path / "run")
    spent = {entry.entry: entry.time_ns for entry in report.ledger.entries}
    assert spent["step.unrecorded"] == pytest.approx(sum(end - begin for begin, end in rests), rel=0.01)
    assert not [outcome for outcome in report.outcomes if outcome.rule == "RU002" and outcome.status == "fired"]
