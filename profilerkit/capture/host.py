"""Read the host and this process from ``/proc`` and ``/sys``, and where there is none through ``psutil``."""

import threading
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from profilerkit.capture.cgroup import Cgroup
from profilerkit.capture.proc_files import ProcFile, ProcFiles, Rates, field, number, pressure_ns, rounded, times
from profilerkit.capture.processes import ChildProcesses, OperatorPool, OwnProcess
from profilerkit.rundir.sampled import HostSample, Sample

#: Units of ``/sys/block/*/stat``, whatever the disk's own sectors are (Documentation/block/stat.rst in Linux).
_SECTOR_BYTES = 512
#: More than a training machine has; what is beyond them is not read.
_MOST = 16


class HostSource:
    """CPU, memory, pressure, traffic and limits. Rates are over the time since the sample before.

    Made on the training thread, whose waiting for a processor is measured.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._tid = threading.get_native_id()

    def open(self) -> str:
        """Open the files that exist; there is always something to read."""
        files = self._files = ProcFiles(self._root)
        machine = _Machine(files)
        self._children, self._pool = ChildProcesses(files), OperatorPool(files, self._tid)
        self._readers = (
            (machine if machine.is_there else _Portable()).read,
            OwnProcess(files, self._tid).read,
            Pressure(files).read,
            Cgroup(files).read,
            Traffic(files).read,
        )
        return ""

    def read(self) -> Sample | None:
        """One sample of the host."""
        now_ns = perf_counter_ns()
        fields: dict[str, Any] = {}
        for read in self._readers:
            fields |= {name: value for name, value in read(now_ns).items() if value is not None}
        fields["workers"] = self._children.read(now_ns)
        fields["worker_pages"] = self._children.pages(now_ns)
        fields["pool_queue_ratio"] = self._pool.read(now_ns)
        return Sample(t_ns=now_ns, host=HostSample(**fields))

    def missing(self) -> str:
        """Which of the samples nobody took."""
        return "pages that workers copied: not measured above 8 GiB" if self._children.is_too_large else ""

    def close(self) -> None:
        """Close the files."""
        self._children.close()
        self._files.close()


class _Machine:
    """Processors and memory of the machine."""

    def __init__(self, files: ProcFiles) -> None:
        self._stat = files.open("proc/stat")
        self._loadavg = files.open("proc/loadavg")
        self._meminfo = files.open("proc/meminfo")
        self.is_there = self._stat.is_open and self._meminfo.is_open
        self._last: list[int] = []

    def read(self, _now_ns: int) -> dict[str, Any]:
        cpu, iowait, steal = self._shares()
        # "1.72 1.14 1.07 3/101 25750": the fourth is running / all.
        running = [*self._loadavg.text().split(), "", "", "", ""][3].partition("/")[0]
        memory = self._meminfo.text()
        total, available = field(memory, "MemTotal:"), field(memory, "MemAvailable:")
        swap, swap_free = field(memory, "SwapTotal:"), field(memory, "SwapFree:")
        return {
            "cpu_ratio": cpu,
            "iowait_ratio": iowait,
            "steal_ratio": steal,
            "running_tasks": number(running),
            "memory_used_bytes": None if total is None or available is None else (total - available) * 1024,
            "memory_total_bytes": times(total, 1024),
            "swap_used_bytes": None if swap is None or swap_free is None else (swap - swap_free) * 1024,
        }

    def _shares(self) -> tuple[float | None, float | None, float | None]:
        """Busy, waiting for a disk, and stolen, of all processors' time since the reading before.

        ``cpu  user nice system idle iowait irq softirq steal guest guest_nice``; a guest's time is in user and nice.
        """
        words = self._stat.text().partition("\n")[0].split()[1:9]
        times = [int(word) for word in words] if len(words) == 8 else []
        last, self._last = self._last, times
        if not times or not last:
            return None, None, None
        grown = [now - before for now, before in zip(times, last, strict=True)]
        total = sum(grown)
        if total <= 0 or min(grown) < 0:  # iowait may shrink (proc(5)); nothing can be said of such a second
            return None, None, None
        busy = total - grown[3] - grown[4]
        return rounded(busy / total), rounded(grown[4] / total), rounded(grown[7] / total)


class _Portable:
    """The machine where there is no ``/proc``: macOS and Windows."""

    def __init__(self) -> None:
        import psutil

        self._psutil: Any = psutil
        self._process = psutil.Process()
        psutil.cpu_percent(None)  # the first call has nothing to compare with and says 0
        self._is_first = True

    def read(self, _now_ns: int) -> dict[str, Any]:
        memory, percent = self._psutil.virtual_memory(), self._psutil.cpu_percent(None)
        first, self._is_first = self._is_first, False
        return {
            "cpu_ratio": None if first else rounded(percent / 100),
            "memory_used_bytes": memory.total - memory.available,
            "memory_total_bytes": memory.total,
            "process_rss_bytes": self._process.memory_info().rss,
        }


class Pressure:
    """Time in which some task of the machine waited for a resource (PSI)."""

    def __init__(self, files: ProcFiles) -> None:
        self._files = {name: files.open(f"proc/pressure/{name}") for name in ("cpu", "io", "memory")}
        self._rates = Rates()

    def read(self, now_ns: int) -> dict[str, Any]:
        """Return the present shares of the time."""
        return {
            f"{name}_pressure_ratio": self._rates.ratio(name, pressure_ns(file.text()), now_ns)
            for name, file in self._files.items()
        }


class Traffic:
    """The disks of the machine and the interfaces of this network namespace."""

    def __init__(self, files: ProcFiles) -> None:
        disks = _physical(files, "sys/block")[:_MOST]
        self._disks = {name: files.open(f"sys/block/{name}/stat") for name in disks}
        names = [name for name in files.names("sys/class/net") if name != "lo"]
        # In a container no interface is physical, and none counts twice.
        names = _physical(files, "sys/class/net") or names
        self._interfaces = {
            way: [files.open(f"sys/class/net/{name}/statistics/{way}_bytes") for name in names[:_MOST]]
            for way in ("rx", "tx")
        }
        self._rates = Rates()

    def read(self, now_ns: int) -> dict[str, Any]:
        """Return the present rates, by the field of ``HostSample``."""
        # Fields: reads, merged, sectors, ms; the same of writes; in flight, ms in which any was, ...
        states = {name: words for name, file in self._disks.items() if len(words := file.text().split()) > 9}
        busy = [self._rates.ratio(name, int(words[9]) * 1_000_000, now_ns) for name, words in states.items()]
        totals = {
            f"disk_{way}": sum(int(words[place]) for words in states.values()) * _SECTOR_BYTES if states else None
            for way, place in (("read", 2), ("write", 6))
        }
        totals |= {f"net_{way}": _sum(files) for way, files in self._interfaces.items()}
        found = {f"{name}_bytes_per_s": self._rates.whole(name, total, now_ns) for name, total in totals.items()}
        return {**found, "disk_busy_ratio": max((ratio for ratio in busy if ratio is not None), default=None)}


def _physical(files: ProcFiles, directory: str) -> list[str]:
    """Names of those in ``directory`` that are a device, not made of others by software."""
    return [name for name in files.names(directory) if (files.root / directory / name / "device").exists()]


def _sum(files: list[ProcFile]) -> int | None:
    """The sum of files that are numbers; ``None`` when none can be read."""
    values = [value for file in files if (value := number(file.text())) is not None]
    return sum(values) if values else None
