"""What ``analyze`` tells while it works: on a terminal, after a second, and nothing of it stays."""

import logging
import os
import pty
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import profilerkit
from profilerkit.cli import main, places
from profilerkit.cli import map as map_verb
from profilerkit.cli.console import Console
from profilerkit.cli.places import Progress
from tests.recipes import training

HOME = Path(profilerkit.__file__).parents[1]


class Shown:
    """A console that remembers its status lines, and tells when there is one."""

    def __init__(self):
        self.lines = []
        self.came = threading.Event()

    def status(self, text):
        self.lines.append(text)
        self.came.set()


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(places, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(places, "_PERIOD_SECONDS", 0.01)


@pytest.mark.parametrize("teller", ["profilerkit.formats.jobs", "profilerkit.summaries.reduction"])
def test_the_latest_phase_is_shown_and_taken_away(at_once, teller):
    shown = Shown()
    logger = logging.getLogger(teller)
    with Progress(shown):
        logger.info("reading rank %d/%d · %s", 3, 8, "412 MiB")
        assert shown.came.wait(10)
    assert shown.lines == ["reading rank 3/8 · 412 MiB", ""]
    logger.info("nobody listens")
    assert not logger.isEnabledFor(logging.INFO)
    assert logger.handlers == []


def test_short_work_shows_nothing(monkeypatch):
    monkeypatch.setattr(places, "_QUIET_SECONDS", 60.0)
    shown = Shown()
    with Progress(shown) as told:
        told.begin("writing the report")
    assert shown.lines == []


def test_map_tells_how_far_it_is(at_once):
    shown = Shown()

    def results():
        yield "first"
        while "summarised 1 of 2 traces" not in shown.lines:
            assert shown.came.wait(10)
            shown.came.clear()
        yield "second"

    assert list(map_verb._shown(results(), 2, shown)) == ["first", "second"]
    assert shown.lines[-1] == ""


def test_an_error_takes_the_line_away_too(at_once):
    shown = Shown()

    def fail():
        with Progress(shown) as told:
            told.begin("reading")
            assert shown.came.wait(10)
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    assert shown.lines == ["reading", ""]


def test_where_phases_are_logged_no_line_is_drawn(at_once, caplog):
    shown = Shown()
    with caplog.at_level(logging.INFO, "profilerkit"), Progress(shown) as told:
        told.begin("reading")
        assert not shown.came.wait(0.1)
    assert shown.lines == []


def test_analyze_logs_what_it_is_at(tmp_path, caplog):
    for rank in range(2):
        training(12, rank=rank, world_size=2).write(tmp_path / f"rank{rank}.json")
    with caplog.at_level(logging.INFO, "profilerkit"):
        assert main(["analyze", str(tmp_path), "-q"]) == 0
    said = caplog.messages
    assert [text.partition(" · ")[0] for text in said[:3]] == [
        "reading rank 1/2",
        "reading rank 2/2",
        "comparing 2 ranks",
    ]
    assert said[0].endswith("KiB")
    assert "rules" in said[3]


def test_only_a_terminal_gets_a_status_line(capsys):
    Console(environment={}).status("reading")
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""


PROGRAM = textwrap.dedent("""
    import sys
    from profilerkit.cli import main
    from profilerkit.cli import places

    places._QUIET_SECONDS = 0.0
    places._PERIOD_SECONDS = 0.001
    sys.exit(main(["analyze", "trace.json", *sys.argv[1:]]))
""")


@pytest.mark.parametrize(
    ("words", "variables", "drawn"),
    [([], {}, True), (["-q"], {}, False), ([], {"CI": "1"}, False), ([], {"TERM": "dumb"}, False)],
)
def test_on_a_terminal_the_last_line_says_what_was_written_and_nothing_else_stays(tmp_path, words, variables, drawn):
    training(200).write(tmp_path / "trace.json")
    ours, theirs = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in ("CI", "GITHUB_ACTIONS")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=tmp_path,
        env={**plain, "PYTHONPATH": str(HOME), "TERM": "xterm", **variables},
        stdout=subprocess.PIPE,
        stderr=theirs,
        check=False,
        timeout=60,
    )
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 65_536):
            said += piece
    except OSError:  # the end of a terminal that nobody writes to
        pass
    os.close(ours)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout
    assert (b"\x1b[K" in said) == drawn
    last = said.rpartition(b"\r\x1b[K")[2].decode() if drawn else said.decode()
    if words:
        assert last == ""
    else:
        assert last.startswith("wrote trace.report.html (")
        assert "trace.report.html" in last.partition("; next: ")[2]
        assert last.count("\n") == 1
