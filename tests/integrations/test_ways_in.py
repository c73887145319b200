"""Every way into a recording finds the same injected stall, on the real frameworks and with nothing edited.

The programs that are trained here are the examples: each records itself with ``record`` on its command line.
"""

import json
import os
import sys
from collections import namedtuple
from importlib.util import find_spec
from pathlib import Path

import pytest

import profilerkit
from profilerkit.rundir.layout import EVENT, EventKind
from profilerkit.rundir.reader import read_run
from tests import programs

HOME = Path(profilerkit.__file__).parents[1]
PROGRAMS = Path(__file__).parent / "programs"

#: Steps that are taken, and what ends them and which phases are named when the program records itself.
Program = namedtuple("Program", "steps found_by phases needs", defaults=("wrapped loader", set(), "torch"))
KINDS = {
    "plain_loop": Program(60),
    "compiled_model": Program(60),
    "two_models": Program(60),
    "gradient_accumulation": Program(30, "step()"),
    "nanogpt_loop": Program(40, "step()", {"get_batch"}),
    "lightning_fit": Program(30, "step()", {"evaluation", "checkpoint"}, "lightning"),
    "huggingface_train": Program(30, "step()", {"evaluation", "checkpoint"}, "transformers"),
    "accelerate_loop": Program(30, "step()", {"checkpoint"}, "accelerate"),
}

pytestmark = pytest.mark.torch


@pytest.fixture(params=KINDS)
def kind(request):
    needs = KINDS[request.param].needs
    if find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    return request.param


def train(tmp_path, *command):
    # One thread: on a busy machine the threads of small operators wait for each other longer than for the data.
    variables = {"PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return programs.run(*command, cwd=tmp_path, env={**os.environ, **variables}, timeout=300, check=True)


def verdict(run):
    return json.loads((run / "report.json").read_text("utf-8"))["verdict"]


def phases(rank):
    return {rank.names[fields[2]] for fields in EVENT.iter_unpack(rank.events) if fields[0] == EventKind.PHASE}


def test_its_own_way_in_finds_the_stall_and_counts_exactly(kind, tmp_path):
    train(tmp_path, str(PROGRAMS / f"{kind}.py"), "record", "run")
    rank = read_run(tmp_path / "run").ranks[0]
    assert verdict(tmp_path / "run")["bound"] == "input-bound"
    assert rank.end.reason == "finished"
    assert rank.end.steps == KINDS[kind].steps
    assert rank.meta.steps_found_by == KINDS[kind].found_by
    assert phases(rank) == KINDS[kind].phases


def test_the_run_verb_finds_the_stall_with_nothing_edited(kind, tmp_path):
    done = train(tmp_path, "-m", "profilerkit", "run", "--no-analyze", str(PROGRAMS / f"{kind}.py"))
    rank = read_run(tmp_path / "runs" / kind).ranks[0]
    assert profilerkit.analyze(tmp_path / "runs" / kind).verdict.bound == "input-bound", done.stderr
    # The last step ends with the next fetch, which a loop that fetches ahead never makes.
    assert rank.end.steps in (KINDS[kind].steps - 1, KINDS[kind].steps)
    assert rank.meta.steps_found_by == "optimizer step"


@pytest.mark.skipif(find_spec("pytorch_lightning") is None, reason="pytorch_lightning is not installed")
def test_lightning_under_its_older_name_takes_the_same_callback(tmp_path):
    train(tmp_path, str(PROGRAMS / "lightning_fit.py"), "record", "run", "old-name")
    assert read_run(tmp_path / "run").ranks[0].end.steps == KINDS["lightning_fit"].steps


@pytest.mark.parametrize(("package", "words"), [("lightning", []), ("pytorch_lightning", ["old-name"])])
def test_lightnings_profiler_records_what_the_callback_does(tmp_path, package, words):
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    train(tmp_path, str(PROGRAMS / "lightning_fit.py"), "profile", "run", *words)
    program = KINDS["lightning_fit"]
    for name in ("run", "run-2"):
        rank = read_run(tmp_path / name).ranks[0]
        assert verdict(tmp_path / name)["bound"] == "input-bound"
        assert (rank.end.reason, rank.end.steps, rank.meta.steps_found_by) == ("finished", program.steps, "step()")
        assert phases(rank) == program.phases


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
def test_accelerate_launch_carries_the_order_to_the_training(tmp_path):
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
    options = ["--no-deep", "--no-analyze", "-o", "run"]
    script = str(PROGRAMS / "accelerate_loop.py")
    done = train(tmp_path, "-m", "profilerkit", "run", *options, "--", sys.executable, *launch, script)
    assert read_run(tmp_path / "run").ranks[0].end.reason == "finished"
    assert [path.name for path in tmp_path.glob("run*")] == ["run"]
    assert "nothing was recorded" not in done.stderr


@pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")
def test_a_callback_under_the_run_verb_joins_its_recording(tmp_path):
    script = str(PROGRAMS / "lightning_fit.py")
    train(tmp_path, "-m", "profilerkit", "run", "--no-deep", script, "record", "run")
    (rank,) = read_run(tmp_path / "run").ranks
    assert (rank.end.steps, rank.meta.steps_found_by) == (KINDS["lightning_fit"].steps, "step()")
