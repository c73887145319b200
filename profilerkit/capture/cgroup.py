"""The limits that the groups of processes around this one set, and what is used of them: cgroup versions 1 and 2.

A limit may stand at any level above the process: Slurm sets it on the job, systemd on a slice. The level with the
tightest limit is the one that is watched.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from profilerkit.capture.proc_files import ProcFiles, Rates, field, number, pressure_ns, times

_ROOT = "sys/fs/cgroup"
#: Version 1 writes its largest number of whole pages for "no limit".
_NO_LIMIT = 1 << 62


class _Version(NamedTuple):
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
    *("cpuacct.usage", "", 1),
    *("throttled_time ", 1),
    *("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file ", "memory.oom_control"),
)
_V2 = _Version(
    *("cpu.stat", "usage_usec ", 1000),
    *("throttled_usec ", 1000),
    *("memory.current", "memory.max", "inactive_file ", "memory.events"),
)


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
        self._rates = Rates()

    def limit_bytes(self) -> int | None:
        """Return the tightest limit of memory; ``None`` without one."""
        return _limit(self._memory_max.text())

    def free_bytes(self) -> int | None:
        """What the tightest limit leaves; files that were read and are not used give way. ``None`` without a limit."""
        limit, used = self.limit_bytes(), number(self._memory.text())
        if limit is None or used is None:
            return None
        return max(limit - used + (field(self._memory_stat.text(), self._version.memory_idle) or 0), 0)

    def read(self, now_ns: int) -> dict[str, Any]:
        """Return the present numbers, by the field of ``HostSample``."""
        version, rates = self._version, self._rates
        usage, stat = self._usage.text(), self._stat.text()
        used = number(usage) if not version.usage_field else field(usage, version.usage_field)
        throttled = times(field(stat, version.throttled_field), version.throttled_ns)
        return {
            "cgroup_cpu_cores": rates.cores("used", times(used, version.usage_ns), now_ns),
            "cpu_throttled_ratio": rates.ratio("throttled", throttled, now_ns),
            "cgroup_cpu_pressure_ratio": rates.ratio("cpu", pressure_ns(self._cpu_pressure.text()), now_ns),
            "cgroup_memory_pressure_ratio": rates.ratio("memory", pressure_ns(self._memory_pressure.text()), now_ns),
            "cgroup_memory_bytes": number(self._memory.text()),
            "cgroup_memory_max_bytes": self.limit_bytes(),
            "cgroup_oom_kills": field(self._oom.text(), "oom_kill "),
        }


class FreeMemory:
    """The memory that this process may still take: the host's, or what its control group allows, if that is less."""

    def __init__(self, files: ProcFiles) -> None:
        self._meminfo, self._cgroup = files.open("proc/meminfo"), Cgroup(files)

    def now_bytes(self) -> int | None:
        """Return what is free now; ``None`` where the host does not say."""
        free, left = times(field(self._meminfo.text(), "MemAvailable:"), 1024), self._cgroup.free_bytes()
        return free if free is None or left is None else min(free, left)


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
