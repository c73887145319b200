"""Reads the host and this process from ``/proc`` and ``/sys``, and where there is none through ``psutil``."""

import threading
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any, NamedTuple

from profilerkit.capture.cgroup import Cgroup
from profilerkit.capture.child_processes import ChildProcesses, ProcessStat
from profilerkit.capture.proc_files import ProcFile, ProcFiles, field, number, pressure_total_us
from profilerkit.capture.rates import Growth, rounded
from profilerkit.capture.traffic import Traffic
from profilerkit.rundir.sampled import HostSample, Sample


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
        self._machine: _Machine | _Portable = _Machine(files)
        if not self._machine.is_there:
            self._machine = _Portable()
        self._process = _Process(files, self._tid)
        self._pool = _Pool(files, self._tid)
        self._pressure = [(files.open(f"proc/pressure/{name}"), Growth()) for name in ("cpu", "io", "memory")]
        self._cgroup = Cgroup(files)
        self._traffic = Traffic(files)
        self._children = ChildProcesses(files)
        return ""

    def read(self) -> Sample | None:
        """One sample of the host."""
        now_ns = perf_counter_ns()
        machine = self._machine.read()
        process, cgroup, traffic = self._process.read(now_ns), self._cgroup.read(now_ns), self._traffic.read(now_ns)
        cpu_pressure, io_pressure, memory_pressure = (
            waited.ratio(_us(pressure_total_us(file.text())), now_ns) for file, waited in self._pressure
        )
        host = HostSample(
            cpu_ratio=machine.cpu_ratio,
            iowait_ratio=machine.iowait_ratio,
            steal_ratio=machine.steal_ratio,
            running_tasks=machine.running_tasks,
            process_cpu_cores=process.cpu_cores,
            thread_queue_ratio=process.thread_queue_ratio,
            thread_preemptions_per_s=process.thread_preemptions_per_s,
            memory_used_bytes=machine.memory_used_bytes,
            memory_total_bytes=machine.memory_total_bytes,
            swap_used_bytes=machine.swap_used_bytes,
            process_rss_bytes=process.rss_bytes if process.rss_bytes is not None else machine.process_rss_bytes,
            process_major_faults_per_s=process.major_faults_per_s,
            read_bytes=process.read_bytes,
            write_bytes=process.write_bytes,
            cpu_pressure_ratio=cpu_pressure,
            io_pressure_ratio=io_pressure,
            memory_pressure_ratio=memory_pressure,
            cgroup_cpu_cores=cgroup.cpu_cores,
            cgroup_cpu_pressure_ratio=cgroup.cpu_pressure_ratio,
            cgroup_memory_pressure_ratio=cgroup.memory_pressure_ratio,
            cpu_throttled_ratio=cgroup.throttled_ratio,
            cgroup_memory_bytes=cgroup.memory_bytes,
            cgroup_memory_max_bytes=cgroup.memory_max_bytes,
            cgroup_oom_kills=cgroup.oom_kills,
            disk_read_bytes_per_s=traffic.disk_read_bytes_per_s,
            disk_write_bytes_per_s=traffic.disk_write_bytes_per_s,
            disk_busy_ratio=traffic.disk_busy_ratio,
            net_rx_bytes_per_s=traffic.net_rx_bytes_per_s,
            net_tx_bytes_per_s=traffic.net_tx_bytes_per_s,
            workers=self._children.read(now_ns),
            thread_faults_per_s=process.thread_faults_per_s,
            thread_system_ratio=process.thread_system_ratio,
            thread_cpu_ratio=process.thread_cpu_ratio,
            process_file_bytes=process.file_bytes,
            worker_pages=self._children.pages(now_ns),
            pool_queue_ratio=self._pool.read(now_ns),
        )
        return Sample(t_ns=now_ns, host=host)

    def missing(self) -> str:
        """Which of the samples nobody took."""
        return "pages that workers copied: not measured above 8 GiB" if self._children.is_too_large else ""

    def close(self) -> None:
        """Close the files."""
        self._children.close()
        self._files.close()


class _MachineReading(NamedTuple):
    cpu_ratio: float | None = None
    iowait_ratio: float | None = None
    steal_ratio: float | None = None
    running_tasks: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    process_rss_bytes: int | None = None


class _Machine:
    """Processors and memory of the machine."""

    def __init__(self, files: ProcFiles) -> None:
        self._stat = files.open("proc/stat")
        self._loadavg = files.open("proc/loadavg")
        self._meminfo = files.open("proc/meminfo")
        self.is_there = self._stat.is_open and self._meminfo.is_open
        self._last: list[int] = []

    def read(self) -> _MachineReading:
        cpu, iowait, steal = self._shares()
        # "1.72 1.14 1.07 3/101 25750": the fourth is running / all.
        running = [*self._loadavg.text().split(), "", "", "", ""][3].partition("/")[0]
        memory = self._meminfo.text()
        total, available = field(memory, "MemTotal:"), field(memory, "MemAvailable:")
        swap, swap_free = field(memory, "SwapTotal:"), field(memory, "SwapFree:")
        return _MachineReading(
            cpu_ratio=cpu,
            iowait_ratio=iowait,
            steal_ratio=steal,
            running_tasks=number(running),
            memory_used_bytes=None if total is None or available is None else (total - available) * 1024,
            memory_total_bytes=None if total is None else total * 1024,
            swap_used_bytes=None if swap is None or swap_free is None else (swap - swap_free) * 1024,
        )

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

    def read(self) -> _MachineReading:
        memory, percent = self._psutil.virtual_memory(), self._psutil.cpu_percent(None)
        first, self._is_first = self._is_first, False
        return _MachineReading(
            cpu_ratio=None if first else rounded(percent / 100),
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            process_rss_bytes=self._process.memory_info().rss,
        )


class _ProcessReading(NamedTuple):
    cpu_cores: float | None
    thread_queue_ratio: float | None
    thread_preemptions_per_s: float | None
    rss_bytes: int | None
    major_faults_per_s: float | None
    read_bytes: int | None
    write_bytes: int | None
    thread_faults_per_s: float | None
    thread_system_ratio: float | None
    thread_cpu_ratio: float | None
    file_bytes: int | None


class _Process:
    """This process and its training thread."""

    def __init__(self, files: ProcFiles, tid: int) -> None:
        self._stat = files.open("proc/self/stat")
        self._io = files.open("proc/self/io")
        self._schedstat: ProcFile = files.open(f"proc/self/task/{tid}/schedstat")
        self._status = files.open(f"proc/self/task/{tid}/status")
        self._thread = files.open(f"proc/self/task/{tid}/stat")
        self._used, self._queued, self._preempted, self._faults = Growth(), Growth(), Growth(), Growth()
        self._given, self._in_system, self._on_core = Growth(), Growth(), Growth()

    def read(self, now_ns: int) -> _ProcessReading:
        used = self._used.per_s(process_time_ns(), now_ns)
        # "917473 77711 2": ns on a processor, ns waiting for one, times it got one.
        queued = number([*self._schedstat.text().split(), "", ""][1])
        status = self._status.text()
        preempted = self._preempted.per_s(field(status, "nonvoluntary_ctxt_switches:"), now_ns)
        of_files = field(status, "RssFile:")
        stat = ProcessStat(self._stat.text())
        faults = self._faults.per_s(stat.major_faults if stat.is_known else None, now_ns)
        traffic = self._io.text()
        thread = ProcessStat(self._thread.text())
        given = self._given.per_s(thread.minor_faults if thread.is_known else None, now_ns)
        return _ProcessReading(
            cpu_cores=None if used is None else rounded(used / 1e9),
            thread_queue_ratio=self._queued.ratio(queued, now_ns),
            thread_preemptions_per_s=None if preempted is None else round(preempted, 1),
            rss_bytes=stat.rss_bytes if stat.is_known else None,
            major_faults_per_s=None if faults is None else round(faults, 1),
            read_bytes=field(traffic, "read_bytes:"),
            write_bytes=field(traffic, "write_bytes:"),
            thread_faults_per_s=None if given is None else round(given, 1),
            thread_system_ratio=self._in_system.ratio(thread.system_ns if thread.is_known else None, now_ns),
            thread_cpu_ratio=self._on_core.ratio(thread.cpu_ns if thread.is_known else None, now_ns),
            file_bytes=None if of_files is None else of_files * 1024,
        )


class _Pool:
    """The threads that operators share their work with: the busiest one, beside the training and Python's own threads.

    The training thread spins until the last of them is done, and is on a processor while that one waits for another.
    """

    #: They are all alike: so many tell of all of them, 10 µs each.
    _MOST = 16

    def __init__(self, files: ProcFiles, tid: int) -> None:
        self._files, self._tid = files, tid
        self._last: dict[str, tuple[int, int]] = {}
        self._last_ns = 0

    def read(self, now_ns: int) -> float | None:
        """Return the share of the time since the last reading in which it waited for a processor."""
        pythons = {str(thread.native_id) for thread in threading.enumerate()}
        names = [name for name in self._files.names("proc/self/task") if name not in pythons and name != str(self._tid)]
        found = {name: self._ran_and_queued(name) for name in names[: self._MOST]}
        grown = [
            (ran + queued - sum(self._last[name]), queued - self._last[name][1])
            for name, (ran, queued) in found.items()
            if name in self._last
        ]
        took_ns = now_ns - self._last_ns
        self._last, self._last_ns = found, now_ns
        return min(rounded(max(grown)[1] / took_ns), 1.0) if grown and took_ns > 0 else None

    def _ran_and_queued(self, name: str) -> tuple[int, int]:
        words = [*self._files.once(f"proc/self/task/{name}/schedstat").split(), "", ""]
        return number(words[0]) or 0, number(words[1]) or 0


def _us(value: int | None) -> int | None:
    """Microseconds in nanoseconds."""
    return None if value is None else value * 1000
