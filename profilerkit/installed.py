"""What other packages add to this one, by the groups of their entry points."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_METADATA = (".dist-info", ".egg-info")


def entry_points(group: str) -> "tuple[EntryPoint, ...]":
    """Return the entry points of a group.

    To import ``importlib.metadata`` and to search it takes 15 ms: that is left out where no package names the group.
    """
    if not any(_may_name(group, Path(place)) for place in sys.path):
        return ()
    from importlib.metadata import entry_points as found

    return tuple(found(group=group))


def _may_name(group: str, place: Path) -> bool:
    """Whether a package in a place of ``sys.path`` names the group; an archive or an egg may hold any."""
    if place.suffix == ".egg":
        return True
    try:
        packages = [found for found in place.iterdir() if found.suffix in _METADATA]
    except OSError:
        return place.is_file()
    for package in packages:
        try:
            if group.encode() in (package / "entry_points.txt").read_bytes():
                return True
        except OSError:  # most packages have none
            continue
    return False


def package_of(entry: "EntryPoint") -> str:
    """Return the name of the package that an entry point is of, or of its module."""
    return entry.dist.name if entry.dist is not None else entry.module
