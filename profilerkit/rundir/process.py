"""Find the process that made a recording again, its clock's time of day, and run our own modules as processes."""

import os
import site
import sys
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import msgspec

import profilerkit
from profilerkit.rundir.layout import ProcessMark, RankMeta
from profilerkit.rundir.sampled import TimeNs

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
#: Fields of ``/proc/PID/stat`` behind the name, which may hold anything: its state, and when the process started.
_STATE, _START_TICKS = 0, 19
_DEAD = ("Z", "X", "x")  #: states of a process that runs no more but has not been waited for


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


_FASTEST_DRIFT = 500e-6  #: what NTP may slew a clock by (Linux: 500 ppm); a faster change is a step of the clock
_SMALLEST_STEP_NS = 1_000_000  #: steps below this are nobody's concern: hosts' clocks are not set any better


class ClockAnchor(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``clock.jsonl``: both clocks at one moment, within ``width_ns``."""

    perf_ns: TimeNs
    unix_ns: TimeNs
    width_ns: TimeNs


class Clock(msgspec.Struct, frozen=True):
    """The anchors of one process, at least one, by time.

    Between two anchors the distance of the clocks is interpolated, before the first and after the last it stays.

    >>> clock = Clock((0, 1_000), (50_000, 51_010))  # the time of day gained 10 ns
    >>> clock.unix_ns(500), clock.perf_ns(50_505), clock.unix_ns(3_000)
    (50505, 500, 53010)
    """

    perf: tuple[int, ...]
    unix: tuple[int, ...]
    error_ns: int = 0

    def unix_ns(self, perf_ns: int) -> int:
        """Ns since the epoch at ``perf_ns``."""
        return perf_ns + self._distance(perf_ns, self.perf)

    def perf_ns(self, unix_ns: int) -> int:
        """``perf_counter_ns`` at ``unix_ns``."""
        return unix_ns - self._distance(unix_ns, self.unix)

    def steps_ns(self) -> tuple[int, ...]:
        """By how much the time of day was set, each time; empty where it ran on."""
        distance = [unix - perf for perf, unix in zip(self.perf, self.unix, strict=True)]
        found = []
        for index in range(1, len(distance)):
            change = distance[index] - distance[index - 1]
            slewed = _FASTEST_DRIFT * (self.perf[index] - self.perf[index - 1])
            if abs(change) > slewed + _SMALLEST_STEP_NS + 2 * self.error_ns:
                found.append(change)
        return tuple(found)

    def _distance(self, at_ns: int, known: tuple[int, ...]) -> int:
        """Unix less perf time at ``at_ns`` of the clock whose readings are ``known``."""
        after = bisect_right(known, at_ns)
        if after in (0, len(known)):
            index = min(after, len(known) - 1)
            return self.unix[index] - self.perf[index]
        before = after - 1
        first, last = (self.unix[index] - self.perf[index] for index in (before, after))
        span = known[after] - known[before]
        return first + (last - first) * (at_ns - known[before]) // span


def clock_of(anchors: Sequence[ClockAnchor], meta: RankMeta | None) -> Clock | None:
    """The clock of a rank: by its anchors, else by the one in its meta; ``None`` without any.

    Anchors at which a clock goes back are left out: the time of day was set back there.
    """
    kept: list[ClockAnchor] = []
    for anchor in anchors:
        if not kept or (anchor.perf_ns > kept[-1].perf_ns and anchor.unix_ns > kept[-1].unix_ns):
            kept.append(anchor)
    if kept:
        return Clock(
            tuple(anchor.perf_ns for anchor in kept),
            tuple(anchor.unix_ns for anchor in kept),
            max(anchor.width_ns for anchor in kept) // 2,
        )
    return None if meta is None else Clock((meta.anchor_perf_ns,), (meta.anchor_unix_ns,))


def own_program(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our modules, without running the script that this process runs.

    ``-P`` keeps the working directory out of its imports: a ``jinja2.py`` beside the training script is not ours.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def own_environment() -> dict[str, str]:
    """This process's environment, with profilerkit importable however it was found, and the working directory not.

    An empty or relative entry of ``PYTHONPATH`` means the working directory or a place below it.
    """
    home = Path(profilerkit.__file__).absolute().parent.parent
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [path for path in given if Path(path).is_absolute() and Path(path).resolve() != Path.cwd()]
    if str(home) not in (*site.getsitepackages(), site.getusersitepackages()):
        paths.insert(0, str(home))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
