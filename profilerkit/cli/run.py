"""``profilerkit run``: start a training command so that it records itself, and become it.

The command is not watched from a process above it. That could name each signal that killed it, where Python's
faulthandler names faults such as SIGSEGV alone. But a supervisor that is killed itself leaves a training behind that
holds its device, hands on a second time what was sent to the whole process group (``timeout``, a launcher), and stands
between torchrun and its workers.
``profilerkit analyze`` finds out by itself whether a process that left no word of its end still runs.
"""

import argparse
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

from profilerkit.cli.console import Console
from profilerkit.errors import UsageError
from profilerkit.secrets import masked_arguments

_EPILOG = """\
examples:
  profilerkit run train.py --lr 0.1
  profilerkit run -o runs/first -m package.train --lr 0.1
  profilerkit run -- torchrun --nproc-per-node 2 train.py
  torchrun --nproc-per-node 2 -m profilerkit run train.py

The command keeps its arguments, input, output, signals and exit code. Recording
starts at the first DataLoader iteration, backward pass or optimizer step, and
ends with the program. A profile block in the script joins the recording."""

_WITH_VALUE = ("-o", "--output", "--trace-steps", "--warmup-steps", "--trace-every", "--color")
#: What Python runs; ``""`` is of a script without a suffix.
_SCRIPTS = ("", ".py", ".pyc", ".pyw", ".pyz", ".zip")
_CHOICES = ("trace_steps", "warmup_steps", "trace_every", "with_stack", "summaries")
_OFF = {
    "deep": "do not trace a window of steps",
    "nvml": "do not sample the GPU",
    "host": "do not sample the host",
    "analyze": "do not write the report at the end",
}


def split(
    words: Sequence[str], verb: str = "run", with_value: Sequence[str] = _WITH_VALUE
) -> tuple[list[str], list[str]]:
    """The words up to the command, and the command; ``with_value`` are the options of the verb that take a value.

    >>> split(["run", "-o", "x", "train.py", "-q"]), split(["run", "--", "torchrun", "x.py"])
    ((['run', '-o', 'x'], ['train.py', '-q']), (['run'], ['torchrun', 'x.py']))
    """
    start = words.index(verb) + 1
    while start < len(words) and words[start].startswith("-") and words[start] not in ("-m", "--"):
        start += 2 if words[start] in with_value else 1
    command = list(words[start:])
    return list(words[:start]), command[1:] if command[:1] == ["--"] else command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``run``."""
    parser.usage = "profilerkit run [options] [--] (SCRIPT | -m MODULE | PROGRAM) [ARG ...]"
    parser.epilog = _EPILOG
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="write to this run directory (default: runs/SCRIPT)"
    )
    parser.add_argument("--trace-steps", metavar="N", type=int, help="trace N steps (default: 10)")
    parser.add_argument("--warmup-steps", metavar="N", type=int, help="skip N steps before the trace (default: 5)")
    parser.add_argument("--trace-every", metavar="N", type=int, help="trace again every N steps (default: once)")
    parser.add_argument(
        "--with-stack",
        action="store_const",
        const=True,
        help="trace the names of Python functions; slows traced steps down",
    )
    parser.add_argument(
        "--summaries",
        action="store_const",
        const=True,
        help="summarise the traces of each rank, for profilerkit reduce",
    )
    for name, text in _OFF.items():
        parser.add_argument(f"--no-{name}", dest=name, action="store_const", const=False, help=text)


def run(arguments: argparse.Namespace, console: Console) -> NoReturn:
    """Replace this process by the command. Returns never; raises where it cannot be started."""
    words: list[str] = arguments.command
    if not words:
        raise UsageError(
            "there is no command to run", cause="nothing follows the options", hint="profilerkit run train.py"
        )
    _check_steps(arguments)
    command = command_of(words)
    if said := hindrance(words) or hindrance(command):
        console.note(f"profilerkit: {said}")
    variables = _variables(arguments, console)
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores these two, and a program started by exec would go on doing so.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(command[0], command, variables)  # noqa: S606  the user's own command, no shell


def _check_steps(arguments: argparse.Namespace) -> None:
    for option, value, least in (
        ("--trace-steps", arguments.trace_steps, 1),
        ("--warmup-steps", arguments.warmup_steps, 0),
        ("--trace-every", arguments.trace_every, 1),
    ):
        if value is not None and value < least:
            raise UsageError(
                f"{option} is {value}", cause=f"it must be at least {least}", hint="--no-deep records without a trace"
            )
    if arguments.output is not None and arguments.output.exists() and not arguments.output.is_dir():
        raise UsageError(f"{arguments.output} is a file", hint="name a directory; a missing one is created")


def command_of(words: Sequence[str], verb: str = "run") -> list[str]:
    """Return the command in full: scripts and modules run under this Python, with the options it was given."""
    first = words[0]
    if first == "-m":
        if len(words) == 1:
            raise UsageError("-m names no module", hint=f"profilerkit {verb} -m package.train")
        return [sys.executable, *_python_options(verb), *words]
    path = Path(first)
    if " " in first and not path.exists():
        raise UsageError(
            f"no such script or program: {first}",
            cause="the command stands in one pair of quotes",
            hint=f"profilerkit {verb} {' '.join(words)}",
        )
    if path.suffix == ".py" or path.is_dir() or (path.is_file() and not os.access(path, os.X_OK)):
        if not path.exists():
            raise UsageError(f"no such script: {first}", cause=f"searched in {Path.cwd()}", hint="check the path")
        if path.suffix not in _SCRIPTS and path.is_file():
            raise UsageError(f"{first} is no Python script", hint=f"to read a recording: profilerkit analyze {first}")
        return [sys.executable, *_python_options(verb), *words]
    if shutil.which(first) is None:
        raise UsageError(
            f"no such script or program: {first}",
            cause="it is neither a file nor in PATH",
            hint="a Python script ends in .py; a module needs -m before its name",
        )
    return list(words)


#: Sets the variable without what it was; a shell has ``$PYTHONPATH`` for that.
_OTHER_PATH = re.compile(r"\bPYTHONPATH=(?!\S*\$\{?PYTHONPATH)")
_PYTHON = re.compile(r"python(\d(?:\.\d+)?)?t?")
_START_OF_SCRIPT = 1 << 16


def hindrance(command: Sequence[str]) -> str:
    """Return why the Python that a command or its script starts would record nothing; empty where none is seen.

    >>> hindrance(["sh", "-c", "PYTHONPATH=. python x.py"])[:47], hindrance(["PYTHONPATH=.:$PYTHONPATH"])
    ('the command sets PYTHONPATH, by which run recor', '')
    >>> hindrance(["nice", "python", "-uE", "train.py"])[:40]
    'Python with -E ignores PYTHONPATH, by wh'
    """
    first, *others = [_text_of(Path(shutil.which(word) or word)) for word in command[:2]]
    if any(_OTHER_PATH.search(text) for text in (*command, first, *others)):
        return (
            "the command sets PYTHONPATH, by which run records; a Python without it records nothing. "
            "Write PYTHONPATH=DIR:$PYTHONPATH there, or set it before profilerkit run"
        )
    started = first.partition("\n")[0][2:].split() if first.startswith("#!") and not command[0].endswith(".py") else []
    before = list(takewhile(lambda word: not word.endswith(".py"), (*started, *command)))
    pythons = (place for place, word in enumerate(before) if _PYTHON.fullmatch(Path(word).name))
    return next(filter(None, (_hindrance_of_python(before[place:]) for place in pythons)), "")


def _text_of(path: Path) -> str:
    """The start of a script for a shell or with a first line that names its program; empty for other files."""
    with suppress(OSError, ValueError):
        if path.is_file():
            with path.open("rb") as file:
                text = file.read(_START_OF_SCRIPT).decode("utf-8", "replace")
            return text if text.startswith("#!") or path.suffix == ".sh" else ""
    return ""


def _hindrance_of_python(words: Sequence[str]) -> str:
    """Why a Python with these options, which no longer end in a script, would record nothing."""
    letters = "".join(re.findall(r"(?:^| )-([^-XW ]+)", " ".join(python_options(words))))
    if switch := next((switch for switch in "IES" if switch in letters), None):
        what = "does not run the module" if switch == "S" else "ignores PYTHONPATH"
        return (
            f"Python with -{switch} {what}, by which run records, so nothing is recorded. "
            f"Remove -{switch}, or use profilerkit.profile() in the script"
        )
    version = _PYTHON.fullmatch(Path(os.path.realpath(shutil.which(words[0]) or words[0])).name)
    numbers = tuple(map(int, version[1].split("."))) if version and version[1] else (3,)
    if numbers < (3, 11)[: len(numbers)]:
        return f"{words[0]} is Python {version and version[1]}, and profilerkit needs 3.11, so nothing is recorded"
    return ""


_WITH_A_VALUE = ("-X", "-W", "--check-hash-based-pycs")  #: options of Python whose value may be the next word


def _python_options(verb: str) -> list[str]:
    """The options of this Python, as in ``python -u -m profilerkit run``; torchrun gives ``-u``.

    A command that cannot be recorded runs all the same; without a recording nothing can be tried.
    """
    if verb != "run" and (sys.flags.ignore_environment or sys.flags.no_site):
        raise UsageError(
            f"this Python ignores the environment that profilerkit {verb} needs",
            cause="it was started with -I, -E or -S",
            hint="remove that option, or record with profilerkit.profile() in the script",
        )
    return python_options(sys.orig_argv)


def python_options(words: Sequence[str]) -> list[str]:
    """What stands between a Python and the module or script that it runs.

    >>> python_options(["python", "-u", "-X", "dev", "-m", "profilerkit", "run", "-m", "train"])
    ['-u', '-X', 'dev']
    >>> python_options(["python", "/usr/bin/profilerkit", "run", "-m", "train"])
    []
    """
    found: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-") or word in ("-m", "-c", "-"):
            break
        if word.endswith("m") and not word.startswith("--"):  # as in -um
            found.append(word[:-1])
            break
        found.append(word)
        if word in _WITH_A_VALUE:
            found += [value for value in [next(rest, None)] if value is not None]
    return found


def _variables(arguments: argparse.Namespace, console: Console) -> dict[str, str]:
    from profilerkit.capture.settings import START_DIRECTORY, RunOptions, budget_of

    variables = dict(os.environ)
    budget_of(None, variables)  # refused here, where nothing runs yet
    choices = {name: getattr(arguments, name) for name in (*_CHOICES, *_OFF)}
    RunOptions(
        pid=os.getpid(),
        start_directory=START_DIRECTORY,
        directory=str(Path.cwd()),
        began_unix_ns=time.time_ns(),
        path=None if arguments.output is None else str(arguments.output.absolute()),
        choices={name: value for name, value in choices.items() if value is not None},
        quiet=console.quiet,
        command=tuple(masked_arguments(arguments.command)),
    ).put(variables)
    return variables
