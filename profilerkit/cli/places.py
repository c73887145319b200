"""Inputs of the command line: copies of what URLs name or what is piped in, and a line on how far reading is."""

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from profilerkit.cli.console import Console
from profilerkit.errors import UsageError

if TYPE_CHECKING:
    from profilerkit.formats.remote import Copies, RemoteFile


#: Who logs, at the level INFO, what an analysis or a reduction begins.
_TELLERS = (
    *("profilerkit.formats.remote", "profilerkit.formats.jobs"),
    *("profilerkit.summaries.reduction", "profilerkit.api"),
)
#: What takes less is done before anybody asks (clig.dev).
_QUIET_SECONDS = 1.0
_PERIOD_SECONDS = 0.2


class Progress(logging.Handler):
    """Shows the latest phase until the block ends. Where phases are logged for the user anyway it shows nothing."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console
        self._phase = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="profilerkit-progress", daemon=True)
        self._levels: dict[logging.Logger, int] = {}

    def __enter__(self) -> "Progress":
        for logger in map(logging.getLogger, _TELLERS):
            if not logger.isEnabledFor(logging.INFO):
                self._levels[logger] = logger.level
                logger.setLevel(logging.INFO)
                logger.addHandler(self)
        if self._levels:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._levels:
            self._thread.join()
        for logger, level in self._levels.items():
            logger.removeHandler(self)
            logger.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        """Remember the phase."""
        self.begin(record.getMessage())

    def begin(self, phase: str) -> None:
        """A phase begins."""
        self._phase = phase

    def _show(self) -> None:
        shown = ""
        wait_s = _QUIET_SECONDS
        while not self._over.wait(wait_s):
            wait_s = _PERIOD_SECONDS
            if self._phase != shown:
                shown = self._phase
                self._console.status(shown)
        if shown:
            self._console.status("")


#: For the help of verbs that take URLs.
REMOTE_HELP = """\
Remote inputs: give a URL, also with * or as a directory, for example
s3://bucket/run/*.json.gz or zip://rank0.json::gs://bucket/traces.zip. URLs need
fsspec (pip install fsspec). Reports are written to the current directory."""


def place(text: str) -> str | Path:
    """An argument type: a URL as it is, anything else as a path."""
    return text if "://" in text else Path(text)


#: The place that stands for standard input, and what its copy is called: reports are named by it.
_STDIN, _STDIN_NAME = "-", "stdin"


@contextmanager
def at_hand(places: Sequence[str | Path], console: Console) -> Iterator["Copies"]:
    """The places as paths, those that lie elsewhere as copies for as long as the context lasts."""
    from profilerkit.formats.remote import fetched

    with ExitStack() as open_until_then:
        with Progress(console):
            given = [_standard_input() if str(place) == _STDIN else place for place in places]
            copies = open_until_then.enter_context(fetched(given))
        yield copies


class _StandardInput:
    def open(self, _path: str, _mode: str) -> AbstractContextManager[BinaryIO]:
        """Return the stream. It stays open: it is not ours."""
        return nullcontext(sys.stdin.buffer)


def _standard_input() -> "RemoteFile":
    from profilerkit.formats.remote import RemoteFile

    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "nothing is piped in",
            cause="- reads a trace from standard input",
            hint="for example: ssh node3 cat trace.json.gz | profilerkit analyze -",
        )
    return RemoteFile(_StandardInput(), _STDIN_NAME, "standard input")
