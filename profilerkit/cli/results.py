"""What ``diff`` and ``check`` share: where their documents go, and what GitHub is told."""

import argparse
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from profilerkit.cli.arguments import add_allow_rules, add_no_redact, some_of
from profilerkit.cli.console import DONE, GATE_FAILED, INCONCLUSIVE, Console
from profilerkit.cli.outputs import SUFFIXES as OF_REPORTS
from profilerkit.cli.outputs import Output, for_standard_output, made_stem, unwritten, write_all
from profilerkit.config import Settings
from profilerkit.errors import UsageError

if TYPE_CHECKING:
    from profilerkit.model.diff import Gate
    from profilerkit.report.ci import Alert

SUFFIXES = {**OF_REPORTS, "junit": ".xml", "sarif": ".sarif"}  #: format to the ending of its file
#: Code scanning refuses an alert without a file. Budgets stand in this one; a finding is about the run, not a line.
LOCATION = "pyproject.toml"


def add_arguments(parser: argparse.ArgumentParser, formats: Sequence[str]) -> None:
    """Declare ``-o``, ``-f`` and what is said to GitHub."""
    parser.add_argument("-o", "--output", metavar="FILE", help="write there; - is standard output")
    parser.add_argument(
        "-f",
        "--format",
        metavar="FORMATS",
        type=some_of("--format", formats),
        default=(),
        dest="formats",
        help=f"write any of {', '.join(formats)}, separated by commas",
    )
    add_allow_rules(parser)
    add_no_redact(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 3 when a gate could not be judged")
    parser.add_argument(
        "--annotations", action="store_true", help="print annotations for GitHub; automatic in GitHub Actions"
    )
    parser.add_argument(
        "--location",
        metavar="FILE",
        default=LOCATION,
        help="attach SARIF alerts to this file of the repository (default: %(default)s)",
    )
    parser.add_argument(
        "--summary", metavar="FILE", help="append Markdown to this file (default: GITHUB_STEP_SUMMARY, if set)"
    )


def tell_saved(paths: Sequence[Path], settings: Settings, console: Console, words: Callable[[str], str] = str) -> None:
    """Say which of the paths are reports whose findings the settings for analyses do not reach, where there are any.

    ``words`` puts what is told of a path in other words.
    """
    from profilerkit import api

    if replace(settings, fail_on=None, budgets=(), gpu_hour_price=None, rules_from=None) == Settings():
        return
    for path in paths:
        if path.exists() and api.saved_report(path) is not None:
            console.note(words(f"{path} is a saved report: it keeps the settings it was made with"))


def plan(
    formats: Sequence[str], target: str | None, stem: str, known: Sequence[str], judged: Iterable[object]
) -> tuple[Output, ...]:
    """What to write where: nothing unless asked. Raises ``UsageError`` where it is not clear.

    ``target`` names one document, whose ending stands for the format, or a directory: what was ``judged`` then goes
    into the name, for others may lie there. Without it the files are called ``stem``.
    """
    if target is None:
        return tuple(Output(name, Path(stem + SUFFIXES[name])) for name in formats)
    if target == "-":
        return for_standard_output(formats, "junit")
    if Path(target).is_dir():
        made = made_stem(stem, judged)
        return tuple(Output(name, Path(target) / (made + SUFFIXES[name])) for name in formats or known[:1])
    ending = Path(target).suffix.lower()
    chosen = tuple(formats) or tuple(name for name in known if SUFFIXES[name] == ending)
    if len(chosen) != 1:
        raise UsageError(
            f"the format of {target} is unknown",
            cause=f"{len(formats)} formats were given" if formats else f"{ending or 'no ending'} is not a known one",
            hint=f"name one with -f, or use one of the endings {', '.join(SUFFIXES[name] for name in known)}",
        )
    if not Path(target).parent.is_dir():
        raise UsageError(
            f"cannot write {target}", cause=f"{Path(target).parent} is not a directory", hint="create it first"
        )
    return (Output(chosen[0], Path(target)),)


def conclude(
    arguments: argparse.Namespace,
    documents: Iterable[Output],
    gates: "Sequence[Gate]",
    alerts: "Sequence[Alert]",
    texts: Mapping[str, Callable[[], str]],
    console: Console,
    *,
    name: str,
    version: str,
    judged: bool = True,
) -> int:
    """Write the documents, print what was found, tell GitHub; return the exit code.

    ``texts`` makes the document of each format but those of gates, and under ``""`` what is printed: where a document
    goes to standard output, the gates that did not pass are notes instead. ``name`` is what was judged, ``version``
    that of the report, and ``judged`` whether the whole could be: otherwise ``--strict`` gives 3.
    """
    from profilerkit.report import ci

    every: dict[str, Callable[[], str]] = {
        **texts,
        "junit": lambda: ci.junit(name, gates),
        "sarif": lambda: ci.sarif(gates, alerts, version=version, location=arguments.location),
    }
    made = [(output.path, every[output.format]()) for output in documents]
    if written := write_all(made, console):
        console.note(f"wrote {' and '.join(written)}")
    if any(path is None for path, _ in made):
        for gate in sorted(gates, key=lambda gate: gate.status):  # failed, then not judged
            if gate.status != "passed":
                console.note(f"{gate.status}: {gate.name}, {gate.limit}: {gate.reason}")
    elif not console.quiet:
        console.out(texts[""]())
    # Annotations, and the step's summary: where asked for, by an option or by the variables that GitHub Actions sets.
    if arguments.annotations or os.environ.get("GITHUB_ACTIONS") == "true":
        console.commands(ci.annotations(gates, alerts))
    summary = arguments.summary or os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(texts["md"]())
        except OSError as error:
            raise unwritten(summary, error, "name another file with --summary") from error
    statuses = [gate.status for gate in gates]
    if "failed" in statuses:
        return GATE_FAILED
    return INCONCLUSIVE if arguments.strict and ("not judged" in statuses or not judged) else DONE
