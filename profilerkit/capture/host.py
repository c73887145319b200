"""Reads the host and this process: ``psutil`` once per second, ``/proc`` files opened once."""

import os
from collections.abc import Callable
from time import perf_counter_ns, process_time_ns

from profilerkit.rundir.sampled import HostSample, Sample

#: Enough for the first ten fields of a cgroup's cpu.stat, which has the most.
_READ_BYTES = 512
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class HostSource:
    """CPU, memory, disk traffic, pressure and throttling. Rates are over the time since the sample before."""

    def __init__(self) -> None:
        self._statm = self._io = -1
        self._last_ns = 0
        self._last_process_ns = 0
        self._cpu_pressure = self._io_pressure = self._throttled = _Waited(-1)

    def open(self) -> str:
        """Open the files that exist; there is always something to read."""
        import psutil

        self._psutil = psutil
        psutil.cpu_percent(None)  # the first call has nothing to compare with and says 0
        self._statm = _open("/proc/self/statm")
        self._io = _open("/proc/self/io")
        self._cpu_pressure = _Waited(_open("/proc/pressure/cpu"))
        self._io_pressure = _Waited(_open("/proc/pressure/io"))
        self._throttled = _Waited(_open("/sys/fs/cgroup/cpu.stat"))
        return ""

    def read(self) -> Sample | None:
        """One sample of the host."""
        now_ns, process_ns = perf_counter_ns(), process_time_ns()
        wall_ns = now_ns - self._last_ns if self._last_ns else 0
        memory = self._psutil.virtual_memory()
        cpu_percent = self._psutil.cpu_percent(None)
        traffic = _fields(_read(self._io))
        statm = _read(self._statm).split()
        host = HostSample(
            cpu_ratio=cpu_percent / 100 if wall_ns else None,
            process_cpu_cores=(process_ns - self._last_process_ns) / wall_ns if wall_ns else None,
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            process_rss_bytes=int(statm[1]) * _PAGE_BYTES if len(statm) > 1 else None,
            read_bytes=traffic.get("read_bytes"),
            write_bytes=traffic.get("write_bytes"),
            cpu_pressure_ratio=self._cpu_pressure.ratio(pressure_total_us, wall_ns),
            io_pressure_ratio=self._io_pressure.ratio(pressure_total_us, wall_ns),
            cpu_throttled_ratio=self._throttled.ratio(throttled_us, wall_ns),
        )
        self._last_ns, self._last_process_ns = now_ns, process_ns
        return Sample(t_ns=now_ns, host=host)

    def close(self) -> None:
        """Close the files."""
        waited = (self._cpu_pressure, self._io_pressure, self._throttled)
        for fd in (self._statm, self._io, *(file.fd for file in waited)):
            if fd >= 0:
                os.close(fd)


class _Waited:
    """A file that counts microseconds of waiting."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._last_us: int | None = None

    def ratio(self, total: Callable[[str], int | None], wall_ns: int) -> float | None:
        """Share of ``wall_ns`` by which ``total`` of the file's text grew since the last call."""
        total_us = total(_read(self.fd))
        last_us, self._last_us = self._last_us, total_us
        if total_us is None or last_us is None or not wall_ns:
            return None
        return min(1.0, (total_us - last_us) * 1000 / wall_ns)


def pressure_total_us(text: str) -> int | None:
    """The total of PSI's ``some`` line: ``some avg10=0.00 avg60=0.00 avg300=0.00 total=12`` is 12."""
    for line in text.splitlines():
        kind, *pairs = line.split()
        if kind == "some":
            value = dict(pair.split("=", 1) for pair in pairs if "=" in pair).get("total", "")
            return int(value) if value.isdecimal() else None
    return None


def throttled_us(text: str) -> int | None:
    """Time in which the cgroup's quota held all its threads: ``throttled_usec 12`` of ``cpu.stat`` is 12."""
    fields = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    value = fields.get("throttled_usec", "")
    return int(value) if value.isdecimal() else None


def _open(path: str) -> int:
    """A descriptor to pread from, -1 when the file is not there or not allowed."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _read(fd: int) -> str:
    """What the file says now; empty when it cannot be read."""
    if fd < 0:
        return ""
    try:
        return os.pread(fd, _READ_BYTES, 0).decode("ascii", "replace")
    except OSError:
        return ""


def _fields(text: str) -> dict[str, int]:
    """``name: number`` lines."""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name: int(value) for name, value in pairs if value.strip().isdecimal()}
