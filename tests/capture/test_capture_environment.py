"""What is known of the place a process runs in."""

import sys

import pytest

from profilerkit.capture import environment
from profilerkit.capture.environment import place, script_name


def test_place_comes_from_torchrun_and_is_shared_by_its_ranks():
    job = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    places = [place({**job, "RANK": str(rank), "LOCAL_RANK": str(rank)}, 1) for rank in range(4)]
    assert [found.rank for found in places] == [0, 1, 2, 3]
    assert len({found.launch_id for found in places}) == 1
    assert place({**job, "RANK": "0"}, 2).launch_id != places[0].launch_id


@pytest.mark.parametrize("variables", [{}, {"RANK": "0"}, {"WORLD_SIZE": "1", "RANK": "0"}, {"WORLD_SIZE": "x"}])
def test_single_process_is_rank_0_of_1(variables):
    found = place(variables, 1)
    assert (found.rank, found.local_rank, found.world_size) == (0, 0, 1)
    assert found.launch_id != place(variables, 1).launch_id


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
