"""``profilerkit demo``: train with a known fault, diagnose, apply the proposed fix, train again, compare."""

import argparse
import shutil
import time
from collections.abc import Container
from itertools import count
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from profilerkit.cli.console import DONE, INCONCLUSIVE, Console
from profilerkit.config import unknown_word
from profilerkit.errors import CaptureError, UsageError
from profilerkit.units import format_ns, format_ratio, format_saving

if TYPE_CHECKING:
    from profilerkit.cli.demos import Program, Proposal, Trained

#: Kind to what is wrong with its training program. Kind ``x`` is ``x-bound``.
KINDS = {
    "input": "a DataLoader that is slower than the training step",
    "overhead": "metrics counted in a Python loop after every step",
    "memory": "a fresh tensor of 64 MiB in every step",
    "comm": "two ranks that reduce their gradients after every micro-batch",
    "compute": "two ranks of which one has seven times the work",
}

# On a shared machine the same step can take twice as long a minute later; that is not what the demo is about.
# Runs are repeated for that reason alone, never for what the comparison says, and while the time promised allows.
_ATTEMPTS, _ALIKE_RATIO = 3, 0.2
#: Two minutes, but for torch, which may take seconds to import.
_PROMISED_S = 105.0

_RUNS = ("before", "after")
_COLUMNS = 80
_REPORTS = ("report.html", "report.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``demo``."""
    parser.epilog = (
        "Both runs are real and train on the processor, in under two minutes. Only the\n"
        "waits for slow storage, a network or a device are simulated. Exit code 3 means\n"
        "that the runs proved nothing, for example on a busy machine."
    )
    parser.add_argument(
        "kind", nargs="?", default="input", metavar="KIND", help="train with this fault (default: input)"
    )
    parser.add_argument("--list", action="store_true", help="list the kinds")
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="write there (default: a fresh runs/demo-KIND)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the recordings as well as the reports")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Train twice and print what was predicted beside what was measured."""
    kind: str = arguments.kind
    if arguments.list:
        console.out("\n".join(f"{name:<10} {fault}" for name, fault in KINDS.items()))
        return DONE
    if kind not in KINDS:
        raise unknown_word(kind, list(KINDS), what="demo", hint="profilerkit demo --list shows them")
    program = _load(kind)
    directory = _fresh_directory(arguments.output, Path("runs") / f"demo-{kind}")

    started_s = time.monotonic()
    for attempt in range(1, _ATTEMPTS + 1):
        before, proposal, after = _train_twice(program, directory, console)
        uneven = _uneven(before, after)
        # One more attempt takes as long as those before it, on average.
        soon_s = (time.monotonic() - started_s) * (attempt + 1) / attempt
        if not uneven or attempt == _ATTEMPTS or soon_s > _PROMISED_S:
            break
        console.note(f"{uneven}. This machine is busy; training again")
        _drop(directory, keep=())
    unproven = _unproven(before, after, proposal)
    console.out(_comparison(before, after, proposal, unproven))
    promised = f"{kind}-bound"
    if before.report and before.report.verdict.bound != promised:
        console.note(f"the fault is {promised} on a quiet machine; here it was {before.report.verdict.bound}")
    if not arguments.keep:
        _drop(directory, keep=_REPORTS)
    pages = [directory / name / _REPORTS[0] for name in _RUNS]
    console.note(f"reports: {' and '.join(str(page) for page in pages if page.is_file())}")
    if unproven:
        console.note(f"nothing was proven; next, when this machine is less busy: profilerkit demo {kind}")
        return INCONCLUSIVE
    return DONE


def _train_twice(program: "Program", directory: Path, console: Console) -> "tuple[Trained, Proposal, Trained]":
    console.note(f"1/3 training with a fault: {program.fault}")
    train = program.prepare()
    before = train(program.slow, directory / _RUNS[0])
    _print_verdict(before, console)
    proposal = program.propose(before)
    origin = f"its saving predicted by {proposal.rule}" if proposal.rule else "not proposed by the report"
    console.note(f"2/3 applying the fix, {origin}: {proposal.text}")
    console.note("3/3 training again")
    return before, proposal, train(proposal.settings, directory / _RUNS[1])


def _uneven(before: "Trained", after: "Trained") -> str:
    """How unlike the machine was in the two runs, in words; empty where it was alike."""
    if abs(after.compute_ns / before.compute_ns - 1) <= _ALIKE_RATIO:
        return ""
    return f"The same computation took {format_ns(before.compute_ns)}, then {format_ns(after.compute_ns)} per step"


def _unproven(before: "Trained", after: "Trained", proposal: "Proposal") -> str:
    """Why the two runs prove nothing, in whole sentences; empty where they prove something.

    What the same computation took more or less in the second run is the machine's doing. A step that got no shorter
    than that may have got so by itself: 5 ms of 100 ms are nothing where the computation alone differs by 6 ms.
    """
    uneven = _uneven(before, after)
    if uneven:
        return f"{uneven}. This machine was too busy to measure what the fix saves."
    if proposal.saving is None:
        return "The report predicted no saving for this fix."
    shorter_ns, noise_ns = before.step_ns - after.step_ns, abs(after.compute_ns - before.compute_ns)
    if shorter_ns > noise_ns:
        return ""
    change = f"{format_ns(shorter_ns)} shorter" if shorter_ns > 0 else "no shorter"
    return (
        f"The step got {change}, and the same computation alone differs by {format_ns(noise_ns)} between the runs. "
        "The change is within the noise of this machine."
    )


def _load(kind: str) -> "Program":
    try:
        from profilerkit.cli.demos import PROGRAMS
    except (ImportError, OSError) as error:
        raise UsageError(
            "the demo trains a real model and torch is missing",
            cause=str(error),
            hint="pip install torch",
        ) from error
    return PROGRAMS[kind]


def _fresh_directory(wanted: Path | None, default: Path) -> Path:
    """A directory that did not exist or was empty; the default gets the first free number."""
    if wanted is None:
        names = (default if n == 1 else default.with_name(f"{default.name}-{n}") for n in count(1))
        wanted = next(path for path in names if not path.exists())
    elif wanted.is_dir() and any(wanted.iterdir()):
        raise UsageError(f"{wanted} is not empty", cause="a demo needs a directory of its own", hint="name a new one")
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot create {wanted}", cause=error.strerror or str(error), hint="name another place with -o DIR"
        ) from error
    return wanted


def _print_verdict(trained: "Trained", console: Console) -> None:
    if trained.report is None:
        raise CaptureError("the run has no report", cause="capture switched itself off", hint="see the warnings above")
    from profilerkit.report import terminal

    console.out(
        terminal.render(trained.report, width=console.width, colour=console.colour, ascii_only=console.ascii_only)
    )


def _comparison(before: "Trained", after: "Trained", proposal: "Proposal", unproven: str) -> str:
    """The prediction beside the measurement, and how far they are apart, or why that proves nothing: ``unproven``."""
    measured = 1 - after.step_ns / before.step_ns
    saving = proposal.saving
    rows = [("", "before", "predicted", "measured")]
    judgement = ""
    if saving is None:
        rows.append(("step", format_ns(before.step_ns), "nothing", format_ns(after.step_ns)))
        rows.append(("saving", "", "nothing", format_ratio(measured)))
    else:
        predicted_ns = before.step_ns * (1 - saving.expected)
        rows.append(("step", format_ns(before.step_ns), format_ns(predicted_ns), format_ns(after.step_ns)))
        spread = format_saving(saving.low, saving.expected, saving.high, saving.method)
        rows.append(("saving", "", spread, format_ratio(measured)))
        points = 100 * abs(measured - saving.expected)
        # By the whole points that are shown.
        place = "inside" if round(saving.low, 2) <= round(measured, 2) <= round(saving.high, 2) else "outside"
        judgement = f"{points:.1f} points between prediction and measurement; {place} the predicted range."
    if unproven:
        judgement = f"Nothing was proven. {unproven}"
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    footnote = f"Steps are means of the last {before.steps} steps of each run, timed outside profilerkit."
    return "\n".join([f"fix: {proposal.text}", "", *lines, "", fill(judgement, _COLUMNS), footnote])


def _drop(directory: Path, *, keep: Container[str]) -> None:
    """Delete what the two runs wrote, but for the files named in ``keep``."""
    for name in _RUNS:
        for path in list((directory / name).glob("*")):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in keep:
                path.unlink()
