"""What counts as a run on a device, on the virtual one."""

import pytest

from profilerkit.capture import device_clock, environment
from profilerkit.rundir.layout import EventKind

torch = pytest.importorskip("torch")
import virtual_device  # noqa: E402 - it imports torch

pytestmark = pytest.mark.torch


@pytest.fixture
def placed():
    installed = virtual_device.install()
    yield installed
    installed.remove()


@pytest.mark.parametrize("used", [True, False])
def test_a_run_that_only_initialised_cuda_is_none_of_a_device(toy, recorded, placed, tmp_path, used):
    import profilerkit

    placed.device.peak *= used
    with profilerkit.profile(tmp_path / "run", host=False, analyze=False, warmup_steps=2, trace_steps=3) as prof:
        for batch in prof.wrap(toy.loader(batches=12)):
            toy.train(batch)
            torch.cuda.synchronize()
    run = recorded(prof.directory)
    meta, ((status, _),) = run.rank.meta, run.rank.windows
    assert (meta.device_name is not None) == used
    assert bool(run.of(EventKind.DEVICE)) == bool(run.of(EventKind.SYNC)) == used
    assert (status.kernels is not None) == used
    for name in ("device_clock", "syncs"):
        assert meta.features[name].reason == ("" if used else "CUDA is not in use")


def test_an_allocator_that_torch_cannot_ask_counts_as_use(placed, monkeypatch):
    def refuse(_device):
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")

    for name in ("memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    assert device_clock.cuda_in_use()
    assert environment.cuda_device()[0] == placed.device.name


def test_a_device_is_named_by_what_it_holds_or_else_has_held(placed, monkeypatch):
    held, peaks = [0, 0], [1, 2]
    named = {"memory_allocated": held.__getitem__, "max_memory_allocated": peaks.__getitem__, "device_count": lambda: 2}
    for name, answer in named.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    properties = type("Properties", (), {})

    def of(index):
        found = properties()
        found.name = f"device {index}"
        return found

    monkeypatch.setattr(torch.cuda, "get_device_properties", of)
    assert environment.cuda_device() == ("device 1", None)
    held[0] = 5
    assert environment.cuda_device() == ("device 0", None)
    peaks[:] = held[:] = 0, 0
    assert environment.cuda_device() == (None, None)


def test_a_device_that_fails_every_call_captures_nothing(placed, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: 1 / 0)
    assert not device_clock.captures_graph()
