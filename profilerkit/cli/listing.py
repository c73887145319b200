"""``profilerkit analyze`` on a directory of several runs: one line for each, the newest first."""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from textwrap import shorten
from typing import TYPE_CHECKING

from profilerkit.cli.arguments import shown_report
from profilerkit.cli.console import DONE, Console
from profilerkit.cli.outputs import write
from profilerkit.cli.places import Progress
from profilerkit.errors import ProfilerkitError, UsageError
from profilerkit.units import format_gain, format_ns

if TYPE_CHECKING:
    from profilerkit.config import Settings
    from profilerkit.model.finding import Saving

#: Options about one report.
_OF_ONE_RUN = ("rank", "show", "open", "brief", "fail_on", "strict")
_HEAD = ("run", "recorded", "step", "verdict", "the best fix saves")
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Row:
    """One run of a list."""

    run: str
    recorded_unix_ns: int
    verdict: str = ""
    detail: str = ""
    headline: str = ""
    step_time_ns: int | None = None  #: mean of its steady steps; ``None`` when not measured
    fix: str = ""
    saving: "Saving | None" = None  #: of that fix; ``None`` when none is stated
    error: str = ""  #: why it cannot be analyzed; empty where it can
    is_saved: bool = False  #: these are numbers of a saved report as new as the recording; else they were made now


def run(runs: Sequence[Path], arguments: argparse.Namespace, settings: "Settings", console: Console) -> int:
    """Print the runs as a table, or as JSON with ``-f json``."""
    _check(runs, arguments)
    with Progress(console) as progress:
        rows = []
        for number, path in enumerate(runs, 1):
            progress.begin(f"run {number}/{len(runs)}: {path.name}")
            rows.append(_row(path, arguments, settings))
    as_json = arguments.formats == ("json",)
    text = (
        json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False, default=_saving)
        if as_json
        else _table(rows, time.time_ns(), console.width)
    )
    if arguments.output not in (None, "-"):
        write(Path(arguments.output), f"{text}\n")
    elif as_json:
        console.raw(text)
    else:
        console.out(text)
    made = sum(not row.is_saved for row in rows)
    if made:
        console.note(f"{made} of {len(rows)} runs have no report as new as the recording; analyze RUN makes one")
    newest = next((path for path, row in zip(runs, rows, strict=True) if not row.error), runs[0])
    console.note(f"next: profilerkit analyze {quote(str(newest))}")
    return DONE


def _check(runs: Sequence[Path], arguments: argparse.Namespace) -> None:
    unfit = [f"--{name.replace('_', '-')}" for name in _OF_ONE_RUN if _is_given(getattr(arguments, name))]
    unfit += [f"-f {name}" for name in arguments.formats if name not in ("json", "text")]
    if unfit or len(arguments.formats) > 1:
        raise UsageError(
            f"{unfit[0] if unfit else 'more than one format'} needs one run",
            cause=f"{runs[0].parent} holds {len(runs)} runs, which are listed as text or as JSON",
            hint=f"profilerkit analyze {quote(str(runs[0]))}",
        )


def _is_given(value: object) -> bool:
    return value is not None and value is not False


def _row(path: Path, arguments: argparse.Namespace, settings: "Settings") -> Row:
    from profilerkit import api
    from profilerkit.formats.directories import recorded_ns
    from profilerkit.model.finding import with_fixes
    from profilerkit.report.wording import step_ns
    from profilerkit.rundir.layout import REPORT_JSON

    written_ns, saved = recorded_ns(path), path / REPORT_JSON
    is_saved = saved.is_file() and saved.stat().st_mtime_ns >= written_ns
    try:
        found = api.load(saved) if is_saved else api.read_report(path, settings)
    except ProfilerkitError as error:
        return Row(path.name, written_ns, error=error.cause or error.what)
    report = shown_report(found, [path], arguments)
    best = next(iter(with_fixes(report.outcomes)), None)
    return Row(
        path.name,
        written_ns,
        report.verdict.bound,
        report.verdict.detail,
        report.verdict.headline,
        step_ns(report),
        best.fix.text if best and best.fix else "",
        best.saving if best else None,
        is_saved=is_saved,
    )


def _saving(of: "Saving") -> dict[str, float | str]:
    return {"low": of.low, "expected": of.expected, "high": of.high, "method": of.method}


def _table(rows: Sequence[Row], now_ns: int, width: int) -> str:
    cells = [_HEAD, *(_cells(row, now_ns) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    below = ["", *(row.error or row.fix or row.headline for row in rows)]
    lines = []
    for line, text in zip(cells, below, strict=True):
        lines.append("  ".join(f"{cell:<{size}}" for cell, size in zip(line, widths, strict=True)).rstrip())
        if text:
            lines.append(_INDENT + shorten(text, width - len(_INDENT), placeholder=" …"))
    return "\n".join(lines)


def _cells(row: Row, now_ns: int) -> tuple[str, ...]:
    from profilerkit.formats.directories import ago

    return (
        row.run,
        ago(now_ns - row.recorded_unix_ns),
        format_ns(row.step_time_ns) if row.step_time_ns is not None else "–",
        (f"{row.verdict} ({row.detail})" if row.detail else row.verdict) or "not readable",
        format_gain(row.saving.low, row.saving.high, row.saving.method) if row.saving else "–",
    )
