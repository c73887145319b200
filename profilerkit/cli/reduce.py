"""``profilerkit reduce``: the summaries of any number of ranks to one verdict and its report files."""

import argparse
from typing import TYPE_CHECKING

from profilerkit.cli import analyze
from profilerkit.cli.arguments import project_settings
from profilerkit.cli.console import Console
from profilerkit.cli.outputs import open_needs_a_page, plan
from profilerkit.cli.places import REMOTE_HELP, Progress, at_hand, place

if TYPE_CHECKING:
    from profilerkit.formats.remote import Copies

_EPILOG = (
    """\
examples:
  profilerkit map traces/ -o summaries/
  profilerkit reduce summaries/
  profilerkit reduce summaries/ -o report.html

All ranks are compared by their steps and collectives. Details are shown for
late ranks and for some typical ranks. The report is written to the directory of
the summaries; -o works as in analyze.

"""
    + REMOTE_HELP
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``reduce``."""
    parser.epilog = _EPILOG
    parser.add_argument("paths", nargs="+", metavar="PATH", type=place, help="summaries, or directories of summaries")
    analyze.add_report_arguments(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 3 when the verdict is inconclusive")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Reduce, write, print the verdict, judge the gates; return the exit code."""
    with at_hand(arguments.paths, console) as copies:
        return _run(copies, arguments, console)


def _run(copies: "Copies", arguments: argparse.Namespace, console: Console) -> int:
    from profilerkit import api
    from profilerkit.summaries.files import name_of_trace

    paths = copies.paths
    settings = project_settings(arguments, console)
    # Where the traces lie beside their summaries, they are not written over either.
    traces = [path.with_name(name_of_trace(path.name)) for path in paths if path.is_file()]
    outputs = plan([*paths, *traces], arguments.formats, arguments.output, rerender=False, beside=copies.beside())
    if arguments.open:
        open_needs_a_page(outputs)
    with Progress(console):
        report = api.reduced_report(paths, settings)
    return analyze.publish(copies.told(report), outputs, paths, arguments, settings, console)
