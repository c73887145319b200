# ruff: noqa: PT012  a block under test is a with statement
"""The dossier of a rank that ran out of memory, by real failures on the host, and with stand-ins for a device."""

import contextlib
import gc
import sys
import threading
import weakref
from types import SimpleNamespace

import pytest

from profilerkit.capture import oom
from profilerkit.capture.oom import unallocated_bytes
from profilerkit.model.run import Loader
from profilerkit.rundir.layout import OOM
from profilerkit.rundir.reader import read_run
from tests import programs

ABSURD = 10**15


@pytest.fixture
def failing(toy, light):
    """Train some steps, run ``last`` and leave the block by its failure; the run's first rank."""

    def run(last, **settings):
        prof = light(**settings)
        with contextlib.suppress(RuntimeError, MemoryError), prof:
            for number, batch in enumerate(prof.wrap(toy.loader())):
                toy.train(batch)
                if number == 3:
                    last(toy, batch)
        return read_run(prof.directory).ranks[0]

    return run


def allocate(toy, _batch):
    toy.torch.empty(ABSURD)


def sizes(dossier):
    return {kind.kind: kind.bytes for kind in dossier.live}


@pytest.mark.torch
def test_what_was_live_is_told_by_kind_and_every_storage_once(failing, toy):
    def last(toy, batch):
        activations = toy.model[1](toy.model[0](batch[0]))
        views = [activations[:2], activations.T]
        allocate(toy, views)

    toy.model.register_buffer("scale", toy.torch.ones(1000))
    rank = failing(last)
    dossier = rank.oom
    assert rank.end.exception.startswith("RuntimeError")
    assert (dossier.device, dossier.requested_bytes, dossier.step) == ("host", 4 * ABSURD, rank.end.steps)
    assert "can't allocate memory" in dossier.message
    assert (dossier.batch_size, dossier.fitting_batch_size) == (8, None)
    weights = sum(parameter.numel() * 4 for parameter in toy.model.parameters())
    found = sizes(dossier)
    other = 64 * 16 * 4 + 64 * 8 + 8 * 32 * 4
    # The optimizer keeps two moments and a step of each parameter; other tests may have left something alive.
    assert found["parameters"] >= weights
    assert found["optimizer state"] >= 2 * weights
    assert found["buffers"] >= 4000
    assert found["other"] >= other
    assert 0 < found["unseen"] < dossier.total_bytes
    assert dossier.complete
    assert 0 < dossier.free_bytes < dossier.total_bytes
    assert [one.bytes for one in dossier.largest] == sorted((one.bytes for one in dossier.largest), reverse=True)
    assert len(dossier.largest) <= 10


ALONE = """
import sys, torch
from profilerkit.capture.oom import live_memory
model = torch.nn.Linear(100, 50, bias=False)
model.register_buffer("scale", torch.ones(300))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
print(live_memory(torch, "cpu", None).unallocated_bytes, live_memory(torch, "cuda", 0).unallocated_bytes)
hidden = model(torch.ones(2, 100))
views = [hidden[:1], hidden.detach()]
hidden.sum().backward()
optimizer.step()
found = live_memory(torch, "cpu", None)
print({kind.kind: (kind.bytes, kind.count) for kind in found.kinds}, found.complete)
"""


@pytest.mark.torch
def test_each_kind_has_exactly_its_bytes():
    pytest.importorskip("torch")
    before, told = programs.run("-c", ALONE, check=True).stdout.splitlines()
    # A gradient and a momentum, on the device that the parameter is on.
    assert before == "40000 0"
    kinds, _, complete = told.rpartition(" ")
    found = eval(kinds)
    assert complete == "True"
    assert found["parameters"] == found["gradients"] == found["optimizer state"] == (20_000, 1)
    assert found["buffers"] == (1200, 1)
    assert found["other"][0] >= 2 * 50 * 4


@pytest.mark.torch
def test_nothing_is_kept_alive(toy, caplog):
    """Nor by a handler that keeps what is logged of an object that cannot be asked."""
    caplog.set_level("DEBUG", "profilerkit")
    odd = toy.torch.nn.Module()
    del odd.__dict__["_parameters"]
    held = [toy.torch.ones(1000)]
    seen = weakref.ref(held[0])
    assert oom.live_memory(toy.torch, "cpu", None).kinds
    assert oom.dossier(MemoryError("x"), steps=1, loader=None) is not None
    assert "KeyError: '_parameters'" in caplog.text
    gc.disable()
    try:
        held.clear()
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.torch
def test_looking_is_bounded_and_says_so(toy, monkeypatch):
    monkeypatch.setattr(oom, "_SECONDS", -1.0)
    found = oom.live_memory(toy.torch, "cpu", None)
    assert (found.kinds, found.complete) == ((), False)


@pytest.mark.torch
def test_objects_that_lie_about_themselves_are_left_alone(toy, monkeypatch):
    monkeypatch.setattr(oom, "_SECONDS", 60.0)

    class Liar:
        @property
        def __class__(self):
            raise RuntimeError("asked")

    liar = [Liar()]
    assert oom.live_memory(toy.torch, "cpu", None).complete
    assert liar


def elsewhere(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.torch
def test_of_a_training_on_another_thread_nothing_is_looked_at(toy, light):
    prof = light()

    def work():
        for batch in prof.wrap(toy.loader()):
            toy.train(batch)

    with pytest.raises(MemoryError), prof:
        elsewhere(work)
        raise MemoryError
    assert not (prof.directory / "rank_00000" / OOM).exists()


@pytest.mark.torch
def test_another_error_leaves_no_dossier(failing):
    def last(toy, _batch):
        raise RuntimeError("shapes do not match")

    assert failing(last).oom is None


@pytest.mark.torch
def test_numpy_tells_what_it_wanted(failing):
    numpy = pytest.importorskip("numpy")
    dossier = failing(lambda _toy, _batch: numpy.empty(1 << 50, dtype=numpy.uint8)).oom
    assert dossier.requested_bytes == 1 << 50
    assert failing(lambda _toy, _batch: (_ for _ in ()).throw(MemoryError())).oom.message == "MemoryError"


GIB = 1 << 30


class DeviceError(RuntimeError):
    """Stands for ``torch.OutOfMemoryError``."""


def device(**changes):
    """A torch with one device of 80 GiB, of which 2 are free and 1 lies idle in its allocator."""
    cuda = SimpleNamespace(
        current_device=lambda: 0,
        mem_get_info=lambda _index: (2 * GIB, 80 * GIB),
        memory_allocated=lambda _index: 70 * GIB,
        memory_reserved=lambda _index: 71 * GIB,
    )
    vars(cuda).update(changes)
    return SimpleNamespace(cuda=cuda, OutOfMemoryError=DeviceError)


SAYS = (
    "CUDA out of memory. Tried to allocate 10.00 GiB. GPU 3 has a total capacity of 80.00 GiB of which 2 GiB is free."
)
LOADER = Loader(kind="DataLoader", batch_size=32)


@pytest.fixture
def told(monkeypatch):
    """The dossier with a stand-in for torch, and with 20 GiB that stay whatever the batch is."""

    def told(error=None, loader=LOADER, unallocated=0, where="torch.autograd", **changes):
        kinds = (oom.LiveBytes(kind="parameters", bytes=20 * GIB, count=7), oom.LiveBytes(kind="other", bytes=GIB))
        found = oom.LiveMemory(kinds, (), True, unallocated)
        monkeypatch.setattr(oom, "live_memory", lambda _torch, _device, _index: found)
        monkeypatch.setitem(sys.modules, "torch", device(**changes))
        try:
            exec("raise error", {"__name__": where, "error": error or DeviceError(SAYS)})
        except (DeviceError, RuntimeError) as failure:
            return oom.dossier(failure, steps=7, loader=loader)

    return told


def test_a_device_is_told_with_what_lies_idle_and_what_may_fit(told):
    dossier = told()
    assert (dossier.device, dossier.limit, dossier.requested_bytes) == ("cuda:3", "device", 10 * GIB)
    assert (dossier.free_bytes, dossier.total_bytes) == (2 * GIB, 80 * GIB)
    assert (dossier.allocated_bytes, dossier.reserved_bytes) == (70 * GIB, 71 * GIB)
    assert sizes(dossier) == {"unseen": 49 * GIB, "parameters": 20 * GIB, "other": GIB}
    # 20 stay, 50 and the 10 asked for are of 32 samples; there is room for 71 + 2 - 20.
    assert dossier.fitting_batch_size == 32 * 53 // 60
    # With SGD 20 of gradients are still to come, with Adam 40 of state too, which would leave nothing.
    assert told(unallocated=20 * GIB).fitting_batch_size == 32 * 33 // 60
    assert told(unallocated=60 * GIB).fitting_batch_size is None
    assert told(unallocated=None).fitting_batch_size is None


@pytest.mark.torch
def test_torchs_own_lines_tell_whether_the_forward_pass_was_over():
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    own = {"__name__": "torch"}  # what the optimizer asks for itself
    exec("def fail(*_):\n    raise MemoryError", own)
    fail = own["fail"]
    layer = torch.nn.Linear(2, 2)
    loss = layer(torch.ones(1, 2)).sum()
    layer.weight.register_hook(fail)
    layer.register_forward_pre_hook(fail)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(fail)
    again = torch.nn.Linear(2, 2)
    recomputed = checkpoint(again, torch.ones(1, 2), use_reentrant=False).sum()
    again.register_forward_pre_hook(fail)

    class Force(torch.nn.Module):
        def forward(self, _):
            return torch.autograd.grad(loss, layer.weight)

    def forward():
        layer(torch.ones(1, 2))

    def function():
        fail()

    def backward():
        loss.backward(retain_graph=True)

    # An optimizer runs both passes where it is given a closure.
    closed = torch.optim.LBFGS(layer.parameters()).step
    calls = {forward: False, backward: True, optimizer.step: True, recomputed.backward: False}
    calls |= {lambda: closed(forward): False, lambda: closed(function): False, lambda: closed(backward): True}
    calls[lambda: Force()(None)] = False
    for call, is_over in calls.items():
        with pytest.raises(MemoryError) as raised:
            call()
        assert oom._is_after_forward(raised.value) is is_over


def test_of_a_first_forward_the_gradients_and_adams_state_are_taken_off():
    """10 GiB of parameters and 68 of activations at batch 64, 4 more wanted, 80 to be had: 35 fit, not 62."""
    assert oom.fitting(64, 10 * GIB, 78 * GIB, 80 * GIB, 4 * GIB) == 62
    assert oom.fitting(64, 10 * GIB, 78 * GIB, (80 - 10 - 2 * 10) * GIB, 4 * GIB) == 35


OPTIMIZERS = [
    ("ASGD", {}),
    ("Adadelta", {}),
    ("Adagrad", {}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {}),
    ("AdamW", {"foreach": True}),
    ("AdamW", {"fused": True}),
    ("Adamax", {}),
    ("Muon", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Rprop", {}),
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
]


def owed(*optimizers):
    torch = sys.modules["torch"]
    return unallocated_bytes(torch, optimizers, lambda tensor: tensor.numel() * tensor.element_size())


@pytest.mark.torch
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_what_a_step_will_allocate_is_what_it_then_does(name, options):
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, name):
        pytest.skip(f"this torch has no {name}")
    model = torch.nn.Linear(64, 64, bias=False)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **options)
    had = sum(entry.nbytes for state in optimizer.state.values() for entry in state.values() if entry.dim())
    before = owed(optimizer)
    model(torch.ones(2, 64)).sum().backward()
    assert owed(optimizer) == before - model.weight.nbytes
    optimizer.step()
    kept = sum(entry.nbytes for state in optimizer.state.values() for entry in state.values() if entry.dim())
    assert before == model.weight.nbytes + kept - had
    assert owed(optimizer) == 0
    optimizer.zero_grad()
    # Freed gradients come again.
    assert owed(optimizer) == model.weight.nbytes


@pytest.mark.torch
def test_an_optimizer_of_ones_own_is_known_from_its_first_step_on():
    torch = pytest.importorskip("torch")

    class Own(torch.optim.Adam):
        """May keep anything."""

    model = torch.nn.Linear(8, 8, bias=False)
    optimizer = Own(model.parameters())
    assert owed() is None
    assert owed(optimizer) is None
    # What it wraps, or what wraps it, may know more.
    assert owed(optimizer, torch.optim.Adam(model.parameters())) == 3 * model.weight.nbytes
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert owed(optimizer) == model.weight.nbytes


@pytest.mark.torch
def test_frozen_parameters_get_no_gradient():
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 4, bias=False))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.add_param_group({"params": list(torch.nn.Linear(8, 2, bias=False).parameters()), "momentum": 0.9})
    assert owed(optimizer) == 4 * (8 * 4 + 2 * 8 * 2)


@pytest.mark.parametrize("text", ["CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"])
def test_what_happens_beside_torchs_allocator_is_of_the_current_device(told, text):
    dossier = told(RuntimeError(text))
    assert (dossier.device, dossier.requested_bytes, dossier.fitting_batch_size) == ("cuda:0", None, None)


def test_what_cannot_be_said_is_not_said(told):
    def unsupported(_index):
        raise RuntimeError("not supported")

    assert told(loader=None).fitting_batch_size is None
    assert told(where="torch.nn.modules.linear").fitting_batch_size is None  # of an unknown part of the activations
    assert told(DeviceError(SAYS.replace("10.00 GiB", "0.50 GiB"))).fitting_batch_size is None
    assert told(mem_get_info=unsupported).free_bytes is None
    assert told(memory_allocated=unsupported).device == "device"
