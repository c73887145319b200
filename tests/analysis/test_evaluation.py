"""Evaluation that nobody named, by hand-made logs: what the steps, the input and the live view say of it."""

import numpy as np
import pytest

from profilerkit.analysis.events import EVENT_DTYPE, with_evaluation
from profilerkit.analysis.live import live_of
from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.api import analyze
from profilerkit.model.finding import in_order
from profilerkit.rundir.follow import FollowedRun
from profilerkit.rundir.layout import EventFlag, EventKind, Feature
from profilerkit.rundir.reader import read_run
from tests.recipes import MS, US, Log, rank_meta, rank_record, write_run

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


def record_of(log, **features):
    """A rank's record; ``features`` by name that are on or off."""
    states = {name: Feature(on=on) for name, on in features.items()}
    return rank_record(log, meta=rank_meta(features=states))


def passes_of(log, **features):
    """Start and length of each pass that was found, ms."""
    record = with_evaluation(record_of(log, **features))
    events = np.frombuffer(record.events, dtype=EVENT_DTYPE)
    found = events[(events["kind"] == EventKind.PHASE) & ((events["flags"] & EventFlag.INFERRED) != 0)]
    return [(int(start) // MS, int(length) // MS) for start, length in zip(found["start"], found["dur"], strict=True)]


def trained(log, *, fetches=1, edge=0, beside=(), backward=True, optimizer=True):
    """A step of 10 ms: fetches, those of a loader beside it with these flags, then what trains."""
    at = log.at
    for flags in beside:
        log.record(EventKind.WAIT, at, 200, flags=EventFlag.OTHER_LOADER | flags)
        at += 300
    for number in range(fetches):
        log.record(EventKind.WAIT, at, 200, flags=0 if number else edge)
        at += 300
    if backward:
        log.record(EventKind.BACKWARD, log.at + 5_000, 1_000)
    if optimizer:
        log.record(EventKind.OPTIMIZER, log.at + 7_000, 500)
    log.step(10_000)


FIRST, LAST = EventFlag.FIRST, EventFlag.LAST


@pytest.mark.parametrize(
    "beside",
    [
        [()] * 9 + [(LAST, FIRST)],  # begun again every tenth step
        [(0,)] * 9 + [(0, LAST, FIRST)],  # one batch in every step
        [(0, 0)] * 9 + [(0, LAST, FIRST, 0)],  # two
    ],
    ids=["now and then", "one per step", "two per step"],
)
def test_a_loader_read_beside_the_training_is_no_evaluation(beside):
    log = Log()
    for step in range(60):
        trained(log, beside=beside[step % len(beside)])
    assert passes_of(log) == []


def test_an_evaluation_beside_a_second_training_loader_is_one():
    log = Log()
    for step in range(60):
        trained(log, beside=(0,) if step != 30 else (0, 0, FIRST, *(0,) * 8, LAST))
    assert len(passes_of(log)) == 1


def test_two_loaders_that_are_begun_again_together_are_no_evaluation():
    log = Log()
    for step in range(60):
        if step % 10 == 9:
            for edge in (LAST, FIRST, LAST, FIRST):
                log.record(EventKind.WAIT, log.at, 200, flags=edge)
                log.at += 300
            trained(log, fetches=0)
        else:
            trained(log, fetches=2)
    assert passes_of(log) == []


@pytest.mark.parametrize("ahead", [1, 2, 3, 4])
def test_batches_that_are_fetched_ahead_are_no_evaluation(ahead):
    log = Log()
    for _ in range(5):
        for number in range(20):
            trained(log, fetches=ahead if not number else 1 if number <= 20 - ahead else 0, edge=0 if number else FIRST)
    assert passes_of(log) == []


def test_where_backward_passes_are_timed_no_longer_training_is_no_evaluation():
    log = Log()
    for _ in range(5):
        for number in range(40):
            timed = log.count < 50  # by an optimizer that nothing sees
            trained(log, edge=0 if number else FIRST, backward=timed, optimizer=timed)
        log.record(EventKind.WAIT, log.at, 100, flags=LAST)
    assert passes_of(log, backward=False) == []


@pytest.mark.parametrize("on", [True, False])
def test_micro_batches_are_no_evaluation_where_their_backward_passes_are_timed_no_longer(on):
    log = Log()
    for epoch in range(5):
        for number in range(20):
            for micro in range(8):
                at = log.at + 1_000 * micro
                log.record(EventKind.WAIT, at, 200, flags=0 if number or micro else FIRST)
                if on or epoch < 3:
                    log.record(EventKind.BACKWARD, at + 300, 400)
            log.record(EventKind.OPTIMIZER, log.at + 8_000, 500)
            log.step(10_000)
    assert passes_of(log, backward=on) == []


def test_epochs_whose_training_leaves_no_record_but_steps_are_no_evaluation():
    log = Log()
    for epoch in range(5):
        for number in range(30):
            trained(log, edge=0 if number else FIRST, backward=epoch < 2, optimizer=epoch < 2)
        log.record(EventKind.WAIT, log.at, 100, flags=LAST)
    assert passes_of(log) == []


def test_a_pass_around_another_loaders_fetches_is_marked_whole():
    log = epochs(2)
    inside = [record for record in log.records if record[0] == EventKind.WAIT and record[4] == 8 * MS]
    for record in inside[3:5]:
        log.records[log.records.index(record)] = (record[0], EventFlag.OTHER_LOADER, *record[2:])
    events = np.frombuffer(with_evaluation(record_of(log)).events, dtype=EVENT_DTYPE)
    assert np.count_nonzero(events["flags"][events["dur"] == 8 * MS] & EventFlag.IN_PHASE) == BATCHES


def test_a_phase_whose_name_was_lost_does_not_become_the_evaluation():
    log = epochs()
    log.record(EventKind.PHASE, 15_000, 3_000, name=1)
    record = with_evaluation(record_of(log))
    assert record.names == {2: "evaluation"}


def test_records_without_such_a_pass_are_as_they_were():
    for log in (epochs(1), Log()):
        assert with_evaluation(record_of(log)) == record_of(log)


def test_only_the_fetches_of_the_pass_are_marked_and_one_phase_per_pass_is_added():
    log = epochs()
    before = np.frombuffer(log.data, dtype=EVENT_DTYPE)
    record = with_evaluation(record_of(log))
    events = np.frombuffer(record.events, dtype=EVENT_DTYPE)
    added, kept = events[len(before) :], events[: len(before)]
    changed = kept["flags"] != before["flags"]
    assert np.count_nonzero(changed) == 3 * (BATCHES + 1)
    assert set(kept["kind"][changed].tolist()) == {EventKind.WAIT}
    assert [record.names[int(number)] for number in added["name"]] == ["evaluation"] * 3
    assert added["dur"].tolist() == [(PASS_US + 50) * US] * 3
    assert with_evaluation(record) == record  # what has been found once is not found again


def test_an_evaluation_that_reads_a_loader_on_is_not_told_from_training(tmp_path):
    # Nothing sets these fetches apart from batches that are fetched and dropped.
    assert "other.eval" not in facts_of(tmp_path, epochs(own_loader=False)).log.phases


def test_the_live_view_takes_no_evaluation_for_a_wait(tmp_path):
    path = write_run(tmp_path / "run", [epochs()], ended=False)
    found = live_of(FollowedRun(path).look(), {0: "running"}, None, 0)
    assert found.ranks[0].wait_ns == 2 * MS


def test_the_report_counts_one_batch_per_step(tmp_path):
    report = analyze(write_run(tmp_path / "run", [epochs(8)]))
    assert report.run.batches_per_step == pytest.approx(1.0)
    assert "RU002" in {outcome.rule for outcome, _ in in_order(report.outcomes)}
    entry = next(entry for entry in report.ledger.entries if entry.entry == "evaluation")
    assert (entry.count, entry.source) == (7, "inferred")


def loop(log, *, steps=60, every=20, length=100_000, calls=1, inside=()):
    """Steps of 10 ms with a model evaluated before every so many of them; nothing sees what is read there.

    Args:
        log: to write to.
        steps: of the training.
        every: steps from one evaluation to the next.
        length: of an evaluation, µs.
        calls: of ``eval()`` in it.
        inside: kind, start after the beginning, duration and flags of what else is recorded then.
    """
    for step in range(steps):
        if step % every == 0:
            for call in range(calls):
                log.record(EventKind.EVALUATION, log.at + 100 + call * length / calls, 0)
            for kind, start, duration, *flags in inside:
                log.record(kind, log.at + start, duration, flags=flags[0] if flags else 0)
            start = log.at
            log.at += length
            log.record(EventKind.BACKWARD, log.at + 5_000, 1_000)
            log.record(EventKind.OPTIMIZER, log.at + 7_000, 500)
            log.at = start
            log.step(10_000 + length)
        else:
            trained(log, fetches=0)
    return log


def lengths_of(log, **features):
    return [length for _, length in passes_of(log, **features)]


@pytest.mark.parametrize("calls", [1, 2, 10])
@pytest.mark.parametrize("features", [{}, {"backward": False}], ids=["backward", "no backward"])
def test_a_model_in_evaluation_mode_that_reads_no_loader_is_an_evaluation(calls, features):
    """One per gap, however often the mode is changed in it; before the first step nothing tells how long it was."""
    assert lengths_of(loop(Log(), calls=calls), **features) == [100, 100]


def test_its_time_is_the_evaluations_and_says_that_it_was_derived(tmp_path):
    found = facts_of(tmp_path, loop(Log(), steps=80))
    part = next(part for part in found.parts if part.part == "other.eval")
    assert part.source == "derived"
    assert part.share == pytest.approx(3 * 100 / (80 * 10 + 3 * 100), rel=0.05)
    (stall,) = [stall for stall in found.stalls if stall.part == "other.eval"]
    assert (stall.kind, stall.count, stall.period) == ("evaluation", 3, 20)


def test_a_checkpoint_beside_it_is_no_part_of_it():
    assert lengths_of(loop(Log(), inside=[(EventKind.SAVE, 70_000, 30_000)])) == [70, 70]


def test_it_ends_before_the_next_batch_of_the_training_and_before_the_next_step():
    """Of 100 ms the batch takes what it takes elsewhere; where it took longer, that is not the evaluation's."""
    log = Log()
    for step in range(60):
        if step % 20 == 0:
            log.record(EventKind.EVALUATION, log.at + 100, 0)
            log.at += 50_000
        log.record(EventKind.WAIT, log.at, 200 if step % 20 else 3_000)
        if step % 20 == 0:
            log.at += 3_000
        trained(log, fetches=0)
    assert lengths_of(log) == [49, 49]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, 2),
        ({"inside": [(EventKind.SAVE, 200, 10)]}, 2),
        ({"inside": [(EventKind.PHASE, 0, 100_000)]}, 0),  # it has a name
        ({"inside": [(EventKind.WAIT, 50_000, 100)]}, 2),  # the training fetches none
        ({"inside": [(EventKind.WAIT, 50_000, 100, EventFlag.OTHER_THREAD)]}, 2),
        ({"inside": [(EventKind.OPTIMIZER, 0, 99_900)]}, 0),  # it trains meanwhile
        ({"length": 0}, 0),  # it takes no time
        ({"every": 2, "steps": 20}, 9),
        ({"every": 1, "steps": 20}, 0),  # it is a part of every step
        ({"steps": 22}, 1),
        ({"steps": 3, "every": 2}, 0),  # nothing tells how long a gap usually is
    ],
)
def test_what_the_mode_tells_and_what_it_does_not(change, found):
    assert len(passes_of(loop(Log(), **change))) == found


@pytest.mark.parametrize("ends", [True, False], ids=["for", "next"])
def test_one_batch_is_an_evaluation_where_the_models_mode_says_so(ends):
    """Between epochs, and behind the last, with a loader of one batch that is read to its end or for its first."""
    log, fetch = Log().steps(1, 10_000, wait=2_000), EventKind.WAIT
    for epoch in range(4):
        for step in range(EPOCH):
            edge = EventFlag.FIRST if not step else 0
            log.record(EventKind.BACKWARD, log.at + 5_000, 1_000)
            log.record(EventKind.OPTIMIZER, log.at + 7_000, 500)
            log.step(10_000, wait=2_000, wait_flags=edge)
        log.record(fetch, log.at, 100, flags=EventFlag.LAST)
        if epoch < 3:
            log.record(EventKind.EVALUATION, log.at + 150, 0)
        log.record(fetch, log.at + 200, 1_000, flags=EventFlag.FIRST)
        if ends:
            log.record(fetch, log.at + 90_000, 50, flags=EventFlag.LAST)
        log.at += 100_000
    assert lengths_of(log) == [99, 99, 99, *([89] if ends else [])]


def test_other_threads_tell_nothing():
    log = loop(Log())
    log.records = [
        (kind, flags | EventFlag.OTHER_THREAD if kind == EventKind.EVALUATION else flags, *rest)
        for kind, flags, *rest in log.records
    ]
    assert passes_of(log) == []


def test_what_the_mode_has_told_once_is_not_told_again():
    record = with_evaluation(record_of(loop(Log())))
    assert with_evaluation(record) == record
