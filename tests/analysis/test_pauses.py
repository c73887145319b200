"""What training stands still for, spread over the steps of a recorded run."""

import pytest

from profilerkit.analysis.events import with_evaluation
from profilerkit.analysis.steps.log import read_log
from profilerkit.analysis.steps.wall_clock import account, pauses
from profilerkit.rundir.layout import EventKind, WindowStatus
from tests.recipes import MS, US, Log, rank_record


def told(log, windows=()):
    record = with_evaluation(rank_record(log, windows=windows))
    log = read_log(record.events, record.names)
    return {pause.kind: pause for pause in pauses(record, log, account(record, log))}


def test_a_checkpoint_every_ten_steps_is_spread_over_all_of_them():
    log = Log().steps(1, 10_000)  # warm-up
    for _ in range(5):
        log.steps(9, 10_000)
        log.step(110_000, phase=("checkpoint", 100_000))
    (found,) = told(log).values()
    assert (found.kind, found.count, found.steps) == ("checkpoint", 5, 50)
    assert found.time_ns == 500 * MS
    assert found.share == pytest.approx(0.5)
    assert (found.each_ns, found.steps_apart) == (100 * MS, 10.0)
    assert not found.inferred


def test_saves_that_nobody_named_are_checkpoints_and_nested_ones_count_once():
    log = Log().steps(10, 10_000)
    start = log.step(50_000, phase=("save model", 30_000))
    log.record(EventKind.SAVE, start + 1_000, 20_000)
    start = log.step(50_000)
    log.record(EventKind.SAVE, start + 1_000, 10_000)
    log.steps(10, 10_000)
    found = told(log)["checkpoint"]
    assert (found.count, found.time_ns) == (2, 40 * MS)


@pytest.mark.parametrize("kind", ["checkpoint", "evaluation"])
def test_what_follows_each_other_with_no_training_between_counts_once(kind):
    """The files of one checkpoint; validation, then test."""
    log = Log().steps(1, 10_000)
    for _ in range(4):
        log.steps(9, 10_000)
        start = log.at
        for part in range(3):
            log.record(EventKind.PHASE, start + 10_000 + 30_000 * part, 20_000, name=log.name(kind))
        log.step(110_000)
    found = told(log)[kind]
    assert (found.count, found.steps_apart, found.each_ns) == (4, 10.0, 60 * MS)


def test_what_lies_behind_the_last_step_is_no_pause_but_one_of_the_runs():
    log = Log().steps(11, 10_000)
    log.step(60_000, phase=("evaluation", 50_000))
    log.steps(9, 10_000)
    log.record(EventKind.PHASE, log.at, 50_000, name=log.name("evaluation"))
    found = told(log)["evaluation"]
    assert (found.count, found.run_count, found.time_ns) == (1, 2, 50 * MS)


def test_a_checkpoint_inside_an_evaluation_is_the_checkpoints():
    log = Log().steps(10, 10_000)
    start = log.step(60_000, phase=("evaluation", 50_000))
    log.record(EventKind.SAVE, start + 10_000, 20_000)
    log.steps(10, 10_000)
    found = told(log)
    assert (found["evaluation"].time_ns, found["checkpoint"].time_ns) == (30 * MS, 20 * MS)


def test_what_lies_in_the_warm_up_or_behind_the_last_step_is_no_pause():
    log = Log()
    log.step(500_000, phase=("checkpoint", 400_000))
    log.steps(20, 10_000)
    log.record(EventKind.PHASE, log.at + 1_000, 900_000, name=log.name("evaluation"))
    assert told(log) == {}


def test_evaluation_that_nobody_named_is_inferred_from_its_fetches():
    log = Log()
    for epoch in range(3):
        for _ in range(10):
            log.record(EventKind.BACKWARD, log.at + 5_000, 1_000)
            log.record(EventKind.OPTIMIZER, log.at + 7_000, 500)
            log.step(10_000, wait=100)
        if epoch < 2:  # ten batches that train nothing, 5 ms each
            for batch in range(10):
                flags = 2 if batch == 0 else 4 if batch == 9 else 0
                log.record(EventKind.WAIT, log.at + 5_000 * batch, 200, flags=flags)
            log.at += 50_000
    found = told(log)
    assert set(found) == {"evaluation"}
    assert found["evaluation"].inferred
    assert found["evaluation"].count == 2
    assert found["evaluation"].time_ns == pytest.approx(2 * 45_200 * US)


@pytest.mark.parametrize(("graphs", "told_of"), [(256, True), (0, False)])
def test_graphs_between_the_batches_of_an_evaluation_are_needless(graphs, told_of):
    log = Log().steps(1, 10_000)
    for _ in range(3):
        log.steps(9, 10_000)
        start = log.step(110_000, phase=("evaluation", 100_000))
        for batch in range(10):
            # Before the first one the training's forward pass made a graph.
            log.record(EventKind.WAIT, start + 10 + 9_000 * batch, 200, flags=32 | (2 | 256 if batch == 0 else graphs))
    found = told(log)["evaluation"]
    assert (found.batches, found.records_graphs) == (10.0, told_of)


def test_the_writing_of_traces_is_not_time_of_the_run():
    log = Log().steps(10, 10_000)
    begin = log.at
    log.steps(2, 10_000)
    stopped = log.at
    log.at += 800_000  # the trace is written
    log.window(begin, log.at, 10)
    log.steps(28, 10_000)
    log.step(50_000, phase=("logging", 40_000))
    status = WindowStatus(first_step=10, last_step=11, ok=True, end_perf_ns=stopped * US)
    found = told(log, windows=((status, None),))["logging"]
    assert found.share == pytest.approx(40 / (9 * 10 + 20 + 280 + 50), rel=0.05)


def test_a_run_that_never_stands_still_has_no_pauses():
    assert told(Log().steps(20, 10_000)) == {}
