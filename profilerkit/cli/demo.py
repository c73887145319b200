"""``profilerkit demo``: train with a known fault, diagnose it, and measure the proposed fix as ``try`` does."""

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from profilerkit.cli import try_fixes
from profilerkit.cli.console import DONE, INCONCLUSIVE, Console
from profilerkit.config import unknown_word
from profilerkit.errors import UsageError

if TYPE_CHECKING:
    from profilerkit.experiment.plan import Candidate
    from profilerkit.model.report import Report


class _Kind(NamedTuple):
    """One fault; ``x`` is ``x-bound``."""

    fault: str
    rule: str = ""  #: whose finding proposes the fix
    #: How it is made in the code, which the program does when told to; empty where a setting can be changed.
    fix: str = ""
    ranks: int = 1  #: processes that train together


KINDS = {
    "input": _Kind("a DataLoader that is slower than the training step"),
    "overhead": _Kind(
        "metrics counted in a Python loop after every step",
        "OV005",
        "metrics counted in a Python loop → by one tensor operation",
    ),
    "memory": _Kind(
        "a fresh tensor of 64 MiB in every step", "ME001", "a fresh tensor of 64 MiB in every step → one that is kept"
    ),
    "comm": _Kind("two ranks that reduce their gradients after every micro-batch", ranks=2),
    "compute": _Kind(
        "two ranks of which one has seven times the work", "CO003", "samples of the ranks 2 and 14 → 8 and 8", ranks=2
    ),
}

#: The variable that tells a program to mend itself, see ``demos``.
_VARIABLE = "PROFILERKIT_DEMO"
_BUDGET_S = 100.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``demo``."""
    parser.epilog = (
        "All runs are real and train on the processor, in under two minutes. Only the\n"
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
    """Train, print the report, then train with the fix and without it in turns, and print what it saves."""
    name: str = arguments.kind
    if arguments.list:
        console.out("\n".join(f"{name:<10} {kind.fault}" for name, kind in KINDS.items()))
        return DONE
    if name not in KINDS:
        raise unknown_word(name, list(KINDS), what="demo", hint="profilerkit demo --list shows them")
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:
        raise UsageError(
            "the demo trains a real model and torch is missing", cause=str(error), hint="pip install torch"
        ) from error
    kind, directory = KINDS[name], try_fixes.fresh(arguments.output, Path("runs") / f"demo-{name}")
    is_proven = _tried(name, kind, directory, console)
    for path in () if arguments.keep else list(directory.iterdir()):
        if path.is_dir():
            shutil.rmtree(path)
    if is_proven:
        return DONE
    console.note(f"nothing was proven; next, when this machine is less busy: profilerkit demo {name}")
    return INCONCLUSIVE


def _tried(name: str, kind: _Kind, directory: Path, console: Console) -> bool:
    """Run all that is to be run and print it; whether the fix was predicted and saves time for certain."""
    from profilerkit import api
    from profilerkit.experiment.runs import Runner
    from profilerkit.experiment.trying import Trying
    from profilerkit.report import terminal

    command = _command(name, kind.ranks, directory)
    runner = Runner(command=command, directory=directory.absolute(), steps=0, seconds=_BUDGET_S)
    trying = Trying(runner, budget_s=_BUDGET_S, say=lambda text: console.status(f"profilerkit: {text}"))
    console.note(f"1/2 training with a fault: {kind.fault}")
    first = trying.first()
    report = api.analyze(first.place)
    page = directory / "report.html"
    report.to_html(page)
    report.to_json(page.with_suffix(".json"))
    console.out(terminal.render(report, width=console.width, colour=console.colour, ascii_only=console.ascii_only))
    if report.verdict.bound != f"{name}-bound":
        console.note(f"the fault is {name}-bound on a quiet machine; here it was {report.verdict.bound}")
    console.note(f"2/2 training with and without {f'the fix, made in the code: {kind.fix}' if kind.fix else 'the fix'}")
    if kind.fix:
        trying.search.notes.append(f"{_VARIABLE}=mended runs the fix, made in the code: {kind.fix}.")
        trying.search.search([_mended(report, kind)])
    else:
        trying.rest(first)
    console.status("")
    trial = trying.search.trial(f"demo {name}", command)
    if not kind.fix:
        trial = try_fixes.with_patch(trial, command)
    written = try_fixes.publish(trial, directory, console)
    console.note(f"wrote {' and '.join([str(page), *written])}")
    return any(one.outcome == "faster" and one.predicted for one in trial.attempts)


def _command(name: str, ranks: int, directory: Path) -> list[str]:
    """Copy the program, so that its lines are a user's own, and return what starts it."""
    script = directory / "train.py"
    shutil.copyfile(Path(__file__).with_name("demos.py"), script)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
    return [sys.executable, *(launcher if ranks > 1 else ()), str(script), name]


def _mended(report: "Report", kind: _Kind) -> "Candidate":
    """The fix that the program makes itself, with the saving predicted where the report proposes it."""
    from profilerkit.experiment.plan import VARIABLE, Candidate
    from profilerkit.model.finding import SettingChange, in_order

    savings = [finding.saving for outcome, finding in in_order(report.outcomes) if outcome.rule == kind.rule]
    return Candidate(
        changes=(SettingChange(f"{VARIABLE}{_VARIABLE}", "", "mended"),),
        rules=(kind.rule,) if savings else (),
        predicted=next(iter(savings), None),
        code=f"in the code: {kind.fix}",
    )
