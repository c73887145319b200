"""A wrong setting never ends a training: one warning, and the default or nothing is recorded."""

import os
import sys
import warnings

import pytest

import profilerkit
from profilerkit.capture import session
from profilerkit.cli import main

#: Arguments and variables, and what the warning says of them: the cause and the remedy.
WRONG = [
    ({"trace_steps": 0}, "trace_steps is 0; it must be a whole number of at least 1", "10 is used"),
    ({"trace_steps": 2.0}, "trace_steps is 2.0", "10 is used"),
    ({"trace_steps": True}, "trace_steps is True", "10 is used"),
    ({"trace_steps": None}, "trace_steps is None", "10 is used"),
    ({"warmup_steps": -1}, "warmup_steps is -1", "5 is used"),
    ({"warmup_steps": "5"}, "warmup_steps is '5'", "5 is used"),
    ({"trace_every": 0}, "trace_every is 0", "the default is used"),
    ({"max_trace_bytes": -1}, "max_trace_bytes is -1", "1073741824 is used"),
    ({"overhead_budget": "much"}, "overhead_budget is 'much'; it must be a share of the step", "0.01 is used"),
    (
        {"overhead_budget": 5},
        "overhead_budget is 5; it must be a share of the step's time, above 0 and up to 1",
        "0.01",
    ),
    ({"overhead_budget": float("inf")}, "overhead_budget is inf", "0.01 is used"),
    ({"overhead_budget": 0}, "overhead_budget is 0", "0.01 is used"),
    ({"overhead_budget": float("nan")}, "overhead_budget is nan", "0.01 is used"),
    ({"path": ""}, "path is ''; it is not a path; pass a directory", "the default is used"),
    ({"path": 3}, "path is 3; it is not a path", "the default is used"),
    ({"path": b"run"}, "path is b'run'; it is not a path", "the default is used"),
    ({"path": "a\0b"}, "embedded null", "the default is used"),
    ({"path": "n" * 300}, "File name too long", "the default is used"),
    ({"path": "n" * 300 + "/run"}, "File name too long", "the default is used"),
    ({"path": "/etc/passwd"}, "path is '/etc/passwd'; it is a file", "the default is used"),
]
VARIABLES = ["abc", "0", "-1", "nan", "inf", "5", "1%", " "]


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    """An empty directory of a script called train.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    return tmp_path


def block(**wrong):
    return profilerkit.profile(**{"deep": False, "nvml": False, "host": False, "analyze": False, **wrong})


@pytest.mark.parametrize(("wrong", "cause", "used"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_argument_is_replaced_with_one_warning(tmp_path, wrong, cause, used):
    with pytest.warns(RuntimeWarning) as warned:
        prof = block(**wrong)
    (message,) = [str(warning.message) for warning in warned]
    assert warned[0].filename == __file__
    assert cause in message
    assert used in message
    with prof:
        assert list(prof.wrap([1, 2])) == [1, 2]
    assert prof.directory == tmp_path / "runs" / "train"


@pytest.mark.parametrize("text", VARIABLES)
def test_a_wrong_variable_is_replaced_with_one_warning(monkeypatch, text):
    monkeypatch.setenv("PROFILERKIT_OVERHEAD_BUDGET", text)
    with pytest.warns(RuntimeWarning, match="PROFILERKIT_OVERHEAD_BUDGET is .*0.01 is used") as warned:
        prof = block()
    assert len(warned) == 1
    with prof:
        assert list(prof.wrap([1, 2])) == [1, 2]
    assert prof.directory is not None


def test_several_wrong_arguments_are_one_warning(monkeypatch):
    monkeypatch.setenv("PROFILERKIT_OVERHEAD_BUDGET", "abc")
    with pytest.warns(RuntimeWarning, match="path is.*trace_steps is.*OVERHEAD_BUDGET is") as warned:
        block(path="", trace_steps=0)
    assert len(warned) == 1


@pytest.mark.parametrize("wrong", [{"path": ""}, {"trace_steps": 0}])
def test_what_is_switched_off_says_nothing(wrong):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with block(enabled=False, **wrong) as prof:
            assert list(prof.wrap([1])) == [1]


def test_a_filter_that_makes_errors_of_warnings_ends_no_training():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with block(path="") as prof:
            assert list(prof.wrap([1])) == [1]
    assert prof.directory is not None


def test_an_argument_that_python_refuses_stays_its_error():
    with pytest.raises(TypeError):
        profilerkit.profile(traces=3)


def test_a_working_directory_that_is_gone_ends_no_training(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.warns(RuntimeWarning), block() as prof:
        assert list(prof.wrap([1])) == [1]
    monkeypatch.chdir(tmp_path)
    assert session.active() is None


def test_a_fault_of_ours_at_the_start_ends_no_training(monkeypatch):
    def broken(*_given):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(session, "place_of", broken)
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError") as warned:
        prof = block().__enter__()
    assert list(prof.wrap([1])) == [1]
    prof.step()
    with prof.phase("x"):
        pass
    prof.__exit__(None, None, None)
    assert (len(warned), prof.directory, prof.report, session.active()) == (1, None, None, None)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_SIZE"])
@pytest.mark.parametrize("value", ["", "abc", "-1", "9" * 19, "²", "1e3"])
def test_a_launcher_that_says_nonsense_ends_no_training(monkeypatch, name, value):
    for other, number in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(other, number if name != other else value)
    monkeypatch.setenv(name, value)
    with block() as prof:
        assert list(prof.wrap([1])) == [1]
    assert prof.directory is not None


def test_the_wait_for_ranks_is_not_one_for_a_job_of_absurd_size(monkeypatch):
    from profilerkit.capture.distributed import place

    assert place({"RANK": "0", "WORLD_SIZE": "999999999999999999"}, 1).world_size == 1
    assert place({"RANK": "0", "WORLD_SIZE": "100000"}, 1).world_size == 100_000


@pytest.mark.parametrize("path", ["", 3, "/etc/passwd", "n" * 300])
def test_a_trace_handler_with_a_wrong_path_uses_the_default(path):
    with pytest.warns(RuntimeWarning, match=r"profilerkit\.trace_handler: path is") as warned:
        handler = profilerkit.trace_handler(path)
    assert len(warned) == 1
    assert callable(handler)


def test_the_command_line_refuses_a_wrong_variable_before_it_starts(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text("open('ran', 'w').close()\n")
    monkeypatch.setenv("PROFILERKIT_OVERHEAD_BUDGET", "abc")
    assert main(["run", "train.py"]) == 2
    assert capsys.readouterr().err.startswith("error: PROFILERKIT_OVERHEAD_BUDGET is 'abc'\ncause: ")
    assert not os.path.exists("ran")  # noqa: PTH110
