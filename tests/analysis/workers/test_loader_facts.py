"""A loader's recorded batches put through its queue again, and its epochs."""

import numpy as np
import pytest

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.rank_facts import rank_facts
from profilerkit.analysis.steps.log import read_log
from profilerkit.analysis.whatif import loader_fix
from profilerkit.analysis.workers.anatomy import worker_facts
from profilerkit.analysis.workers.queue import loading_facts
from profilerkit.model.run import Loader
from profilerkit.rundir.layout import EventFlag, EventKind
from tests.analysis.workers.test_anatomy import rank
from tests.analysis.workers.test_queue_model import Simulated
from tests.recipes import MS, Log, made, worker_batch

US_PER_MS = 1_000
#: What it takes to receive a batch that lies ready, µs.
RECEIVING = 100


def fed(
    making, using, *, workers=2, prefetch=2, start=0, epochs=1, persistent=False, shutdown=0, paused=0, opening=0,
    evaluating=0, **settings,
):  # fmt: skip
    """The record of a loader whose batches take ``making`` and are used ``using`` (both (n,) µs).

    The first fetch of an epoch is told without its first ``paused`` µs, as where a trace window opens in it. The first
    batch of each worker takes ``opening`` more in each epoch. So many workers of an evaluation begin behind each epoch.
    """
    making = [made_us + (opening if number < workers else 0) for number, made_us in enumerate(making)]
    log, batches = Log(), {}
    for epoch in range(epochs):
        kept = [use + RECEIVING for use in using]
        run = Simulated(making, kept, workers=workers, prefetch=prefetch, start=start if not persistent else 0)
        _, waits, _ = run.run()
        began = at = log.at
        for number, (wait, use) in enumerate(zip(waits, using, strict=True)):
            pid = 10 + number % workers + (0 if persistent else workers * epoch)
            log.queue(at, pid, number)
            late, flags = (paused, EventFlag.FIRST) if number == 0 else (0, 0)
            log.record(EventKind.WAIT, at + late, wait + RECEIVING - late, -1, flags=flags)
            begun = began + run.made[number] - making[number]
            idle = None if number < workers else 0
            batch = worker_batch(begun, number, idle=idle, samples=(making[number], 0, 0))
            batches.setdefault(pid, []).append(batch)
            log.step(wait + RECEIVING + use)
            at = log.at
        for number in range(evaluating):
            batches.setdefault(900 + number, []).append(
                worker_batch(log.at - 1, 0, idle=None, samples=(making[-1], 0, 0))
            )
        if shutdown:
            log.record(EventKind.WAIT, log.at, shutdown, -1, flags=EventFlag.LAST)
            log.at += shutdown
    loader = Loader(
        kind="DataLoader", num_workers=workers, prefetch_factor=prefetch, persistent_workers=persistent, **settings
    )
    return rank(log, *batches.items(), loader=loader)


def loading(record):
    log = read_log(record.events, record.names)
    return loading_facts(record, log, worker_facts(record, log))


def time_of(making, using, workers, prefetch=2):
    """Mean step of the loader, µs, without its filling."""
    kept = np.tile(using, 2) + RECEIVING
    _, waits, _ = Simulated(np.tile(making, 2).tolist(), kept.tolist(), workers=workers, prefetch=prefetch).run()
    return (sum(waits[len(making) :]) + sum(using)) / len(making) + RECEIVING


def bursty(n=240, fast=4, slow=160, every=8):
    return [(slow if number % every == 3 else fast) * US_PER_MS for number in range(n)]


def drawn(mean, n=240, seed=0):
    return np.random.default_rng(seed).exponential(mean * US_PER_MS, n).astype(int).tolist()


CASES = {
    "bursty": (bursty(), 2),
    "few slow": (bursty(fast=10, slow=200, every=20), 2),
    "exponential": (drawn(30), 2),
    "slow exponential": (drawn(60), 2),
    "one worker": (drawn(15, seed=1), 1),
    "even": ([60 * US_PER_MS] * 240, 2),
    "three workers": (drawn(70, seed=2), 3),
}


@pytest.mark.parametrize("name", CASES)
def test_the_replay_meets_the_run_and_what_the_run_does_with_other_settings(name):
    making, workers = CASES[name]
    using = [20 * US_PER_MS] * len(making)
    found = loading(fed(making, using, workers=workers)).queue
    assert len(making) - 4 <= found.batches < len(making)  # without those of the warm-up
    assert abs(found.error_ratio) < 0.02
    now = time_of(making, using, workers)
    # Within a tenth of all batches a deep queue fills or empties, by what the window began and ended with.
    for depth, error in ((4, 0.01), (8, 0.035)):
        assert found.by_prefetch[depth] == pytest.approx(1 - time_of(making, using, workers, depth) / now, abs=error)
    for more in (workers + 1, workers + 2, 8):
        assert found.by_workers[more] == pytest.approx(1 - time_of(making, using, more) / now, abs=0.02)


def test_the_replay_of_more_workers_is_nearer_the_truth_than_their_mean_rate():
    by_replay, by_rate = [], []
    for making, workers in CASES.values():
        using = [20 * US_PER_MS] * len(making)
        found = loading(fed(making, using, workers=workers)).queue
        now = time_of(making, using, workers)
        for more in (workers + 1, workers + 2):
            truth = 1 - time_of(making, using, more) / now
            fluid = 1 - max(20 * US_PER_MS + RECEIVING, np.mean(making) / more) / now
            by_replay.append(abs(found.by_workers[more] - truth))
            by_rate.append(abs(fluid - truth))
    assert np.mean(by_replay) < np.mean(by_rate) / 3
    assert max(by_replay) < 0.02 < max(by_rate)


def test_the_proposal_of_more_workers_carries_the_replayed_saving():
    record = fed(drawn(60), [20 * US_PER_MS] * 240)
    facts = Facts([rank_facts("rank_00000", None, record)])
    fix = loader_fix(facts)
    assert fix.workers == 5
    assert fix.expected == pytest.approx(facts.loading.queue.by_workers[5])


def test_a_deeper_queue_is_tried_only_where_it_is_deeper():
    found = loading(fed(bursty(), [20 * US_PER_MS] * 240, prefetch=4)).queue
    assert list(found.by_prefetch) == [8]
    assert list(loading(fed(bursty(), [20 * US_PER_MS] * 240, prefetch=8)).queue.by_prefetch) == []


def test_the_wait_is_told_by_the_batches_that_caused_it():
    assert loading(fed(bursty(), [20 * US_PER_MS] * 240)).queue.slow_ratio > 0.7
    assert loading(fed([60 * US_PER_MS] * 240, [20 * US_PER_MS] * 240)).queue.slow_ratio == 0.0


def test_a_measured_time_that_the_queue_does_not_explain_closes_the_gate():
    record = fed([5 * US_PER_MS] * 60, [20 * US_PER_MS] * 60)
    log = Log()
    for number in range(60):  # each fetch waits 10 ms for a batch that has been there for long
        log.queue(log.at, 10 + number % 2, number)
        log.step(30 * US_PER_MS, wait=10 * US_PER_MS if number % 2 else 50)
    slowed = type(record)(**{name: getattr(record, name) for name in record.__struct_fields__} | {"events": log.data})
    found = loading(slowed).queue
    assert abs(found.error_ratio) > 0.05
    assert not found.is_faithful
    assert loading(record).queue.is_faithful


def test_few_fetches_tell_nothing_of_a_queue():
    assert loading(fed([5_000] * 17, [20_000] * 17)).queue is not None  # of which the first step is warm-up
    assert loading(fed([5_000] * 16, [20_000] * 16)).queue is None


def test_samples_of_a_batch_are_counted():
    assert loading(fed([5_000] * 20, [20_000] * 20)).items == 4.0


# Epochs


def test_what_lies_between_epochs_is_measured():
    record = fed([5_000] * 20, [10_000] * 20, epochs=5, start=80_000, shutdown=15_000)
    found = loading(record).epochs
    assert (found.count, found.steps, found.renewed) == (5, 20.0, True)
    # Workers start for 80 ms, make a batch in 5, and end in 15.
    assert found.boundary_ns == pytest.approx(100 * MS)
    assert found.opening_ns == pytest.approx(85 * MS)
    assert found.restart_ns == pytest.approx(95 * MS, abs=0.3 * MS)
    assert found.time_ns == pytest.approx(85 * MS + 20 * (10 * MS + RECEIVING * US_PER_MS) + 15 * MS, rel=0.02)
    assert abs(loading(record).queue.error_ratio) < 0.02


def test_a_window_that_opens_in_the_first_fetch_of_an_epoch_moves_no_worker_to_the_one_before():
    found = loading(fed([5_000] * 20, [10_000] * 20, epochs=5, start=80_000, shutdown=15_000, paused=40_000)).epochs
    assert (found.count, found.renewed) == (5, True)


def test_workers_that_are_kept_are_seen():
    found = loading(fed([5_000] * 20, [10_000] * 20, epochs=3, start=80_000, persistent=True)).epochs
    assert (found.count, found.renewed) == (3, False)
    assert found.restart_ns == pytest.approx(0.0, abs=0.3 * MS)
    assert found.boundary_ns == pytest.approx(5 * MS)


def test_what_new_workers_open_is_paid_again_in_every_epoch():
    starting = {"epochs": 5, "start": 80_000, "shutdown": 15_000, "opening": 400_000}
    found = loading(fed([5_000] * 20, [10_000] * 20, **starting)).epochs
    assert found.restart_ns == pytest.approx(495 * MS, rel=0.01)
    # Kept workers begin a stream anew: their own start is all that is saved for certain.
    stream = loading(fed([5_000] * 20, [10_000] * 20, is_iterable=True, **starting)).epochs
    assert stream.restart_ns == pytest.approx(95 * MS, rel=0.01)


@pytest.mark.parametrize("evaluating", [0, 3])
def test_a_slow_loader_of_one_worker_is_no_restart(evaluating):
    slow = fed([60_000] * 20, [20_000] * 20, workers=1, epochs=4, persistent=True, evaluating=evaluating)
    found = loading(slow).epochs
    assert found.restart_ns == pytest.approx(0.0, abs=0.3 * MS)


def test_a_single_epoch_has_no_boundary():
    found = loading(fed([5_000] * 20, [10_000] * 20)).epochs
    assert (found.count, found.steps, found.boundary_ns, found.restart_ns, found.renewed) == (1, None, None, None, None)
    assert found.first_wait_ns == pytest.approx(RECEIVING * US_PER_MS)
    assert found.later_wait_ns is None


def test_an_epoch_without_workers_has_waits_alone():
    log = Log()
    for wait in (8_000, 2_000, 2_000):
        for number in range(10):
            log.step(10_000, wait=wait, wait_flags=EventFlag.FIRST if number == 0 else 0)
    found = loading(rank(log)).epochs
    assert (found.count, found.steps, found.renewed, found.restart_ns) == (3, 10.0, None, None)
    assert (found.first_wait_ns, found.later_wait_ns) == (8 * MS, 2 * MS)
    assert (found.first_stored_ratio, found.later_stored_ratio) == (None, None)


def test_bytes_from_storage_are_told_apart_by_epoch():
    log, batches = Log(), []
    for epoch in range(3):
        for number in range(10):
            log.queue(log.at, 10, number)
            stored = 900 if epoch == 0 else 0
            batches.append(worker_batch(log.at + 10, number, samples=(500, 0, 0), read=1_000, stored=stored))
            log.step(10_000, wait=1_000, wait_flags=EventFlag.FIRST if number == 0 else 0)
    found = loading(rank(log, (10, batches))).epochs
    assert (found.first_stored_ratio, found.later_stored_ratio) == (0.9, 0.0)


def test_fetches_of_other_loaders_open_no_epoch():
    log = Log()
    for number in range(10):
        for flag in (EventFlag.OTHER_LOADER, EventFlag.OTHER_THREAD, EventFlag.IN_PHASE):
            log.record(EventKind.WAIT, log.at + 5_000, 100, flags=flag | EventFlag.FIRST)
        log.step(10_000, wait=1_000, wait_flags=EventFlag.FIRST if number == 0 else 0)
    assert loading(rank(log)).epochs.count == 1


def test_without_a_first_fetch_there_are_no_epochs():
    assert loading(rank(Log().steps(10, 10_000, wait=100))).epochs is None
    assert loading_facts(None, None, made()) is None


def test_a_worker_that_is_always_late_leaves_no_wait_where_there_are_enough():
    """No batch ever lies ready then, so the shortest wait is no time of receiving."""
    making, using = [60 * US_PER_MS] * 60, [20 * US_PER_MS] * 60
    queue = loading(fed(making, using, workers=1)).queue
    assert queue.is_faithful
    assert queue.by_workers[2] == pytest.approx(0.5, abs=0.02)
    assert queue.by_workers[3] == pytest.approx(2 / 3, abs=0.02)


def test_a_pause_at_the_first_fetch_leaves_its_step_in_its_epoch():
    log = Log()
    for paused in (0, 0, 2_000):
        for number in range(10):
            first = number == 0
            log.record(EventKind.WAIT, log.at + paused * first, 1_000, -1, flags=EventFlag.FIRST if first else 0)
            log.step(10_000)
    assert loading(rank(log)).epochs.steps == 10.0
