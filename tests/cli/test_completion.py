"""Tab completion: the words that the shell is offered, and what a run without a shell's question pays for it."""

import os
import subprocess
import sys

import pytest

from profilerkit import cli

PROGRAM = "import sys; sys.argv[0] = 'profilerkit'; from profilerkit.cli import main; sys.exit(main())"


@pytest.fixture
def offered(tmp_path):
    """Ask as argcomplete's function for bash does."""
    pytest.importorskip("argcomplete")

    def ask(line):
        answer = tmp_path / "answer"
        asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": "bash"}
        told = {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=tmp_path,
            env={**os.environ, **asked, **told},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        return set(answer.read_text("utf-8").split())

    return ask


def test_every_verb_is_offered(offered):
    assert set(cli.VERBS) <= offered("profilerkit ")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("profilerkit che", {"check"}),
        ("profilerkit analyze --fo", {"--format"}),
        ("profilerkit analyze --fail-on ", {"high", "medium", "low"}),
        ("profilerkit analyze x.json -f ", {"html", "md", "json", "text"}),
        ("profilerkit check -f j", {"junit"}),
        ("profilerkit --color ne", {"never"}),
        ("profilerkit run --trace-", {"--trace-steps", "--trace-every"}),
    ],
)
def test_what_may_follow_is_offered(offered, line, words):
    assert offered(line) == words


def test_without_argcomplete_nothing_is_offered_and_nothing_is_run(monkeypatch, capsys):
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr() == ("", "")
