"""How many processes of our own find cores and memory beside this one."""

import os
from pathlib import Path

from profilerkit.rundir.process import memory_group

#: Peak memory over the size of the text, where traces are read one by one, and what a process takes without one.
MEMORY_RATIO = 0.4
PROCESS_BYTES = 100_000_000
#: Share of the memory that is free now which all processes together may take.
MEMORY_SHARE = 0.5


def needed_bytes(text_bytes: int) -> float:
    """What a process takes in which a trace of so many bytes of text is read."""
    return MEMORY_RATIO * text_bytes + PROCESS_BYTES


def room_bytes() -> float:
    """What all processes together may take now."""
    return MEMORY_SHARE * free_bytes()


def has_room(text_bytes: int, helpers: int) -> bool:
    """Whether traces of so many bytes can be read at once, here and in so many processes beside this one."""
    return MEMORY_RATIO * text_bytes + PROCESS_BYTES * helpers <= room_bytes()


def free_cores() -> int:
    """Cores that this process may use and that were free in the last minute: where all are busy, helpers only cost."""
    from profilerkit.capture.environment import usable_cores

    busy = min(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)) if hasattr(os, "getloadavg") else 0.0
    return round(usable_cores() * (1 - busy))


def free_bytes(proc: Path = Path("/proc/meminfo"), cgroup: Path | None = None) -> float:
    """Memory that is free now, and that every control group around this process allows.

    Endless where the system does not say. ``cgroup`` is the innermost group, this process's own unless given.
    """
    free = float("inf")
    try:
        words = dict(line.split(":", 1) for line in proc.read_text().splitlines())
        free = int(words["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    group = memory_group() if cgroup is None else cgroup
    # Slurm sets the limit on the job, a container's runtime on the container: it may stand at any level.
    return min(free, *map(_allowed_bytes, (group, *group.parents)))


def _allowed_bytes(group: Path) -> float:
    """What a control group still allows, of either version: its page cache makes way for more."""
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        try:
            left = int((group / limit).read_text()) - int((group / used).read_text())
        except (OSError, ValueError):  # no such version, or "max"
            continue
        return max(0, left + _cached_bytes(group))
    return float("inf")


def _cached_bytes(group: Path) -> int:
    """Pages of files that nobody has used lately."""
    try:
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0
