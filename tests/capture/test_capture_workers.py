"""What happens inside a loader's worker processes, and that the loader does not notice."""

import contextlib
import functools
import os
import queue
import signal
import statistics
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from profilerkit.capture import workers
from profilerkit.capture.clocks import ThreadClock
from profilerkit.capture.guard import Guard
from profilerkit.capture.steps import StepTracker
from profilerkit.capture.workers import WorkerWatch
from profilerkit.rundir.layout import HEADER, UNKNOWN_US, WORKER, EventFlag, EventKind

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def batches_of(run):
    """Rows of every workers, by workers."""
    return {entry.number: list(WORKER.iter_unpack(entry.batches)) for entry in run.rank.workers}


def state_of(run):
    return run.rank.meta.features["workers"]


class Drawing:
    """A dataset whose samples are drawn from every generator a worker seeds."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        import random

        import torch

        return torch.rand(4), random.random(), float(np.random.rand()), os.getppid() and index


def drawn(torch, prof=None, *, wrap=False, **settings):
    torch.manual_seed(7)
    loader = torch.utils.data.DataLoader(Drawing(), batch_size=4, num_workers=2, shuffle=True, **settings)
    shown = prof.wrap(loader) if wrap else loader
    return [[value.tolist() for value in batch] for batch in shown]


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_every_batch_of_every_start_method_is_recorded(toy, light, recorded, method):
    with light() as prof:
        loader = toy.loader(num_workers=2, multiprocessing_context=method)
        for batch in loader:
            toy.train(batch)
    run = recorded(prof.directory)
    assert {number: [row[1] for row in rows] for number, rows in batches_of(run).items()} == {
        0: [0, 2, 4, 6],
        1: [1, 3, 5, 7],
    }
    assert state_of(run).on
    for rows in batches_of(run).values():
        assert [row[3] == UNKNOWN_US for row in rows] == [True, False, False, False]
        for _, _, items, _, samples, _, _, collate, _, _, handover, *_, size, _ in rows:
            assert items == 8
            assert size == 8 * 16 * 4 + 8 * 8
            assert min(samples, collate, handover) > 0


@pytest.mark.parametrize("wrap", [False, True])
def test_each_fetch_names_the_worker_and_the_batch_it_gets(toy, light, recorded, wrap):
    with light() as prof:
        loader = toy.loader(num_workers=2)
        for batch in prof.wrap(loader) if wrap else loader:
            toy.train(batch)
    run = recorded(prof.directory)
    looks = run.of(EventKind.QUEUE)[:8]
    pids = {entry.number: entry.pid for entry in run.rank.workers}
    names = [fields[2] for fields in worker_events(run)][:8]
    assert [look.value >> 32 for look in looks] == list(range(8))
    assert names == [pids[0], pids[1]] * 4
    assert all(0 <= look.value & 0xFFFF <= 4 for look in looks)
    assert not any(look.flags & EventFlag.OTHER_THREAD for look in looks)


def worker_events(run):
    from profilerkit.rundir.layout import EVENT

    return [fields for fields in EVENT.iter_unpack(run.rank.events) if fields[0] == EventKind.QUEUE]


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("settings", [{}, {"persistent_workers": True}, {"prefetch_factor": 4}])
def test_batches_and_seeds_are_those_of_the_bare_loader(toy, light, wrap, settings):
    bare = drawn(toy.torch, **settings)
    with light() as prof:
        watched = drawn(toy.torch, prof, wrap=wrap, **settings)
    assert watched == bare


def test_the_users_own_start_of_a_worker_is_called_with_its_number(toy, light, tmp_path):
    def begin(where, number):
        (where / f"began-{number}").write_text(str(toy.torch.utils.data.get_worker_info().seed))

    seeds = []
    for block in (None, light()):
        where = tmp_path / str(block is None)
        where.mkdir()
        ours = functools.partial(begin, where)
        loader = toy.loader(num_workers=2, worker_init_fn=ours)
        toy.torch.manual_seed(3)
        if block is None:
            list(loader)
        else:
            with block:
                iterator = iter(loader)
                assert loader.worker_init_fn is ours
                list(iterator)
        assert loader.worker_init_fn is ours
        seeds.append([(where / f"began-{number}").read_text() for number in (0, 1)])
    assert seeds[0] == seeds[1]


def test_persistent_workers_count_each_epoch_anew(toy, light, recorded):
    with light() as prof:
        loader = toy.loader(num_workers=2, persistent_workers=True)
        for _ in range(2):
            for batch in loader:
                toy.train(batch)
    run = recorded(prof.directory)
    assert len(run.rank.workers) == 2
    assert [row[1] for row in batches_of(run)[0]] == [0, 2, 4, 6, 0, 2, 4, 6]
    assert [row[3] == UNKNOWN_US for row in batches_of(run)[0]] == [True, False, False, False] * 2


def test_iterable_datasets_are_recorded_and_end_as_they_do(toy, light, recorded):
    torch = toy.torch

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            mine = torch.utils.data.get_worker_info().id
            return iter(range(mine * 10, mine * 10 + 8))

    with light() as prof:
        found = [batch.tolist() for batch in torch.utils.data.DataLoader(Stream(), batch_size=4, num_workers=2)]
    assert sorted(value for batch in found for value in batch) == [*range(8), *range(10, 18)]
    assert sorted(len(rows) for rows in batches_of(recorded(prof.directory)).values()) == [2, 2]


def test_loaders_without_batching_are_recorded(toy, light, recorded):
    with light() as prof:
        loader = toy.torch.utils.data.DataLoader(toy.data, batch_size=None, num_workers=1)
        assert sum(1 for _ in loader) == 64
    assert [row[2] for row in batches_of(recorded(prof.directory))[0]] == [1] * 64


def test_an_error_of_the_dataset_arrives_as_without_us(toy, light):
    class Broken:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index == 5:
                raise KeyError("sample 5")
            return index

    def error():
        with pytest.raises(KeyError) as caught:
            list(toy.torch.utils.data.DataLoader(Broken(), batch_size=2, num_workers=1))
        return str(caught.value)

    bare = error()
    with light():
        watched = error()
    assert watched == bare
    assert "sample 5" in watched


def test_time_is_divided_between_the_cpu_and_waiting(toy, light, recorded):
    class Both:
        def __len__(self):
            return 12

        def __getitem__(self, index):
            if index % 2:
                time.sleep(0.03)
            else:
                end = time.thread_time() + 0.03
                while time.thread_time() < end:
                    pass
            return index

    with light() as prof:
        list(toy.torch.utils.data.DataLoader(Both(), batch_size=1, num_workers=2))
    spun, slept = (batches_of(recorded(prof.directory))[number] for number in (0, 1))
    assert all(row[5] >= 30_000 for row in spun)
    assert all(row[5] < 10_000 and row[4] >= 30_000 for row in slept)
    assert all(row[4] + 2_000 >= row[5] + row[6] for row in spun if row[6] != UNKNOWN_US)


def test_what_is_read_from_files_is_counted(toy, light, recorded, tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(100_000))

    class Files:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return len(path.read_bytes())

    with light() as prof:
        list(toy.torch.utils.data.DataLoader(Files(), batch_size=2, num_workers=1))
    rows = batches_of(recorded(prof.directory))[0]
    if rows[0][-4] < 0:
        pytest.skip("this kernel does not count what a process reads")
    assert all(200_000 <= row[-4] < 210_000 for row in rows[1:])


def test_a_failure_of_ours_is_said_and_costs_no_batch(toy, light, recorded, monkeypatch):
    def broken(self, task):
        raise ValueError("planted")

    monkeypatch.setattr(workers.WorkerProbe, "_begin", broken)
    with light() as prof:
        assert sum(1 for _ in toy.loader(num_workers=2)) == 8
    run = recorded(prof.directory)
    assert not state_of(run).on
    assert "ValueError" in state_of(run).reason
    assert "planted" in state_of(run).reason
    assert sum("stopped recording: ValueError" in note for note in run.rank.notes) == 2
    assert run.rank.end.reason == "finished"


def test_a_torch_with_other_arguments_is_left_alone(toy, light, recorded, monkeypatch):
    monkeypatch.setattr(workers.inspect, "signature", lambda _loop: (_ for _ in ()).throw(TypeError("no signature")))
    with light() as prof:
        assert sum(1 for _ in toy.loader(num_workers=1)) == 8
    run = recorded(prof.directory)
    assert run.rank.workers == ()
    assert state_of(run).reason == (
        "the workers were started before the recording, or are not those of torch's DataLoader"
    )


def test_a_queue_that_cannot_be_read_ends_the_watch_and_nothing_else(toy, light, recorded, monkeypatch):
    import multiprocessing.queues

    def unreadable(self):
        raise NotImplementedError("no sem_getvalue")

    monkeypatch.setattr(multiprocessing.queues.Queue, "qsize", unreadable)
    with light() as prof:
        batches = iter(toy.loader(num_workers=1))
        with pytest.warns(RuntimeWarning, match="workers switched itself off"):
            toy.train(next(batches))
        for batch in batches:
            toy.train(batch)
    run = recorded(prof.directory)
    assert len(run.steps) == 8
    assert "NotImplementedError" in state_of(run).reason


def test_behind_the_first_fetches_an_eighth_is_looked_at(tmp_path):
    timer = SimpleNamespace(fetches=0, tracker=StepTracker([].append))
    looked = []
    watch = WorkerWatch(looked.append, timer, tmp_path)
    process = SimpleNamespace(_popen=SimpleNamespace(pid=1))
    iterator = SimpleNamespace(
        _task_info={7: (0,)},
        _rcvd_idx=7,
        _tasks_outstanding=1,
        _workers=[process],
        _data_queue=queue.Queue(),
        _workers_status=[True],
    )

    def fetched(count):
        """How many of so many fetches were looked at."""
        before = len(looked)
        for _ in range(count):
            timer.fetches += 1
            watch.sample_queue(iterator)
        return len(looked) - before

    assert fetched(999) == 999
    assert fetched(537) == 65  # the 1,024th to the 1,087th, and the 1,536th
    assert fetched(512) == 64
    assert watch.sampled == 999 + 65 + 64
    for fetches, rest in ((999, 0), (2_048, 0), (2_048 + 63, 0), (2_048 + 64, 448), (2_048 + 511, 1)):
        timer.fetches = fetches
        assert watch.fetches_to_skip(iterator) == rest
    assert watch.fetches_to_skip(SimpleNamespace()) == 512
    watch.samples_queue = False
    assert watch.fetches_to_skip(iterator) == 512


def open_files():
    """Names of what this process has open; the listing itself is gone when it is asked for."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(entry.readlink()))
    return found


@pytest.mark.skipif(not Path("/proc/self/wchan").exists(), reason="this system does not say where a thread waits")
def test_workers_are_watched_without_a_file_kept_open_for_each(toy, light):
    """A file for each worker of a few short epochs is all that a process with a low limit may open."""
    with light() as prof:
        batches = iter(toy.loader(num_workers=2))
        next(batches)
        next(batches)
        watch, looks = prof._session._workers, []
        watch._record = looks.append
        assert not [name for name in open_files() if name.endswith("wchan")]
        watch.sample_workers()
        assert len({look[2] for look in looks}) == 2
        del batches
        watch.sample_workers()
        assert watch._pids == set()


def test_of_many_workers_some_are_looked_at_in_each_beat_and_all_in_turn(tmp_path, monkeypatch):
    looks = []
    watch = WorkerWatch(looks.append, SimpleNamespace(tracker=None), tmp_path)
    ended = {3, 4}
    monkeypatch.setattr(workers, "_state", lambda pid: None if pid in ended else 0)
    watch._pids.update(range(1, 15))
    for _ in range(3):
        watch.sample_workers()
    seen = [look[2] for look in looks]
    alive = [pid for pid in range(1, 15) if pid not in ended]
    assert seen == [*alive, *alive]
    assert watch._pids == set(alive)


def test_batches_of_workers_that_ran_out_of_data_are_not_ready(toy, light, recorded):
    """Torch leaves their tasks outstanding for ever."""
    torch = toy.torch

    class Parts(torch.utils.data.IterableDataset):
        def __iter__(self):
            worker = torch.utils.data.get_worker_info().id
            for _ in range(60 if worker == 0 else 4):
                time.sleep(0.001)
                yield torch.ones(4)

    with light() as prof:
        for _batch in prof.wrap(torch.utils.data.DataLoader(Parts(), batch_size=2, num_workers=2)):
            pass
    ready = [event.value & 0xFFFF for event in recorded(prof.directory).of(EventKind.QUEUE)]
    assert len(ready) > 25
    assert max(ready) <= 4


def test_workers_from_before_the_recording_are_named(toy, light, recorded):
    loader = toy.loader(num_workers=1, persistent_workers=True)
    list(loader)
    with light() as prof:
        list(loader)
    assert "started before the recording" in state_of(recorded(prof.directory)).reason


def test_without_workers_the_reason_is_that_there_are_none(toy, light, recorded):
    with light() as prof:
        list(toy.loader())
    assert state_of(recorded(prof.directory)).reason == "no loader with worker processes was seen"


def test_workers_that_outlive_the_recording_stop(toy, light, recorded, monkeypatch):
    monkeypatch.setattr(workers, "_CHECK_NS", 0)
    loader = toy.loader(num_workers=1, persistent_workers=True)
    with light() as prof:
        list(loader)
    for _ in range(2):
        list(loader)
    assert len(batches_of(recorded(prof.directory))[0]) == 9  # the one after the end finds out


def test_torch_is_left_as_it_was_found(toy, light):
    original = BaseProcess.start
    with light():
        assert BaseProcess.start is not original
    assert BaseProcess.start is original


@pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning")
def test_a_loader_that_starts_workers_with_a_loop_of_its_own_is_watched_and_described(toy, light, recorded):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def loader():
        return stateful.StatefulDataLoader(range(32), batch_size=4, num_workers=2)

    half = loader()
    batches = iter(half)
    for _ in range(4):
        next(batches)
    state = half.state_dict()
    again = loader()
    again.load_state_dict(state)
    with light() as prof:
        assert [batch.tolist() for batch in again] == [batch.tolist() for batch in batches]
    run = recorded(prof.directory)
    assert state_of(run).on
    assert {row[2] for rows in batches_of(run).values() for row in rows} == {4}
    loader = run.rank.meta.loader
    assert (loader.kind, loader.num_workers, loader.batch_size) == ("StatefulDataLoader", 2, 4)


def test_a_killed_worker_leaves_whole_records(toy, light, recorded):
    class Deadly:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index == 6:
                time.sleep(0.2)  # what was handed over is on its way
                os.kill(os.getpid(), signal.SIGKILL)
            return index

    with light() as prof, pytest.raises(RuntimeError, match=r"killed|exited unexpectedly"):
        list(toy.torch.utils.data.DataLoader(Deadly(), batch_size=2, num_workers=1))
    run = recorded(prof.directory)
    assert [row[1] for row in batches_of(run)[0]] == [0, 1, 2]


def test_nested_batches_are_measured_and_strange_ones_are_not():
    torch = pytest.importorskip("torch")
    nested = {"x": torch.ones(10), "y": [np.zeros(4), (b"abc", "text", 1)]}
    assert workers.batch_bytes(nested) == 40 + 32 + 3
    assert workers.batch_bytes("text") == -1
    assert workers.batch_bytes([1.0, 2.0]) == -1
    assert workers.batch_bytes([torch.ones(1)] * 1000) == -1


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls its compressed layouts beta
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_the_size_of_a_sparse_batch_is_not_known(layout):
    torch = pytest.importorskip("torch")
    assert workers.batch_bytes([torch.ones(10), getattr(torch.eye(100), layout)()]) == -1


class Rude:
    """A batch that does not say its size."""

    @property
    def nbytes(self):
        raise LookupError("no size")


def test_a_batch_that_refuses_to_say_its_size_is_recorded_without_it(toy, light, recorded):
    with light() as prof:
        loader = toy.torch.utils.data.DataLoader(range(8), batch_size=2, num_workers=1, collate_fn=lambda _: Rude())
        assert sum(1 for _ in loader) == 4
    run = recorded(prof.directory)
    assert state_of(run).on
    assert {row[-2] for row in batches_of(run)[0]} == {-1}  # a worker that is ended may lose its last batch


def test_a_worker_with_the_pid_of_an_earlier_one_adds_its_batches_to_the_file(tmp_path):
    path = tmp_path / "workers.1.0.bin"
    for batch in (3, 5):
        probe = workers.WorkerProbe(path, Guard("the test"))
        probe.timed_get(lambda batch=batch: (batch, [0]))()
        probe.timed_put(lambda _batch: None)(probe.timed_collate(lambda samples: samples)(None))
        probe.timed_send(lambda _data: None)(b"")
    records = path.read_bytes()[HEADER.size :]
    assert [row[1] for row in WORKER.iter_unpack(records)] == [3, 5]


def test_a_batch_of_more_than_an_hour_is_the_longest_there_is():
    row = (1, 2, 3, 4, 2**40, -5, *range(7), 1, 2, 3, 4)
    assert WORKER.unpack(workers.packed(row)) == (1, 2, 3, 4, UNKNOWN_US, 0, *range(7), 1, 2, 3, 4)


def test_a_batch_costs_the_worker_eight_readings_of_its_clocks(tmp_path):
    """Some twenty microseconds: on a busy machine both take longer."""
    probe, clock = workers.WorkerProbe(tmp_path / "workers.1.0.bin", Guard("the test")), ThreadClock()
    get, collate = probe.timed_get(lambda: (0, [0])), probe.timed_collate(lambda samples: samples)
    put, send = probe.timed_put(lambda _batch: None), probe.timed_send(lambda _data: None)

    def batch():
        get()
        put(collate(None))
        send(b"")

    def cost(work, times):
        start = time.thread_time_ns()
        for _ in range(times):
            work()
        return (time.thread_time_ns() - start) / times

    cost(batch, 100)
    assert statistics.median(cost(batch, 100) / cost(clock.now, 500) for _ in range(20)) <= 14
    assert ((tmp_path / "workers.1.0.bin").stat().st_size - HEADER.size) % WORKER.size == 0
