"""Recordings without a block: the end of the program ends them, or the block that takes them over."""

import subprocess
import sys

import pytest

import profilerkit
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
