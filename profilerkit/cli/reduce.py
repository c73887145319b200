"""``profilerkit reduce``: the summaries of any number of ranks to one verdict and its report files."""

import argparse
from pathlib import Path

from profilerkit.cli import analyze, redact
from profilerkit.cli.arguments import one_of, some_of
from profilerkit.cli.console import Console
from profilerkit.cli.outputs import SUFFIXES, plan
from profilerkit.config import SEVERITIES, load_settings
from profilerkit.errors import UsageError

_EPILOG = """\
All ranks are compared by their steps and collectives. Whom the others wait for,
and some ranks that stand for the rest, are told in detail.

  profilerkit map traces/ -o summaries/
  profilerkit reduce summaries/ -o report.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``reduce``."""
    parser.epilog = _EPILOG
    parser.add_argument("paths", nargs="+", metavar="PATH", type=Path, help="summaries, or directories that hold them")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write; a directory keeps the name")
    parser.add_argument(
        "-f",
        "--format",
        metavar="FORMATS",
        type=some_of("--format", tuple(SUFFIXES)),
        default=(),
        dest="formats",
        help=f"any of {', '.join(SUFFIXES)}, separated by commas (default: html)",
    )
    parser.add_argument(
        "--fail-on",
        metavar="|".join(SEVERITIES),
        type=one_of("--fail-on", SEVERITIES),
        help="exit with 1 when a finding is this severe or more",
    )
    parser.add_argument("--select", metavar="RULES", action="append", help="run only these, for example IN,CO003")
    parser.add_argument("--ignore", metavar="RULES", action="append", help="do not run these")
    parser.add_argument("--device", metavar="NAME", help="compare with this device's peaks, for example h100-sxm")
    parser.add_argument(
        "--gpu-hour-price", metavar="PRICE", help="tell the cost of lost time, at this price of one GPU for one hour"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 3 when the verdict is inconclusive")
    redact.add_argument(parser)
    parser.add_argument("--brief", action="store_true", help="one line on standard error instead of the verdict")
    parser.add_argument("--open", action="store_true", help="open the HTML report in the browser")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Reduce, write, print the verdict, judge the gates; return the exit code."""
    from profilerkit import api
    from profilerkit.plugins import loaded_from, without_unloaded

    paths: list[Path] = arguments.paths
    settings = without_unloaded(load_settings(vars(arguments), inputs=paths))
    for sentence in (*settings.unused, *loaded_from(settings.rules_path)):
        console.note(sentence)
    outputs = plan(paths, arguments.formats, arguments.output, rerender=False)
    if arguments.open and not any(output.format == "html" and output.path for output in outputs):
        raise UsageError("--open has nothing to open", cause="no HTML file is written", hint="add -f html")
    report = api.reduce(
        *paths,
        select=settings.select,
        ignore=settings.ignore,
        device=settings.device,
        rules_path=settings.rules_path,
        options=settings.rules,
        suppress=settings.suppress,
        gpu_hour_price=settings.gpu_hour_price,
    )
    return analyze.publish(report, outputs, arguments, settings, console)
