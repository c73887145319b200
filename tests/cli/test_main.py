import subprocess
import sys
from pathlib import Path

import pytest

from profilerkit import __version__, cli
from profilerkit.cli import main
from profilerkit.cli.console import Console
from profilerkit.errors import UsageError


@pytest.fixture
def verb_that_ends(monkeypatch):
    """Make `profilerkit doctor` end in a given way."""

    def install(ending):
        from profilerkit.cli import doctor

        def run(arguments, console):
            if isinstance(ending, BaseException):
                raise ending
            return ending

        monkeypatch.setattr(doctor, "run", run)

    return install


def test_help_lists_the_verbs_and_the_exit_codes(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for word in (*cli.VERBS, "130  interrupted", "3    inconclusive, or not judged"):
        assert word in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("verb", cli.VERBS)
def test_the_help_of_every_verb_fits_in_80_columns(capsys, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([verb, "--help"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"profilerkit {__version__}"


def test_no_verb_is_bad_usage_and_shows_the_help(capsys):
    assert main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "verbs:" in shown.err


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["analyse", "x"], "unknown verb 'analyse'", "did you mean analyze?"),
        (["rnu"], "unknown verb 'rnu'", "did you mean run?"),
        (["train.py", "--lr", "1"], "unknown verb 'train.py'", "did you mean profilerkit run train.py?"),
        (["my train.py"], "unknown verb 'my train.py'", "did you mean profilerkit run 'my train.py'?"),
        (["trace.json"], "unknown verb 'trace.json'", "did you mean profilerkit analyze trace.json?"),
        (["rank0.json.gz"], "unknown verb 'rank0.json.gz'", "did you mean profilerkit analyze rank0.json.gz?"),
        ([str(Path(__file__).parent)], "unknown verb", f"did you mean profilerkit analyze {Path(__file__).parent}?"),
        (["help"], "unknown verb 'help'", "see profilerkit --help"),
        (["analyze", "x", "--formt", "html"], "unknown option --formt", "did you mean --format?"),
        (["analyze", "x", "--outptu=y"], "unknown option --outptu=y", "did you mean --output?"),
        (["analyze", "x", "-f", "htm"], "unknown value for --format: 'htm'", "did you mean html?"),
        (["analyze", "x", "--fail-on", "hihg"], "unknown value for --fail-on: 'hihg'", "did you mean high?"),
        (["--color", "alwyas", "doctor"], "unknown value for --color: 'alwyas'", "did you mean always?"),
        (["analyze"], "profilerkit analyze cannot be run as given", "see profilerkit analyze --help"),
        (["analyze", "x", "--rank", "one"], "profilerkit analyze cannot be run as given", "see profilerkit analyze"),
        (["doctor", "now"], "unknown argument now", "see profilerkit doctor --help"),
        (["--qiuet"], "unknown option --qiuet", "did you mean --quiet?"),
        (["--bogus"], "unknown option --bogus", "see profilerkit --help"),
        (["demo", "inptu"], "unknown demo 'inptu'", "did you mean input?"),
    ],
)
def test_bad_usage_has_three_parts_and_says_what_was_meant(capsys, arguments, error, hint):
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert [line[:6] for line in lines] == ["error:", "cause:", "hint: "]
    assert error in lines[0]
    assert hint in lines[2]


def test_verbs_and_options_cannot_be_abbreviated(capsys):
    assert main(["ana", "x"]) == 2
    assert main(["rules", "--sch"]) == 2
    assert "did you mean --schema?" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_exit_code_of_a_verb_is_passed_on(verb_that_ends, code):
    verb_that_ends(code)
    assert main(["doctor"]) == code


def test_an_interrupt_is_130_without_a_traceback(verb_that_ends, capsys):
    verb_that_ends(KeyboardInterrupt())
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_our_own_errors_are_shown_as_they_are(verb_that_ends, capsys):
    verb_that_ends(UsageError("no", cause="because", hint="do"))
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err == "error: no\ncause: because\nhint:  do\n"


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (KeyError("x"), ("error: internal error", "KeyError: 'x' at", "--debug")),
        (OSError(28, "No space left on device", "report.html"), ("report.html: No space left on device", "hint:")),
        (MemoryError(), ("error: not enough memory", "fewer ranks")),
    ],
)
def test_other_exceptions_are_2_and_three_lines(verb_that_ends, capsys, ending, words):
    verb_that_ends(ending)
    assert main(["doctor"]) == 2
    shown = capsys.readouterr().err
    assert len(shown.splitlines()) == 3
    for word in words:
        assert word in shown


def test_debug_adds_the_traceback(verb_that_ends, capsys):
    verb_that_ends(KeyError("x"))
    assert main(["doctor", "--debug"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert "error: internal error" in shown


def test_control_characters_in_an_error_do_not_reach_the_terminal(verb_that_ends, capsys):
    verb_that_ends(UsageError("\x1b]0;owned\x07.json \x9b31m"))
    main(["doctor"])
    shown = capsys.readouterr().err
    assert shown == "error: ?]0;owned?.json ?31m\n"


def test_a_reader_that_goes_away_is_not_an_error():
    program = "import sys\nfrom profilerkit.cli import main\nsys.exit(main(['rules', '--schema']))"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        error = process.stderr.read()
        assert process.wait(timeout=60) == 0, error
        assert error == ""


class Stream:
    encoding = "utf-8"

    def __init__(self, is_terminal):
        self.isatty = lambda: is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "colour", "environment", "expected"),
    [
        (True, "auto", {}, True),
        (False, "auto", {}, False),
        (True, "auto", {"NO_COLOR": "1"}, False),
        (True, "auto", {"NO_COLOR": ""}, True),
        (True, "auto", {"TERM": "dumb"}, False),
        (True, "auto", {"CI": "true"}, False),
        (True, "never", {}, False),
        (False, "always", {"NO_COLOR": "1", "CI": "true"}, True),
    ],
)
def test_colour_only_where_it_is_wanted(monkeypatch, is_terminal, colour, environment, expected):
    monkeypatch.setattr(sys, "stdout", Stream(is_terminal))
    assert Console(colour=colour, environment=environment).colour is expected


@pytest.mark.parametrize(
    ("is_terminal", "columns", "width"),
    [
        (False, None, 80),
        (False, "200", 200),
        (False, "60", 60),
        (False, "12", 40),
        (False, "wide", 80),
        (False, "", 80),
        (True, "200", 120),
        (True, "12", 40),
    ],
)
def test_width_is_what_was_asked_for_within_reason(monkeypatch, is_terminal, columns, width):
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", Stream(is_terminal))
    assert Console().width == width


def test_a_stream_without_utf8_gets_ascii():
    program = (
        "from profilerkit.cli.console import Console\n"
        "console = Console()\n"
        "console.out('2 → 6 · 1–2 µs é')\n"
        "assert console.ascii_only\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stderr == ""
    assert ended.stdout == "2 -> 6 - 1-2 us ?\n"
