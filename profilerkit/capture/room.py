"""Tells whether the memory is there that torch's profiler takes when a trace ends."""

import os
from math import isqrt
from pathlib import Path

from profilerkit.capture.cgroup import Cgroup
from profilerkit.capture.proc_files import ProcFiles, field, number
from profilerkit.units import format_bytes

#: What the end of a trace takes of what recording it took: 5.4 times for operators with their shapes, 13 times for the
#: names of Python's functions (two programs of 10 traced steps on a CPU, torch 2.13).
_TIMES = 10
#: Of the memory that is free (a choice) …
_MOST_RATIO = 0.25
#: … and where one step only was seen, whose growth may as well be the program's: the next one may double it.
_MOST_OF_ONE_RATIO = 0.5


class TraceRoom:
    """The memory that a trace takes of this process, and what its host has, from where recording begins.

    A trace grows by about as much in every few steps; the program's own memory grows in some, as with a longer
    sequence. So steps count by blocks, about as long as there are many, and each as the middle one does, of two as the
    one that grew less.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = ProcFiles(root)
        self._statm, self._meminfo = self._files.open("proc/self/statm"), self._files.open("proc/meminfo")
        self._cgroup = Cgroup(self._files)
        self._resident_bytes = [self._resident_now()]  # as each step began

    def lacks(self) -> str:
        """Why recording should end with the step that ends; empty while it need not, and where that is not known."""
        self._resident_bytes.append(self._resident_now())
        resident = [value for value in self._resident_bytes if value is not None]
        free, steps = field(self._meminfo.text(), "MemAvailable:"), len(resident) - 1
        if steps < 1 or free is None:
            return ""
        left = self._cgroup.free_bytes()
        room = free * 1024 if left is None else min(free * 1024, left)
        block = isqrt(steps)
        grown = sorted(resident[at] - resident[at - block] for at in range(block, steps + 1, block))
        needed = _TIMES * steps * grown[(len(grown) - 1) // 2] // block
        if needed <= (_MOST_RATIO if steps > 1 else _MOST_OF_ONE_RATIO) * room:
            return ""
        return f"its trace needs up to {format_bytes(needed)} of memory, and {format_bytes(room)} are free"

    def close(self) -> None:
        """Close what was opened."""
        self._files.close()

    def _resident_now(self) -> int | None:
        """Resident memory of this process."""
        pages = number([*self._statm.text().split(), "", ""][1])
        return None if pages is None else pages * os.sysconf("SC_PAGE_SIZE")
