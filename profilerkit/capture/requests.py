"""How ranks open a window at the same step: one writes a request into the run directory, all of them look for it.

Without ports, a server or a barrier. Whoever creates the file first is heard; there is one file for each kind.
"""

from pathlib import Path

from profilerkit.rundir.files import create_document, read_document
from profilerkit.rundir.layout import WindowKind, WindowRequest, request_file

_KINDS: tuple[WindowKind, ...] = ("scheduled", "anomaly")
#: Ranks that trace: what all of them do, most of a job's ranks do alike, and each costs its export and its disk.
MOST_RANKS = 8
_FIRST_RANKS = 4


def traced_ranks(world_size: int) -> tuple[int, ...]:
    """The ranks that trace: all of few; of many the first four and four spread over the others, the last among them.

    >>> traced_ranks(2), traced_ranks(64)
    ((0, 1), (0, 1, 2, 3, 18, 33, 48, 63))
    """
    if world_size <= MOST_RANKS:
        return tuple(range(max(world_size, 1)))
    spread = MOST_RANKS - _FIRST_RANKS
    others = world_size - 1 - _FIRST_RANKS
    return (*range(_FIRST_RANKS), *(_FIRST_RANKS + others * part // spread for part in range(1, spread + 1)))


class Requests:
    """The requests of one run, as one rank sees them. Both methods are for the writer thread."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._unseen = list(_KINDS)

    def make(self, request: WindowRequest) -> None:
        """Ask all ranks, unless one has asked before. Raises OSError when the disk refuses."""
        path = request_file(self._run, request.kind)
        path.parent.mkdir(exist_ok=True)
        create_document(path, request)

    def look(self) -> list[WindowRequest]:
        """Requests that were not there before; one that is not whole yet is read the next time."""
        found = []
        for kind in tuple(self._unseen):
            path = request_file(self._run, kind)
            if not path.exists():
                continue
            try:
                found.append(read_document(path, WindowRequest))
            except ValueError:
                continue
            self._unseen.remove(kind)
        return found
