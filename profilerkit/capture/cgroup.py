"""The limits that the groups of processes around this one set, and what is used of them: cgroup versions 1 and 2.

A limit may stand at any level above the process: Slurm sets it on the job, systemd on a slice. The level with the
tightest limit is the one that is watched.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from profilerkit.capture.proc_files import ProcFiles, field, number, pressure_total_us
from profilerkit.capture.rates import Growth, rounded

_ROOT = "sys/fs/cgroup"
#: Version 1 writes its largest number of whole pages for "no limit".
_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class _Version:
    """Where one version keeps its numbers: files, fields in them (none: the file is the number), and their units."""

    usage: str
    usage_field: str
    usage_ns: int
    throttled_field: str
    throttled_ns: int
    memory: str
    memory_max: str
    memory_idle: str
    oom: str


_V1 = _Version(
    "cpuacct.usage",
    "",
    1,
    "throttled_time ",
    1,
    "memory.usage_in_bytes",
    "memory.limit_in_bytes",
    "total_inactive_file ",
    "memory.oom_control",
)
_V2 = _Version(
    "cpu.stat",
    "usage_usec ",
    1000,
    "throttled_usec ",
    1000,
    "memory.current",
    "memory.max",
    "inactive_file ",
    "memory.events",
)


class CgroupReading(NamedTuple):
    """What the groups say at a moment; ``None`` is not measured."""

    cpu_cores: float | None
    throttled_ratio: float | None
    cpu_pressure_ratio: float | None
    memory_pressure_ratio: float | None
    memory_bytes: int | None
    memory_max_bytes: int | None
    oom_kills: int | None


class Cgroup:
    """The groups around this process."""

    def __init__(self, files: ProcFiles) -> None:
        found = {controller: _levels(files, controller) for controller in ("cpu", "cpuacct", "memory")}
        self._version = _V2 if _is_v2(files) else _V1
        cpu = _tightest(found["cpu"], lambda level: quota(files, level))
        usage = cpu if self._version is _V2 else _same_level(found["cpuacct"], found["cpu"], cpu)
        memory = _tightest(found["memory"], lambda level: _limit(files.once(level / self._version.memory_max)))
        self._usage = files.open(usage / self._version.usage)
        self._stat = files.open(cpu / "cpu.stat")
        self._cpu_pressure = files.open(cpu / "cpu.pressure")
        self._memory_pressure = files.open(memory / "memory.pressure")
        self._memory = files.open(memory / self._version.memory)
        self._memory_max = files.open(memory / self._version.memory_max)
        self._memory_stat = files.open(memory / "memory.stat")
        self._oom = files.open(memory / self._version.oom)
        self._used, self._throttled, self._waited, self._stalled = Growth(), Growth(), Growth(), Growth()

    def free_bytes(self) -> int | None:
        """What the tightest limit leaves; files that were read and are not used give way. ``None`` without a limit."""
        limit, used = _limit(self._memory_max.text()), number(self._memory.text())
        if limit is None or used is None:
            return None
        return max(limit - used + (field(self._memory_stat.text(), self._version.memory_idle) or 0), 0)

    def read(self, now_ns: int) -> CgroupReading:
        """The present numbers."""
        version = self._version
        usage, stat = self._usage.text(), self._stat.text()
        used = number(usage) if not version.usage_field else field(usage, version.usage_field)
        grown = self._used.per_s(_times(used, version.usage_ns), now_ns)
        throttled = _times(field(stat, version.throttled_field), version.throttled_ns)
        waited = _times(pressure_total_us(self._cpu_pressure.text()), 1000)
        stalled = _times(pressure_total_us(self._memory_pressure.text()), 1000)
        return CgroupReading(
            cpu_cores=None if grown is None else rounded(grown / 1e9),
            throttled_ratio=self._throttled.ratio(throttled, now_ns),
            cpu_pressure_ratio=self._waited.ratio(waited, now_ns),
            memory_pressure_ratio=self._stalled.ratio(stalled, now_ns),
            memory_bytes=number(self._memory.text()),
            memory_max_bytes=_limit(self._memory_max.text()),
            oom_kills=field(self._oom.text(), "oom_kill "),
        )


def quota_cores(root: Path = Path("/")) -> float | None:
    """Cores that the tightest quota around this process allows; ``None`` without a quota."""
    files = ProcFiles(root)
    quotas = [cores for level in _levels(files, "cpu") if (cores := quota(files, level)) is not None]
    return min(quotas, default=None)


def quota(files: ProcFiles, level: Path) -> float | None:
    """Cores that the quota of one group allows; ``None`` without one. ``cpu.max`` of ``150000 100000`` is 1.5."""
    words = files.once(level / "cpu.max").split()
    if len(words) != 2:
        words = [files.once(level / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    limit, period = (number(word) for word in words)
    return limit / period if limit and period else None


def _is_v2(files: ProcFiles) -> bool:
    return bool(files.once(f"{_ROOT}/cgroup.controllers"))


def _levels(files: ProcFiles, controller: str) -> list[Path]:
    """Directories of the groups around this process, the innermost first.

    Lines of ``/proc/self/cgroup`` are ``4:memory:/a/b``, or ``0::/a/b`` in version 2. In a container without a
    namespace for groups, the path is the host's and only the root of the mount is there.
    """
    path = ""
    wanted = "" if _is_v2(files) else controller
    for line in files.once("proc/self/cgroup").splitlines():
        _, controllers, found = [*line.split(":", 2), "", ""][:3]
        if wanted in controllers.split(","):
            path = found
    base = Path(_ROOT) / wanted
    inner = [part for part in path.split("/") if part not in ("", "..")]
    levels = [base.joinpath(*inner[:depth]) for depth in range(len(inner), -1, -1)]
    return [level for level in levels if (files.root / level).is_dir()] or [base]


def _tightest(levels: list[Path], limit: Callable[[Path], float | None]) -> Path:
    """The level with the smallest limit, the innermost one without any."""
    limits = [(value, number) for number, level in enumerate(levels) if (value := limit(level)) is not None]
    return levels[min(limits)[1]] if limits else levels[0]


def _same_level(levels: list[Path], others: list[Path], chosen: Path) -> Path:
    """What stands in ``levels`` where ``chosen`` stands in ``others``; the innermost where the two trees differ."""
    return levels[others.index(chosen)] if len(levels) == len(others) else levels[0]


def _limit(text: str) -> int | None:
    """A limit in bytes; ``None`` for ``max``, and for version 1's largest number."""
    value = number(text)
    return value if value is not None and value < _NO_LIMIT else None


def _times(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor
