"""Traces read by several processes: the same results in the same order, whatever becomes of the jobs."""

import doctest
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profilerkit.api import analyze
from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.formats import jobs
from profilerkit.formats import jobs as side_by_side
from profilerkit.formats.jobs import Reading, TraceJob, read_all
from profilerkit.report.json import render
from tests.recipes import Log, training, write_run


@pytest.fixture
def helpers(monkeypatch):
    """Lets so many processes help, whatever the sizes and the machine, and tells how many were started."""
    started = []

    def let(count):
        monkeypatch.setattr(side_by_side, "_helpers", lambda sizes: min(count, len(sizes) - 1))
        popen = subprocess.Popen
        monkeypatch.setattr(
            side_by_side.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1]
        )
        return started

    return let


def job_of(*paths, strict=False):
    return TraceJob(tuple((path, None) for path in paths), Reading(strict=strict))


def traces_in(directory, count):
    return [training(6, kernels=4 + rank, rank=rank).write(directory / f"rank{rank}.json") for rank in range(count)]


def said(results):
    return [(r.facts and r.facts.n_events, [(p, e.what, e.cause, e.hint) for p, e in r.errors]) for r in results]


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(side_by_side).failed == 0


def test_results_are_the_same_and_in_the_same_order(tmp_path, helpers):
    paths = traces_in(tmp_path, 5)
    (tmp_path / "bad.json").write_text("{}")
    jobs = [job_of(path) for path in paths]
    jobs[2:2] = [job_of(tmp_path / "bad.json", paths[0]), job_of(tmp_path / "bad.json"), TraceJob(())]
    alone = said(read_all(jobs))
    started = helpers(2)
    assert said(read_all(jobs)) == alone
    assert len(started) == 2
    assert [process.returncode for process in started] == [0, 0]
    assert alone[3] == (None, [(tmp_path / "bad.json", *alone[3][1][0][1:])])
    assert all(alone[3][1][0])


def test_a_report_of_many_traces_does_not_depend_on_who_read_them(tmp_path, helpers):
    traces_in(tmp_path, 4)

    def report():
        return render(analyze(tmp_path)).split('"created"')[0]

    alone = report()
    started = helpers(3)
    assert report() == alone
    assert len(started) == 3


def test_ranks_of_a_run_directory_are_read_side_by_side(tmp_path, helpers):
    logs = [Log().steps(30, 1_000) for _ in range(3)]
    run = write_run(tmp_path / "run", logs, traces={0: training(4), 1: b"{}", 2: training(4)})
    alone = analyze(run)
    started = helpers(2)
    assert analyze(run).trust.notes == alone.trust.notes
    assert any("trace.json cannot be read: it is JSON" in note for note in alone.trust.notes)
    assert len(started) == 2


def test_the_first_error_in_order_is_raised_with_its_three_parts(tmp_path, helpers):
    paths = traces_in(tmp_path, 3)
    for name in ("first.json", "second.json"):
        (tmp_path / name).write_text("{}")
    given = [paths[0], tmp_path / "first.json", paths[1], tmp_path / "second.json", paths[2]]
    with pytest.raises(UnreadableInputError) as alone:
        analyze(*given)
    helpers(4)
    with pytest.raises(UnreadableInputError) as caught:
        analyze(*given)
    assert str(caught.value) == str(alone.value)
    assert "first.json" in caught.value.what
    assert caught.value.hint


def test_strict_reading_stops_at_the_first_damaged_trace(tmp_path, helpers):
    paths = traces_in(tmp_path, 3)
    paths[1].write_bytes(paths[1].read_bytes()[:-400])
    helpers(2)
    with pytest.raises(UnreadableInputError, match=r"rank1\.json is damaged"):
        analyze(*paths, strict=True)


def test_what_a_killed_process_did_not_read_is_read_here(tmp_path, monkeypatch, helpers):
    jobs = [job_of(path) for path in traces_in(tmp_path, 4)]
    alone = said(read_all(jobs))
    started = helpers(3)
    read = side_by_side.read_job

    def kill_first(job):
        for process in started:
            process.send_signal(signal.SIGKILL)
        return read(job)

    monkeypatch.setattr(side_by_side, "read_job", kill_first)
    assert said(read_all(jobs)) == alone


def test_a_result_that_was_half_written_does_not_count(tmp_path):
    with (tmp_path / "results").open("w+b") as found:
        found.write(pickle.dumps((0, "whole")) + pickle.dumps((1, "half"))[:-4])
        found.flush()
        process = subprocess.Popen([sys.executable, "-c", ""])
        assert side_by_side._results(process, found) == {0: "whole"}


def test_without_processes_everything_is_read_here(tmp_path, monkeypatch, helpers):
    jobs = [job_of(path) for path in traces_in(tmp_path, 3)]
    alone = said(read_all(jobs))
    helpers(2)

    def refuse(*_, **__):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(side_by_side.subprocess, "Popen", refuse)
    assert said(read_all(jobs)) == alone


def test_an_error_here_ends_the_processes(tmp_path, monkeypatch, helpers):
    jobs = [job_of(path) for path in traces_in(tmp_path, 3)]
    started = helpers(2)

    def interrupt(job):
        raise KeyboardInterrupt

    monkeypatch.setattr(side_by_side, "read_job", interrupt)
    with pytest.raises(KeyboardInterrupt):
        read_all(jobs)
    assert [process.returncode is not None for process in started] == [True, True]


def test_a_file_that_vanished_is_a_usage_error_whoever_reads_it(tmp_path, helpers):
    jobs = [job_of(path) for path in (*traces_in(tmp_path, 2), tmp_path / "gone.json")]
    helpers(2)
    with pytest.raises(UsageError, match="does not exist"):
        list(read_all(jobs))


SCRIPT = """
import sys
from pathlib import Path
from profilerkit.formats import jobs
import profilerkit

with open(sys.argv[1], "a") as runs:
    runs.write("ran\\n")
jobs._helpers = lambda sizes: 1
report = profilerkit.analyze(*map(Path, sys.argv[2:]))
print(report.run.files)
"""


def test_a_script_without_a_guard_runs_once(tmp_path):
    """Processes that ``multiprocessing`` spawns run the script again, up to the call that started them."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "numpy.py").write_text("raise SystemExit('the working directory was imported from')")
    traces = traces_in(tmp_path, 2)
    done = subprocess.run(
        [sys.executable, "-P", tmp_path / "train.py", tmp_path / "runs", *traces],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(side_by_side.__file__).parents[2])},
    )
    assert done.stdout == "('rank0.json', 'rank1.json')\n"
    assert (tmp_path / "runs").read_text() == "ran\n"


SLOW_WORKER = """
import sys, time
from pathlib import Path
from profilerkit.formats import worker

def read_job(job):
    Path("reading").touch()
    time.sleep(60)

worker.read_job = read_job
worker.main()
"""
PROGRAM = """
import signal
import sys
from profilerkit.cli import main
from profilerkit.formats import jobs

jobs._helpers = lambda sizes: 1
jobs.own_program = lambda module: [sys.executable, "slow_worker.py"]
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
sys.exit(main())
"""


def test_an_interrupted_program_leaves_no_process_and_no_traceback(tmp_path):
    """A signal to the whole group, as the terminal sends it, while a process reads."""
    (tmp_path / "slow_worker.py").write_text(SLOW_WORKER)
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "analyze", *map(str, traces_in(tmp_path, 2))],
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(side_by_side.__file__).parents[2])},
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "reading").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (130, "interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)


MB = 1_000_000


@pytest.mark.parametrize(
    ("sizes", "cores", "free_mb", "helpers"),
    [
        ([900 * MB], 8, 10_000, 0),
        ([99 * MB] * 2, 8, 10_000, 0),
        ([100 * MB] * 2, 8, 10_000, 1),
        ([100 * MB] * 2, 1, 10_000, 0),
        ([500 * MB] * 8, 8, 100_000, 7),
        ([500 * MB] * 8, 4, 100_000, 3),
        ([5 * MB] * 64, 64, 100_000, 2),
        ([500 * MB] * 8, 8, 1_500, 1),
        ([500 * MB] * 8, 8, 900, 0),
        ([0, 0], 8, 10_000, 0),
    ],
)
def test_processes_help_where_size_cores_and_memory_allow(monkeypatch, sizes, cores, free_mb, helpers):
    monkeypatch.setattr(side_by_side, "free_cores", lambda: cores)
    monkeypatch.setattr(jobs, "free_bytes", lambda: free_mb * MB)
    assert side_by_side._helpers(sizes) == helpers


@pytest.mark.parametrize(("load", "free"), [(0.3, 8), (4.0, 4), (100.0, 0)])
def test_busy_cores_are_not_counted(monkeypatch, load, free):
    monkeypatch.setattr("profilerkit.capture.environment.usable_cores", lambda: 8.0)
    monkeypatch.setattr(jobs.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(jobs.os, "getloadavg", lambda: (load, 0, 0))
    assert jobs.free_cores() == free


def _machine(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_free_memory_is_what_system_and_cgroup_allow(tmp_path):
    assert jobs.free_bytes(tmp_path) == float("inf")
    group = "sys/fs/cgroup/job/"
    _machine(tmp_path, {"proc/meminfo": "MemTotal: 99 kB\nMemAvailable:   1000 kB\n"})
    assert jobs.free_bytes(tmp_path) == 1000 * 1024
    _machine(tmp_path, {"sys/fs/cgroup/cgroup.controllers": "memory\n", "proc/self/cgroup": "0::/job/task\n"})
    _machine(tmp_path, {f"{group}memory.max": "max\n", f"{group}memory.current": "5000\n", f"{group}task/x": ""})
    assert jobs.free_bytes(tmp_path) == 1000 * 1024
    _machine(tmp_path, {f"{group}memory.max": "15000\n"})
    assert jobs.free_bytes(tmp_path) == 10_000
    _machine(tmp_path, {f"{group}memory.stat": "anon 7\ninactive_file 2000\nactive_file 9\n"})
    assert jobs.free_bytes(tmp_path) == 12_000
    # A group within has a tighter limit, and more is left of it: both hold.
    _machine(tmp_path, {f"{group}task/memory.max": "13000\n", f"{group}task/memory.current": "10\n"})
    assert jobs.free_bytes(tmp_path) == 12_000


def test_the_first_version_of_control_groups_is_read_too(tmp_path):
    group = "sys/fs/cgroup/memory/job/"
    _machine(tmp_path, {"proc/meminfo": "MemAvailable: 1000 kB\n", "proc/self/cgroup": "4:memory:/job\n"})
    _machine(tmp_path, {f"{group}memory.limit_in_bytes": "9000\n", f"{group}memory.usage_in_bytes": "4000\n"})
    assert jobs.free_bytes(tmp_path) == 5_000
    _machine(tmp_path, {f"{group}memory.stat": "inactive_file 1\ntotal_inactive_file 500\n"})
    assert jobs.free_bytes(tmp_path) == 5_500
    _machine(tmp_path, {f"{group}memory.usage_in_bytes": "99000\n"})
    assert jobs.free_bytes(tmp_path) == 0


def test_sizes_are_those_of_the_text_whatever_the_name(tmp_path):
    trace = training(4)
    plain, packed = trace.write(tmp_path / "a.json"), trace.write(tmp_path / "b.json.gz")
    os.mkfifo(tmp_path / "pipe")
    packed = packed.rename(tmp_path / "b.json")
    sizes = [jobs.text_bytes(path) for path in (plain, packed, tmp_path / "pipe", tmp_path / "none")]
    assert sizes == [plain.stat().st_size, side_by_side.GZIP_RATIO * packed.stat().st_size, 0, 0]
