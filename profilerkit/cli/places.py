"""Paths of the command line, of which some may be URLs: what lies elsewhere is fetched while a verb runs."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from profilerkit.cli.console import Console

if TYPE_CHECKING:
    from profilerkit.reading.remote import Copies

#: For the help of verbs that take URLs.
REMOTE_HELP = """\
Remote inputs: give a URL, also with * or as a directory, for example
s3://bucket/run/*.json.gz or zip://rank0.json::gs://bucket/traces.zip. URLs need
fsspec (pip install fsspec). Reports are written to the current directory."""


def place(text: str) -> str | Path:
    """An argument type: a URL as it is, anything else as a path."""
    return text if "://" in text else Path(text)


@contextmanager
def at_hand(places: Sequence[str | Path], console: Console) -> Iterator["Copies"]:
    """The places as paths, those that lie elsewhere as copies for as long as the context lasts."""
    from profilerkit.cli.progress import Progress
    from profilerkit.reading.remote import fetched

    with ExitStack() as open_until_then:
        with Progress(console):
            copies = open_until_then.enter_context(fetched(places))
        yield copies
