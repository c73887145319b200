"""``profilerkit analyze``: a recording to its verdict and its report files."""

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from profilerkit.cli.arguments import add_allow_rules, add_no_redact, one_of, project_settings, shown_report, some_of
from profilerkit.cli.console import DONE, GATE_FAILED, INCONCLUSIVE, Console
from profilerkit.cli.outputs import SUFFIXES, Output, has_screen, open_needs_a_page, opening, plan, render, write_all
from profilerkit.cli.places import REMOTE_HELP, Progress, at_hand, place
from profilerkit.config import SEVERITIES, Settings, unknown_word
from profilerkit.errors import UsageError

if TYPE_CHECKING:
    from profilerkit.formats.remote import Copies
    from profilerkit.model.events import StepEvents
    from profilerkit.model.report import Report

_EPILOG = (
    """\
examples:
  profilerkit analyze runs/resnet50
  profilerkit analyze trace.json.gz --fail-on high
  profilerkit analyze runs/resnet50 --show E3
  profilerkit analyze rank0.json rank1.json -f json -o -

The report is written beside its input: x.json.gz gives x.report.html. A
directory gets report.html, a run directory report.json as well. Reports are
redacted: user and host names, absolute paths, values of the command line and
messages of exceptions are left out. The terminal shows plain words of messages.

-o FILE takes its format from the ending. -o DIRECTORY names reports by run,
time and content. -o - writes one format to standard output and nothing else.

"""
    + REMOTE_HELP
    + """

A directory of several runs is listed, one row a run, or with -f json.
- reads a trace from standard input and writes to the current directory:

  ssh node3 cat trace.json.gz | profilerkit analyze -"""
)


_NOT_WITH_SHOW = ("output", "formats", "open", "brief", "fail_on")  # options about the report's files and gates


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``analyze``."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        type=place,
        help="trace, run directory, directory of traces, nvidia-smi log, memory snapshot, or report.json",
    )
    add_report_arguments(parser)
    parser.add_argument("--rank", metavar="N", type=int, help="show details for rank N; all ranks are still compared")
    parser.add_argument(
        "--communication-kernels",
        metavar="PATTERN",
        action="append",
        help="name your own communication kernels, for example all_reduce=^my_sum",
    )
    parser.add_argument("--strict", action="store_true", help="refuse damaged traces; exit with 3 when inconclusive")
    parser.add_argument("--show", metavar="E3", help="print one piece of evidence with its raw events; write no report")


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is to be written where, and what is judged: of every verb that makes a report."""

    def installed() -> Sequence[str]:
        from profilerkit.plugins import renderer_names

        return renderer_names()

    formats = tuple(SUFFIXES)
    parser.add_argument("-o", "--output", metavar="FILE", help="write there; a directory gets a name of its own")
    parser.add_argument(
        "-f",
        "--format",
        metavar="FORMATS",
        type=some_of("--format", formats, installed),
        default=(),
        dest="formats",
        help=f"write any of {', '.join(formats)}, separated by commas (default: html)",
    )
    parser.add_argument(
        "--fail-on",
        metavar="|".join(SEVERITIES),
        type=one_of("--fail-on", SEVERITIES),
        help="exit with 1 when a finding is this severe or more",
    )
    parser.add_argument("--select", metavar="RULES", action="append", help="run only these, for example IN,CO003")
    parser.add_argument("--ignore", metavar="RULES", action="append", help="do not run these")
    parser.add_argument("--device", metavar="NAME", help="compare with the peaks of this device, for example h100-sxm")
    parser.add_argument(
        "--gpu-hour-price", metavar="PRICE", help="show what lost time costs, at this price of one GPU for one hour"
    )
    add_allow_rules(parser)
    add_no_redact(parser)
    parser.add_argument("--brief", action="store_true", help="print one line instead of the verdict")
    parser.add_argument("--open", action="store_true", help="open the HTML report in the browser")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Analyze, write, print the verdict, judge the gates; return the exit code."""
    with at_hand(arguments.paths, console) as copies:
        return _run(copies, arguments, console)


def _run(copies: "Copies", arguments: argparse.Namespace, console: Console) -> int:
    from profilerkit import api
    from profilerkit.formats.directories import runs_in
    from profilerkit.formats.inputs import require_existing

    require_existing(copies.paths)
    saved = api.saved_report(copies.paths[0]) if len(copies.paths) == 1 else None
    rerender = saved is not None
    settings = project_settings(arguments, console, runs_rules=not rerender)
    paths = copies.paths if saved is None else [saved]
    if len(paths) == 1 and (runs := runs_in(paths[0])):
        from profilerkit.cli import listing

        return listing.run(runs, arguments, settings, console)
    if arguments.show is not None:
        return _show(paths, rerender, arguments, settings, console)
    outputs = plan(paths, arguments.formats, arguments.output, rerender=rerender, beside=copies.beside())
    if arguments.open:
        open_needs_a_page(outputs)
    _check_device(settings.device)

    has_page = any(output.format == "html" for output in outputs)
    with Progress(console):
        read, events = _read(paths, rerender, arguments, settings, has_page=has_page)
        full = copies.told(read)
    return publish(full, outputs, paths, arguments, settings, console, events=events)


def publish(
    full: "Report",
    outputs: Sequence[Output],
    paths: Sequence[Path],
    arguments: argparse.Namespace,
    settings: Settings,
    console: Console,
    *,
    events: "Sequence[StepEvents]" = (),
) -> int:
    """Write the report, print its verdict, judge the gates; return the exit code."""
    from profilerkit.report.redaction import redacted_step_events
    from profilerkit.rundir.places import identity_of

    with Progress(console) as progress:
        progress.begin("writing the report")
        report = shown_report(full, paths, arguments)
        local = shown_report(full, paths, arguments, is_local=True)
        if events and not arguments.no_redact:
            events = redacted_step_events(events, identity_of(paths))
        page = next((output.path for output in outputs if output.format == "html"), None)
        documents = [
            (one.path, render(report, one, width=80 if one.path else console.width, events=events, page=page))
            for one in outputs
        ]
    try:
        written = write_all(documents, console)
    except UsageError:  # a full disk: what was found is told all the same
        if arguments.brief:
            console.note(brief(local, ()))
        elif not console.quiet:
            _print_verdict(local, console, verbose=getattr(arguments, "verbose", False))
        raise
    if arguments.brief:
        console.note(f"{brief(local, outputs)}{_next(report, outputs, arguments)}")
        console.quiet = True
    elif all(output.path for output in outputs) and not console.quiet:
        _print_verdict(local, console, verbose=getattr(arguments, "verbose", False))
    code = _judge(report, settings.fail_on, arguments.strict, console)
    if arguments.open:
        _open([output.path for output in outputs if output.format == "html"], console)
    if written:
        console.note(f"wrote {' and '.join(written)}{_next(report, outputs, arguments)}")
    return code


def _show(
    paths: Sequence[Path], rerender: bool, arguments: argparse.Namespace, settings: Settings, console: Console
) -> int:
    from profilerkit import api
    from profilerkit.report import findings, redaction, terminal
    from profilerkit.rundir.places import identity_of

    unfit = [name for name in _NOT_WITH_SHOW if getattr(arguments, name)]
    if unfit:
        raise UsageError(
            f"--show and --{unfit[0].removesuffix('s').replace('_', '-')} do not go together",
            cause="--show prints one number and writes no report",
            hint="leave one of them out",
        )
    _check_device(settings.device)
    made = None if rerender else api.analysis(paths, settings, rank=arguments.rank, strict=arguments.strict)
    known = made.report if made else api.load(paths[0])
    wanted = findings.require_evidence(known, arguments.show)
    report = shown_report(known, paths, arguments, is_local=True)
    unknown = "A saved report holds no raw events. Name the run directory or the trace instead."
    if made:
        files = " and ".join(made.files_of(wanted))
        unknown = f"This number has no raw events of its own; it comes from the recording in {files}."
    tables = made.raw_events(wanted) if made else ()
    text = terminal.render_evidence(
        report,
        arguments.show,
        tables if arguments.no_redact else redaction.redacted_events(tables, identity_of(paths)),
        unknown=unknown,
        width=console.width,
        colour=console.colour,
        ascii_only=console.ascii_only,
    )
    console.out(text)
    return DONE


def _check_device(name: str | None) -> None:
    if name is None:
        return
    from profilerkit.hardware import known_names, lookup

    if lookup(name) is None:
        hint = "omit --device: other devices are analyzed without peaks"
        raise unknown_word(name, known_names(), what="device", hint=hint)


def _read(
    paths: Sequence[Path], rerender: bool, arguments: argparse.Namespace, settings: Settings, *, has_page: bool
) -> "tuple[Report, Sequence[StepEvents]]":
    from profilerkit import api
    from profilerkit.diagnosis.cost import with_cost

    if rerender:
        report = api.load(paths[0])
        return report if settings.gpu_hour_price is None else with_cost(report, settings.gpu_hour_price), ()
    made = api.analysis(paths, settings, rank=arguments.rank, strict=arguments.strict, events=has_page)
    return with_cost(made.report, settings.gpu_hour_price), made.step_events


def _print_verdict(report: "Report", console: Console, *, verbose: bool) -> None:
    from profilerkit.report import terminal

    text = terminal.render(
        report, width=console.width, colour=console.colour, ascii_only=console.ascii_only, verbose=verbose
    )
    console.out(text)


def brief(report: "Report", outputs: Iterable[Output]) -> str:
    """Bound, headline, what cut the run or its trace short, and the first file written."""
    from profilerkit.report.findings import findings_of
    from profilerkit.report.sections.fixes import first_of

    first = first_of(report, findings_of(report))
    files = [_shortest(output.path) for output in outputs if output.path]
    lines = first.lines if report.run.failure or report.trust.truncated else ()
    sentences = (f"{first.word.lower()}: {first.headline}", first.advice, *lines)
    said = " ".join(". ".join(sentence.rstrip(".") for sentence in sentences if sentence).split())
    return f"profilerkit: {said}" + (f" ({files[0]})" if files else "")


def _shortest(path: Path) -> str:
    return min(str(path), os.path.relpath(path), key=len)


def _as_given(place: str | Path) -> str:
    from profilerkit.formats.remote import shown

    return _shortest(place) if isinstance(place, Path) else shown(place)


def _judge(report: "Report", fail_on: str | None, strict: bool, console: Console) -> int:
    if fail_on is not None:
        from profilerkit.model.finding import in_order

        severe = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
        failing = [outcome.rule for outcome, finding in in_order(report.outcomes) if finding.severity in severe]
        if failing:
            console.note(f"gate failed: --fail-on {fail_on}, findings: {', '.join(failing)}")
            return GATE_FAILED
    if strict and report.verdict.bound == "inconclusive":
        console.note("inconclusive, under --strict")
        return INCONCLUSIVE
    return DONE


def _open(paths: Iterable[Path | None], console: Console) -> None:
    import webbrowser

    for path in paths:
        if path is not None and not (has_screen() and webbrowser.open(path.resolve().as_uri())):
            console.note(f"no browser could be started; open {path} by hand")


def _next(report: "Report", outputs: Sequence[Output], arguments: argparse.Namespace) -> str:
    """What to do next, behind what was done: look at the page, or read about its first change.

    Empty where the page is open already and proposes nothing. What to record was said before.
    """
    from shlex import join

    from profilerkit.model.finding import in_order

    pages = [output.path for output in outputs if output.format == "html" and output.path]
    changes = [outcome.rule for outcome, finding in in_order(report.outcomes) if finding.fix]
    if pages and not arguments.open:
        said = opening(_shortest(pages[0]))
    elif changes:
        said = f"profilerkit rules {changes[0]}"
    else:
        said = "" if pages else join(["profilerkit", arguments.verb, *map(_as_given, arguments.paths), "--open"])
    return f"; next: {said}" if said else ""
