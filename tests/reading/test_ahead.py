"""One large trace read by two processes: the same result whatever becomes of the second, and only where it pays."""

import gzip
import signal
import subprocess

import pytest

from profilerkit.api import analyze
from profilerkit.reading import ahead, processes
from profilerkit.reading.ahead import reading_ahead
from profilerkit.reading.processes import own_process
from profilerkit.report.json import render
from profilerkit.trace.blocks import BLOCK_BYTES
from profilerkit.trace.readers import kineto, read_trace
from tests.recipes import training

MIDDLE = BLOCK_BYTES


@pytest.fixture
def trace(tmp_path):
    path = training(60, kernels=40).write(tmp_path / "trace.json")
    assert path.stat().st_size > 2 * MIDDLE
    return path


@pytest.fixture
def joins(monkeypatch):
    """Whether each part that was offered was taken."""
    taken, join = [], kineto.join
    monkeypatch.setattr(kineto, "join", lambda *a: taken.append(join(*a)) or taken[-1])
    return taken


@pytest.fixture
def started(monkeypatch):
    """The processes that were started."""
    found, popen = [], subprocess.Popen
    monkeypatch.setattr(processes.subprocess, "Popen", lambda *a, **k: found.append(popen(*a, **k)) or found[-1])
    return found


def report_of(*paths):
    return render(analyze(*paths)).split('"created"')[0]


def test_the_report_does_not_depend_on_who_read_the_trace(trace, monkeypatch, joins, started):
    alone = report_of(trace)
    assert not started
    monkeypatch.setattr(ahead, "_middle", lambda path: MIDDLE)
    assert report_of(trace) == alone
    assert (joins, [process.returncode for process in started]) == ([True], [0])


def test_what_a_killed_process_did_not_read_is_read_here(trace, joins, started):
    alone = read_trace(trace)
    with reading_ahead(trace, MIDDLE) as part:
        started[0].send_signal(signal.SIGKILL)
        columns = read_trace(trace, ahead=part)
    assert (columns.strings, columns.name.tolist()) == (alone.strings, alone.name.tolist())
    assert not joins
    assert started[0].returncode == -signal.SIGKILL


def test_without_a_process_all_is_read_here(trace, monkeypatch, joins):
    alone = report_of(trace)

    def refuse(*_, **__):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(ahead, "_middle", lambda path: MIDDLE)
    monkeypatch.setattr(processes.subprocess, "Popen", refuse)
    assert report_of(trace) == alone
    assert not joins


def test_a_process_whose_part_is_not_asked_for_ends_with_the_reading(trace, started):
    with reading_ahead(trace, MIDDLE):
        pass
    assert started[0].returncode is not None


@pytest.mark.parametrize(
    "text", [b"", b"{}", b'{"traceEvents": []}', b"no trace" * BLOCK_BYTES, b"{" * 2 * BLOCK_BYTES]
)
def test_there_is_no_part_of_what_is_no_trace(tmp_path, text, started):
    (tmp_path / "trace.json").write_bytes(text)
    with reading_ahead(tmp_path / "trace.json", MIDDLE) as part:
        assert part.part() is None
    assert started[0].returncode == 0


def test_several_traces_are_each_read_by_one_process(tmp_path, monkeypatch, started):
    paths = [training(4, rank=rank).write(tmp_path / f"rank{rank}.json") for rank in range(2)]
    monkeypatch.setattr(ahead, "_middle", lambda path: MIDDLE)
    analyze(*paths)
    assert not started


MB = 1_000_000


@pytest.mark.parametrize(
    ("size", "cores", "free_mb", "pays"),
    [
        (500 * MB, 2, 10_000, True),
        (500 * MB, 1, 10_000, False),
        (500 * MB, 2, 500, False),
        (ahead.LEAST_BYTES, 2, 10_000, True),
        (ahead.LEAST_BYTES - 1, 2, 10_000, False),
    ],
)
def test_a_process_helps_where_size_cores_and_memory_allow(tmp_path, monkeypatch, size, cores, free_mb, pays):
    with (tmp_path / "trace.json").open("wb") as sparse:
        sparse.truncate(size)
    monkeypatch.setattr(ahead, "free_cores", lambda: cores)
    monkeypatch.setattr(processes, "free_bytes", lambda: free_mb * MB)
    middle = ahead._middle(tmp_path / "trace.json")
    assert (middle > 0) == pays
    assert middle % BLOCK_BYTES == 0
    assert not pays or size / 2 < middle < 0.7 * size


def test_compressed_files_and_what_is_no_file_are_read_by_one_process(tmp_path, monkeypatch):
    monkeypatch.setattr(ahead, "LEAST_BYTES", 10)
    monkeypatch.setattr(ahead, "free_cores", lambda: 8)
    (tmp_path / "trace.json").write_bytes(b"{" * 100)
    (tmp_path / "packed.json").write_bytes(gzip.compress(bytes(range(256))))
    assert ahead._middle(tmp_path / "trace.json") > 0
    for name in ("packed.json", ".", "missing.json"):
        assert ahead._middle(tmp_path / name) == 0


def test_an_error_here_ends_the_process(trace, started):
    with pytest.raises(KeyboardInterrupt), own_process("profilerkit.reading.ahead_worker", None):
        raise KeyboardInterrupt
    assert started[0].returncode is not None
