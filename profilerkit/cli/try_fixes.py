"""``profilerkit try``: run a training command with the proposed fixes made at run time, and measure what each saves."""

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from profilerkit.cli import run as recording
from profilerkit.cli.arguments import add_no_redact, seconds, some_of
from profilerkit.cli.console import DONE, INCONCLUSIVE, INTERRUPTED, Console
from profilerkit.cli.outputs import SUFFIXES, Output, unwritten, write_all
from profilerkit.errors import UsageError
from profilerkit.secrets import MASK, masked_arguments

if TYPE_CHECKING:
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

_WITH_VALUE = (
    "-o",
    "--output",
    "--steps",
    "--time",
    "--budget",
    "--fix",
    "--ceiling",
    "--write",
    "-f",
    "--format",
    "--color",
)
#: Files of the working directory that are looked at for changes, and named (choices).
_MOST_FILES, _NAMED = 20_000, 3


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words up to the command, and the command."""
    return recording.split(words, "try", _WITH_VALUE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``try``."""
    parser.usage = (
        "profilerkit try [options] [--] (SCRIPT | -m MODULE | PROGRAM) [ARG ...]\n       profilerkit try [options] RUN"
    )
    parser.epilog = _EPILOG
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="write to this directory (default: a fresh runs/try-NAME)"
    )
    parser.add_argument("--steps", metavar="N", type=int, help="steps of each run (default: 60, or 4 s of them)")
    parser.add_argument(
        "--time",
        metavar="SECONDS",
        type=seconds("--time", 1, 86_400),
        default=60.0,
        help="end a run after so long from its first step (default: 60)",
    )
    parser.add_argument(
        "--budget",
        metavar="SECONDS",
        type=seconds("--budget", 10, 604_800),
        default=900.0,
        help="end all runs after so long (default: 900)",
    )
    parser.add_argument(
        "--fix",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="try this change too, for example num_workers=4",
    )
    parser.add_argument(
        "--ceiling",
        metavar="NAME",
        type=some_of("--ceiling", ("input",)),
        default=(),
        help="measure what can be saved at most: input gives the first batch again and again",
    )
    parser.add_argument(
        "--allow-differences", action="store_true", help="advise changes that change the losses, such as bf16, too"
    )
    parser.add_argument("--write", metavar="FILE", type=Path, help="write what is advised as a patch")
    parser.add_argument("--yes", action="store_true", help="run the command of RUN without asking")
    parser.add_argument("--dry", action="store_true", help="show what would run, and run nothing")
    parser.add_argument(
        "-f",
        "--format",
        metavar="FORMATS",
        type=some_of("--format", ("html", "md", "json")),
        default=("html", "json"),
        dest="formats",
        help="write any of html, md, json (default: html,json)",
    )
    add_no_redact(parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Measure, print and write; return the exit code."""
    from profilerkit.rundir.layout import MANIFEST

    words: Sequence[str] = arguments.command
    if arguments.steps is not None and arguments.steps < 1:
        raise UsageError(f"--steps is {arguments.steps}", cause="it must be at least 1", hint="write --steps 60")
    recorded = Path(words[0]) if len(words) == 1 and (Path(words[0]) / MANIFEST).is_file() else None
    if recorded is not None:
        words = _recorded(recorded)
    command, name = _command(words)
    if arguments.dry:
        _tell_plan(command, arguments, console)
        return DONE
    if said := recording.hindrance(command):
        console.note(f"profilerkit: {said}")
    if recorded is not None:
        _ask(command, arguments, console)
    from profilerkit.experiment.plan import Candidate
    from profilerkit.experiment.runs import Runner
    from profilerkit.experiment.trying import Trying, asked
    from profilerkit.model.finding import SettingChange

    ceilings = [Candidate(changes=(SettingChange("ceiling", "none", name),)) for name in arguments.ceiling]
    fixes = [*(asked(text) for text in arguments.fix), *ceilings]
    directory = fresh(arguments.output, Path("runs") / f"try-{name}").absolute()
    runner = Runner(command=command, directory=directory, steps=arguments.steps or 0, seconds=arguments.time)
    trying = Trying(
        runner,
        fixes=fixes,
        budget_s=arguments.budget,
        takes_differences=arguments.allow_differences,
        say=(console.status if sys.stderr.isatty() else console.note),
    )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
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
        raise UsageError(
            "there is no command to run", cause="nothing follows the options", hint="profilerkit try train.py"
        )
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


def fresh(wanted: Path | None, default: Path) -> Path:
    """Make a directory that was not there, or was empty."""
    from profilerkit.rundir.files import private_mode
    from profilerkit.rundir.places import candidates

    if wanted is not None and wanted.is_dir() and any(wanted.iterdir()):
        raise UsageError(f"{wanted} is not empty", cause="a trial needs a directory of its own", hint="name a new one")
    place = wanted or next(path for path in candidates(default) if not path.exists())
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir(private_mode(), exist_ok=True)
    except OSError as error:
        raise unwritten(str(place), error, "name another place with -o DIR") from error
    return place


def _tell_plan(command: Sequence[str], arguments: argparse.Namespace, console: Console) -> None:
    lines = [
        f"command  {shlex.join(command)}",
        f"each run {arguments.steps or '60 steps or more'}, at most {arguments.time:g} s from its first step",
        f"all runs at most {arguments.budget:g} s",
        "changes  those that the report of the first run proposes",
        *(f"         {change}" for change in arguments.fix),
    ]
    console.out("\n".join(lines))


def _written(below: Path, since_s: float, own: Path) -> Iterator[str]:
    """Files that changed since then, but for ours and Python's own."""
    seen = 0
    for place, directories, files in os.walk(below):
        here = Path(place)
        directories[:] = [d for d in directories if d not in ("__pycache__", ".git") and (here / d).absolute() != own]
        for name in files:
            seen += 1
            if seen > _MOST_FILES:
                return
            try:
                changed = (here / name).lstat().st_mtime >= since_s
            except OSError:
                continue
            if changed:
                yield os.path.relpath(here / name, below)


def with_patch(trial: "Trial", words: Sequence[str]) -> "Trial":
    """Return the trial with what it advises as a patch of the script that the words name."""
    from profilerkit.capture.changes import known_settings
    from profilerkit.experiment.patch import patch_of
    from profilerkit.model.change import revise

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
    console.out(terminal.render_trial(local, width=console.width, colour=console.colour, ascii_only=console.ascii_only))
    shown = redacted_trial(trial, names) if redacts else trial
    renderers = {"html": html.render_trial, "md": markdown.render_trial, "json": json.render}
    wanted = {"json": renderers["json"], **{name: renderers[name] for name in formats}}
    pages = [Output(name, directory / f"trial{SUFFIXES[name]}") for name in wanted]
    # What was measured goes before what is predicted, where these runs are analyzed again.
    for run in filter(None, (directory / "first", recorded)):
        if run.is_dir():
            write_document(run / TRIAL, shown)
    return write_all(((page.path, wanted[page.format](shown)) for page in pages), console)
