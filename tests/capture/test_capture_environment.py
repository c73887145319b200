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
