"""``profilerkit analyze -``: a trace that is piped in, packed or not."""

import gzip
import io
import json
import sys
import tempfile
from pathlib import Path

import pytest

from profilerkit.cli import main
from profilerkit.formats import remote
from tests.recipes import training


@pytest.fixture
def piped(monkeypatch, tmp_path):
    """Pipe bytes in, in an empty working directory, with the temporary files beside it."""
    for name in ("here", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))

    def pipe(data):
        stream = io.TextIOWrapper(io.BytesIO(data))
        monkeypatch.setattr(sys, "stdin", stream)
        return stream

    return pipe


@pytest.fixture
def data(tmp_path):
    return training(12).write(tmp_path / "trace.json").read_bytes()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_trace_that_is_piped_in_is_reported_on_in_the_working_directory(piped, data, tmp_path, capsys, pack):
    stream = piped(pack(data))
    assert main(["analyze", "-"]) == 0
    assert [path.name for path in Path().iterdir()] == ["stdin.report.html"]
    assert list((tmp_path / "tmp").iterdir()) == [], "the copy is removed"
    assert capsys.readouterr().out.splitlines()[0] == "standard input · 12 steps"
    assert not stream.closed


def test_it_can_be_one_word_in_a_pipe(piped, data, capsys):
    piped(data)
    assert main(["analyze", "-", "-f", "json", "-o", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"]["count"] == 12
    assert list(Path().iterdir()) == []


def test_the_copy_is_private(piped, data, tmp_path, monkeypatch):
    modes = []
    monkeypatch.setattr(
        remote, "_copy", lambda *words: modes.extend(p.stat().st_mode & 0o777 for p in (tmp_path / "tmp").iterdir())
    )
    piped(data)
    main(["analyze", "-"])
    assert modes == [0o700]


def test_what_is_too_large_is_refused(piped, data, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(remote, "MOST_FILE_BYTES", 1_000)
    piped(data)
    assert main(["analyze", "-"]) == 2
    assert "error: standard input is too large" in capsys.readouterr().err
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"not a trace"])
def test_what_is_no_trace_is_named_as_standard_input(piped, capsys, data):
    piped(data)
    assert main(["analyze", "-"]) == 2
    assert capsys.readouterr().err.startswith("error: standard input is not a trace")


def test_a_terminal_is_not_waited_for(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())
    assert main(["analyze", "-"]) == 2
    what, _, hint = capsys.readouterr().err.splitlines()
    assert what == "error: nothing is piped in"
    assert "| profilerkit analyze -" in hint
