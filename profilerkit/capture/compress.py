"""Gzips the traces of one rank in a process of its own.

    python -m profilerkit.capture.compress DIRECTORY [--summaries] [PID]

With the process that trains as ``PID`` it runs beside the training: it takes the CPU that nobody else wants, and ends
with that process. With ``--summaries`` it becomes ``profilerkit map`` when it is done, which ends a few seconds later.
"""

import gzip
import os
import sys
from pathlib import Path

from profilerkit.model.change import revise
from profilerkit.programs import own_program
from profilerkit.rundir.files import read_document, write_document
from profilerkit.rundir.layout import (
    PART_SUFFIX,
    WINDOW_STATUS,
    WINDOW_TRACE,
    WINDOW_TRACE_GZ,
    WINDOWS,
    WindowStatus,
)

#: A 30 MB trace: 0.15 s and 1.55 MB at level 6, 0.08 s and 2.4 MB at level 1, 0.79 s and 1.26 MB at level 9.
_LEVEL = 6
_COPY_BYTES = 1 << 20
#: The step of priority that Linux gives to batch work: a tenth of the share of a process at 0.
_NICE = 10


def compress(window: Path, parent: int | None = None) -> bool:
    """Replace ``trace.json`` of a window by ``trace.json.gz``; at every moment one of them is complete.

    ``False``, and the window stays as it is, where ``parent`` is given and not this process's parent any more.
    """
    trace, packed = window / WINDOW_TRACE, window / WINDOW_TRACE_GZ
    if not trace.is_file() or not (window / WINDOW_STATUS).is_file():
        return True
    part = packed.with_name(packed.name + PART_SUFFIX)
    with trace.open("rb") as raw, part.open("wb") as file:
        with gzip.GzipFile(WINDOW_TRACE, "wb", _LEVEL, file) as out:
            while chunk := raw.read(_COPY_BYTES):
                out.write(chunk)
                if parent not in (None, os.getppid()):
                    part.unlink()
                    return False
        file.flush()
        os.fsync(file.fileno())
    part.replace(packed)
    status = read_document(window / WINDOW_STATUS, WindowStatus)
    write_document(window / WINDOW_STATUS, revise(status, trace=WINDOW_TRACE_GZ, size_bytes=packed.stat().st_size))
    trace.unlink()
    return True


def summary_program(rank_path: Path) -> list[str]:
    """The command that summarises the traces of one rank which have none yet, in one process."""
    return own_program("profilerkit", "map", str(rank_path / WINDOWS), "--engine", "inline", "--quiet")


def main() -> None:
    """Compress every window of the rank directory named on the command line."""
    words = sys.argv[1:]
    summaries = "--summaries" in words
    directory, *pid = [word for word in words if word != "--summaries"]
    parent = int(pid[0]) if pid else None
    if parent is not None:
        os.nice(_NICE)
    windows = Path(directory) / WINDOWS
    for window in sorted(windows.glob("*")):
        if not compress(window, parent):
            return
    if summaries and any(windows.glob(f"*/{WINDOW_TRACE_GZ}")):
        command = summary_program(Path(directory))
        os.execv(command[0], command)  # noqa: S606  our own module, no shell


if __name__ == "__main__":
    main()
