"""Where reports are written, how they are named, and how they are rendered: beside the input, never over it."""

import hashlib
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from profilerkit.cli.console import Console
from profilerkit.errors import UsageError
from profilerkit.units import format_bytes

if TYPE_CHECKING:
    from profilerkit.model.events import StepEvents
    from profilerkit.model.report import Report


_END_BYTES = 1 << 16  # read of each end of a file; a trace can have gigabytes
# Of the year 9999: a later time, and one before 1970, is replaced by the nearest that a date can hold.
_LATEST_S = 253_402_300_799.0


def shared_stem(recording: Path) -> str:
    """``<run>.<yyyymmdd-hhmm>.<8 hex>``: what was recorded, when, and which of several of that minute.

    The time is in UTC: when a run was started, or that of the newest trace. The digits are of the contents: of a run
    directory ``run.json`` alone, which is written once, else the ends of the files.
    """
    files = sorted(_files(recording))
    known = hashlib.sha256()
    for file in files:
        known.update(file.name.encode("utf-8", "surrogateescape") + _ends(file))
    when = datetime.fromtimestamp(min(max(_seconds(recording, files), 0.0), _LATEST_S), UTC).strftime("%Y%m%d-%H%M")
    return f"{name_of(recording.resolve())}.{when}.{known.hexdigest()[:8]}"


def made_stem(kind: str, places: Iterable[object]) -> str:
    """``<kind>.<yyyymmdd-hhmmss>.<8 hex>``: what is made of the places, when, and which of several of that second.

    The time is in UTC; the digits are of where the places are, for one on another machine is not read yet.
    """
    whole = "\0".join(str(place.resolve()) if isinstance(place, Path) else str(place) for place in places)
    digits = hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{kind}.{datetime.now(UTC):%Y%m%d-%H%M%S}.{digits}"


def name_of(recording: Path) -> str:
    """What its reports are named by; those of a summary by its trace."""
    from profilerkit.summaries.files import name_of_trace

    if recording.is_dir():
        return recording.name
    return name_of_trace(recording.name).removesuffix(".gz").removesuffix(".json")


def _seconds(recording: Path, files: Sequence[Path]) -> float:
    from profilerkit.rundir.files import read_document
    from profilerkit.rundir.layout import MANIFEST, RunManifest

    with suppress(OSError, ValueError, OverflowError):
        return read_document(recording / MANIFEST, RunManifest).created_unix_ns / 1e9
    return max((file.stat().st_mtime for file in files), default=0.0)


def _files(recording: Path) -> Iterable[Path]:
    if not recording.is_dir():
        return [recording]
    from profilerkit.rundir.layout import MANIFEST

    manifest = recording / MANIFEST
    return [manifest] if manifest.is_file() else (file for file in recording.iterdir() if file.is_file())


def _ends(file: Path) -> bytes:
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(0)
        first = opened.read(_END_BYTES)
        opened.seek(max(size - _END_BYTES, 0))
        return size.to_bytes(8, "little") + first + opened.read(_END_BYTES)


SUFFIXES = {"html": ".html", "md": ".md", "json": ".json", "text": ".txt"}  #: format to the ending of its file

_HINT = "name another place with -o FILE"
_OPENERS = {"darwin": "open", "linux": "xdg-open"}  #: what opens a page in the browser, by system
#: Variables of which Linux sets one where a browser can be seen, and those of sessions whose screen is elsewhere.
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
_ELSEWHERE = ("SSH_CONNECTION", "JPY_PARENT_PID")


@dataclass(frozen=True, slots=True)
class Output:
    """One document to write; ``path`` is ``None`` for standard output."""

    format: str
    path: Path | None


def plan(
    inputs: Sequence[Path], formats: Sequence[str], target: str | None, *, rerender: bool, beside: Path | None = None
) -> tuple[Output, ...]:
    """What to write where, before any work is done. Raises ``UsageError`` where it could not be written.

    ``formats`` is empty when none was asked for: then ``target``'s ending decides, or the kind of input. A report
    that is rendered again (``rerender``) keeps its stem, ``x.report.json`` to ``x.report.html``, but for another
    directory. Without ``target`` it lies in the directory ``beside``, or where its first input is.
    """
    for name in formats:
        if name not in SUFFIXES:
            from profilerkit.plugins import find_renderer

            find_renderer(name)
    if target == "-":
        return for_standard_output(formats, "text")
    if target is not None:
        _check_target(target, formats)
    chosen = tuple(formats) or _default_formats(inputs[0], target)
    stem = _stem(inputs[0], target, beside, rerender=rerender)
    named = Path(target) if target and not Path(target).is_dir() else None
    only_name_given = named is not None and len(chosen) == 1
    outputs = tuple(
        Output(name, named if only_name_given else stem.with_name(stem.name + SUFFIXES.get(name, f".{name}")))
        for name in chosen
    )
    for output in outputs:
        assert output.path is not None
        check_writable(output.path, inputs)
    return outputs


def for_standard_output(formats: Sequence[str], last: str) -> tuple[Output, ...]:
    """The one format that was asked for; ``last`` is named among those to choose from."""
    if len(formats) != 1:
        raise UsageError(
            "-o - needs one format", cause=f"{len(formats)} formats were given", hint=f"add -f json, -f md or -f {last}"
        )
    return (Output(formats[0], None),)


def render(
    report: "Report", output: Output, *, width: int = 80, events: "Sequence[StepEvents]" = (), page: Path | None = None
) -> str:
    """Return the document in one of the formats of ``SUFFIXES``, or in one of another package.

    ``width`` is for text, ``events`` are for the timeline of HTML, ``page`` is the HTML that Markdown links to.
    """
    format_name = output.format
    if format_name == "html":
        from profilerkit.report import html

        return html.render(report, events)
    if format_name == "md":
        from profilerkit.report import markdown

        place = output.path.parent if output.path else Path()
        return markdown.render(report, page=os.path.relpath(page, place).replace(os.sep, "/") if page else "")
    if format_name == "json":
        from profilerkit.report import json

        return json.render(report)
    if format_name == "text":
        from profilerkit.report import terminal

        return terminal.render(report, width=width)
    from profilerkit.plugins import find_renderer

    return find_renderer(format_name)(report)


def open_needs_a_page(outputs: Iterable[Output]) -> None:
    """Raise ``UsageError`` unless a page for ``--open`` is to be written."""
    if not any(output.format == "html" and output.path for output in outputs):
        raise UsageError("--open has nothing to open", cause="no HTML file is written", hint="add -f html")


def write(path: Path, text: str) -> int:
    """Write beside ``path`` and rename; a device such as ``/dev/null`` is written to. Returns the size in bytes."""
    from profilerkit.rundir.files import write_whole

    data = text.encode("utf-8", "backslashreplace")
    try:
        write_whole(path, data)
    except OSError as error:
        raise unwritten(path, error, _HINT) from error
    return len(data)


def unwritten(path: object, error: OSError, hint: str) -> UsageError:
    """Return the error for a file that cannot be written."""
    return UsageError(f"cannot write {path}", cause=error.strerror or str(error), hint=hint)


def write_all(documents: Iterable[tuple[Path | None, str]], console: Console) -> list[str]:
    """Write each document, without a path to standard output; return what was written where and how big."""
    written = []
    for path, text in documents:
        if path is None:
            console.raw(text)
        else:
            written.append(f"{path} ({format_bytes(write(path, text))})")
    return written


def has_screen() -> bool:
    """Return whether a browser that is started here can be seen."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in _SCREENS)


def opening(page: str) -> str:
    """Return how to look at a page: the command of this system that opens it, else in words."""
    from shlex import quote
    from shutil import which

    command = _OPENERS.get(sys.platform, "")
    is_here = has_screen() and not any(os.environ.get(name) for name in _ELSEWHERE)
    return f"{command} {quote(page)}" if command and is_here and which(command) else f"open {quote(page)} in a browser"


def _check_target(target: str, formats: Sequence[str]) -> None:
    if Path(target).is_dir():
        return
    if target.endswith(os.sep):
        raise UsageError(
            f"{target} does not exist", cause="a name that ends in a slash is a directory", hint="create it first"
        )
    ending = Path(target).suffix.lower()
    of_ending = [name for name, suffix in SUFFIXES.items() if suffix == ending]
    endings = ", ".join(SUFFIXES.values())
    if ending and not of_ending and not formats:
        raise UsageError(
            f"the format of {target} is unknown",
            cause=f"{ending} is none of {endings}",
            hint="use one of these endings, or name the format: -f html",
        )
    if of_ending and formats and of_ending[0] not in formats:
        raise UsageError(
            f"{target} is not a name for {' and '.join(formats)}",
            cause=f"{ending} is the ending of {of_ending[0]}",
            hint=f"leave -f out, or write to {Path(target).with_suffix(SUFFIXES.get(formats[0], '.' + formats[0]))}",
        )


def _default_formats(first: Path, target: str | None) -> tuple[str, ...]:
    if target is not None and not Path(target).is_dir():
        ending = Path(target).suffix.lower()
        return tuple(name for name, suffix in SUFFIXES.items() if suffix == ending) or ("html",)
    from profilerkit.rundir.layout import LAUNCH
    from profilerkit.rundir.reader import is_run_directory

    is_ours = is_run_directory(first) or (first / LAUNCH).is_file()
    return ("html", "json") if is_ours else ("html",)


def _stem(first: Path, target: str | None, beside: Path | None, *, rerender: bool) -> Path:
    if target is not None and not Path(target).is_dir():
        named = Path(target)
        return named.with_suffix("") if named.suffix.lower() in SUFFIXES.values() else named
    home = first.resolve().parent if rerender else first.resolve()
    if target is not None and first.exists() and Path(target).resolve() != home:
        # Reports of other recordings may lie there too.
        return Path(target) / shared_stem(first)
    given = Path(target) if target is not None else beside
    if first.is_dir():
        return (given or first) / "report"
    return (given or first.parent) / (name_of(first) if rerender else f"{name_of(first)}.report")


def check_writable(path: Path, inputs: Sequence[Path]) -> None:
    """Raise ``UsageError`` for a file that could not be written, or that is one of the inputs."""
    if any(path.exists() and given.exists() and path.samefile(given) for given in inputs):
        raise UsageError(f"{path} would be overwritten", cause="it is the input", hint=_HINT)
    if path.is_dir():
        raise UsageError(f"cannot write {path}", cause="it is a directory", hint=_HINT)
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}", cause=f"{path.parent} is not a directory", hint="create it first")
    if not os.access(path if path.exists() and not path.is_file() else path.parent, os.W_OK):
        raise UsageError(f"cannot write {path}", cause=f"no permission to write in {path.parent}", hint=_HINT)
