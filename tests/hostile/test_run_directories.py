"""A run directory that somebody sent is read within seconds and 300 MB, whatever its files are."""

import json
import os
import resource
import socket
import stat
import time
from pathlib import Path

import pytest

import profilerkit
import profilerkit.api
from profilerkit.cli import main
from profilerkit.errors import ProfilerkitError
from profilerkit.formats.inputs import is_saved_report
from profilerkit.rundir.follow import FollowedRun
from profilerkit.rundir.reader import read_run
from tests.recipes import Log, training, write_run

_SECONDS, _BYTES = 5.0, 300_000_000
_FIRST = "rank_00000"
#: One of each kind that a run directory can hold.
_FILES = (
    "run.json",
    "launch.json",
    f"{_FIRST}/meta.json",
    f"{_FIRST}/events.bin",
    f"{_FIRST}/names.jsonl",
    f"{_FIRST}/samples.jsonl",
    f"{_FIRST}/clock.jsonl",
    f"{_FIRST}/stacks.jsonl",
    f"{_FIRST}/end.json",
    f"{_FIRST}/oom.json",
    f"{_FIRST}/flight.json",
    f"{_FIRST}/worker.7.0.bin",
)
_TRACE, _STATUS = f"{_FIRST}/windows/000000/trace.json", f"{_FIRST}/windows/000000/status.json"


def pipe(path):
    os.mkfifo(path)


def link(path):
    path.symlink_to("/dev/zero")


def holes(path):
    path.touch()
    os.truncate(path, 3 << 30)


def device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("only root can make a device")


def a_socket(path):
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(path.name)
    finally:
        os.chdir(here)


def directory(path):
    path.mkdir()


CASES = [
    *((kind, name) for kind in (pipe, link, holes) for name in _FILES),
    *((kind, name) for kind in (device, a_socket, directory) for name in ("run.json", f"{_FIRST}/events.bin")),
    *((kind, _TRACE) for kind in (pipe, link, holes)),
    (pipe, _STATUS),
]


@pytest.fixture
def run(tmp_path):
    log = Log()
    for number in range(24):
        log.queue(log.step(1_000, wait=400, wait_cpu=300), 7, number)
    return write_run(tmp_path / "run", [log, log], traces={0: training(4, kernels=3, rank=0, world_size=2)})


def replaced(path, make):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    make(path)


def measured(call):
    """What a call returns as text, said by a fork of its own; how long it took and what it added to the memory."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            said = call()
        except ProfilerkitError as error:
            said = f"error: {error}"
        except BaseException as error:  # noqa: BLE001  the parent says it
            said = f"crash: {error!r}"
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        os.write(write, f"{grown}\n{said}".encode()[:60_000])
        os._exit(0)
    os.close(write)
    began = time.monotonic()
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() - began > 6 * _SECONDS:  # other tests may be busy
            os.kill(pid, 9)
            pytest.fail("it hangs")
        time.sleep(0.005)
    with os.fdopen(read, "rb") as file:
        grown, _, said = file.read().decode().partition("\n")
    assert not said.startswith("crash"), said
    assert int(grown) < _BYTES
    return said


def notes_of(path):
    return " ".join(profilerkit.analyze(path).trust.notes)


@pytest.mark.parametrize(("make", "name"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_a_strange_file_costs_no_time_and_is_said(run, make, name):
    replaced(run / name, make)
    said = measured(lambda: notes_of(run))
    assert Path(name).name in said or "window 000000" in said, said


@pytest.mark.parametrize("name", [_FIRST, f"{_FIRST}/windows", f"{_FIRST}/windows/000000"])
def test_a_directory_that_is_a_link_is_left_out(run, tmp_path, name):
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    said = measured(lambda: notes_of(run))
    assert f"{Path(name).name} is a link and was left out" in said


def test_a_page_of_a_run_whose_only_rank_is_a_link_names_it(run, tmp_path, capsys):
    (run / _FIRST).rename(tmp_path / "elsewhere")
    (run / _FIRST).symlink_to(tmp_path / "elsewhere")
    assert main(["watch", "--once", str(run)]) == 0
    assert f"{_FIRST} is a link and was left out" in capsys.readouterr().err


def test_every_file_a_pipe_at_once(run):
    for name in (*_FILES, _TRACE, _STATUS):
        replaced(run / name, pipe)
    said = measured(lambda: notes_of(run))
    assert "run.json cannot be read: it is a pipe" in said
    assert f"{_FIRST} was left out: its meta.json and events.bin are no files" in said


@pytest.mark.parametrize("make", [pipe, link, holes])
def test_other_doors_do_not_wait_either(run, tmp_path, make):
    from profilerkit.rundir.follow import FollowedRun

    replaced(run / _FIRST / "events.bin", make)
    replaced(run / _FIRST / "samples.jsonl", make)
    replaced(tmp_path / "named.json", make)
    replaced(run / "report.json", make)
    measured(lambda: str(len(FollowedRun(run).look().ranks)))
    measured(lambda: str(is_saved_report(tmp_path / "named.json")))
    assert measured(lambda: str(profilerkit.analyze(tmp_path / "named.json"))).startswith("error: ")
    assert measured(lambda: str(profilerkit.load(run / "report.json"))).startswith("error: ")


def test_holes_in_a_trace_that_was_named_are_refused(tmp_path):
    holes(tmp_path / "trace.json")
    assert "holes" in measured(lambda: str(profilerkit.analyze(tmp_path / "trace.json")))


def test_a_world_of_a_billion_ranks_costs_no_time_and_is_said(run):
    manifest = run / "run.json"
    document = json.loads(manifest.read_text("utf-8"))
    manifest.write_text(json.dumps({**document, "world_size": 10**9}), "utf-8")
    began = time.monotonic()
    found = read_run(run)
    followed = FollowedRun(run).look()
    assert time.monotonic() - began < 5
    assert "1,000,000,000 ranks" in " ".join(found.notes)
    assert (found.missing_ranks, len(followed.ranks)) == ((), 2)
