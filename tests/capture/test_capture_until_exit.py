"""Recordings without a block: the end of the program ends them, or the block that takes them over."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time

import pytest

import profilerkit
from profilerkit.capture.ending import Exits
from profilerkit.rundir.reader import read_run

RECORDS = """
import os, sys, profilerkit
prof = profilerkit.profile("run", deep=False, nvml=False, host=False, analyze=False)
def record():
    prof.record_until_exit()
    list(prof.wrap(range(5)))
"""

IN_A_CHILD = """
import multiprocessing
def work():
    record()
    {ending}
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
"""


@pytest.mark.parametrize(
    ("ending", "exception"),
    [
        ("pass", None),
        ("raise ValueError('lost')", "ValueError: lost"),
        ("try:\n    raise KeyError\nexcept KeyError:\n    pass", None),
    ],
)
def test_the_end_of_the_program_ends_it(tmp_path, ending, exception):
    subprocess.run([sys.executable, "-c", f"{RECORDS}record()\n{ending}"], cwd=tmp_path, check=exception is None)
    end = read_run(tmp_path / "run").ranks[0].end
    assert (end.steps, end.exception) == (5, exception)


@pytest.mark.parametrize(("ending", "exception"), [("pass", None), ("raise ValueError('lost')", "ValueError: lost")])
def test_the_end_of_a_process_of_multiprocessing_ends_it(tmp_path, ending, exception):
    subprocess.run([sys.executable, "-c", RECORDS + IN_A_CHILD.format(ending=ending)], cwd=tmp_path, check=True)
    end = read_run(tmp_path / "run").ranks[0].end
    assert (end.steps, end.exception) == (5, exception)


def test_a_forked_child_that_exits_leaves_the_recording_alone(tmp_path):
    fork = "record()\nif os.fork() == 0:\n    sys.exit(3)\nos.wait()\nlist(prof.wrap(range(4)))"
    subprocess.run([sys.executable, "-c", RECORDS + fork], cwd=tmp_path, check=True)
    assert read_run(tmp_path / "run").ranks[0].end.steps == 9


def test_a_block_takes_over_what_would_run_until_the_exit(light):
    outer, inner = light(), light()
    assert outer.record_until_exit()
    assert not outer.record_until_exit()
    list(outer.wrap(range(3)))
    with inner:
        list(inner.wrap(range(4)))
    assert inner.directory == outer.directory
    assert read_run(outer.directory).ranks[0].end.steps == 7
    outer.step()
    outer.__exit__(None, None, None)
    assert outer.report is None


def test_nothing_starts_where_it_is_switched_off(tmp_path):
    prof = profilerkit.profile(tmp_path / "run", enabled=False)
    prof.record_until_exit()
    prof.step()
    prof.__exit__(None, None, None)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("ending", "code", "left_by"),
    [
        ("sys.exit(3)", 3, "sys.exit(3)"),
        ("sys.exit()", 0, "sys.exit(0)"),
        ("sys.exit('no data')", 1, "sys.exit(1): no data"),
        ("quit(4)", 4, "sys.exit(4)"),
        ("os._exit(5)", 5, "os._exit(5)"),
        ("import threading\nthreading.Thread(target=sys.exit, args=(6,)).start()", 0, None),
        ("try:\n    sys.exit(3)\nexcept SystemExit:\n    list(prof.wrap(range(2)))", 0, None),
        ("try:\n    sys.exit(3)\nexcept SystemExit:\n    sys.exit(8)", 8, "sys.exit(8)"),
    ],
)
def test_the_call_by_which_the_program_leaves_is_noted(tmp_path, ending, code, left_by):
    done = subprocess.run([sys.executable, "-c", f"{RECORDS}record()\n{ending}"], cwd=tmp_path, check=False)
    assert done.returncode == code
    end = read_run(tmp_path / "run").ranks[0].end
    assert (end.left_by, end.exception) == (left_by, None)
    assert end.exit_code == (None if left_by is None else code)


@pytest.fixture
def leaving(monkeypatch):
    """Watches the ways to leave with ``work`` to do before ``os._exit``, which only notes its status here."""
    left, made = [], []

    def leaving(work):
        monkeypatch.setattr(os, "_exit", left.append)
        exits = Exits(lambda: 0, work)
        exits.install()
        made.append(exits)
        return left

    yield leaving
    for exits in made:
        exits.patches.remove()


def test_an_exit_waits_no_longer_than_its_bound_for_a_disk_that_hangs(leaving, monkeypatch):
    monkeypatch.setattr("profilerkit.capture.ending.LEAVE_SECONDS", 0.2)
    hangs = threading.Event()
    left = leaving(lambda _leave: hangs.wait(60))
    start = time.monotonic()
    os._exit(3)
    assert left == [3]
    assert time.monotonic() - start < 30
    hangs.set()


def test_an_exit_goes_on_when_nothing_can_be_noted(leaving):
    def broken(_leave):
        raise OSError("gone")

    left = leaving(broken)
    os._exit(3)
    assert left == [3]


def test_a_process_that_python_did_not_fork_notes_nothing(leaving, monkeypatch):
    noted = []
    left = leaving(noted.append)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    os._exit(3)
    assert (left, noted) == ([3], [])


def test_both_ways_to_leave_are_as_they_were_afterwards(light):
    before = sys.exit, os._exit
    with light():
        assert sys.exit is not before[0]
    assert (sys.exit, os._exit) == before


IN_A_FORK = """
prof.record_until_exit()
if os.fork() == 0:
    list(prof.wrap(range(50)))
    {ending}
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
list(prof.wrap(range(4)))
"""


@pytest.mark.parametrize("ending", ["os._exit(7)", "sys.exit(7)", "prof.__exit__(None, None, None); os._exit(7)"])
def test_a_forked_child_writes_no_record_and_no_end(tmp_path, ending):
    code = RECORDS + IN_A_FORK.format(ending=ending)
    subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", code], cwd=tmp_path, check=True)
    end = read_run(tmp_path / "run").ranks[0].end
    assert (end.steps, end.left_by, end.reason) == (4, None, "finished")
    assert not (tmp_path / "run-2").exists()


@pytest.fixture
def exits():
    made = Exits(lambda: 7, lambda _leave: None)
    made.install()
    yield made
    made.patches.remove()


def leave(code):
    try:
        sys.exit(code)
    except SystemExit as error:
        return error


def test_an_exit_that_was_caught_is_not_the_end_and_takes_no_other_with_it(exits):
    first, second = leave(3), leave(4)
    assert exits.cause().code == 4
    del first
    gc.collect()
    assert exits.cause().code == 4
    del second
    gc.collect()
    assert exits.cause() is None


def test_an_exit_of_another_thread_says_nothing_of_the_programs(exits):
    kept = leave(3)
    other = threading.Thread(target=leave, args=(5,))
    other.start()
    other.join()
    assert exits.cause().code == 3
    assert kept.code == 3


def test_the_exception_of_an_exit_can_be_copied_and_pickled(exits):
    def codes(error):
        return [copied.code for copied in (copy.deepcopy(error), pickle.loads(pickle.dumps(error)))]

    error = leave(3)
    # tblib, which dask imports, has every exception copied without its code.
    assert codes(error) == codes(SystemExit(3))
    gc.collect()
    assert exits.cause().code == 3
