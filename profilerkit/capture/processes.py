"""Read CPU and memory of this process, its training thread, its operators' threads and the workers that it started."""

import os
import sys
import threading
from time import process_time_ns, thread_time_ns
from typing import Any, NamedTuple

from profilerkit.capture.proc_files import ProcFile, ProcFiles, Rates, field, number, rounded, times
from profilerkit.rundir.sampled import WorkerPages, WorkerSample

#: Threads of the operators' pool are all alike: so many tell of all of them, 10 µs each.
_MOST_POOL = 16
#: Bounds the cost of a sample: one process takes 6 to 8 µs, measured on a two-core machine.
MOST = 64
#: Counting a worker's pages walks through all of its memory: 12 ms of CPU time for 1 GiB (on a two-core machine).
#: The n-th count is followed by n times so many times what it took: 0.6 % of a core in the first 10 s, less later.
_REST = 50
#: Pages of larger processes are not counted: one count would hold them up for 0.1 s.
_MOST_BYTES = 8 << 30
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 10_000_000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


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


class OwnProcess:
    """This process and its training thread."""

    def __init__(self, files: ProcFiles, tid: int) -> None:
        self._stat, self._io = files.open("proc/self/stat"), files.open("proc/self/io")
        self._thread, self._status, self._schedstat = (
            files.open(f"proc/self/task/{tid}/{name}") for name in ("stat", "status", "schedstat")
        )
        self._rates = Rates()

    def read(self, now_ns: int) -> dict[str, Any]:
        """Return the present numbers, by the field of ``HostSample``."""
        # "917473 77711 2": ns on a processor, ns waiting for one, times it got one.
        queued = number([*self._schedstat.text().split(), "", ""][1])
        status, traffic, rates = self._status.text(), self._io.text(), self._rates
        process, thread = process_stat(self._stat.text()), process_stat(self._thread.text())
        preempted = field(status, "nonvoluntary_ctxt_switches:")
        return {
            "process_cpu_cores": rates.cores("used", process_time_ns(), now_ns),
            "thread_queue_ratio": rates.ratio("queued", queued, now_ns),
            "thread_preemptions_per_s": rates.tenths("preempted", preempted, now_ns),
            "process_rss_bytes": process and process.rss_bytes,
            "process_major_faults_per_s": rates.tenths("major", process and process.major_faults, now_ns),
            "read_bytes": field(traffic, "read_bytes:"),
            "write_bytes": field(traffic, "write_bytes:"),
            "thread_faults_per_s": rates.tenths("minor", thread and thread.minor_faults, now_ns),
            "thread_system_ratio": rates.ratio("system", thread and thread.system_ns, now_ns),
            "thread_cpu_ratio": rates.ratio("cpu", thread and thread.cpu_ns, now_ns),
            "process_file_bytes": times(field(status, "RssFile:"), 1024),
        }


class OperatorPool:
    """The threads that operators share their work with: the busiest one, beside the training and Python's own threads.

    The training thread spins until the last of them is done, and is on a processor while that one waits for another.
    """

    def __init__(self, files: ProcFiles, tid: int) -> None:
        self._files, self._tid = files, tid
        self._last: dict[str, tuple[int, int]] = {}
        self._last_ns = 0

    def read(self, now_ns: int) -> float | None:
        """Return the share of the time since the last reading in which it waited for a processor."""
        pythons = {str(thread.native_id) for thread in threading.enumerate()}
        names = [name for name in self._files.names("proc/self/task") if name not in pythons and name != str(self._tid)]
        found = {name: self._ran_and_queued(name) for name in names[:_MOST_POOL]}
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


class ChildProcesses:
    """Processes started through ``multiprocessing``, which is how a DataLoader starts its workers.

    Attributes:
        is_too_large: the process started last holds too much memory to count its pages.
    """

    is_too_large = False

    def __init__(self, files: ProcFiles) -> None:
        self._files = files
        self._known: dict[int, ProcFile] = {}
        self._rates = Rates()
        self._counts = self._count_at_ns = 0

    def read(self, now_ns: int) -> tuple[WorkerSample, ...]:
        """The first ``MOST`` by pid; none where there is no ``/proc``."""
        pids = sorted(_started())[:MOST]
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


def _started() -> list[int]:
    """Pids of the processes that ``multiprocessing`` knows, those of a fork server too.

    ``multiprocessing.active_children`` would wait for the dead ones, which is for the one who started them to do.
    """
    children = getattr(sys.modules.get("multiprocessing.process"), "_children", ())
    processes = [getattr(child, "_popen", None) for child in tuple(children)]
    return [process.pid for process in processes if process is not None and process.pid]
