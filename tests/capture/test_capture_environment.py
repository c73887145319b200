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
