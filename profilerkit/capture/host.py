"""Sample the host, this process and its children, once per second."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import Any, NamedTuple

from profilerkit.capture.proc_files import (
    Cgroup,
    ProcFile,
    ProcFiles,
    Rates,
    Readings,
    Row,
    field,
    named,
    number,
    pressure_ns,
    rounded,
    times,
)
from profilerkit.rundir.sampled import HostSample, Sample, WorkerPages, WorkerSample

_MOST_POOL = 16  #: threads of the operators' pool are all alike: so many tell of all of them, 10 µs each
MOST = 64  #: bounds the cost of a sample: one process takes 6 to 8 µs, measured on a two-core machine
#: Counting a worker's pages walks through all of its memory: 12 ms of CPU time for 1 GiB (on a two-core machine).
#: The n-th count is followed by n times so many times what it took: 0.6 % of a core in the first 10 s, less later.
_REST = 50
#: Pages of larger processes are not counted: one count would hold them up for 0.1 s.
_MOST_BYTES = 8 << 30
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessStat(NamedTuple):
    """Fields of ``/proc/PID/stat``; minor faults are pages given to it without reading them."""

    minor_faults: int
    major_faults: int
    cpu_ns: int
    system_ns: int
    rss_bytes: int


def process_stat(text: str) -> ProcessStat | None:
    """Return the fields of ``/proc/PID/stat``, which follow the name, that may hold blanks and brackets."""
    words = text.rpartition(")")[2].split()
    if len(words) < 22:
        return None
    minor, major, user, system, pages = (int(words[place]) for place in (7, 9, 11, 12, 21))
    return ProcessStat(minor, major, (user + system) * _TICK_NS, system * _TICK_NS, pages * _PAGE_BYTES)


def _own_process(tid: int) -> Iterator[Row]:
    stat, io = "proc/self/stat", "proc/self/io"
    thread, status, queue = (f"proc/self/task/{tid}/{name}" for name in ("stat", "status", "schedstat"))
    # "917473 77711 2": ns on a processor, ns waiting for one, times it got one.
    yield "thread_queue_ratio", queue, lambda text: number([*text.split(), "", ""][1]), Rates.ratio
    yield "thread_preemptions_per_s", status, named("nonvoluntary_ctxt_switches:"), Rates.tenths
    yield "process_rss_bytes", stat, _of_stat("rss_bytes"), None
    yield "process_major_faults_per_s", stat, _of_stat("major_faults"), Rates.tenths
    yield "read_bytes", io, named("read_bytes:"), None
    yield "write_bytes", io, named("write_bytes:"), None
    yield "thread_faults_per_s", thread, _of_stat("minor_faults"), Rates.tenths
    yield "thread_system_ratio", thread, _of_stat("system_ns"), Rates.ratio
    yield "thread_cpu_ratio", thread, _of_stat("cpu_ns"), Rates.ratio
    yield "process_file_bytes", status, named("RssFile:", 1024), None


def _of_stat(name: str) -> Callable[[str], int | None]:
    return lambda text: getattr(process_stat(text), name, None)


class OperatorPool:
    """The threads that operators share their work with: the busiest one, beside the training and Python's own threads.

    The training thread spins until the last of them is done, and is on a processor while that one waits for another.
    """

    def __init__(self, files: ProcFiles, tid: int) -> None:
        self._files, self._tid = files, tid
        self._last: dict[str, tuple[int, ...]] = {}
        self._last_ns = 0

    def read(self, now_ns: int) -> float | None:
        """Return the share of the time since the last reading in which it waited for a processor."""
        pythons = {str(thread.native_id) for thread in threading.enumerate()}
        names = [name for name in self._files.names("proc/self/task") if name not in pythons and name != str(self._tid)]
        words = {name: self._files.once(f"proc/self/task/{name}/schedstat").split() for name in names[:_MOST_POOL]}
        found = {name: tuple(number(word) or 0 for word in [*said, "", ""][:2]) for name, said in words.items()}
        grown = [
            (ran + queued - sum(self._last[name]), queued - self._last[name][1])
            for name, (ran, queued) in found.items()
            if name in self._last
        ]
        took_ns = now_ns - self._last_ns
        self._last, self._last_ns = found, now_ns
        return min(rounded(max(grown)[1] / took_ns), 1.0) if grown and took_ns > 0 else None


class ChildProcesses:
    """Processes started through ``multiprocessing``, which is how a DataLoader starts its workers."""

    is_too_large = False

    def __init__(self, files: ProcFiles) -> None:
        self._files = files
        self._known: dict[int, ProcFile] = {}
        self._rates = Rates()
        self._counts = self._count_at_ns = 0

    def read(self, now_ns: int) -> tuple[WorkerSample, ...]:
        """The first ``MOST`` by pid; none where there is no ``/proc``."""
        children = getattr(sys.modules.get("multiprocessing.process"), "_children", ())
        processes = [getattr(child, "_popen", None) for child in tuple(children)]
        pids = sorted(process.pid for process in processes if process is not None and process.pid)[:MOST]
        for pid in self._known.keys() - set(pids):
            self._known.pop(pid).close()
            self._rates.forget(str(pid))
        samples = []
        for pid in pids:
            if pid not in self._known:
                self._known[pid] = ProcFile(self._files.root / f"proc/{pid}/stat")
            stat = process_stat(self._known[pid].text())
            if stat is not None:
                samples.append(WorkerSample(pid, self._rates.cores(str(pid), stat.cpu_ns, now_ns), stat.rss_bytes))
        return tuple(samples)

    def pages(self, now_ns: int) -> WorkerPages | None:
        """Those of the process started last; ``None`` while it is too early to count them again, or without any."""
        pid = max(self._known, default=0)
        if not pid or now_ns < self._count_at_ns:
            return None
        stat = process_stat(self._known[pid].text())
        self.is_too_large = stat is not None and stat.rss_bytes > _MOST_BYTES
        if self.is_too_large:
            return None
        began_ns = thread_time_ns()
        text = self._files.once(f"proc/{pid}/smaps_rollup")
        self._counts += 1
        self._count_at_ns = now_ns + self._counts * _REST * (thread_time_ns() - began_ns)
        anonymous, private, shared = (field(text, f"{name}:") for name in ("Anonymous", "Private_Dirty", "Pss_Shmem"))
        if anonymous is None or private is None or shared is None:
            return None
        # Batches on their way lie in shared memory, and count as private while nobody else has opened them.
        return WorkerPages(pid, anonymous * 1024, max(private - shared, 0) * 1024)

    def close(self) -> None:
        """Close the files."""
        for file in self._known.values():
            file.close()


#: Units of ``/sys/block/*/stat``, whatever the disk's own sectors are (Documentation/block/stat.rst in Linux).
_SECTOR_BYTES = 512
_MOST = 16  #: more than a training machine has; what is beyond them is not read


class HostSource:
    """CPU, memory, pressure, traffic and limits. Rates are over the time since the sample before.

    Made on the training thread, whose waiting for a processor is measured.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._rates = Rates()
        self._tid = threading.get_native_id()

    def open(self) -> str:
        """Open the files that exist; there is always something to read."""
        files = self._files = ProcFiles(self._root)
        self._children, self._pool = ChildProcesses(files), OperatorPool(files, self._tid)
        self._readers = (
            _Machine(files).read,
            Readings(files, (*_own_process(self._tid), *_PRESSURE)).read,
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
        fields["process_cpu_cores"] = self._rates.cores("used", process_time_ns(), now_ns)
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
    def __init__(self, files: ProcFiles) -> None:
        self._stat = files.open("proc/stat")
        self._loadavg = files.open("proc/loadavg")
        self._meminfo = files.open("proc/meminfo")
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


#: Time in which some task of the machine waited for a resource (PSI).
_PRESSURE: tuple[Row, ...] = tuple(
    (f"{name}_pressure_ratio", f"proc/pressure/{name}", pressure_ns, Rates.ratio) for name in ("cpu", "io", "memory")
)


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
    values = [value for file in files if (value := number(file.text())) is not None]
    return sum(values) if values else None
