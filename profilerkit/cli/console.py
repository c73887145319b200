"""The one place that writes to the terminal: what is shown, in which characters, and how errors look."""

import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, TextIO

from profilerkit.errors import ProfilerkitError

Colour = Literal["auto", "always", "never"]

DONE, GATE_FAILED, FAILED, INCONCLUSIVE, INTERRUPTED = 0, 1, 2, 3, 130

_LEAST_COLUMNS = 40
#: Characters the program's own text uses, for streams that cannot show them.
_ASCII = str.maketrans({"→": "->", "–": "-", "—": "-", "·": "-", "…": "...", "µ": "u", "≥": ">=", "≤": "<=", "×": "x"})
# Names and paths come from strangers: without these a file name cannot move the cursor or rename the window.
_CONTROL = {code: "?" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


_COMMAND = re.compile(r"^([^\S\n]*)::", re.MULTILINE)  #: how a command for GitHub Actions begins, after any blanks


class Console:
    """Standard output for data, standard error for everything else.

    Attributes:
        width: columns of standard output; when it is not a terminal, ``COLUMNS`` or 80.
        live: standard output is a terminal on which a page can be drawn over itself.
        in_actions: GitHub Actions reads along: a line of a stranger's text may not be one of its commands.
    """

    def __init__(
        self,
        *,
        colour: Colour = "auto",
        quiet: bool = False,
        debug: bool = False,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.quiet = quiet
        self.debug = debug
        is_dumb, in_ci = environment.get("TERM") == "dumb", environment.get("CI")
        # Colour when asked for; else only on a terminal that nobody asked to keep plain (no-color.org).
        plain = environment.get("NO_COLOR") or in_ci or is_dumb
        self.colour = sys.stdout.isatty() and not plain if colour == "auto" else colour == "always"
        self.ascii_only = not _is_utf8(sys.stdout)
        self.live = sys.stdout.isatty() and not is_dumb
        self._shows_status = sys.stderr.isatty() and not (in_ci or is_dumb or quiet or debug)
        self._environment = environment
        self.fit()
        self.in_actions = environment.get("GITHUB_ACTIONS") == "true"

    def fit(self) -> None:
        """Measure the terminal again: a window may have become wider or narrower."""
        if sys.stdout.isatty():
            from shutil import get_terminal_size

            columns = min(120, get_terminal_size().columns)
        else:
            wanted = self._environment.get("COLUMNS", "")
            columns = int(wanted) if wanted.isdecimal() else 80
        self.width = max(_LEAST_COLUMNS, columns)

    def out(self, text: str) -> None:
        """Write data to standard output. Colour in it is kept only where colour is on."""
        shown = text if self.colour else text.translate(_CONTROL)
        _write(sys.stdout, self._no_commands(shown))

    def raw(self, text: str) -> None:
        """Write a document to standard output as it is: a file or another program reads it."""
        _write(sys.stdout, text, encoding="utf-8")

    def note(self, text: str) -> None:
        """Write a line about the work to standard error, unless ``quiet``."""
        if not self.quiet:
            _write(sys.stderr, self._no_commands(text.translate(_CONTROL)))

    def status(self, text: str) -> None:
        """Show a line on standard error in place of the last one, on a terminal only; an empty one takes it away."""
        if self._shows_status:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            _put(sys.stderr, f"\r\x1b[K{text.translate(_CONTROL)[: columns - 1]}", None)
            sys.stderr.flush()

    def commands(self, lines: Sequence[str]) -> None:
        """Write commands for GitHub Actions to standard error, where its runner reads them too, also when ``quiet``."""
        _write(sys.stderr, "\n".join(line.translate(_CONTROL) for line in lines))

    def error(self, error: ProfilerkitError) -> None:
        """Write the three parts of an error to standard error."""
        _write(sys.stderr, self._no_commands(str(error).translate(_CONTROL)))

    def _no_commands(self, text: str) -> str:
        """Where GitHub reads along, ``::`` at the start of a line and ``##[`` are broken up."""
        return _COMMAND.sub(r"\1: :", text).replace("##[", "# #[") if self.in_actions else text


class Boundary:
    """Turns what ends a verb into an exit code, and an exception into three lines instead of a traceback.

    It is the process's outermost frame, so it takes every exception: Python's own exit code for one is 1, which
    here means that a gate failed.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.code = DONE

    def __enter__(self) -> "Boundary":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Report the exception, if any, and set ``code``."""
        if isinstance(error, SystemExit):
            self.code = error.code if isinstance(error.code, int) else DONE
        elif isinstance(error, KeyboardInterrupt):
            self.console.note("interrupted")
            self.code = INTERRUPTED
        elif error is not None:
            if self.console.debug:
                _write(sys.stderr, "".join(traceback.format_exception(error)).rstrip())
            self.console.error(error if isinstance(error, ProfilerkitError) else _explain(error))
            self.code = FAILED
        _write(sys.stdout, "")
        return True


def _explain(error: BaseException) -> ProfilerkitError:
    """An error nobody raised on purpose, in the three parts of those somebody did."""
    said = " ".join(str(error).split())
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return ProfilerkitError(
            "the operating system refused",
            cause=f"{where}{error.strerror or said or type(error).__name__}",
            hint="check the path, its permissions and the space left; --debug shows where it happened",
        )
    if isinstance(error, MemoryError):
        return ProfilerkitError(
            "not enough memory", cause="the recording does not fit", hint="analyze fewer ranks at once"
        )
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}profilerkit{os.sep}" in frame.filename]
    last = (ours or frames)[-1:] if frames else []
    where = "".join(f" at {Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in last)
    return ProfilerkitError(
        "internal error",
        cause=f"{type(error).__name__}: {said}{where}" if said else f"{type(error).__name__}{where}",
        hint="run it again with --debug for the traceback, and report that",
    )


def _write(stream: TextIO, text: str, *, encoding: str | None = None) -> None:
    """Write ``text`` and a newline; an empty text only flushes. A reader that went away is not an error."""
    try:
        if text:
            _put(stream, text if text.endswith("\n") else f"{text}\n", encoding)
        stream.flush()
    except BrokenPipeError:
        # As Python's documentation of SIGPIPE advises: later writes, and the flush at exit, go nowhere.
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)


def _put(stream: TextIO, text: str, encoding: str | None) -> None:
    if encoding is not None and hasattr(stream, "buffer"):
        stream.flush()
        stream.buffer.write(text.encode(encoding, "backslashreplace"))
        return
    if not _is_utf8(stream):
        text = text.translate(_ASCII)
    known = stream.encoding or "utf-8"
    stream.write(text.encode(known, "replace").decode(known))


def _is_utf8(stream: TextIO) -> bool:
    return (stream.encoding or "utf-8").lower().replace("-", "").replace("_", "") == "utf8"
