import json
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from profilerkit.cli import doctor, main
from profilerkit.cli.doctor import Check


class NVMLError(Exception):
    pass


def fake_nvml(*, start_error=None, name="NVIDIA H200", memory_bytes=150_000_000_000):
    def start():
        if start_error:
            raise NVMLError(start_error)

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=start,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "570.1",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: name,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=memory_bytes),
    )


@pytest.fixture(autouse=True)
def without_torch(monkeypatch, request):
    """Importing torch takes seconds; only the test that is about it does."""
    if request.node.get_closest_marker("torch") is None:
        monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(start_error="Driver Not Loaded"))


def test_every_check_is_one_line_with_a_state_and_warnings_have_a_fix(capsys):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for name in ("python", "packages", "plugins", "torch", "nvml", "shared memory", "cores", "pressure", "disk"):
        assert f" {name} " in shown
    assert "warn  torch" in shown
    assert "fix: pip install torch" in shown
    assert "profile() records steps and input wait with wrap(), step() and phase()" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80


def test_json_holds_the_same_checks(capsys):
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["usable"] is True
    assert {"name", "state", "text", "fix"} == set(document["checks"][0])


def test_a_missing_package_makes_the_tool_unusable(monkeypatch, capsys):
    real = metadata.version

    def version(name):
        if name == "plotly":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    assert main(["doctor"]) == 2
    assert "fix: pip install plotly" in capsys.readouterr().out


def test_a_known_device_is_named_with_its_row(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    driver, device = doctor._nvml()
    assert driver == Check("nvml", "ok", "driver 570.1, 1 device")
    assert device.state == "ok"
    assert "h200-sxm" in device.text


def test_an_unknown_device_is_a_warning_not_a_guess(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(name="NVIDIA A2", memory_bytes=24_000_000_000))
    device = list(doctor._nvml())[1]
    assert device.state == "warn"
    assert "not in the hardware table" in device.text


def test_an_nvml_call_that_fails_later_is_a_warning(monkeypatch):
    nvml = fake_nvml()

    def fail(handle):
        raise NVMLError("Not Supported")

    nvml.nvmlDeviceGetName = fail
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert [check.state for check in doctor._nvml()] == ["ok", "warn"]


def test_small_shared_memory_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(
        doctor.os, "statvfs", lambda path: SimpleNamespace(f_frsize=4096, f_blocks=16384, f_bavail=16384)
    )
    check = doctor._shared_memory(tmp_path)
    assert check.state == "warn"
    assert "64.0 MiB" in check.text
    assert "--shm-size" in check.fix


def test_what_cannot_be_read_is_a_warning(monkeypatch, tmp_path):
    assert doctor._pressure(tmp_path / "absent").state == "warn"
    assert doctor._shared_memory(tmp_path / "absent").state == "warn"


def test_a_full_disk_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    assert doctor._disk(tmp_path).state == "warn"


def tracing_torch(*, kineto=True, cuda=True, supported=True, recorded=True, error=None):
    activity = SimpleNamespace(CPU="cpu", CUDA="cuda")

    class Profile:
        def __init__(self, activities):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *ending):
            return False

        def events(self):
            return [SimpleNamespace(device_type="cuda")] if recorded else []

    def ones(size, device):
        if error:
            raise RuntimeError(error)
        return SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: 8.0))

    return SimpleNamespace(
        ones=ones,
        cuda=SimpleNamespace(is_available=lambda: cuda, get_device_name=lambda: "NVIDIA L4"),
        autograd=SimpleNamespace(DeviceType=activity),
        profiler=SimpleNamespace(
            kineto_available=lambda: kineto,
            ProfilerActivity=activity,
            supported_activities=lambda: {"cuda"} if supported else {"cpu"},
            profile=Profile,
        ),
    )


@pytest.mark.parametrize(
    ("torch", "state", "words"),
    [
        (tracing_torch(kineto=False), "warn", "without Kineto"),
        (tracing_torch(cuda=False), "ok", "CPU only"),
        (tracing_torch(supported=False), "warn", "records no device activity"),
        (tracing_torch(recorded=False), "warn", "CUPTI recorded nothing"),
        (tracing_torch(error="out of memory"), "warn", "out of memory"),
        (tracing_torch(), "ok", "a test kernel was recorded"),
    ],
)
def test_tracing_is_tried_rather_than_assumed(torch, state, words):
    check = doctor._tracing(torch)
    assert check.state == state
    assert words in check.text
    assert (check.fix == "") == (state == "ok")


@pytest.mark.torch
def test_an_installed_torch_is_described():
    torch = pytest.importorskip("torch")
    build, tracing = doctor._torch()
    assert torch.__version__ in build.text
    assert tracing.name == "tracing"
