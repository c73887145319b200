"""One large trace: its later part is read by a process of our own meanwhile, where that pays."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from profilerkit.reading.processes import free_cores, has_room, own_process
from profilerkit.trace.blocks import BLOCK_BYTES, GZIP_MAGIC
from profilerkit.trace.columns import ANALYZED
from profilerkit.trace.kineto.parts import Ahead, Part
from profilerkit.trace.nsys.database import MAGIC

#: How much is read here while the process starts and while its part is handed over, 0.2 s in all.
START_BYTES = 60_000_000
#: From here on the second process saves about a fifth of the time: of 500 MB on two free cores it leaves 2.4 of 3.1 s.
#: It costs a tenth more CPU time, and a larger share of that of smaller files.
LEAST_BYTES = 400_000_000


@contextmanager
def reading_ahead(path: Path, middle: int | None = None) -> Iterator[Ahead | None]:
    """What another process reads of a trace while this one does; ``None`` where that does not pay.

    Args:
        path: the trace.
        middle: where the part of the other process begins, at the end of a block; chosen here if not given.
    """
    middle = _middle(path) if middle is None else middle
    with ExitStack() as running:
        ahead = None
        if middle:
            try:
                process, found = running.enter_context(
                    own_process("profilerkit.reading.ahead_worker", (path, middle, ANALYZED))
                )
                ahead = Ahead(middle, lambda: _part(process, found))
            except OSError:  # no process, or no room for its results
                pass
        yield ahead


def _part(process: "subprocess.Popen[bytes]", found: IO[bytes]) -> Part | None:
    """What a process has read, after its end; ``None`` when it died."""
    if process.wait():
        return None
    found.seek(0)
    part: Part | None = pickle.load(found)  # noqa: S301  written by our own process into a file without a name
    return part


def _middle(path: Path) -> int:
    """The end of the block in which another process should begin; 0 where none pays, or finds cores and memory."""
    try:
        size = path.stat().st_size if path.is_file() else 0
        if size < LEAST_BYTES or not sys.executable:
            return 0
        with path.open("rb") as file:
            if file.read(len(MAGIC)).startswith((GZIP_MAGIC, MAGIC)):  # only plain text can be read from its middle
                return 0
    except OSError:
        return 0
    if free_cores() < 2 or not has_room(size, 1):
        return 0
    return (size + START_BYTES) // 2 // BLOCK_BYTES * BLOCK_BYTES
