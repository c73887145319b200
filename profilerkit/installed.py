"""What other packages add to this one, by the groups of their entry points."""

import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def entry_points(group: str) -> "tuple[EntryPoint, ...]":
    """Return the entry points of a group.

    To import ``importlib.metadata`` and to search it takes 15 ms: that is left out where no package names the group.
    """
    named = _named(tuple(sys.path))
    if named is not None and group.encode() not in named:
        return ()
    from importlib.metadata import entry_points as found

    return tuple(found(group=group))


@lru_cache(1)
def _named(places: tuple[str, ...]) -> bytes | None:
    """Text of all entry points in these places; ``None`` with an archive or an egg, which may hold any."""
    paths = [Path(place) for place in places]
    if any(path.suffix == ".egg" or path.is_file() for path in paths):
        return None
    texts = [b""]
    for path in paths:
        for found in path.glob("*.*-info/entry_points.txt"):
            with suppress(OSError):
                texts.append(found.read_bytes())
    return b"\n".join(texts)


def package_of(entry: "EntryPoint") -> str:
    """Return the name of the package that an entry point is of, or of its module."""
    return entry.dist.name if entry.dist is not None else entry.module
