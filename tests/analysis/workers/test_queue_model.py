"""The replayed queue against a simulation of the same loader event by event, written after torch's own code."""

import heapq
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilerkit.analysis.workers.queue import replay_queue


class Simulated:
    """Workers, their inboxes and the loop's side of the iterator, moved from event to event.

    The names of the loop's side are torch's. Of batches that arrive at the same instant the lowest is first.
    """

    def __init__(self, making, using, *, workers, prefetch, delivery=0, start=0, in_order=True):
        self.making, self.using = making, using
        self.workers, self.prefetch, self.delivery, self.in_order = workers, prefetch, delivery, in_order
        self.events = []  # (time, order, batch, what)
        self.inbox = [deque() for _ in range(workers)]
        self.busy = [True] * workers
        self.data_queue = deque()
        self.made = {}
        self.task_info = {}
        self.num_tasks = [0] * workers
        self.send_idx = self.rcvd_idx = self.turn = 0
        for worker in range(workers):
            heapq.heappush(self.events, (start, -1, worker, "started"))
        for _ in range(workers * prefetch):
            self.try_put_index(0)

    def try_put_index(self, now):
        if self.send_idx == len(self.making):
            return
        for _ in range(self.workers):
            worker, self.turn = self.turn, (self.turn + 1) % self.workers
            if self.in_order or self.num_tasks[worker] < self.prefetch:
                break
        self.inbox[worker].append(self.send_idx)
        self.task_info[self.send_idx] = worker
        self.num_tasks[worker] += 1
        self.send_idx += 1
        self.work(worker, now)

    def work(self, worker, now):
        if not self.busy[worker] and self.inbox[worker]:
            self.busy[worker] = True
            batch = self.inbox[worker].popleft()
            heapq.heappush(self.events, (now + self.making[batch], worker, batch, "made"))

    def advance(self):
        """Handle one event; returns its time."""
        now, key, batch, what = heapq.heappop(self.events)
        if what == "started":
            self.busy[batch] = False
            self.work(batch, now)
        elif what == "made":
            self.busy[key] = False
            self.made[batch] = now
            heapq.heappush(self.events, (now + self.delivery, len(self.making) + batch, batch, "arrived"))
            self.work(key, now)
        else:
            self.data_queue.append(batch)
        return now

    def run(self):
        now, got, waits, kept = 0, [], [], set()
        for use in self.using:
            asked = now
            while True:
                while self.events and self.events[0][0] <= now:
                    self.advance()
                if self.in_order and self.rcvd_idx in kept:
                    batch = self.rcvd_idx
                    break
                if not self.data_queue:
                    now = self.advance()
                    continue
                batch = self.data_queue.popleft()
                if not self.in_order or batch == self.rcvd_idx:
                    break
                kept.add(batch)
            kept.discard(batch)
            self.rcvd_idx += 1
            self.num_tasks[self.task_info.pop(batch)] -= 1
            self.try_put_index(now)
            got.append(batch)
            waits.append(now - asked)
            now += use
        return got, waits, now


LOADERS = st.tuples(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=40),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 20),
    st.integers(0, 50),
)


def columns(batches):
    making, using = (np.array(column, dtype=np.int64) for column in zip(*batches, strict=True))
    return making, using


@given(LOADERS, st.booleans())
def test_the_replay_is_what_happens_event_by_event(loader, in_order):
    batches, workers, prefetch, delivery, start = loader
    if not in_order:  # which of two batches that arrive at once is first nobody says: let none do
        batches = [(making * 64 + number, using * 64) for number, (making, using) in enumerate(batches)]
        delivery, start = delivery * 64, start * 64
    making, using = columns(batches)
    found = replay_queue(
        making, using, workers=workers, prefetch=prefetch, delivery_ns=delivery, start_ns=start, in_order=in_order
    )
    simulated = Simulated(
        making.tolist(),
        using.tolist(),
        workers=workers,
        prefetch=prefetch,
        delivery=delivery,
        start=start,
        in_order=in_order,
    )
    got, waits, end = simulated.run()
    assert (found.batch.tolist(), (found.received - found.asked).tolist(), found.end_ns) == (got, waits, end)


@given(LOADERS)
def test_every_batch_comes_once_and_the_times_add_up(loader):
    batches, workers, prefetch, delivery, start = loader
    making, using = columns(batches)
    for in_order in (True, False):
        found = replay_queue(
            making, using, workers=workers, prefetch=prefetch, delivery_ns=delivery, start_ns=start, in_order=in_order
        )
        assert sorted(found.batch.tolist()) == list(range(len(batches)))
        assert (found.received >= found.asked).all()
        assert found.end_ns == (found.received - found.asked).sum() + using.sum()
        assert found.end_ns >= making.sum() / workers
        assert (found.received >= start + delivery + making[found.batch]).all()


@given(LOADERS)
def test_a_deeper_queue_never_waits_longer_in_all(loader):
    batches, workers, prefetch, delivery, start = loader
    making, using = columns(batches)
    given_both = {"workers": workers, "delivery_ns": delivery, "start_ns": start}
    shallow = replay_queue(making, using, prefetch=prefetch, **given_both)
    deep = replay_queue(making, using, prefetch=prefetch + 1, **given_both)
    assert (deep.received <= shallow.received).all()


@given(LOADERS, st.integers(0, 39), st.integers(1, 50))
def test_a_slower_batch_never_makes_the_loop_faster(loader, which, more):
    batches, workers, prefetch, delivery, start = loader
    making, using = columns(batches)
    slower = making.copy()
    slower[which % len(slower)] += more
    given_both = {"workers": workers, "prefetch": prefetch, "delivery_ns": delivery, "start_ns": start}
    before, after = (replay_queue(times, using, **given_both) for times in (making, slower))
    assert (after.received >= before.received).all()


def test_a_steady_loader_settles_at_the_slower_of_the_two_sides():
    using = np.full(100, 10)
    for making, workers, period in ((30, 1, 30), (30, 2, 15), (30, 4, 10)):
        found = replay_queue(np.full(100, making), using, workers=workers)
        assert np.diff(found.received)[-48:].mean() == pytest.approx(period)


def test_an_empty_iteration_takes_no_time():
    none = np.empty(0, dtype=np.int64)
    assert replay_queue(none, none, workers=2).end_ns == 0


def test_a_hundred_thousand_batches_are_replayed_in_a_second():
    import time

    times = np.random.default_rng(0).integers(1, 1000, 100_000)
    begun = time.process_time()
    replay_queue(times, times, workers=8)
    assert time.process_time() - begun < 2.0
