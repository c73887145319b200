"""Whose names a report is not to tell."""

import getpass
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from profilerkit.rundir.files import read_document
from profilerkit.rundir.layout import META, RankMeta

_METAS = f"rank_*/{META}"
#: How deep a trace lies in a run directory: rank, windows, window, file.
_DEPTH = 4


class Identity(msgspec.Struct, frozen=True):
    """The names that a report shall not tell.

    Attributes:
        users: login names. Only whole parts of a path are taken for one: a user may be called ``train``.
        hosts: host names, with or without their domain. One that could be a word is only taken for one in an address.
        homes: home directories; others are known by where they lie (``/home``).
    """

    users: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    homes: frozenset[str] = frozenset()


def identity_of(paths: Iterable[Path] = ()) -> Identity:
    """Names of this machine and its user, and of those that recorded the run directories that ``paths`` lie in."""
    return Identity(
        users=frozenset(_users()),
        hosts=frozenset((socket.gethostname(), *(host for path in paths for host in _recorded_hosts(path)))),
        homes=frozenset(_homes()),
    )


def _users() -> Iterator[str]:
    try:
        yield getpass.getuser()
    except (OSError, KeyError):  # a container's user without an entry; Python 3.13 made it an OSError
        return


def _homes() -> Iterator[str]:
    try:
        yield str(Path.home())
    except RuntimeError:
        return


def _recorded_hosts(path: Path) -> Iterator[str]:
    """The hosts of the ranks of a run directory, named itself or by something in it, as far as it says."""
    run = next((place for place in (path, *path.absolute().parents[:_DEPTH]) if any(place.glob(_METAS))), path)
    for place in run.glob(_METAS):
        try:
            yield read_document(place, RankMeta).host
        except (OSError, ValueError):
            continue
