"""Finds out whether the process that made a recording still runs, and whether its host ran out of memory since."""

import os
from pathlib import Path

from profilerkit.rundir.layout import ProcessMark, RankMeta

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
#: Fields of ``/proc/PID/stat`` behind the name, which may hold anything: its state, and when the process started.
_STATE, _START_TICKS = 0, 19
#: States of a process that runs no more but has not been waited for.
_DEAD = ("Z", "X", "x")


def this_process() -> ProcessMark | None:
    """What finds this process again; ``None`` where there is no ``/proc``."""
    fields, kernel, namespace = _stat(os.getpid()), _boot_id(), _pid_namespace()
    if fields is None or kernel is None or namespace is None:
        return None
    return ProcessMark(
        boot_id=kernel,
        pid_namespace=namespace,
        start_ticks=int(fields[_START_TICKS]),
        cgroup=_number(memory_group()),
        oom_kills=_oom_kills(memory_group()),
    )


def still_runs(meta: RankMeta) -> bool | None:
    """Whether the rank's process runs; ``None`` where this process cannot see it, as on another host."""
    mark = meta.process
    if mark is None or mark.boot_id != _boot_id() or mark.pid_namespace != _pid_namespace():
        return None
    fields = _stat(meta.pid)
    return fields is not None and int(fields[_START_TICKS]) == mark.start_ticks and fields[_STATE] not in _DEAD


def oom_kills_since(meta: RankMeta) -> int | None:
    """Processes that the kernel killed for want of memory in the rank's control group since the recording began.

    ``None`` where this process is in another group, or the kernel does not count them.
    """
    mark, group = meta.process, memory_group()
    if mark is None or mark.oom_kills is None or mark.boot_id != _boot_id() or mark.cgroup != _number(group):
        return None
    now = _oom_kills(group)
    return None if now is None else now - mark.oom_kills


def _stat(pid: int) -> list[str] | None:
    text = _text(_PROC / str(pid) / "stat")
    fields = text.rpartition(")")[2].split() if text else []
    return fields if len(fields) > _START_TICKS else None


def _boot_id() -> str | None:
    return (_text(_PROC / "sys/kernel/random/boot_id") or "").strip() or None


def _pid_namespace() -> str | None:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return None


def memory_group() -> Path:
    """The directory of this process's memory control group: of version 2, else of version 1, else their root."""
    paths = {}
    for line in (_text(_PROC / "self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths.update(dict.fromkeys(controllers.split(","), path.lstrip("/")))
    old = _CGROUPS / "memory"
    root, path = (old, paths.get("memory", "")) if old.is_dir() else (_CGROUPS, paths.get("", ""))
    # In a container without a namespace of its own the path is the host's, and its group is mounted as the root.
    return root / path if (root / path).is_dir() else root


def _number(group: Path) -> int | None:
    try:
        return group.stat().st_ino
    except OSError:
        return None


def _oom_kills(group: Path) -> int | None:
    text = _text(group / "memory.events") or _text(group / "memory.oom_control") or ""
    fields = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    value = fields.get("oom_kill", "").strip()
    return int(value) if value.isdecimal() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return None
