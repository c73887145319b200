"""``profilerkit diff``: what changed between two runs, whether it is real, and whether predictions held."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from profilerkit.cli import results
from profilerkit.cli.arguments import project_settings
from profilerkit.cli.console import Console
from profilerkit.cli.places import REMOTE_HELP, at_hand, place
from profilerkit.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from profilerkit.model.report import Report
    from profilerkit.report.ci import Alert
    from profilerkit.results import Diff
    from profilerkit.rundir.places import Identity

_FORMATS = ("html", "md", "json", "text", "junit", "sarif")
_EPILOG = (
    """\
examples:
  profilerkit diff runs/before runs/after
  profilerkit diff main/report.json runs/pr --fail-if step_time:+5% -o diff.md

BEFORE and AFTER are run directories, traces, directories of traces, or reports
saved as JSON. The comparison is printed; -o or -f writes a file. Recordings are
analyzed with the settings of the project; a saved report keeps its own.

With one recording of each, the usual variation between runs is assumed. More
recordings, made in turns, measure it: --also-before, --also-after. Smaller
changes are then found.

A gate is METRIC:LIMIT. A rise beyond the limit exits with 1; for throughput and
busy, a fall does. A gate on step time fails only on a real change. A change
that may be noise is not judged: exit code 3 with --strict.
  step_time:+5%       also step_time_median, step_time_p90
  throughput:-5%      samples per second
  peak_memory:+1GiB   of the device, else of the process
  input:+3pt          share of a family, or of a part: input.prep:+3pt
  findings:high       no new or worse finding of that severity or above

"""
    + REMOTE_HELP
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``diff``."""
    parser.epilog = _EPILOG
    parser.add_argument("before", metavar="BEFORE", type=place, help="run to compare with")
    parser.add_argument("after", metavar="AFTER", type=place, help="run to judge")
    parser.add_argument(
        "--fail-if", metavar="GATE", action="append", default=[], help="fail on this change, for example step_time:+5%%"
    )
    for side in ("before", "after"):
        parser.add_argument(
            f"--also-{side}",
            metavar="PATH",
            action="append",
            default=[],
            type=place,
            help=f"add a recording of the program {side.upper()}; may be repeated",
        )
    results.add_arguments(parser, _FORMATS)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Compare, print, write, judge the gates; return the exit code."""
    places = [arguments.before, arguments.after, *arguments.also_before, *arguments.also_after]
    documents = results.plan(arguments.formats, arguments.output, "diff", _FORMATS, places)
    if not arguments.fail_if and any(document.format == "junit" for document in documents):
        raise UsageError(
            "junit would be empty",
            cause="each of its tests is a gate, and --fail-if was not given",
            hint="add --fail-if step_time:+5%, or check AFTER against budgets: profilerkit check",
        )
    if len({str(place) for place in places}) < len(places):
        console.note("a recording is named twice: what is compared with itself shows no change")
    from profilerkit import api
    from profilerkit.compare.gates import parse_limit
    from profilerkit.report import terminal
    from profilerkit.report.redaction import redacted_diff
    from profilerkit.results import as_diff

    for text in arguments.fail_if:
        parse_limit(text)  # before minutes of analysis
    read, names = _read(places, arguments, console)
    before, after, also = read[0], read[1], 2 + len(arguments.also_before)
    diff = api.diff(before, after, fail_if=arguments.fail_if, also_before=read[2:also], also_after=read[also:])
    if not arguments.no_redact:
        diff = as_diff(redacted_diff(diff, names))
    alerts = alerts_of(diff)
    if not diff.gates and not alerts and any(document.format == "sarif" for document in documents):
        console.note(
            "sarif is empty: nothing is new or worse, and no gate was given, for example --fail-if step_time:+5%"
        )
    texts = {
        "": lambda: terminal.render(diff, width=console.width, colour=console.colour, ascii_only=console.ascii_only),
        "text": lambda: terminal.render(diff),
        "html": lambda: diff.to_html(redact=False),
        "md": lambda: diff.to_markdown(redact=False),
        "json": lambda: diff.to_json(redact=False),
    }
    return results.conclude(
        arguments,
        documents,
        diff.gates,
        alerts,
        texts,
        console,
        name=f"{diff.before.name} to {diff.after.name}",
        version=diff.profilerkit_version,
        judged=diff.verdict != "not comparable",
    )


def _read(
    places: "Sequence[str | Path]", arguments: argparse.Namespace, console: Console
) -> "tuple[list[Report], Identity]":
    from profilerkit import api
    from profilerkit.rundir.places import identity_of

    with at_hand(places, console) as copies:
        settings = project_settings(arguments, console)
        results.tell_saved(copies.paths, settings, console, copies.words)
        told = [copies.told(api.read_report(path, settings), path) for path in copies.paths]
        return told, identity_of(copies.paths)


def alerts_of(diff: "Diff") -> "list[Alert]":
    """New and worse findings, and a step that got slower; not what only could not be looked for before."""
    from profilerkit.report.ci import Alert

    alerts = [
        Alert(rule=row.rule, summary=row.summary, severity=row.after_severity, message=f"{row.state}: {row.title}")
        for row in diff.findings
        if row.state in ("new", "worse") and row.after_severity is not None and not row.reason
    ]
    if diff.verdict == "slower":
        alerts.insert(0, Alert(rule="slower", summary="The step got slower", severity="medium", message=diff.headline))
    return alerts
