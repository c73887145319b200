"""Probes beside loaders that are not fetched from once per step: each batch is trained on once, in its order."""

import queue
import random
import threading
from collections import deque
from contextlib import nullcontext

import numpy as np
import pytest

import profilerkit
from profilerkit.capture.session import active
from profilerkit.rundir.reader import read_run
from tests.capture.test_capture_probes import LIGHT, Samples, Stream, Training, loader_of, same

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("alone")]
torch = pytest.importorskip("torch")


def is_inside():
    session = active()
    return session is not None and session._probing is not None and session._probing.is_inside


class Own(Training):
    """A training that knows which of its batches were the run's own."""

    def __init__(self):
        super().__init__()
        self.own = []

    def step(self, batch):
        if not is_inside():
            self.own.append(tuple(batch[1].tolist()))
        super().step(batch)


def trained(tmp_path, probes, batches, *, epochs=12, step=Own.step, training=Own):
    """A training over ``batches()`` per epoch, and what came of its probes."""
    made = training()
    with profilerkit.profile(tmp_path / "run", **LIGHT, probes=probes) if probes else nullcontext() as prof:
        for batch in (one for _ in range(epochs) for one in batches(prof)):
            step(made, batch)
    return made, read_run(tmp_path / "run").ranks[0].probes.probes if probes else ()


def fetched_ahead(loader, depth):
    """A generator that holds ``depth`` batches beside the one it gives."""
    waiting = deque()
    for batch in loader:
        waiting.append(batch)
        if len(waiting) > depth:
            yield waiting.popleft()
    yield from waiting


class Prefetched(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * 40

    def __getitem__(self, index):
        return torch.full((8,), float(index)), index


@pytest.mark.parametrize(("depth", "probes"), [(3, ["input", "bf16"]), (1, ["workers"])])
def test_batches_that_the_loop_fetched_ahead_are_trained_on_once(tmp_path, depth, probes):
    loader = torch.utils.data.DataLoader(Prefetched(), 4, shuffle=True)
    plain, _ = trained(tmp_path, (), lambda _: fetched_ahead(loader, depth), epochs=6)
    probed, runs = trained(tmp_path, probes, lambda _: fetched_ahead(loader, depth), epochs=6)
    assert not runs[0].reason
    assert runs[0].first_step is not None
    assert probed.own == plain.own
    assert all(map(same, probed.left(), plain.left()))


@pytest.mark.parametrize("wrapped", [True, False])
def test_loader_of_accelerate_gives_its_batches_in_their_order(tmp_path, wrapped):
    data_loader = pytest.importorskip("accelerate.data_loader")
    accelerate = pytest.importorskip("accelerate")
    accelerate.PartialState()

    def batches(prof):
        loader = data_loader.DataLoaderShard(Prefetched(), batch_size=4, shuffle=True, device=torch.device("cpu"))
        return prof.wrap(loader) if prof and wrapped else loader

    plain, _ = trained(tmp_path, (), batches, epochs=5)
    probed, runs = trained(tmp_path, ["input", "bf16"], batches, epochs=5)
    assert [run.reason for run in runs] == ["", ""]
    assert probed.own == plain.own
    assert all(map(same, probed.left(), plain.left()))


def test_loop_that_fetches_far_ahead_is_not_probed(tmp_path):
    loader = torch.utils.data.DataLoader(Prefetched(), 4)
    _, (run,) = trained(tmp_path, ["input"], lambda _: fetched_ahead(loader, 12), epochs=3)
    assert run.reason == "the loop fetches 12 batches ahead of its steps"


class Threaded:
    """A loader whose batches a thread makes ahead, from a generator of its own."""

    def __init__(self):
        self.generator = np.random.default_rng(0)

    def __iter__(self):
        waiting = queue.Queue(8)
        work = threading.Thread(target=self.work, args=(waiting,), name="loading", daemon=True)
        work.start()
        yield from iter(waiting.get, None)
        work.join()

    def work(self, waiting):
        for _ in range(40):
            ids = self.generator.integers(1 << 60, size=4)
            waiting.put((torch.from_numpy(ids % 7).float()[:, None].expand(4, 8), ids))
        waiting.put(None)


def test_loader_with_a_thread_of_its_own_is_not_probed(tmp_path):
    def train(probes):
        loader = Threaded()
        return trained(tmp_path, probes, lambda prof: prof.wrap(loader) if prof else loader, epochs=3)

    plain, _ = train(())
    probed, (run,) = train(["input"])
    assert run.reason == "its loader may make batches in a thread of its own: loading is alive"
    assert run.first_step is None
    assert probed.own == plain.own


@pytest.mark.parametrize("workers", [0, 2])
def test_stream_may_have_a_thread_unless_workers_read_it(tmp_path, workers):
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="reading", daemon=True)
    loader = torch.utils.data.DataLoader(Stream(), 4, num_workers=workers)
    thread.start()
    try:
        _, (run,) = trained(tmp_path, ["input"], lambda _: loader, epochs=10)
    finally:
        stop.set()
        thread.join()
    assert run.reason == ("" if workers else "its loader may make batches in a thread of its own: reading is alive")


def test_threads_that_may_make_batches_are_named_and_the_rest_counted(tmp_path):
    stop = threading.Event()
    started = [threading.Thread(target=stop.wait, name=f"reading-{number}", daemon=True) for number in range(5)]
    for thread in started:
        thread.start()
    try:
        _, (run,) = trained(tmp_path, ["input"], lambda _: torch.utils.data.DataLoader(Stream(), 4), epochs=10)
    finally:
        stop.set()
    assert run.reason.endswith(": reading-0, reading-1, reading-2 and 2 more are alive")


def test_thread_of_remote_files_makes_no_batches(tmp_path):
    pytest.importorskip("fsspec.asyn").get_loop()
    _, (run,) = trained(tmp_path, ["input"], lambda _: torch.utils.data.DataLoader(Stream(), 4), epochs=10)
    assert run.reason == ""


def test_thread_beside_a_list_makes_none_of_its_batches(tmp_path):
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, daemon=True)
    batches = list(torch.utils.data.DataLoader(Prefetched(), 4))
    thread.start()
    try:
        _, (run,) = trained(tmp_path, ["input"], lambda prof: prof.wrap(batches), epochs=4)
    finally:
        stop.set()
        thread.join()
    assert run.reason == ""


def test_batch_for_several_steps_is_not_held_back(tmp_path):
    def chunked(prof):
        for features, ids in loader_of("single"):
            for chunk in zip(features.chunk(2), ids.chunk(2), strict=True):
                yield chunk
                if prof:
                    prof.step()

    plain, _ = trained(tmp_path, (), chunked, epochs=6)
    probed, (run,) = trained(tmp_path, ["input"], chunked, epochs=6)
    assert run.reason == "the loaders do not feed the same number of batches to each step"
    assert probed.own == plain.own
    assert all(map(same, probed.left(), plain.left()))


def test_look_between_forward_and_backward_lets_the_backward_pass_be(tmp_path):
    looked = []

    def step(training, batch):
        training.own += [] if is_inside() else [tuple(batch[1].tolist())]
        hidden = training.model[:3](batch[0])
        loss = training.model[3](hidden * training.model[3].weight.mean()).square().mean()
        if is_inside():
            looked.append(sum(1 for _ in torch.utils.data.DataLoader(Samples(), 12)))
        loss.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()

    plain, _ = trained(tmp_path, (), lambda _: loader_of("single"), step=step)
    probed, (run,) = trained(tmp_path, ["input"], lambda _: loader_of("single"), step=step)
    assert len(looked) > 20
    assert run.reason == ""
    assert probed.own == plain.own
    assert all(map(same, probed.left(), plain.left()))


class Drawing(torch.utils.data.Sampler):
    """A sampler whose generator the loop draws from as well."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(5)

    def __iter__(self):
        return iter(range(48))

    def __len__(self):
        return 48


class EMAWeights:
    """An average of weights that is no module."""

    def __init__(self, model):
        self.model, self.steps = model, 0
        self.shadow = [one.detach().clone() for one in model.parameters()]

    def update(self):
        self.steps += 1
        for mean, one in zip(self.shadow, self.model.parameters(), strict=True):
            mean.lerp_(one.detach(), 0.1)


class Averaged(Own):
    def __init__(self):
        super().__init__()
        self.sampler, self.ema = Drawing(), EMAWeights(self.model)
        self.legacy, self.python = np.random.RandomState(3), random.Random(4)

    def step(self, batch):
        drawn = torch.rand(1, generator=self.sampler.generator).item()
        features = batch[0] + drawn + self.legacy.rand() + self.python.random()
        super().step((features, batch[1]))
        self.ema.update()


def test_generators_of_loaders_and_averages_of_weights_are_put_back(tmp_path):
    def train(probes):
        training = Averaged()
        loader = torch.utils.data.DataLoader(Samples(), 4, sampler=training.sampler)
        made, runs = trained(tmp_path, probes, lambda _: loader, step=Averaged.step, training=lambda: training)
        state = training.sampler.generator.get_state()
        drawn = (training.legacy.rand(), training.python.random(), state)
        return [made.left(), training.ema.shadow, training.ema.steps, drawn], runs

    plain, _ = train(())
    probed, (run,) = train(["input"])
    assert run.reason == ""
    assert same(probed, plain)
