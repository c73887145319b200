"""Paths of the command line: what URLs name, or comes on standard input, is copied while a verb runs."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from profilerkit.cli.console import Console
from profilerkit.errors import UsageError

if TYPE_CHECKING:
    from profilerkit.formats.remote import Copies, RemoteFile

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
    from profilerkit.cli.progress import Progress
    from profilerkit.formats.remote import fetched

    with ExitStack() as open_until_then:
        with Progress(console):
            given = [_standard_input() if str(place) == _STDIN else place for place in places]
            copies = open_until_then.enter_context(fetched(given))
        yield copies


class _StandardInput:
    """Standard input as a file system of one file."""

    def open(self, _path: str, _mode: str) -> AbstractContextManager[BinaryIO]:
        """Return the stream. It stays open: it is not ours."""
        return nullcontext(sys.stdin.buffer)


def _standard_input() -> "RemoteFile":
    """Return what is piped in, as a file to be fetched. Raises ``UsageError`` where nothing is."""
    from profilerkit.formats.remote import RemoteFile

    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "nothing is piped in",
            cause="- reads a trace from standard input",
            hint="for example: ssh node3 cat trace.json.gz | profilerkit analyze -",
        )
    return RemoteFile(_StandardInput(), _STDIN_NAME, "standard input")
