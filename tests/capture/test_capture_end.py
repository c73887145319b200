# ruff: noqa: PT012, PT031  a block under test is a with statement with a loop in it
"""How a recording ends: well, by the user's exception, by a kill, or by its own failure."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import msgspec
import pytest

import profilerkit
from profilerkit.capture import handoff, session
from profilerkit.capture.steps import StepTracker
from profilerkit.model.report import Memory, Report
from profilerkit.model.run import Run, Trust
from profilerkit.model.step import Steps
from profilerkit.model.verdict import Verdict
from profilerkit.results import as_report
from profilerkit.rundir.layout import EVENT, EVENTS, HEADER
from profilerkit.rundir.reader import read_run

CLI = hasattr(__import__("profilerkit.cli", fromlist=["main"]), "main")


def test_exception_comes_out_unchanged_and_the_steps_before_it_are_there(light, recorded):
    error = KeyError("lost")
    with pytest.raises(KeyError) as caught, light() as prof:
        for number in prof.wrap(range(10)):
            if number == 6:
                raise error
    assert caught.value is error
    assert error.__context__ is None
    run = recorded(prof.directory)
    assert len(run.steps) == 6
    assert run.rank.end.reason == "exception"
    assert run.rank.end.exception == "KeyError: 'lost'"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SystemExit(3), ("exit", None, "sys.exit(3)", 3)),
        (SystemExit(), ("exit", None, "sys.exit(0)", 0)),
        (SystemExit("no data"), ("exit", None, "sys.exit(1): no data", 1)),
        (KeyboardInterrupt(), ("interrupted", "KeyboardInterrupt", None, None)),
        (GeneratorExit(), ("exception", "GeneratorExit", None, None)),
    ],
)
def test_exceptions_that_end_the_program_pass_and_are_named(light, recorded, error, told):
    with pytest.raises(type(error)) as caught, light() as prof:
        raise error
    assert caught.value is error
    end = recorded(prof.directory).rank.end
    assert (end.reason, end.exception, end.left_by, end.exit_code) == told


def test_exception_that_cannot_be_printed_is_recorded_by_its_type(light, recorded):
    class RudeError(Exception):
        def __str__(self):
            raise RuntimeError("no")

    with pytest.raises(RudeError), light() as prof:
        raise RudeError
    assert "RudeError" in recorded(prof.directory).rank.end.exception


def test_own_failure_switches_capture_off_and_training_goes_on(light, recorded, monkeypatch):
    real = StepTracker.fetch_started
    calls = []

    def broken(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 4:
            raise ZeroDivisionError("bug")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(StepTracker, "fetch_started", broken)
    seen = []
    with pytest.warns(RuntimeWarning, match="profilerkit switched itself off") as warned, light() as prof:
        seen.extend(prof.wrap(range(10)))
        prof.step()
        with prof.phase("checkpoint"):
            pass
        assert prof.wrap(seen) is seen
    assert seen == list(range(10))
    assert len(warned) == 1
    assert len(calls) == 4
    run = recorded(prof.directory)
    assert run.rank.end.reason == "switched_off"
    assert "ZeroDivisionError" in run.rank.end.switched_off_because
    assert "ZeroDivisionError" in run.rank.meta.features["light"].reason
    assert not run.rank.meta.features["light"].on


def test_own_failure_stays_silent_where_warnings_are_errors(light, monkeypatch):
    monkeypatch.setattr(StepTracker, "fetch_started", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with light() as prof:
            assert list(prof.wrap(range(3))) == [0, 1, 2]


def test_full_disk_stops_the_recording_and_nothing_else(light, recorded, monkeypatch):
    real = os.write

    def full(fd, data):
        if b"PKEVENTS" not in bytes(data[:8]) and Path(f"/proc/self/fd/{fd}").readlink().name == EVENTS:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    with light() as prof:
        assert len(list(prof.wrap(range(10)))) == 10
    run = recorded(prof.directory)
    assert run.events == []
    assert run.rank.end.dropped_records >= 10 + 11  # steps and fetches; a garbage collection may add its own
    assert run.rank.meta.features["light"].reason == "events.bin: No space left on device"


SLOW_LOOP = """
import sys, time, profilerkit
with profilerkit.profile(sys.argv[1], deep=False, nvml=False, analyze=False) as prof:
    for number in prof.wrap(range(100000)):
        time.sleep(0.002)
"""


def wait_for_records(path, count):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if path.exists() and path.stat().st_size >= HEADER.size + count * EVENT.size:
            return
        time.sleep(0.02)
    raise AssertionError("nothing was recorded")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_process_leaves_readable_records(tmp_path, recorded, number):
    process = subprocess.Popen([sys.executable, "-c", SLOW_LOOP, str(tmp_path / "run")])
    wait_for_records(tmp_path / "run" / "rank_00000" / EVENTS, 100)
    process.send_signal(number)
    assert process.wait(30) == -number
    run = recorded(tmp_path / "run")
    assert run.rank.end is None
    assert len(run.steps) > 40
    assert [step.value for step in run.steps] == list(range(len(run.steps)))
    assert run.rank.meta is not None
    assert run.run.manifest is not None
    assert any("killed" in note for note in run.rank.notes)


def test_forked_child_that_leaves_the_block_changes_nothing(light, recorded):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with light() as prof:
            list(prof.wrap(range(5)))
            child = os.fork()
            if child == 0:
                prof.step()
                prof.__exit__(None, None, None)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            list(prof.wrap(range(5)))
    run = recorded(prof.directory)
    assert len(run.steps) == 10
    assert run.rank.meta.pid == os.getpid()


RANK_LOOP = """
import sys, profilerkit
with profilerkit.profile(sys.argv[1], deep=False, nvml=False, host=False, analyze=False) as prof:
    list(prof.wrap(range(20)))
print(prof.directory)
"""


def test_ranks_of_one_job_write_into_one_directory(tmp_path):
    (tmp_path / "run" / "rank_00000").mkdir(parents=True)
    (tmp_path / "run" / "rank_00000" / EVENTS).write_bytes(b"")
    job = {**os.environ, "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK_LOOP, str(tmp_path / "run")],
            env={**job, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    directories = {process.communicate()[0].strip() for process in processes}
    assert directories == {str(tmp_path / "run-2")}
    record = read_run(tmp_path / "run-2")
    assert [rank.rank for rank in record.ranks] == [0, 1, 2]
    assert [rank.meta.local_rank for rank in record.ranks] == [0, 1, 2]
    assert record.manifest.world_size == 3
    assert record.missing_ranks == ()


def test_waiting_for_ranks_is_bounded_and_names_the_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(handoff, "_RANKS_SECONDS", 0.1)
    (tmp_path / "rank_00000").mkdir()
    (tmp_path / "rank_00000" / "end.json").write_text("{}")
    assert handoff.wait_for_ranks(tmp_path, 3) == [1, 2]
    assert handoff.wait_for_ranks(tmp_path, 1) == []


def fake_cli(tmp_path, monkeypatch, body):
    """A ``python`` that stands for the command line program."""
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\n" + textwrap.dedent(body))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def test_failed_analysis_says_why_and_warns_once(tmp_path, monkeypatch, light, capfd):
    fake_cli(tmp_path, monkeypatch, "import sys\nprint('error: no steps', file=sys.stderr)\nsys.exit(2)")
    with pytest.warns(RuntimeWarning, match="could not make the report.*") as warned, light(analyze=True) as prof:
        list(prof.wrap(range(3)))
    assert len(warned) == 1
    assert str(warned[0].message).endswith("exit code 2")
    assert prof.report is None
    assert capfd.readouterr() == ("", "error: no steps\n")


def test_unreadable_report_warns_and_is_none(tmp_path, monkeypatch, light):
    fake_cli(tmp_path, monkeypatch, "import sys, pathlib\npathlib.Path(sys.argv[5], 'report.json').write_text('{}')")
    with pytest.warns(RuntimeWarning, match="cannot be read"), light(analyze=True) as prof:
        pass
    assert prof.report is None


@pytest.fixture
def report(tmp_path):
    """A report, also lying in ``made.json``."""
    made = Report(
        verdict=Verdict(bound="inconclusive", confidence="low", headline="nothing to see"),
        steps=Steps(count=0, steady=0, dropped={}, found_by="", inferred=False, time_ns=None),
        breakdown=(),
        ranks=(),
        outcomes=(),
        kernels=(),
        collectives=(),
        memory=Memory(),
        trust=Trust(mode="steps"),
        run=Run(name="run", kind="run", files=(), profilerkit_version="0", created=""),
    )
    (tmp_path / "made.json").write_bytes(msgspec.json.encode(made))
    return made


WRITES_REPORT = """
    import json, pathlib, shutil, sys
    run = pathlib.Path(sys.argv[5])
    assert (run / "rank_00000" / "end.json").is_file()
    (run / "argv.json").write_text(json.dumps(sys.argv[1:]))
    shutil.copy(run.parent / "made.json", run / "report.json")
    print("data")
    print("profilerkit: inconclusive: nothing to see", file=sys.stderr)
    sys.exit({code})
"""


def test_report_is_read_back_also_after_an_exception(tmp_path, monkeypatch, light, report):
    fake_cli(tmp_path, monkeypatch, WRITES_REPORT.format(code=0))
    with pytest.raises(KeyError), light(analyze=True) as prof:
        assert prof.report is None
        raise KeyError("x")
    assert prof.report == as_report(report)
    arguments = json.loads((prof.directory / "argv.json").read_text())
    assert arguments == ["-P", "-m", "profilerkit", "analyze", str(prof.directory), "-f", "html,json", "--brief"]


@pytest.mark.parametrize("code", [0, 1, 3])
def test_gate_of_the_command_line_does_not_cost_the_report(tmp_path, monkeypatch, light, report, code, capfd):
    fake_cli(tmp_path, monkeypatch, WRITES_REPORT.format(code=code))
    with light(analyze=True) as prof:
        pass
    assert prof.report == as_report(report)
    assert capfd.readouterr() == ("", "profilerkit: inconclusive: nothing to see\n")


@pytest.mark.usefixtures("report")
def test_code_of_an_error_is_a_failure_whatever_lies_there(tmp_path, monkeypatch, light):
    fake_cli(tmp_path, monkeypatch, WRITES_REPORT.format(code=2))
    with pytest.warns(RuntimeWarning, match="could not make the report"), light(analyze=True) as prof:
        pass
    assert prof.report is None


@pytest.mark.usefixtures("report")
def test_report_of_an_earlier_analysis_is_not_taken_for_this_one(tmp_path, monkeypatch):
    shutil.copy(tmp_path / "made.json", tmp_path / "report.json")
    fake_cli(tmp_path, monkeypatch, "import sys\nsys.exit(1)")
    with pytest.warns(RuntimeWarning, match="report.json was not written"):
        assert handoff.analyze(tmp_path, 60.0) is None


def test_after_an_exception_no_rank_is_waited_for_and_the_exit_is_bounded(tmp_path, monkeypatch, light):
    fake_cli(tmp_path, monkeypatch, "import time\ntime.sleep(60)")
    monkeypatch.setattr(session, "_SECONDS_AFTER_ERROR", 1.0)
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    start = time.monotonic()
    with pytest.warns(RuntimeWarning, match="not done after 1 s"), pytest.raises(KeyError), light(analyze=True):
        raise KeyError("x")
    assert time.monotonic() - start < 5.0


def test_warning_points_at_the_line_of_the_user(light):
    with pytest.warns(RuntimeWarning, match="records nothing") as warned, light(), light():
        pass
    assert warned[0].filename == __file__


IN_A_FOREIGN_PLACE = """
import sys
sys.path.insert(0, {entry!r})
import profilerkit
with profilerkit.profile("run", deep=False, nvml=False, host=False) as prof:
    list(prof.wrap(range(20)))
assert prof.report is not None
"""


@pytest.mark.skipif(not CLI, reason="the command line program is not part of this checkout")
@pytest.mark.parametrize("found", ["relative sys.path", "PYTHONPATH", "relative PYTHONPATH"])
def test_analysis_finds_profilerkit_and_never_runs_what_lies_beside_the_script(tmp_path, found):
    home = Path(profilerkit.__file__).parents[1]
    (tmp_path / "jinja2.py").write_text("raise SystemExit('this is the user's file')")
    (tmp_path / "lib").symlink_to(home)
    paths = {"PYTHONPATH": f"{home}{os.pathsep}{tmp_path}", "relative PYTHONPATH": f"lib{os.pathsep}."}
    environment = {**os.environ, "PYTHONPATH": paths.get(found, "")}
    code = IN_A_FOREIGN_PLACE.format(entry="lib" if found == "relative sys.path" else "")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("profilerkit: ")
    # What comes next depends on the verdict, and steps of 4 µs have one only if no garbage collection falls into them.
    assert f" ({Path('run', 'report.html')}); next: " in line


@pytest.mark.torch
@pytest.mark.skipif(not CLI, reason="the command line program is not part of this checkout")
def test_block_ends_with_a_report(tmp_path, toy):
    with profilerkit.profile(tmp_path / "run") as prof:
        for batch in prof.wrap(toy.loader(batches=32)):
            toy.train(batch)
    assert prof.report is not None
    assert prof.report.steps.count == 32
    assert (tmp_path / "run" / "report.html").is_file()
