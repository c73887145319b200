"""What is known of the place a process runs in."""

import sys

import pytest

from profilerkit.capture import environment
from profilerkit.capture.environment import script_name


def test_only_allow_listed_variables_are_recorded():
    variables = {"OMP_NUM_THREADS": "4", "WANDB_API_KEY": "secret", "PATH": "/bin"}
    assert environment.allowed(variables) == {"OMP_NUM_THREADS": "4"}


@pytest.mark.parametrize(
    ("argv", "name"),
    [(["a/train.py"], "train"), (["-c"], "run"), ([""], "run"), ([], "run"), (["pkg/__main__.py"], "pkg")],
)
def test_script_names_the_run(monkeypatch, argv, name):
    monkeypatch.setattr(sys, "argv", argv)
    assert script_name() == name


@pytest.mark.torch
def test_torchs_threads_are_asked_of_a_torch_that_is_loaded(monkeypatch):
    import torch

    assert environment.intra_op_threads() == torch.get_num_threads()
    monkeypatch.delitem(sys.modules, "torch")
    assert environment.intra_op_threads() is None


def test_a_torch_that_cannot_be_asked_costs_no_more_than_the_answer(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", object())
    assert environment.intra_op_threads() is None


def test_the_processor_has_a_name_of_one_line_or_none():
    name = environment.processor_name()
    assert name is None or (name.strip() == name and "\n" not in name)


@pytest.mark.torch
def test_switches_made_for_debugging_are_told_while_they_are_on(monkeypatch):
    import torch

    for name in ("CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG", "TORCH_SHOW_CPP_STACKTRACES"):
        monkeypatch.delenv(name, raising=False)
    assert environment.switches() == set()
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "info")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with torch.autograd.set_detect_anomaly(True):
        assert environment.switches() == {"CUDA_LAUNCH_BLOCKING=1", "torch.autograd.set_detect_anomaly"}
    assert environment.switches() == {"CUDA_LAUNCH_BLOCKING=1"}
    monkeypatch.delitem(sys.modules, "torch")
    assert environment.switches() == {"CUDA_LAUNCH_BLOCKING=1"}
