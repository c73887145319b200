"""Choose the directory of a run, find when it was last written to, and the names that a report must not show."""

import getpass
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from profilerkit.errors import RunDirectoryError
from profilerkit.rundir import layout
from profilerkit.rundir.files import create_document, private_mode, read_document
from profilerkit.rundir.reader import is_run_directory, rank_directories

_MOST_NUMBERS = 10_000
#: The mark is created and filled in two system calls; a reader between them waits this often, 10 ms each.
_MARK_READS = 50


def claim(wanted: Path, launch_id: str, rank: int) -> Path:
    """The directory for this run: ``wanted``, or ``wanted-2``, ``wanted-3`` … when it holds another run.

    Ranks of one job carry the same ``launch_id`` and get the same directory without talking to each other: the first
    creates ``launch.json``, the others read it. Raises ``OSError``, or ``RunDirectoryError`` if all numbers are taken.
    """
    for candidate in candidates(wanted):
        mark = candidate / layout.LAUNCH
        # In this order: the mark is there before anything else of a run, and a rank of this one may write both now.
        if is_run_directory(candidate) and not mark.exists():
            continue
        candidate.mkdir(private_mode(), parents=True, exist_ok=True)
        if create_document(mark, layout.Launch(id=launch_id)):
            return candidate
        if _read(mark) == launch_id and not layout.rank_directory(candidate, rank).exists():
            return candidate
    raise RunDirectoryError(f"no free directory name next to {wanted}", hint="name another one, or delete old runs")


def private_place() -> Path:
    """Return a directory for what cannot be written where it belongs: ours, and nobody else's to write in.

    Its name is known to others, who may have made it, or a link of that name: then another one is made.
    """
    place = Path(tempfile.gettempdir()) / f"profilerkit-{os.getuid()}"
    try:
        place.mkdir(0o700)
    except FileExistsError:
        found = place.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return Path(tempfile.mkdtemp(prefix=f"{place.name}-"))
        place.chmod(0o700)
    return place


def candidates(wanted: Path) -> Iterator[Path]:
    """``x``, ``x-2``, ``x-3`` and so on."""
    yield wanted
    for number in range(2, _MOST_NUMBERS):
        yield wanted.with_name(f"{wanted.name}-{number}")


def _read(mark: Path) -> str | None:
    """The launch id in ``mark``; ``None`` when it stays unreadable."""
    for _ in range(_MARK_READS):
        try:
            return read_document(mark, layout.Launch).id
        except ValueError:
            time.sleep(0.01)
    return None


#: What a rank writes while it runs: its clock once a minute whatever else is off. And its end.
_WRITTEN = (layout.EVENTS, layout.SAMPLES, layout.CLOCK, layout.META, layout.END)


def last_written_ns(run: Path) -> int | None:
    """When any rank last wrote a record or its end, ns since the epoch by the clock of the file system.

    The manifest's time where no rank left anything; ``None`` where nothing can be asked for its time.
    """
    newest = _newest(directory / name for _, directory in rank_directories(run) for name in _WRITTEN)
    return newest if newest is not None else _newest([run / layout.MANIFEST])


def _newest(files: Iterable[Path]) -> int | None:
    return max((at for file in files if (at := modified_ns(file)) is not None), default=None)


def modified_ns(file: Path) -> int | None:
    """Return when a file was last written, ns since the epoch; ``None`` where it cannot be asked."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return None


_METAS = f"rank_*/{layout.META}"
_DEPTH = 4  #: how deep a trace lies in a run directory: rank, windows, window, file


class Identity(msgspec.Struct, frozen=True):
    """The names that a report shall not tell: whole parts of a path for login names, as a user may be called ``train``.

    Host names with or without their domain: one that could be a word is only taken for one in an address.
    """

    users: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()


def identity_of(paths: Iterable[Path] = ()) -> Identity:
    """Names of this machine and its user, and of those that recorded the run directories that ``paths`` lie in."""
    return Identity(
        users=frozenset(_users()),
        hosts=frozenset((socket.gethostname(), *(host for path in paths for host in _recorded_hosts(path)))),
    )


def _users() -> Iterator[str]:
    try:
        yield getpass.getuser()
    except (OSError, KeyError):  # a container's user without an entry; Python 3.13 made it an OSError
        return


def _recorded_hosts(path: Path) -> Iterator[str]:
    run = next((place for place in (path, *path.absolute().parents[:_DEPTH]) if any(place.glob(_METAS))), path)
    for place in run.glob(_METAS):
        try:
            yield read_document(place, layout.RankMeta).host
        except (OSError, ValueError):
            continue
