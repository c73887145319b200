"""``profilerkit check``: a run against its budgets, for continuous integration."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from profilerkit.cli import results
from profilerkit.cli.arguments import project_settings, shown_report
from profilerkit.cli.console import Console
from profilerkit.errors import UsageError

if TYPE_CHECKING:
    from profilerkit.model.report import Report
    from profilerkit.report.ci import Alert

_FORMATS = ("text", "md", "junit", "sarif")
_EXAMPLE = 'step_time = "200 ms"'
_EPILOG = """\
Set budgets in pyproject.toml, or with --budget, which wins:

  [tool.profilerkit.budgets]
  step_time = "200 ms"        # also step_time_median, step_time_p90
  throughput = "500/s"        # samples per second, at least
  peak_memory = "70 GiB"      # of the device, else of the process
  input = "20 %"              # share of a family, or of a part: "input.prep"
  busy = "80 %"               # of the least busy device, at least
  findings = "high"           # no finding of that severity or above

Recordings are analyzed with the settings of the project; a saved report keeps
the settings it was made with.

Exit code 1 means that a budget is exceeded. To compare two runs, use
profilerkit diff. profilerkit guide ci has a workflow to copy."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``check``."""
    parser.epilog = _EPILOG
    parser.add_argument("path", metavar="PATH", type=Path, help="run directory, trace, or report saved as JSON")
    parser.add_argument(
        "--budget", metavar="NAME=LIMIT", action="append", default=[], help="add a budget, for example step_time=200ms"
    )
    results.add_arguments(parser, _FORMATS)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Judge the budgets, print, write; return the exit code."""
    from profilerkit.compare.gates import judge_budget, parse_budget

    if not arguments.path.exists():
        raise UsageError(f"{arguments.path} does not exist", hint="check the path; profilerkit run records one")
    settings = project_settings(arguments, console)
    budgets = dict(settings.budgets) | dict(_budget(text) for text in arguments.budget)
    if not budgets:
        raise UsageError(
            "there is no budget to check",
            cause="pyproject.toml has no [tool.profilerkit.budgets], and --budget was not given",
            hint=f"add {_EXAMPLE} there, or give --budget step_time=200ms",
        )
    limits = [parse_budget(name, value) for name, value in budgets.items()]
    documents = results.plan(arguments.formats, arguments.output, "check", _FORMATS, [arguments.path])
    from profilerkit import api
    from profilerkit.report import markdown, terminal

    results.tell_saved([arguments.path], settings, console)
    report = shown_report(api.read_report(arguments.path, settings), [arguments.path], arguments)
    gates = [judge_budget(limit, report) for limit in limits]

    def printed() -> str:
        shown = terminal.render_gates(gates, width=console.width, colour=console.colour, ascii_only=console.ascii_only)
        return f"{report.verdict.bound}: {report.verdict.headline}\n\n{shown}"

    texts = {
        "": printed,
        "text": lambda: terminal.render_gates(gates),
        "md": lambda: markdown.render_gates(report.run.name, report.verdict.headline, gates),
    }
    name, version = report.run.name, report.run.profilerkit_version
    return results.conclude(arguments, documents, gates, alerts_of(report), texts, console, name=name, version=version)


def _budget(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise UsageError(
            f"{text!r} is not a budget", cause="a budget is NAME=LIMIT", hint="write --budget step_time=200ms"
        )
    return name.strip(), value.strip()


def alerts_of(report: "Report") -> "list[Alert]":
    """The findings that have a fix, or are severe."""
    from profilerkit.model.finding import in_order
    from profilerkit.report.ci import Alert

    return [
        Alert(
            rule=outcome.rule,
            summary=outcome.summary,
            severity=finding.severity,
            message=f"{finding.title}. {finding.fix.text}" if finding.fix else finding.title,
        )
        for outcome, finding in in_order(report.outcomes)
        if finding.fix is not None or finding.severity in ("high", "medium")
    ]
