"""Small real training loops and a reader for what they leave behind."""

import gc
from collections import namedtuple

import pytest

import profilerkit
from profilerkit.rundir.layout import EVENT, EventKind
from profilerkit.rundir.reader import read_run

Event = namedtuple("Event", "kind flags name start_ns dur_ns value")


class Recorded:
    """One rank of a run directory, with its events by kind."""

    def __init__(self, path):
        self.run = read_run(path)
        self.rank = self.run.ranks[0]
        self.events = [Event(*fields) for fields in EVENT.iter_unpack(self.rank.events)]

    def of(self, kind):
        return [event for event in self.events if event.kind == kind]

    @property
    def steps(self):
        return self.of(EventKind.STEP)

    @property
    def waits(self):
        return self.of(EventKind.WAIT)


@pytest.fixture
def recorded():
    return Recorded


@pytest.fixture
def light(tmp_path):
    """A block with the light tier only."""

    def make(**settings):
        only_light = {"deep": False, "nvml": False, "host": False, "analyze": False}
        return profilerkit.profile(tmp_path / "run", **{**only_light, **settings})

    return make


@pytest.fixture
def deep(tmp_path):
    """A block with both tiers and a window that opens at once."""

    def make(**settings):
        small = {"warmup_steps": 1, "trace_steps": 3, "nvml": False, "host": False, "analyze": False}
        return profilerkit.profile(tmp_path / "run", **{**small, **settings})

    return make


class Toy:
    """A two-layer model, its optimizer, and data for it."""

    def __init__(self, torch):
        self.torch = torch
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))

    def loader(self, batches=8, **settings):
        size = len(self.data) // batches
        return self.torch.utils.data.DataLoader(self.data, batch_size=size, **settings)

    def backward(self, batch):
        inputs, labels = batch
        self.torch.nn.functional.cross_entropy(self.model(inputs), labels).backward()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, batch):
        self.backward(batch)
        self.update()

    def batch(self):
        return self.data[:8]


@pytest.fixture
def toy():
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    return Toy(torch)


@pytest.fixture
def uncollected():
    """Collect no garbage meanwhile, where compiled frames are counted.

    Torch 2.13 compiles what a collection calls at the entry of compiled code: a callback of the collector, of a weak
    reference, or a finalizer, of whatever other tests left.
    """
    gc.disable()
    yield
    gc.enable()
