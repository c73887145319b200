"""What is asked of CUPTI, and what is said where it shows nothing."""

import os
from types import SimpleNamespace

import pytest

from profilerkit.capture import deep


def torch_with(cuda):
    return SimpleNamespace(version=SimpleNamespace(cuda=cuda))


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    """Neither variable is set, and what a test sets is gone behind it."""
    for name in ("TEARDOWN_CUPTI", "DISABLE_CUPTI_LAZY_REINIT", "CUDA_INJECTION64_PATH"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("cuda", "taken"),
    [("12.6", True), ("13.0", True), ("12.5", False), ("11.8", False), (None, False), ("strange", False)],
)
def test_cupti_is_taken_down_where_graphs_survive_it(cuda, taken):
    deep.have_cupti_taken_down(torch_with(cuda))
    assert (os.environ.get("TEARDOWN_CUPTI") == "1") is taken


@pytest.mark.parametrize("name", ["TEARDOWN_CUPTI", "DISABLE_CUPTI_LAZY_REINIT"])
def test_what_the_user_or_torch_has_set_stays(monkeypatch, name):
    monkeypatch.setenv(name, "0")
    deep.have_cupti_taken_down(torch_with("12.8"))
    assert os.environ[name] == "0"
    assert os.environ.get("TEARDOWN_CUPTI") != "1"


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Writes what the host says of itself; torch can trace CUDA on it."""
    activity = SimpleNamespace(CUDA="cuda")
    profiler = SimpleNamespace(ProfilerActivity=activity, supported_activities=lambda: {"cuda"})
    monkeypatch.setitem(deep.sys.modules, "torch", SimpleNamespace(profiler=profiler))

    def write(params="", status="", kernel="6.8.0-generic"):
        for name, text in (("_DRIVER", params), ("_STATUS", status), ("_KERNEL", kernel)):
            path = tmp_path / name
            path.write_text(text, "ascii")
            monkeypatch.setattr(deep, name, path)
        return profiler

    return write


RESTRICTED, FREE = "DmaRemapPeerMmio: 1\nRmProfilingAdminOnly: 1\n", "RmProfilingAdminOnly: 0\n"
USER, ADMIN = "CapEff:\t00000000a80425fb\n", "CapEff:\t000001ffffffffff\n"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"params": RESTRICTED, "status": USER}, "permission"),
        ({"params": RESTRICTED, "status": ADMIN}, "unknown"),
        ({"params": FREE, "status": USER}, "unknown"),
        ({"params": RESTRICTED, "status": "CapEff: none"}, "permission"),
        ({"kernel": "5.15.90.1-microsoft-standard-WSL2"}, "wsl"),
        ({}, "unknown"),
    ],
)
def test_a_trace_without_kernels_has_the_likeliest_reason(host, said, reason):
    host(**said)
    assert deep.why_no_kernels() == reason


def test_another_tool_in_the_process_and_a_torch_without_cupti_are_named(host, monkeypatch):
    profiler = host(params=RESTRICTED, status=USER)
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/nsight/libToolsInjection64.so")
    assert deep.why_no_kernels() == "other_tool"
    profiler.supported_activities = set
    assert deep.why_no_kernels() == "not_built"


def test_a_host_that_says_nothing_gives_no_reason(host, tmp_path, monkeypatch):
    host()
    for name in ("_DRIVER", "_STATUS", "_KERNEL"):
        monkeypatch.setattr(deep, name, tmp_path / "nowhere")
    assert deep.why_no_kernels() == "unknown"
