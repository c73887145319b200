"""Every ending of a run, on one rank and on two: readable, the exit code the program's own, named by the report."""

import contextlib
import os
import resource
import signal
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
from tests import programs

HOME = Path(profilerkit.__file__).parents[1]
PROGRAM = Path(__file__).parent / "programs" / "endings.py"
#: What a kill may cost.
LOST_NS = 2_000_000_000
STEPS = 100


@pytest.fixture
def start(tmp_path):
    """Starts the program; what still runs at the end of the test is killed, with its children."""
    started = []

    def start(*words, launcher=(), **variables):
        ours = {"PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
        place = {"cwd": tmp_path, "env": {**os.environ, **ours, **variables}}
        if launcher:
            command = [sys.executable, *launcher, str(PROGRAM), *words]
            process = subprocess.Popen(command, **place, stderr=subprocess.PIPE, text=True, start_new_session=True)
        else:
            process = programs.start(PROGRAM, *words, **place)
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ended(process):
    """Its exit code and what it said."""
    said = process.communicate(timeout=60)[1]
    return process.returncode, said


def two_ranks(start, *words):
    """Two ranks of one job; as a launcher does, the first is told to end some time after the second has failed."""
    port = str(programs.free_port())
    job = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [start(*words, RANK=str(rank), LOCAL_RANK=str(rank), **job) for rank in (0, 1)]
    code, said = ended(ranks[1])
    if code:
        deadline = time.monotonic() + 2.0
        while ranks[0].poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        ranks[0].terminate()
    return code, said + ended(ranks[0])[1]


def outcome_of(start, world_size, *words):
    """Exit code of the last rank, and what all ranks said."""
    if world_size == 2:
        pytest.importorskip("torch")
        return two_ranks(start, *words)
    return ended(start(*words))


def report_of(run, capsys):
    """The report of ``profilerkit analyze``, and what it prints."""
    capsys.readouterr()
    assert main(["analyze", str(run)]) == 0
    assert (run / "report.html").is_file()
    report = msgspec.json.decode((run / "report.json").read_bytes(), type=Report)
    return report, " ".join(capsys.readouterr().out.split())


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
    "exception": (1, "ValueError", "ValueError: lost"),
    "exit": (3, "sys.exit(3)", "sys.exit(3)"),
    "exit well": (0, "sys.exit(0)", None),
    "os._exit": (5, "os._exit(5)", "os._exit(5)"),
    "SIGTERM": (-signal.SIGTERM, "killed", "left no word"),
    "SIGINT": (-signal.SIGINT, "interrupted (Ctrl-C)", "interrupted"),
    "SIGKILL": (-signal.SIGKILL, "killed", "left no word"),
    "SIGSEGV": (-signal.SIGSEGV, "killed", "left no word"),
    "out of memory": (1, "RuntimeError", "RuntimeError: "),
    "MemoryError": (1, "MemoryError", "MemoryError"),
    "fork and os._exit": (0, "finished", None),
    "fork and exit": (0, "finished", None),
}
ON_ONE_RANK = {
    "nested": (0, "finished", None),
    "open at the end": (0, "finished", None),
    "open at an exit": (3, "sys.exit(3)", "sys.exit(3)"),
    "open at an exception": (1, "ValueError", "ValueError: lost"),
    "open at os._exit": (5, "os._exit(5)", "os._exit(5)"),
    "open after a caught exit": (0, "finished", None),
    "open at a caught exit": (0, "finished", None),
    "generator": (0, "finished", None),
    "daemon thread": (0, "finished", None),
}
#: A forked child of a process with a gloo group hangs in ``sys.exit``, with torch 2.13 alone too.
NOT_ON_TWO = ("fork and exit",)
ALSO_ON_TWO = ("nested", "open at the end", "open at an exit")
MATRIX = [(ending, 1) for ending in (*NAMED, *ON_ONE_RANK)]
MATRIX += [(ending, 2) for ending in (*NAMED, *ALSO_ON_TWO) if ending not in NOT_ON_TWO]


@pytest.mark.torch
@pytest.mark.parametrize(("ending", "world_size"), MATRIX)
def test_an_ending_leaves_a_readable_run_its_exit_code_and_its_name(tmp_path, start, capsys, ending, world_size):
    if ending == "out of memory":
        pytest.importorskip("torch")
    code, name, failure = {**NAMED, **ON_ONE_RANK}[ending]
    got, said = outcome_of(start, world_size, ending)
    assert got == code, said
    assert "switched itself off" not in said
    run = read_run(tmp_path / "run")
    assert [rank.rank for rank in run.ranks] == list(range(world_size))
    assert sorted(path.name for path in tmp_path.glob("run*")) == ["run"]
    for rank in run.ranks:
        assert_little_is_lost(tmp_path, rank)
    report, printed = report_of(run.path, capsys)
    assert report.steps.count > 0
    # What ended the last rank may end the first one too, a moment later.
    words = report.run.ended.split("; ") if failure else [report.run.ended]
    assert any(word.startswith(name) or word == f"rank 1 {name}" for word in words), report.run.ended
    assert (report.run.failure is None) is (failure is None)
    if failure is not None:
        assert failure.partition(":")[0] in report.run.failure  # what it said is printed, and not passed on
        assert ("ut of memory on the host" if report.oom else failure) in printed
    assert (report.oom is not None) is (ending in ("out of memory", "MemoryError"))


@pytest.fixture
def disk(tmp_path):
    """A small file system of its own, mounted with the options given."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = []

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "none", str(place)]
        if not hasattr(os, "getuid") or os.getuid() != 0 or subprocess.run(command, check=False).returncode != 0:
            pytest.skip("a file system can be mounted by root only")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_full_disk_costs_the_records_behind_it_and_nothing_else(disk, start, capsys, world_size):
    run = disk("size=8m") / "run"
    code, said = outcome_of(start, world_size, "full disk", str(run))
    assert (code, "switched itself off" in said) == (0, False), said
    (run.parent / "filler").unlink()
    record = read_run(run)
    assert all(len(step_ends(rank)) >= STEPS // 2 for rank in record.ranks)
    assert sum(rank.end.dropped_records for rank in record.ranks) > 0
    report, printed = report_of(run, capsys)
    assert report.run.ended == "finished"
    assert "records are lost: events.bin: No space left on device." in report.run.failure
    assert "No space left on device" in printed


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="this system limits no file sizes")
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_file_that_may_not_grow_costs_the_records_behind_it(tmp_path, start, capsys, world_size):
    code, said = outcome_of(start, world_size, "file size limit")
    assert (code, "switched itself off" in said) == (0, False), said
    report, _ = report_of(tmp_path / "run", capsys)
    assert report.run.ended == "finished"
    assert "records are lost: events.bin: File too large" in report.run.failure


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_directory_that_cannot_be_written_is_left_for_the_temporary_one(tmp_path, disk, start, capsys, world_size):
    wanted = disk("ro") / "run"
    code, said = outcome_of(start, world_size, "read-only directory", str(wanted))
    assert code == 0, said
    run = tmp_path / f"profilerkit-{os.getuid()}" / "run"
    told = [line for line in said.splitlines() if "cannot be written" in line]
    assert len(told) == world_size
    assert f"{wanted} cannot be written (Read-only file system); recording to {run}" in told[0]
    report, _ = report_of(run, capsys)
    assert (report.run.ended, report.run.failure, report.run.ranks) == ("finished", None, tuple(range(world_size)))


def test_a_cell_that_was_interrupted_runs_again(tmp_path, start, capsys):
    code, said = ended(start("notebook"))
    assert code == 0, said
    first, again = (report_of(tmp_path / name, capsys)[0] for name in ("run", "run-2"))
    assert (first.run.ended, first.steps.count) == ("interrupted (Ctrl-C)", STEPS - 1)
    assert (again.run.ended, again.run.failure, again.steps.count) == ("finished", None, STEPS)


@pytest.mark.torch
def test_a_dead_rank_is_named_although_the_launcher_ends_the_other(tmp_path, start, capsys):
    pytest.importorskip("torch")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    code, said = ended(start("SIGKILL", launcher=launcher))
    assert code == 1, said
    for rank in read_run(tmp_path / "run").ranks:
        assert_little_is_lost(tmp_path, rank)
    report, printed = report_of(tmp_path / "run", capsys)
    assert report.run.ended == "killed" or report.run.ended.endswith("; rank 1 killed")
    assert "1 left no word of" in report.run.failure
    assert report.run.failure.split(".")[0] in printed


def test_a_run_is_told_from_a_killed_one_while_it_runs(tmp_path, start, capsys):
    process = start("stay")
    events = tmp_path / "run" / "rank_00000" / "events.bin"
    deadline = time.monotonic() + 60
    while not events.exists() or events.stat().st_size < 100 * EVENT.size:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    report, _ = report_of(tmp_path / "run", capsys)
    assert report.run.ended == "still running"
    assert report.run.failure == "The run still runs: this is what it has recorded until now."
    process.kill()
    process.wait()
    report, printed = report_of(tmp_path / "run", capsys)
    assert report.run.ended == "killed"
    assert report.run.failure.startswith("The run was killed: it left no word of its end. Its last record is of 20")
    assert "The run was killed" in printed
