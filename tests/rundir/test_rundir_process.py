"""Whether a recording's process still runs, and who was killed for want of memory beside it."""

import os
import subprocess
import sys

import msgspec
import pytest

from profilerkit.rundir import process
from profilerkit.rundir.process import oom_kills_since, still_runs, this_process
from tests.recipes import rank_meta

pytestmark = pytest.mark.skipif(this_process() is None, reason="there is no /proc here")


def meta(**changes):
    return rank_meta(pid=os.getpid(), process=msgspec.structs.replace(this_process(), **changes))


def test_this_process_runs():
    assert still_runs(meta()) is True


def test_another_process_with_its_number_is_not_it():
    assert still_runs(meta(start_ticks=this_process().start_ticks - 1)) is False


@pytest.mark.parametrize("changes", [{"boot_id": "another"}, {"pid_namespace": "pid:[1]"}])
def test_a_process_of_another_host_or_container_cannot_be_seen(changes):
    assert still_runs(meta(**changes)) is None


def test_without_a_mark_nothing_is_said():
    assert still_runs(rank_meta()) is None
    assert oom_kills_since(rank_meta()) is None


def test_a_process_that_ended_and_was_not_waited_for_runs_no_more():
    code = "from profilerkit.rundir.process import this_process as t; import sys, msgspec; "
    code += "sys.stdout.buffer.write(msgspec.json.encode(t())); sys.stdout.flush(); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    told = b""
    while not told.endswith(b"}"):
        told += child.stdout.read1()
    mark = msgspec.json.decode(told, type=type(this_process()))
    alive = rank_meta(pid=child.pid, process=mark)
    assert still_runs(alive) is True
    child.stdin.close()
    child.stdout.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert still_runs(alive) is False
    child.wait()
    child.stdout.close()
    assert still_runs(alive) is False


@pytest.mark.parametrize("name", ["memory.events", "memory.oom_control"])
def test_kills_in_the_control_group_are_counted_from_the_start_of_the_recording(tmp_path, monkeypatch, name):
    monkeypatch.setattr(process, "memory_group", lambda: tmp_path)
    (tmp_path / name).write_text("under_oom 0\noom_kill 2\n")
    started = meta()
    assert started.process.oom_kills == 2
    (tmp_path / name).write_text("under_oom 0\noom_kill 3\n")
    assert oom_kills_since(started) == 1
    monkeypatch.setattr(process, "memory_group", lambda: tmp_path.parent)
    assert oom_kills_since(started) is None
