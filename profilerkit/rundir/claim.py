"""Decides which directory a run gets: the one asked for, or the next free number."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from profilerkit.errors import RunDirectoryError
from profilerkit.rundir.files import create_document
from profilerkit.rundir.layout import LAUNCH, Launch, rank_directory
from profilerkit.rundir.reader import is_run_directory

_MOST_NUMBERS = 10_000
#: The mark is created and filled in two system calls; a reader between them waits this often, 10 ms each.
_MARK_READS = 50


def claim(wanted: Path, launch_id: str, rank: int) -> Path:
    """The directory for this run: ``wanted``, or ``wanted-2``, ``wanted-3`` … when it holds another run.

    Ranks of one job carry the same ``launch_id`` and get the same directory without talking to each other: the first
    one to arrive creates ``launch.json``, the others read it.

    Raises:
        OSError: the place cannot be written.
        RunDirectoryError: all numbers are taken.
    """
    for candidate in candidates(wanted):
        mark = candidate / LAUNCH
        # In this order: the mark is there before anything else of a run, and a rank of this one may write both now.
        if is_run_directory(candidate) and not mark.exists():
            continue
        candidate.mkdir(parents=True, exist_ok=True)
        if create_document(mark, Launch(id=launch_id)):
            return candidate
        if _read(mark) == launch_id and not rank_directory(candidate, rank).exists():
            return candidate
    raise RunDirectoryError(f"no free directory name next to {wanted}", hint="name another one, or delete old runs")


def candidates(wanted: Path) -> Iterator[Path]:
    """``x``, ``x-2``, ``x-3`` and so on."""
    yield wanted
    for number in range(2, _MOST_NUMBERS):
        yield wanted.with_name(f"{wanted.name}-{number}")


def _read(mark: Path) -> str | None:
    """The launch id in ``mark``; ``None`` when it stays unreadable."""
    for _ in range(_MARK_READS):
        try:
            return msgspec.json.decode(mark.read_bytes(), type=Launch).id
        except msgspec.DecodeError:
            time.sleep(0.01)
    return None
