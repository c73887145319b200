"""Evaluation that nobody named, by hand-made logs: what the steps, the input and the live view say of it."""

import numpy as np
import pytest

from profilerkit.analysis.evaluation import with_evaluation
from profilerkit.analysis.events import EVENT_DTYPE
from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.api import analyze
from profilerkit.rundir.layout import EventFlag, EventKind
from profilerkit.rundir.reader import read_run
from tests.recipes import MS, US, Log, write_run

PASS_US, BATCHES, EPOCH = 90_000, 9, 20


def epochs(count=4, *, flags=0, own_loader=True):
    """Epochs of 20 steps of 10 ms that wait 2 ms, with a pass of nine batches of 10 ms, 8 ms of them waiting, between.

    Args:
        count: epochs.
        flags: of the fetches of the pass.
        own_loader: the pass begins and ends an iteration of a loader; otherwise it goes on with one.
    """
    log = Log().steps(1, 10_000, wait=2_000)
    for epoch in range(count):
        for step in range(EPOCH):
            edge = EventFlag.FIRST if not step else 0
            log.record(EventKind.BACKWARD, log.at + 5_000, 1_000)
            log.record(EventKind.OPTIMIZER, log.at + 7_000, 500)
            log.step(10_000, wait=2_000, wait_flags=edge)
        log.record(EventKind.WAIT, log.at, 100, flags=EventFlag.LAST)
        if epoch < count - 1:
            for batch in range(BATCHES):
                edge = EventFlag.FIRST if own_loader and not batch else 0
                log.record(EventKind.WAIT, log.at + 200 + 10_000 * batch, 8_000, flags=flags | edge)
            if own_loader:
                log.record(EventKind.WAIT, log.at + 200 + PASS_US, 50, flags=flags | EventFlag.LAST)
            log.at += 200 + PASS_US + 50
    return log


def facts_of(tmp_path, log):
    return rank_facts("rank", None, read_run(write_run(tmp_path / "run", [log])).ranks[0])


@pytest.mark.parametrize("flags", [0, EventFlag.OTHER_LOADER], ids=["unedited", "another loader is wrapped"])
def test_its_fetches_feed_no_step_and_its_time_has_a_name(tmp_path, flags):
    found = facts_of(tmp_path, epochs(flags=flags))
    steady = found.log.steady
    assert found.input.fetches == np.count_nonzero(steady)
    assert set(found.log.wait[steady].tolist()) == {2 * MS}
    spent = found.log.phases["other.eval"][steady]
    assert sorted(set(spent.tolist())) == [0, (PASS_US + 50) * US]
    assert np.count_nonzero(spent) == 3
    part = next(part for part in found.parts if part.part == "other.eval")
    assert (part.source, part.share) == ("derived", pytest.approx(3 * 90 / (80 * 10 + 3 * 90), rel=0.05))


def test_it_recurs_as_a_pause_that_nobody_named(tmp_path):
    (stall,) = [stall for stall in facts_of(tmp_path, epochs(6)).stalls if stall.part == "other.eval"]
    assert (stall.kind, stall.count, stall.period, stall.source) == ("evaluation", 5, EPOCH, "derived")
    assert stall.excess_ns == pytest.approx(90 * MS, rel=0.01)


def test_a_phase_that_the_user_named_stays_measured(tmp_path):
    log = Log().steps(10, 10_000)
    for _ in range(4):
        log.step(60_000, phase=("evaluation", 50_000))
        log.steps(9, 10_000)
    found = facts_of(tmp_path, log)
    assert {stall.source for stall in found.stalls if stall.part == "other.eval"} == {"measured"}
    assert next(part.source for part in found.parts if part.part == "other.eval") == "measured"


def test_a_loader_read_beside_the_training_once_per_step_is_no_evaluation():
    log = Log()
    for _ in range(20):
        log.record(EventKind.WAIT, log.at - 500, 400, flags=EventFlag.OTHER_LOADER)
        log.record(EventKind.BACKWARD, log.at + 5_000, 1_000)
        log.step(10_000, wait=2_000)
    assert with_evaluation(log.data, log.names)[0] == log.data


def test_records_without_such_a_pass_are_as_they_were():
    log = epochs(1)
    assert with_evaluation(log.data, log.names) == (log.data, log.names)
    assert with_evaluation(b"", {}) == (b"", {})


def test_only_the_fetches_of_the_pass_are_marked_and_one_phase_per_pass_is_added():
    log = epochs()
    before = np.frombuffer(log.data, dtype=EVENT_DTYPE)
    data, names = with_evaluation(log.data, log.names)
    events = np.frombuffer(data, dtype=EVENT_DTYPE)
    added, kept = events[len(before) :], events[: len(before)]
    changed = kept["flags"] != before["flags"]
    assert np.count_nonzero(changed) == 3 * (BATCHES + 1)
    assert set(kept["kind"][changed].tolist()) == {EventKind.WAIT}
    assert [names[int(number)] for number in added["name"]] == ["evaluation"] * 3
    assert added["dur"].tolist() == [(PASS_US + 50) * US] * 3
    # What has been found once is not found again.
    assert with_evaluation(data, names) == (data, names)


def test_an_evaluation_that_reads_a_loader_on_is_not_told_from_training(tmp_path):
    # Nothing sets these fetches apart from batches that are fetched and dropped.
    assert "other.eval" not in facts_of(tmp_path, epochs(own_loader=False)).log.phases


def test_the_report_counts_one_batch_per_step(tmp_path):
    report = analyze(write_run(tmp_path / "run", [epochs(8)]))
    assert report.run.batches_per_step == pytest.approx(1.0)
    assert "RU002" in {outcome.rule for outcome, _ in report.findings()}
    entry = next(entry for entry in report.ledger.entries if entry.entry == "evaluation")
    assert (entry.count, entry.source) == (7, "inferred")
