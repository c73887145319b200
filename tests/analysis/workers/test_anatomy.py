"""The workers' records joined to the steps they fed."""

import numpy as np
import pytest

from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.analysis.steps.log import read_log
from profilerkit.analysis.workers.anatomy import (
    WORKER_DTYPE,
    all_records,
    at_one_time,
    judged_fetches,
    latest_records,
    named_wait,
    on_its_way,
    sent_at,
    worker_facts,
)
from profilerkit.rundir.layout import WORKER, EventFlag, EventKind, WorkerState
from profilerkit.rundir.reader import WorkerRecord
from tests.recipes import MS, Log, made, rank_meta, rank_record, worker_batch

STEP = 10_000


def rank(log, *workers, **meta):
    """A rank's record; each worker is (pid, its batches)."""
    return rank_record(
        log,
        meta=rank_meta(0, **meta),
        workers=tuple(
            WorkerRecord(pid=pid, number=number, batches=b"".join(batches))
            for number, (pid, batches) in enumerate(workers)
        ),
    )


def fed(count=12, *, wait=4_000, pids=(10, 11), ready=0, first=0, **batch):
    """Steps of 10 ms, each of which waits 4 ms for a batch made since 8 ms before the wait's end."""
    log, made_by = Log(), {pid: [] for pid in pids}
    for number in range(count):
        pid = pids[number % len(pids)]
        log.queue(log.at, pid, first + number, ready=ready)
        made_by[pid].append(worker_batch(log.at + wait - 8_000, first + number, **batch))
        log.step(STEP, wait=wait)
    return log, made_by


def facts_of(log, made_by):
    record = rank(log, *made_by.items())
    return worker_facts(record, read_log(log.data, log.names))


SEVEN = {"samples": (7_000, 2_000, 1_000), "collate": (500, 400, 0), "handover": (500, 100, 0)}


def test_the_twin_of_the_record_is_as_long_as_it():
    assert WORKER_DTYPE.itemsize == WORKER.size


def test_the_work_on_a_batch_is_divided_by_what_its_threads_did():
    workers = facts_of(*fed(**SEVEN, idle=2_500, read=100, stored=40, size=64, memory=7))
    assert {part.part: part.time_ns for part in workers.parts} == {
        "fetch": 4 * MS,
        "prep": 2 * MS,
        "core": 1 * MS,
        "collate": MS // 2,
        "handover": MS // 10,
    }
    assert sum(part.time_ns for part in workers.parts) == workers.producer_ns == 7_600_000
    assert sum(part.share for part in workers.parts) == pytest.approx(1.0)
    assert workers.interval_ns == 7_500_000
    assert workers.cpu_ns == 2_500_000
    assert workers.cpu_cores == pytest.approx(0.25)
    assert workers.busy_ratio == pytest.approx(0.75, abs=0.02)  # what each waited before the first judged step is out
    assert (workers.count, workers.batches, workers.batches_per_step) == (2, 11, 1.0)
    assert (workers.read_bytes, workers.storage_bytes, workers.batch_bytes, workers.memory_bytes) == (100, 40, 64, 7)
    assert workers.read_bytes_per_s == pytest.approx(10_000)
    handed = workers.stages[2]
    assert (handed.time_ns, handed.cpu_ns, handed.blocked_ns) == (500_000, 100_000, 400_000)


def test_what_the_step_waits_for_is_seen_in_the_awaited_batch():
    workers = facts_of(*fed(**SEVEN))  # the batch began 4 ms before the wait
    assert workers.waited_ratio == {
        "samples": pytest.approx(0.75),
        "collate": pytest.approx(0.125),
        "handover": pytest.approx(0.125),
        "arriving": 0.0,
        "not begun": pytest.approx(0.0),
    }
    assert workers.delivery_ns == 500_000
    late = facts_of(*fed(samples=(2_000, 0, 0)))
    assert late.waited_ratio["arriving"] == 1.0
    assert late.delivery_ns is None


def test_a_run_queue_that_is_not_kept_is_not_zero():
    workers = facts_of(*fed(samples=(7_000, 2_000, None), collate=(500, 400, None), handover=(100, 100, None)))
    assert [part.part for part in workers.parts] == ["fetch", "prep", "collate", "handover"]
    assert {part.source for part in workers.parts} == {"derived"}
    assert workers.time_ns("fetch") == 5 * MS
    assert all(stage.run_queue_ns is None for stage in workers.stages)


def test_what_was_not_measured_is_none():
    workers = facts_of(*fed(idle=None, **SEVEN))
    assert workers.busy_ratio is None
    assert (workers.read_bytes, workers.storage_bytes, workers.batch_bytes, workers.memory_bytes) == (None,) * 4
    assert workers.read_bytes_per_s is None
    assert workers.p99_ns is None
    assert workers.locked_ratio is None


def test_clocks_that_disagree_give_no_negative_time():
    workers = facts_of(*fed(samples=(1_000, 1_300, 200)))
    assert all(part.time_ns >= 0 for part in workers.parts)
    assert workers.producer_ns == MS


def test_queue_depths_are_those_of_the_judged_fetches():
    log, made_by = fed(11, ready=0, **SEVEN)
    for number in range(11, 21):
        log.queue(log.at, 10, number, ready=4)
        made_by[10].append(worker_batch(log.at - 9_000, number, **SEVEN))
        log.step(STEP, wait=10)
    workers = facts_of(log, made_by)
    assert workers.queue_empty_ratio == pytest.approx(0.5)
    assert workers.queue_ready == pytest.approx(2.0)
    assert (workers.queue_p10, workers.queue_p90) == (0.0, 4.0)


def test_workers_of_epochs_are_counted_once_and_those_that_ran_out_of_data_are_not_active():
    pid, rows = np.array([10, 11, 10, 10, 10, 10]), np.zeros(6, dtype=WORKER_DTYPE)
    rows["start"], rows["batch"] = [0, 0, 10, 20, 30, 40], range(6)
    assert at_one_time(pid, rows, rows["start"] + 10) == (2, pytest.approx(6 / 5))  # six batches in the time of five
    later = rows.copy()
    later["start"] += 100
    both = np.r_[rows, later]
    for workers in (pid + 10, pid):  # started again, and kept between epochs
        assert at_one_time(np.r_[pid, workers], both, both["start"] + 10) == (2, pytest.approx(6 / 5))
    parts = {20: 30, 21: 10, 22: 10, 23: 10}  # 60 batches in the time of 30, as fast as two workers are
    pid, at = np.repeat(list(parts), list(parts.values())), np.concatenate([np.arange(n) for n in parts.values()])
    rows = np.zeros(60, dtype=WORKER_DTYPE)
    rows["start"], rows["batch"] = 10 * at, at
    assert at_one_time(pid, rows, rows["start"] + 10) == (4, pytest.approx(2.0))
    even = facts_of(*fed(40, samples=(15_000, 0, 0)))
    assert (even.count, even.active) == (2, pytest.approx(2.0, rel=0.05))


def test_a_thread_sends_one_batch_after_the_other():
    table = np.frombuffer(
        b"".join(worker_batch(start, 0, samples=(1, 0, 0), handover=(spent, 0, 0)) for start, spent in SENDING),
        dtype=WORKER_DTYPE,
    )
    pids = np.array([10, 10, 11, 10])
    assert (sent_at(table, pids) // 1000).tolist() == [40, 70, 16, 205]


#: Beginning of a batch that takes 1 µs, and of its hand-over from where the sender is free, µs.
SENDING = [(9, 30), (19, 30), (10, 5), (199, 5)]


def test_a_batch_that_waits_for_the_sender_is_not_sent_yet():
    """Batches are made in 1 ms each and sent, one after the other, in 10 ms each: the sender is the limit."""
    log, made_by = Log(), {10: []}
    for number in range(12):
        log.queue(log.at, 10, number)
        made_by[10].append(worker_batch(number * 1_000, number, samples=(1_000, 0, 0), handover=(10_000, 9_000, 0)))
        log.step(STEP, wait=4_000)
    workers = facts_of(log, made_by)
    assert workers.waited_ratio["handover"] == pytest.approx(1.0)
    assert workers.awaited_ratio == 1.0


@pytest.mark.parametrize("looked", [lambda number: number % 512 < 64, lambda number: number < 300])
def test_batches_that_were_not_looked_at_count_as_well(looked):
    """Capture looks at an eighth of the fetches of a long run, and at none once that has become too dear."""
    log, made_by = fed(1_500, read=100, **SEVEN)
    number = iter(range(1_500))
    log.records = [record for record in log.records if record[0] != EventKind.QUEUE or looked(next(number))]
    few, every = facts_of(log, made_by), facts_of(*fed(1_500, read=100, **SEVEN))
    assert few.batches < every.batches / 3
    assert few.batches_per_step == pytest.approx(every.batches_per_step, rel=0.01)
    assert few.cpu_cores == pytest.approx(every.cpu_cores, rel=0.01)
    assert few.read_bytes_per_s == pytest.approx(every.read_bytes_per_s, rel=0.01)


def test_a_batch_number_that_comes_again_is_the_one_made_last():
    log, made_by = fed(6, pids=(10,), samples=(1_000, 0, 0))
    for number in range(6):  # a second epoch of the same, persistent worker
        log.queue(log.at, 10, number)
        made_by[10].append(worker_batch(log.at - 3_000, number, samples=(3_000, 0, 0)))
        log.step(STEP, wait=4_000)
    workers = facts_of(log, made_by)
    assert workers.batches == 11
    assert workers.producer_ns == round((5 * MS + 6 * 3 * MS) / 11)


def test_records_are_found_by_process_number_and_time():
    records = np.frombuffer(
        b"".join(worker_batch(start, number) for start, number in [(5, 1), (1, 1), (9, 1), (2, 2), (3, 1)]),
        dtype=WORKER_DTYPE,
    )
    pids = np.array([10, 10, 10, 10, 11])
    pid = np.array([10, 10, 10, 10, 11, 12, 10])
    number = np.array([1, 1, 1, 2, 1, 1, 3])
    before = np.array([4_000, 6_000, 99_000, 99_000, 2_000, 99_000, 99_000])
    assert latest_records(records, pids, pid, number, before).tolist() == [1, 0, 2, 3, -1, -1, -1]


def test_loaders_that_do_not_feed_the_training_are_left_out():
    log, made_by = fed(**SEVEN)
    made_by[12] = []
    for number in range(12):
        at = number * STEP + 5_000
        log.queue(at, 12, number)
        log.record(EventKind.WAIT, at, 1_000, flags=EventFlag.IN_PHASE)
        made_by[12].append(worker_batch(at, number, samples=(90_000, 0, 0)))
    for number in range(12):
        log.queue(number * STEP + 7_000, 12, number, flags=EventFlag.OTHER_THREAD)
    workers = facts_of(log, made_by)
    assert workers.count == 2
    assert workers.producer_ns == 7_600_000


@pytest.mark.parametrize("missing", ["records", "queue", "one worker", "waits"])
def test_what_is_missing_costs_no_more_than_itself(missing):
    log, made_by = fed(wait=0 if missing == "waits" else 4_000, **SEVEN)
    if missing == "records":
        made_by = {}
    if missing == "queue":
        log.records = [record for record in log.records if record[0] != EventKind.QUEUE]
    if missing == "one worker":
        del made_by[11]
        assert facts_of(log, made_by).batches == 5
        return
    assert facts_of(log, made_by) is None


def test_no_workers_are_no_records():
    records, pids = all_records(())
    assert (len(records), len(pids)) == (0, 0)
    log, _ = fed()
    assert len(judged_fetches(log.data, read_log(log.data, {}), records, pids).start) == 11


def test_looks_at_blocked_workers_tell_how_often_they_are_at_a_lock():
    log, made_by = fed(**SEVEN)
    for number, state in enumerate([WorkerState.LOCK] * 4 + [WorkerState.BLOCKED] * 4 + [WorkerState.RUNNING] * 9):
        log.record(EventKind.LOOK, 20_000 + number, 0, int(state), name=10)
    log.record(EventKind.LOOK, 20_000, 0, int(WorkerState.LOCK), name=99)  # somebody else's worker
    assert facts_of(log, made_by).locked_ratio == 0.5


@pytest.mark.parametrize(
    ("shares", "cpu_ratio", "leaf"),
    [
        ({"fetch": 0.5}, None, "input.fetch"),
        ({"fetch": 0.5 - 1e-6, "core": 0.2}, None, "input.wait"),
        ({"fetch": 0.2}, None, "input.prep"),
        ({"collate": 0.3, "handover": 0.2, "fetch": 0.4}, None, "input.ipc"),
        ({"core": 0.6}, None, "input.wait"),
        ({"fetch": 0.9, "waited_ratio": {"arriving": 0.8}}, 0.5, "input.ipc"),
        ({"fetch": 0.9, "waited_ratio": {"arriving": 0.8}}, None, "input.fetch"),
    ],
)
def test_the_wait_is_named_after_what_a_batch_mostly_is(shares, cpu_ratio, leaf):
    assert named_wait(made(**shares), cpu_ratio) == leaf


def test_a_hand_over_that_waits_for_a_core_is_not_on_its_way():
    workers = made(waited_ratio={"handover": 0.6})
    assert on_its_way(workers, None) == pytest.approx(0.6)
    stages = tuple(
        stage if stage.stage != "handover" else type(stage)(
            stage="handover", time_ns=100, cpu_ns=25, run_queue_ns=75, blocked_ns=0
        )
        for stage in workers.stages
    )  # fmt: skip
    from profilerkit.model import revise

    assert on_its_way(revise(workers, stages=stages), None) == pytest.approx(0.15)


def test_the_breakdown_names_the_wait_by_the_workers():
    log, made_by = fed(**SEVEN)
    found = rank_facts("rank_00000", None, rank(log, *made_by.items()))
    assert found.share("input.fetch") == pytest.approx(0.4)
    assert found.workers.producer_ns == 7_600_000
    without = rank_facts("rank_00000", None, rank(log))
    assert without.workers is None
    assert without.share("input.fetch") == 0.0


def test_a_hundred_thousand_batches_are_joined_in_no_time():
    import time

    log, made_by = fed(100_000, pids=tuple(range(10, 18)), **SEVEN)
    steps = read_log(log.data, log.names)
    record = rank(log, *made_by.items())
    start = time.perf_counter()
    assert worker_facts(record, steps).batches >= 99_000
    assert time.perf_counter() - start < 3.0
