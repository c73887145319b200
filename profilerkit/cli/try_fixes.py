"""``profilerkit try``: run a training command with the proposed fixes made at run time, and measure what each saves."""

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from profilerkit.cli import run as recording
from profilerkit.cli.arguments import add_no_redact, seconds, some_of
from profilerkit.cli.console import DONE, INCONCLUSIVE, INTERRUPTED, Console
from profilerkit.cli.outputs import SUFFIXES, Output, check_writable, unwritten, write_all
from profilerkit.errors import UsageError
from profilerkit.secrets import MASK, masked_arguments
from profilerkit.units import format_long_ns

if TYPE_CHECKING:
    from profilerkit.experiment.plan import Candidate
    from profilerkit.experiment.trying import Trying
    from profilerkit.model.trial import Trial

_EPILOG = """\
examples:
  profilerkit try -- python train.py --lr 0.1
  profilerkit try train.py --lr 0.1
  profilerkit try -- torchrun --nproc-per-node 2 train.py
  profilerkit try runs/train

The command is run some ten times, for a few steps each. The report of the first
run proposes changes. Runs with and without each change are measured in turns.
The script is not edited. Each run ends by itself, and your program still cleans
up. RUN is a recording of profilerkit run: its command is run again.

The program writes what it always writes; the answer names those files."""

_NUMBERS = ("--steps", "--time", "--budget")
_WITH_VALUE = (*_NUMBERS, "-o", "--output", "--fix", "--ceiling", "--write", "-f", "--format", "--color")
_MOST_FILES, _NAMED = 20_000, 3  #: files of the working directory that are looked at for changes, and named (choices)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words up to the command, and the command."""
    return recording.split(words, "try", _WITH_VALUE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``try``."""
    parser.usage = (
        "profilerkit try [options] [--] (SCRIPT | -m MODULE | PROGRAM) [ARG ...]\n       profilerkit try [options] RUN"
    )
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("-o", "--output", metavar="DIR", type=Path, help="write to this directory (default: a fresh runs/try-NAME)")
    add("--steps", metavar="N", type=int, help="steps of each run (default: 60, or 4 s of them)")
    for option, least, most, default, text in (
        ("--time", 1, 86_400, 60.0, "end a run after so long from its first step (default: 60)"),
        ("--budget", 10, 604_800, 900.0, "end all runs after so long, or at most one run later (default: 900)"),
    ):
        add(option, metavar="SECONDS", type=seconds(option, least, most), default=default, help=text)
    fix = "try this change too, for example num_workers=4"
    add("--fix", metavar="NAME=VALUE", action="append", default=[], help=fix)
    ceiling = "measure what can be saved at most: input gives the first batch again and again"
    add("--ceiling", metavar="NAME", type=some_of("--ceiling", ("input",)), default=(), help=ceiling)
    add("--allow-differences", action="store_true", help="advise changes that change the losses, such as bf16, too")
    add("--write", metavar="FILE", type=Path, help="write what is advised as a patch")
    add("--yes", action="store_true", help="run the command of RUN without asking")
    add("--dry", action="store_true", help="show what would run, and run nothing")
    formats = some_of("--format", ("html", "md", "json"))
    written = "write any of html, md, json (default: html,json)"
    add("-f", "--format", metavar="FORMATS", type=formats, default=("html", "json"), dest="formats", help=written)
    add_no_redact(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Measure, print and write; return the exit code."""
    from profilerkit.rundir.layout import MANIFEST

    words: Sequence[str] = arguments.command
    recorded = Path(words[0]) if len(words) == 1 and (Path(words[0]) / MANIFEST).is_file() else None
    if recorded is not None:
        words = _recorded(recorded)
    command, name = _command(words)
    fixes = _checked(arguments, words)
    place = Path("runs") / f"try-{name}"
    if arguments.dry:
        fresh(arguments.output, place, makes=False)
        console.out("\n".join(_plan(command, arguments, fixes, recorded)))
        return DONE
    if said := recording.hindrance(command):
        console.note(f"profilerkit: {said}")
    if recorded is not None:
        _ask(command, arguments, console)
    directory = fresh(arguments.output, place).absolute()
    from profilerkit.experiment.runs import Runner
    from profilerkit.experiment.trying import Trying

    trying = Trying(
        Runner(command=command, directory=directory, steps=arguments.steps or 0, seconds=arguments.time),
        fixes=fixes,
        budget_s=arguments.budget,
        takes_differences=arguments.allow_differences,
        say=(console.status if sys.stderr.isatty() else console.note),
    )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    longest = format_long_ns(arguments.budget * 1e9)
    console.note(
        f"profilerkit: this takes up to {longest} (--budget) and one run; Ctrl-C keeps what is measured by then"
    )
    code = _tried(trying, console)
    trial = with_patch(trying.search.trial(name, list(masked_arguments(command))), words)
    written = publish(trial, directory, console, arguments.formats, redacts=not arguments.no_redact, recorded=recorded)
    if arguments.write is not None and trial.patch:
        written += write_all([(arguments.write, trial.patch)], console)
    elif arguments.write is not None:
        console.note(f"{arguments.write} is not written: nothing that helps can be written as a patch")
    console.note(f"wrote {' and '.join(written)}")
    return INCONCLUSIVE if code == DONE and trial.step_ns is None else code


def _end(number: int, _frame: object) -> None:
    """End as after Ctrl-C, so that no run is left behind."""
    raise KeyboardInterrupt(number)


def _ask(command: Sequence[str], arguments: argparse.Namespace, console: Console) -> None:
    """Show the command of a recording, which somebody else may have sent, and run it only where that is wanted."""
    console.note(f"the command of this recording is: {shlex.join(command)}")
    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("the command was not run", cause="nobody can be asked", hint="check it, and add --yes")
    console.note("Run it? [y/N]")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("the command was not run", cause="the answer was no", hint="name the command instead")


def _tried(trying: "Trying", console: Console) -> int:
    """Run all that is to be run; the exit code."""
    began_s = time.time()
    try:
        first = trying.first()
        assert first.report is not None
        console.note(f"profilerkit: {first.report.verdict.headline}")
        written = list(_written(Path.cwd(), began_s, first.place.parent))
        if written:
            more = f" and {len(written) - _NAMED} more" if len(written) > _NAMED else ""
            trying.search.notes.append(f"Each run of the program writes {', '.join(written[:_NAMED])}{more}.")
        trying.rest(first)
    except KeyboardInterrupt:
        trying.interrupted()
        return INTERRUPTED
    finally:
        console.status("")
    return DONE


def _command(words: Sequence[str]) -> tuple[list[str], str]:
    """Return the command in full, and a name for it."""
    if not words:
        why = "nothing follows the options"
        raise UsageError("there is no command to run", cause=why, hint="profilerkit try train.py")
    command = recording.command_of(words, "try")
    script = next((word for word in words if word.endswith(".py")), "")
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    return command, Path(script).stem or module or Path(words[0]).name


def _recorded(run: Path) -> tuple[str, ...]:
    """Return the command of a recorded run."""
    from profilerkit.rundir.files import read_document
    from profilerkit.rundir.layout import MANIFEST, RunManifest

    try:
        manifest = read_document(run / MANIFEST, RunManifest)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {run / MANIFEST}", cause=str(error), hint="name the command instead") from error
    words = manifest.command or (manifest.argv if manifest.world_size == 1 else ())
    if not words or any(MASK in word for word in words):
        why = "a secret of the command was left out" if words else "it was not recorded by profilerkit run"
        raise UsageError(f"{run} lacks the whole command", cause=why, hint="name the command instead")
    return words


def fresh(wanted: Path | None, default: Path, *, makes: bool = True) -> Path:
    """Return a directory that was not there, or was empty; ``makes`` it."""
    from profilerkit.rundir.files import private_mode
    from profilerkit.rundir.places import candidates

    if wanted is not None and wanted.is_dir() and any(wanted.iterdir()):
        raise UsageError(f"{wanted} is not empty", cause="a trial needs a directory of its own", hint="name a new one")
    place = wanted or next(path for path in candidates(default) if not path.exists())
    if not makes:
        nearest = next(path for path in (place, *place.absolute().parents) if path.exists())
        if nearest.is_dir() and os.access(nearest, os.W_OK):
            return place
        why = f"{nearest} is not a directory that can be written to"
        raise UsageError(f"cannot write {place}", cause=why, hint="name another place with -o DIR")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir(private_mode(), exist_ok=True)
    except OSError as error:
        raise unwritten(str(place), error, "name another place with -o DIR") from error
    return place


def _checked(arguments: argparse.Namespace, words: Sequence[str]) -> "list[Candidate]":
    """Return the changes that are asked for. Raises ``UsageError`` for what could not be done later."""
    from profilerkit.experiment.plan import Candidate
    from profilerkit.experiment.trying import asked
    from profilerkit.model.finding import SettingChange

    if arguments.steps is not None and arguments.steps < 1:
        raise UsageError(f"--steps is {arguments.steps}", cause="it must be at least 1", hint="write --steps 60")
    if arguments.write is not None:
        # Any text may be an argument, also one that is too long for a name.
        check_writable(arguments.write, [Path(word) for word in words if os.path.exists(word)])  # noqa: PTH110
    ceilings = (Candidate(changes=(SettingChange("ceiling", "none", name),)) for name in arguments.ceiling)
    return [*map(asked, arguments.fix), *ceilings]


def _plan(
    command: Sequence[str], arguments: argparse.Namespace, fixes: "Sequence[Candidate]", recorded: Path | None
) -> tuple[str, ...]:
    """What would run, in its order."""
    from profilerkit import api
    from profilerkit.experiment.trying import to_try

    known = fixes if recorded is None else to_try(api.read_report(recorded), fixes)
    return (
        f"command  {shlex.join(command)}",
        f"each run {arguments.steps or '60 steps or more'}, at most {arguments.time:g} s from its first step",
        f"all runs at most {arguments.budget:g} s, or one run more",
        "first    the program as it is: its report proposes changes",
        "in turns the program as it is",
        *(f"         {', '.join(change.text for change in one.changes)}" for one in known),
        "         what else the report of the first run proposes",
        "together what is faster alone",
    )


def _written(below: Path, since_s: float, own: Path) -> Iterator[str]:
    """Files that changed since then, but for ours and Python's own."""
    for path in islice(_files(below, own), _MOST_FILES):
        with suppress(OSError):
            if os.lstat(path).st_mtime >= since_s:
                yield os.path.relpath(path, below)


def _files(below: Path, own: Path) -> Iterator[str]:
    for place, directories, names in os.walk(below):
        directories[:] = [d for d in directories if d not in ("__pycache__", ".git") and Path(place, d) != own]
        yield from (os.path.join(place, name) for name in names)  # noqa: PTH118  of thousands


def with_patch(trial: "Trial", words: Sequence[str]) -> "Trial":
    """Return the trial with what it advises as a patch of the script that the words name."""
    from profilerkit.capture.changes import known_settings
    from profilerkit.experiment.patch import patch_of
    from profilerkit.model import revise

    kept = [attempt for attempt in trial.attempts if attempt.kept]
    script = next((word for word in words if word.endswith(".py")), "")
    patch, left = patch_of(kept, known_settings(), Path.cwd(), script)
    return revise(trial, patch=patch, notes=(*trial.notes, *left))


def publish(
    trial: "Trial",
    directory: Path,
    console: Console,
    formats: Sequence[str] = ("html",),
    *,
    redacts: bool = True,
    recorded: Path | None = None,
) -> list[str]:
    """Print the answer and write it, as JSON too; return what was written."""
    from profilerkit.report import html, json, markdown, terminal
    from profilerkit.report.redaction import redacted_trial
    from profilerkit.rundir.files import write_document
    from profilerkit.rundir.layout import TRIAL
    from profilerkit.rundir.places import identity_of

    names = identity_of()
    local = redacted_trial(trial, names, is_local=True) if redacts else trial
    console.out(terminal.render(local, width=console.width, colour=console.colour, ascii_only=console.ascii_only))
    shown = redacted_trial(trial, names) if redacts else trial
    renderers: dict[str, Callable[[Trial], str]] = {"html": html.render, "md": markdown.render, "json": json.render}
    wanted = {"json": renderers["json"], **{name: renderers[name] for name in formats}}
    pages = [Output(name, directory / f"trial{SUFFIXES[name]}") for name in wanted]
    # What was measured goes before what is predicted, where these runs are analyzed again.
    for run in filter(None, (directory / "first", recorded)):
        if run.is_dir():
            write_document(run / TRIAL, shown)
    return write_all(((page.path, wanted[page.format](shown)) for page in pages), console)
