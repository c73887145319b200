"""Every ending of a run, on one rank and on two: readable, with the program's own exit code, and named by the report."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

import profilerkit
from profilerkit.cli import main
from profilerkit.model.report import Report
from profilerkit.rundir.layout import EVENT, EventKind
from profilerkit.rundir.reader import read_run

HOME = Path(profilerkit.__file__).parents[1]
PROGRAM = Path(__file__).parent / "programs" / "endings.py"
#: What a kill may cost.
LOST_NS = 2_000_000_000
STEPS = 60


def program(tmp_path, *words, start=(sys.executable,), **variables):
    """The program, started."""
    ours = {"PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    return subprocess.Popen(
        [*start, str(PROGRAM), *words],
        cwd=tmp_path,
        env={**os.environ, **ours, **variables},
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    """Its exit code and what it said."""
    said = process.communicate(timeout=120)[1]
    return process.returncode, said


def two_ranks(tmp_path, *words):
    """Two ranks of one job; as a launcher does, the second is told to end two seconds after the first failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [program(tmp_path, *words, RANK=str(rank), LOCAL_RANK=str(rank), **job) for rank in (0, 1)]
    code, said = ended(ranks[1])
    if code:
        deadline = time.monotonic() + 2.0
        while ranks[0].poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        ranks[0].terminate()
    return code, said + ended(ranks[0])[1]


def report_of(run, capsys):
    """The report of ``profilerkit analyze``, and what it prints."""
    capsys.readouterr()
    out = run / "matrix.json"
    assert main(["analyze", str(run), "-f", "json", "-o", str(out)]) == 0
    assert main(["analyze", str(run)]) == 0
    assert (run / "report.html").is_file()
    return msgspec.json.decode(out.read_bytes(), type=Report), " ".join(capsys.readouterr().out.split())


def step_ends(rank):
    steps = [event for event in EVENT.iter_unpack(rank.events) if event[0] == EventKind.STEP]
    assert [event[5] for event in steps] == list(range(len(steps)))
    return [event[3] + event[4] for event in steps]


def assert_little_is_lost(tmp_path, rank):
    """The records reach to within two seconds of the last step that the program itself knows of."""
    made = [int(line) for line in (tmp_path / f"steps.{rank.rank}").read_text().split()]
    recorded = step_ends(rank)
    assert recorded
    assert made[-1] - recorded[-1] < LOST_NS


#: Ending: exit code, how the report names it (its beginning), and what else it says.
NAMED = {
    "finish": (0, "finished", None),
    "exception": (1, "ValueError: lost", "ValueError: lost"),
    "exit": (3, "sys.exit(3)", "ended after"),
    "exit well": (0, "sys.exit(0)", None),
    "os._exit": (5, "os._exit(5)", "ended after"),
    "SIGTERM": (-signal.SIGTERM, "killed", "left no word"),
    "SIGINT": (-signal.SIGINT, "interrupted (Ctrl-C)", "interrupted"),
    "SIGKILL": (-signal.SIGKILL, "killed", "left no word"),
    "SIGSEGV": (-signal.SIGSEGV, "killed", "left no word"),
    "out of memory": (1, "RuntimeError: ", "can't allocate memory"),
    "MemoryError": (1, "MemoryError", "MemoryError"),
    "fork and os._exit": (0, "finished", None),
    "fork and exit": (0, "finished", None),
}
ON_ONE_RANK = {
    "nested": (0, "finished", None),
    "open at the end": (0, "finished", None),
    "open at an exit": (3, "sys.exit(3)", "ended after"),
    "open at an exception": (1, "ValueError: lost", "ValueError: lost"),
    "open at os._exit": (5, "os._exit(5)", "ended after"),
    "open after a caught exit": (0, "finished", None),
    "generator": (0, "finished", None),
    "daemon thread": (0, "finished", None),
}
MATRIX = [(ending, 1) for ending in (*NAMED, *ON_ONE_RANK)] + [(ending, 2) for ending in NAMED]


@pytest.mark.torch
@pytest.mark.parametrize(("ending", "world_size"), MATRIX)
def test_an_ending_leaves_a_readable_run_its_exit_code_and_its_name(tmp_path, capsys, ending, world_size):
    if world_size == 2 or ending == "out of memory":
        pytest.importorskip("torch")
    code, name, failure = {**NAMED, **ON_ONE_RANK}[ending]
    got, said = two_ranks(tmp_path, ending) if world_size == 2 else ended(program(tmp_path, ending))
    assert got == code, said
    assert "switched itself off" not in said
    run = read_run(tmp_path / "run")
    assert [rank.rank for rank in run.ranks] == list(range(world_size))
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run"]
    for rank in run.ranks:
        assert_little_is_lost(tmp_path, rank)
    report, printed = report_of(run.path, capsys)
    failed = failure is not None
    assert report.steps.count >= STEPS - 40
    if world_size == 2 and failed:
        assert named_of_rank_1(report.run.ended, name), report.run.ended
    else:
        assert report.run.ended.startswith(name), report.run.ended
    assert (report.run.failure is None) is not failed
    if failed:
        assert failure in report.run.failure
        assert failure in printed
    assert (report.oom is not None) is (ending in ("out of memory", "MemoryError"))


def named_of_rank_1(word, name):
    """Whether the ending is told of rank 1, whatever became of rank 0 through it."""
    return any(part.startswith(name) or part == f"rank 1 {name}" for part in word.split("; "))
