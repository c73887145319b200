"""Read what Linux says of this process, its control group and the machine, from open files."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from profilerkit.rundir.files import Descriptor

_READ_BYTES = 2048  #: enough for the fields that are used of every file that is read here


class ProcFile:
    """One file; its text is empty while it cannot be read."""

    def __init__(self, path: Path) -> None:
        try:
            self._file: Descriptor | None = Descriptor(path, os.O_RDONLY)
        except OSError:
            self._file = None

    def text(self) -> str:
        """What the file says now."""
        if self._file is None or not self._file.is_ours:
            return ""
        try:
            return os.pread(self._file.number, _READ_BYTES, 0).decode("ascii", "replace")
        except OSError:
            return ""

    def close(self) -> None:
        """Close it."""
        if self._file is not None:
            self._file.close()
            self._file = None


class ProcFiles:
    """The files of one source, below ``root``, and their end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files: list[ProcFile] = []

    def open(self, path: str | Path) -> ProcFile:
        """The file at ``path`` below the root."""
        file = ProcFile(self.root / path)
        self._files.append(file)
        return file

    def once(self, path: str | Path) -> str:
        """What the file at ``path`` says now, for what is asked once only."""
        file = ProcFile(self.root / path)
        try:
            return file.text()
        finally:
            file.close()

    def names(self, path: str | Path) -> list[str]:
        """What is in the directory at ``path``, sorted; nothing when it cannot be read."""
        try:
            return sorted(entry.name for entry in (self.root / path).iterdir())
        except OSError:
            return []

    def close(self) -> None:
        """Close them all."""
        for file in self._files:
            file.close()


def number(text: str) -> int | None:
    """The whole number that ``text`` is.

    >>> number(" 12 "), number("max"), number("")
    (12, None, None)
    """
    stripped = text.strip()
    return int(stripped) if stripped.isdecimal() else None


def field(text: str, name: str) -> int | None:
    r"""The number after ``name``, given with what separates the two, at the beginning of a line.

    >>> field("oom_kill_disable 0\noom_kill 12\n", "oom_kill "), field("MemFree:   7 kB\n", "MemFree:"), field("", "x ")
    (12, 7, None)
    """
    at = 0 if text.startswith(name) else text.find("\n" + name) + 1
    if not at and not text.startswith(name):
        return None
    words = text[at + len(name) :].split(None, 1)
    return number(words[0]) if words else None


def pressure_ns(text: str) -> int | None:
    r"""Return the total of PSI's ``some`` line, which is in microseconds.

    >>> pressure_ns("some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 total=9\n")
    12000
    """
    line, _, total = text.partition("\n")[0].rpartition("total=")
    return times(number(total), 1000) if line.startswith("some ") else None


def times(value: int | None, factor: int) -> int | None:
    """Return the product; ``None`` where the value was not measured."""
    return None if value is None else value * factor


#: Counters of processor time step by a hundredth of a second: over less than ten steps a rate is noise. The last
#: sample of a run may follow the one before at once.
_SHORTEST_NS = 100_000_000


class Rates:
    """How fast counters grow between two readings, by name; after a wrap or a reset a counter starts anew."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int | None, int]] = {}

    def per_s(self, name: str, total: int | None, now_ns: int) -> float | None:
        """Return the growth per second since the last reading; ``None`` for the first, too early or smaller a total.

        >>> rates = Rates()
        >>> [rates.per_s("x", total, s * 10**9) for s, total in ((1, 100), (2, 350), (4, 350), (5, 20), (6, 30))]
        [None, 250.0, 0.0, None, 10.0]
        """
        last, at_ns = self._last.get(name, (None, 0))
        if total is not None and last is not None and now_ns - at_ns < _SHORTEST_NS:
            return None
        self._last[name] = total, now_ns
        if total is None or last is None or total < last:
            return None
        return (total - last) * 1e9 / (now_ns - at_ns)

    def whole(self, name: str, total: int | None, now_ns: int) -> int | None:
        """Return ``per_s`` without a fraction, as for bytes."""
        grown = self.per_s(name, total, now_ns)
        return None if grown is None else round(grown)

    def tenths(self, name: str, total: int | None, now_ns: int) -> float | None:
        """Return ``per_s`` with one digit, as for rare events."""
        grown = self.per_s(name, total, now_ns)
        return None if grown is None else round(grown, 1)

    def cores(self, name: str, total_ns: int | None, now_ns: int) -> float | None:
        """Return by how many nanoseconds a counter of these grows in each."""
        grown = self.per_s(name, total_ns, now_ns)
        return None if grown is None else rounded(grown / 1e9)

    def ratio(self, name: str, total_ns: int | None, now_ns: int) -> float | None:
        """Return ``cores`` as a share of the time, 0 to 1."""
        cores = self.cores(name, total_ns, now_ns)
        return None if cores is None else min(cores, 1.0)

    def forget(self, name: str) -> None:
        """Start a counter anew."""
        self._last.pop(name, None)


def rounded(value: float) -> float:
    """Return ``value`` to a ten-thousandth: more digits would be noise on the disk."""
    return round(value, 4)


#: A field of a sample, the file that has it, where in there, and how its growth is told, or ``None`` for the number.
Row = tuple[str, str | Path, Callable[[str], int | None], Callable[[Rates, str, int | None, int], float | None] | None]


class Readings:
    """The numbers of a table, by the field of a sample: each file is read once for all of its rows."""

    def __init__(self, files: ProcFiles, rows: Iterable[Row]) -> None:
        self._rows = tuple(rows)
        self._files = {path: files.open(path) for path in dict.fromkeys(row[1] for row in self._rows)}
        self._rates = Rates()

    def read(self, now_ns: int) -> dict[str, Any]:
        """Return the present numbers; ``None`` where one is not known."""
        texts = {path: file.text() for path, file in self._files.items()}
        values = [(name, parse(texts[path]), growth) for name, path, parse, growth in self._rows]
        return {
            name: value if growth is None else growth(self._rates, name, value, now_ns)
            for name, value, growth in values
        }


def named(name: str, factor: int = 1) -> Callable[[str], int | None]:
    """Return what reads the number after ``name``, as ``field`` does, times ``factor``."""
    return lambda text: times(field(text, name), factor)


# A limit may stand at any level above the process: Slurm sets it on the job, systemd on a slice. The level with the
# tightest limit is the one that is watched.

_ROOT = "sys/fs/cgroup"
_NO_LIMIT = 1 << 62  #: version 1 writes its largest number of whole pages for "no limit"


class _Version(NamedTuple):
    usage: str
    usage_ns: Callable[[str], int | None]
    throttled_ns: Callable[[str], int | None]
    memory: str
    memory_max: str
    memory_idle: str
    oom: str


_V1 = _Version(
    *("cpuacct.usage", number, named("throttled_time ")),
    *("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file ", "memory.oom_control"),
)
_V2 = _Version(
    *("cpu.stat", named("usage_usec ", 1000), named("throttled_usec ", 1000)),
    *("memory.current", "memory.max", "inactive_file ", "memory.events"),
)


class Cgroup:
    """The groups around this process."""

    def __init__(self, files: ProcFiles) -> None:
        found = {controller: _levels(files, controller) for controller in ("cpu", "cpuacct", "memory")}
        version = _V2 if _is_v2(files) else _V1
        cpu = _tightest(found["cpu"], lambda level: quota(files, level))
        # Where the two trees of version 1 differ, the innermost level.
        accounts, levels = found["cpuacct"], found["cpu"]
        usage = cpu if version is _V2 else accounts[levels.index(cpu)] if len(accounts) == len(levels) else accounts[0]
        memory = _tightest(found["memory"], lambda level: _limit(files.once(level / version.memory_max)))
        rows: tuple[Row, ...] = (
            ("cgroup_cpu_cores", usage / version.usage, version.usage_ns, Rates.cores),
            ("cpu_throttled_ratio", cpu / "cpu.stat", version.throttled_ns, Rates.ratio),
            ("cgroup_cpu_pressure_ratio", cpu / "cpu.pressure", pressure_ns, Rates.ratio),
            ("cgroup_memory_pressure_ratio", memory / "memory.pressure", pressure_ns, Rates.ratio),
            ("cgroup_memory_bytes", memory / version.memory, number, None),
            ("cgroup_memory_max_bytes", memory / version.memory_max, _limit, None),
            ("cgroup_oom_kills", memory / version.oom, named("oom_kill "), None),
        )
        self.read = Readings(files, rows).read


class FreeMemory:
    """The memory that this process may still take: the host's, or what any group around it allows, if that is less."""

    def __init__(self, files: ProcFiles) -> None:
        version = _V2 if _is_v2(files) else _V1
        self._idle = version.memory_idle
        self._meminfo = files.open("proc/meminfo")
        names = (version.memory_max, version.memory, "memory.stat")
        self._groups = [[files.open(level / name) for name in names] for level in _levels(files, "memory")]

    def limits(self) -> list[tuple[int, Literal["host", "control group"], int]]:
        """Return what the host and each limit leave, and how much that is of, bytes; idle pages of files give way."""
        memory = self._meminfo.text()
        free, total = (times(field(memory, name), 1024) for name in ("MemAvailable:", "MemTotal:"))
        found: list[tuple[int, Literal["host", "control group"], int]] = []
        if free is not None:
            found.append((free, "host", total or free))
        for most, used, stat in self._groups:
            limit, held = _limit(most.text()), number(used.text())
            if limit is not None and held is not None:
                left = limit - held + (field(stat.text(), self._idle) or 0)
                found.append((max(left, 0), "control group", limit))
        return found

    def now_bytes(self) -> int | None:
        """Return what is free now; ``None`` where the host does not say."""
        return min((left for left, _, _ in self.limits()), default=None)


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
    limits = [(value, number) for number, level in enumerate(levels) if (value := limit(level)) is not None]
    return levels[min(limits)[1]] if limits else levels[0]


def _limit(text: str) -> int | None:
    value = number(text)
    return value if value is not None and value < _NO_LIMIT else None
