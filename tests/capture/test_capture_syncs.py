"""Calls that wait for the device, on a device that is only said to be in use."""

import pytest

from profilerkit.capture import timed_calls
from profilerkit.capture.patches import Watches
from profilerkit.capture.steps import StepTracker
from profilerkit.rundir.layout import EventKind

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_without_cuda_nothing_is_patched_and_the_reason_says_so(light, recorded):
    tensor_methods = {name: getattr(torch.Tensor, name) for name in ("item", "to", "cpu", "cuda", "tolist", "numpy")}
    before = torch._C._accelerator_synchronizeDevice
    with light() as prof:
        assert torch._C._accelerator_synchronizeDevice is before
        assert {name: getattr(torch.Tensor, name) for name in tensor_methods} == tensor_methods
    features = recorded(prof.directory).rank.meta.features
    assert features["syncs"].reason == "CUDA is not in use"


def test_synchronising_is_recorded_from_when_the_device_is_in_use(monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_synchronize", lambda: "waited", raising=False)
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda _event: None)
    records, names, in_use = [], {}, []
    monkeypatch.setattr(timed_calls, "cuda_in_use", lambda: bool(in_use))
    watch = timed_calls.SyncWatch(
        records.append, StepTracker(records.append), lambda name: names.setdefault(name, len(names) + 1)
    )
    watches = Watches([watch])
    watches.install()
    torch._C._cuda_synchronize()
    assert (records, watches.reasons()) == ([], {"syncs": "CUDA is not in use"})
    in_use.append(True)
    watches.install()
    assert "no synchronize() was called" in watches.reasons()["syncs"]
    assert torch._C._cuda_synchronize() == "waited"
    torch.cuda.Event.synchronize(object())
    assert watches.reasons() == {"syncs": ""}
    watches.patches.remove()
    torch._C._cuda_synchronize()
    assert [record[0] for record in records] == 2 * [EventKind.SYNC]
    assert [record[2] for record in records] == [names["torch.cuda.synchronize"], names["torch.cuda.Event.synchronize"]]
