"""Many traces through a pool: each once, whatever becomes of the workers."""

import json
import logging
import os
import re
import signal
import subprocess
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from profilerkit.cli import main
from profilerkit.errors import UnreadableInputError
from profilerkit.formats import jobs
from profilerkit.formats.jobs import Reading
from profilerkit.summaries import mapping
from profilerkit.summaries.files import SUFFIX, place_of
from profilerkit.summaries.mapping import Task, map_all, pool, shard_of
from tests.recipes import training

PLAIN = Reading()


def traces_in(directory, count):
    return [training(6, kernels=4 + rank, rank=rank).write(directory / f"rank{rank}.json") for rank in range(count)]


def tasks_of(traces):
    return [Task(trace, place_of(trace, None), PLAIN) for trace in traces]


@pytest.fixture
def profilerkit(capsys):
    """The command line in this process, as the result of a process of its own."""

    def run(*words):
        capsys.readouterr()
        returncode = main(list(map(str, words)))
        return subprocess.CompletedProcess(words, returncode, *capsys.readouterr())

    return run


def test_shards_are_all_paths_each_once():
    paths = [Path(str(number)) for number in range(11)]
    shares = [shard_of(paths, index, 4) for index in range(4)]
    assert sorted(path for share in shares for path in share) == sorted(paths)


def test_every_trace_has_its_summary_and_problems_are_told(tmp_path):
    traces = traces_in(tmp_path, 3)
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    found = {done.task.trace: done.problem for done in map_all(tasks_of([*traces, broken]), pool, 2)}
    assert [found[trace] for trace in traces] == ["", "", ""]
    assert "traceEvents" in found[broken]
    assert all(place_of(trace, None).is_file() for trace in traces)
    assert not place_of(broken, None).exists()


def killer(task):
    """Ends the process that reads the trace of this name, as memory that runs out would."""
    if task.trace.name == "killer.json":
        os.kill(os.getpid(), signal.SIGKILL)
    return _run(task)


_run = mapping.run


def test_a_file_that_kills_its_workers_costs_nobody_else(tmp_path, monkeypatch):
    traces = traces_in(tmp_path, 4)
    fatal = training(6, kernels=4, rank=9).write(tmp_path / "killer.json")
    monkeypatch.setattr(mapping, "run", killer)
    found = {done.task.trace.name: done.problem for done in map_all(tasks_of([traces[0], fatal, *traces[1:]]), pool, 2)}
    assert found.pop("killer.json") == "it ended 3 processes that read it"
    assert set(found.values()) == {""}
    assert len(found) == 4


# CPython 3.11's pool may trip over a process that it starts while it ends the others; nothing is lost by it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_is_killed_once_changes_nothing(tmp_path):
    traces = traces_in(tmp_path, 6)
    killed = []

    @contextmanager
    def one_dies(workers):
        with pool(workers) as executor:
            if not killed:
                executor.submit(os.getpid).result()
                killed.append(next(iter(executor._processes)))
                os.kill(killed[0], signal.SIGKILL)
            yield executor

    found = list(map_all(tasks_of(traces), one_dies, 2))
    assert killed
    assert {done.task.trace for done in found} == set(traces)
    assert {done.problem for done in found} == {""}


@pytest.fixture
def job(tmp_path):
    (tmp_path / "traces").mkdir()
    traces_in(tmp_path / "traces", 5)
    return tmp_path


def test_map_skips_what_is_done_and_reduce_reads_it(job, profilerkit):
    first = profilerkit("map", job / "traces", "-o", job / "kept", "--shard", "0/2")
    assert first.returncode == 0, first.stderr  # which traces are of a shard depends on their paths
    done = len(list((job / "kept").glob(f"*{SUFFIX}")))
    assert f"wrote {done} summar" in first.stderr
    second = profilerkit("map", job / "traces", "-o", job / "kept")
    assert f"wrote {5 - done} summar" in second.stderr
    assert f"{done} w" in second.stderr or not done
    assert len(list((job / "kept").glob(f"*{SUFFIX}"))) == 5
    report = job / "report.json"
    reduced = profilerkit("reduce", job / "kept", "-o", report)
    assert reduced.returncode == 0, reduced.stderr
    said = json.loads(report.read_text())
    assert said["crowd"]["ranks"] == 5
    assert [rank["rank"] for rank in said["ranks"]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["kept"], r"kept/report\.html"),
        (["kept", "-o", "mine.html"], r"mine\.html"),
        (["kept", "-o", "."], r"kept\.\d{8}-\d{4}\.[0-9a-f]{8}\.html"),
        (["named"], r"kept/rank0\.report\.html"),
        (["named", "-o", "."], r"rank0\.\d{8}-\d{4}\.[0-9a-f]{8}\.html"),
    ],
)
def test_the_report_of_summaries_lies_where_that_of_traces_would_and_the_last_line_says_where(
    job, words, written, profilerkit, monkeypatch
):
    monkeypatch.chdir(job)
    profilerkit("map", job / "traces", "-o", job / "kept")
    (first, *_) = sorted(path.relative_to(job) for path in (job / "kept").glob(f"rank0*{SUFFIX}"))
    reduced = profilerkit("reduce", *(first if word == "named" else word for word in words))
    assert reduced.returncode == 0, reduced.stderr
    (page,) = job.rglob("*.html")
    name = str(page.relative_to(job))
    assert re.fullmatch(written, name)
    assert reduced.stderr.splitlines()[-1].startswith(f"wrote {name} (")


def test_reduce_logs_what_it_is_at(job, caplog, profilerkit):
    profilerkit("map", job / "traces")
    with caplog.at_level(logging.INFO, "profilerkit"):
        assert main(["reduce", str(job / "traces"), "-q"]) == 0
    assert caplog.messages[:3] == ["reading summary 1 of 5", "comparing 5 ranks", "reading the details of 5 ranks"]


def test_no_more_is_under_way_than_fits_into_memory_and_one_always_is(tmp_path, monkeypatch):
    """Of tasks that take 4, 4, 3, 9 and 1 into a room of 8, the one of 9 is alone."""

    class Held(Executor):
        def submit(self, fn, task):
            return Future()

    @contextmanager
    def engine(workers):
        yield Held()

    held = []

    def first_ends(running, return_when):
        held.append([task.memory_bytes for task in running.values()])
        first = next(iter(running))
        first.set_result("")
        return SimpleNamespace(done={first})

    monkeypatch.setattr(mapping, "wait", first_ends)
    tasks = [Task(tmp_path / str(at), tmp_path, PLAIN, size) for at, size in enumerate((4, 4, 3, 9, 1))]
    assert [done.task for done in map_all(tasks, engine, 4, room_bytes=8)] == tasks
    assert held == [[4, 4], [4, 3], [3], [9], [1]]


def test_where_memory_is_the_limit_it_is_said(job, capsys, monkeypatch):
    monkeypatch.setattr(jobs, "free_bytes", lambda: 300_000_000)
    for workers, said in ((2, True), (1, False)):
        assert main(["map", str(job / "traces"), "--workers", str(workers), "--force"]) == 0
        told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("memory: ")]
        assert bool(told) == said
        assert not said or told[0].startswith("memory: 1 of 2 processes at a time for the largest traces, which take")


def without_names(text):
    said = json.loads(text)
    said.pop("crowd")
    said["run"].pop("created")
    for key in ("name", "files", "kind"):
        said["run"].pop(key)
    return said


def test_few_ranks_are_told_as_analyze_tells_them(job, profilerkit):
    profilerkit("map", job / "traces")
    reduced = profilerkit("reduce", job / "traces", "-f", "json", "-o", "-")
    analyzed = profilerkit("analyze", job / "traces", "-f", "json", "-o", "-")
    assert without_names(reduced.stdout) == without_names(analyzed.stdout)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shard", "4/4"], "I/N means the I-th of N"),
        (["--shard", "x"], "I/N means the I-th of N"),
        (["--workers", "0"], "too few"),
        (["--scheduler", "tcp://a:1"], "add --engine dask"),
        (["--scheduler", "tcp://a:1", "--engine", "inline"], "the engine is inline"),
    ],
)
def test_bad_words_are_refused(job, words, said, profilerkit):
    found = profilerkit("map", job / "traces", *words)
    assert found.returncode == 2
    assert said in found.stderr


def test_nothing_to_read_is_said(tmp_path, profilerkit):
    (tmp_path / "empty").mkdir()
    for verb, said in (("map", "no trace in"), ("reduce", "no summary in")):
        for path, words in ((tmp_path / "empty", said), (tmp_path / "none", "does not exist")):
            found = profilerkit(verb, path)
            assert found.returncode == 2
            assert words in found.stderr
            assert "hint:" in found.stderr


def test_unreadable_input_has_three_parts(tmp_path):
    from profilerkit.summaries.reduction import found_in, read_summaries

    (tmp_path / f"x{SUFFIX}").write_bytes(b"nothing")
    with pytest.raises(UnreadableInputError) as caught:
        read_summaries(found_in([tmp_path]))
    assert caught.value.what == "none of 1 summaries can be read"
    assert caught.value.cause
    assert "profilerkit map" in caught.value.hint


def test_a_stray_file_of_a_directory_is_left_out_and_one_that_was_named_is_an_error(job, profilerkit):
    (job / "traces" / "notes.json").write_text("{}")
    left_out = profilerkit("map", job / "traces", "-o", job / "kept")
    assert left_out.returncode == 0
    assert "notes.json was left out" in left_out.stderr
    assert f"wrote 5 summaries in {job / 'kept'}" in left_out.stderr
    assert profilerkit("map", job / "traces" / "notes.json").returncode == 2
    (job / "strays").mkdir()
    (job / "strays" / "notes.json").write_text("{}")
    assert profilerkit("map", job / "strays").returncode == 2
