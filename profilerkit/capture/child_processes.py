"""CPU and memory of the processes that this one started: the workers of its loaders."""

import os
import sys
from time import thread_time_ns

from profilerkit.capture.proc_files import ProcFile, ProcFiles, field
from profilerkit.capture.rates import Growth, rounded
from profilerkit.rundir.sampled import WorkerPages, WorkerSample

#: Bounds the cost of a sample: one process takes 6 to 8 µs, measured on a two-core machine.
MOST = 64
#: Counting a worker's pages walks through all of its memory: 12 ms of CPU time for 1 GiB (on a two-core machine).
#: The n-th count is followed by n times so many times what it took: 0.6 % of a core in the first 10 s, less later.
_REST = 50
#: Pages of larger processes are not counted: one count would hold them up for 0.1 s.
_MOST_BYTES = 8 << 30
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 10_000_000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class ProcessStat:
    """What ``/proc/PID/stat`` says after the name, which may hold blanks and brackets."""

    def __init__(self, text: str) -> None:
        self._words = text.rpartition(")")[2].split()
        self.is_known = len(self._words) > 21

    @property
    def minor_faults(self) -> int:
        """Pages that were given to it, or mapped, without reading them."""
        return int(self._words[7])

    @property
    def system_ns(self) -> int:
        """Processor time in system mode."""
        return int(self._words[12]) * _TICK_NS

    @property
    def major_faults(self) -> int:
        """Pages that had to be read from a disk."""
        return int(self._words[9])

    @property
    def cpu_ns(self) -> int:
        """Processor time of all its threads, in user and system mode."""
        return (int(self._words[11]) + int(self._words[12])) * _TICK_NS

    @property
    def rss_bytes(self) -> int:
        """Resident memory."""
        return int(self._words[21]) * _PAGE_BYTES


class ChildProcesses:
    """Processes started through ``multiprocessing``, which is how a DataLoader starts its workers.

    Attributes:
        is_too_large: the process started last holds too much memory to count its pages.
    """

    is_too_large = False

    def __init__(self, files: ProcFiles) -> None:
        self._files = files
        self._known: dict[int, tuple[ProcFile, Growth]] = {}
        self._counts = self._count_at_ns = 0

    def read(self, now_ns: int) -> tuple[WorkerSample, ...]:
        """The first ``MOST`` by pid; none where there is no ``/proc``."""
        pids = sorted(_started())[:MOST]
        for pid in self._known.keys() - set(pids):
            self._known.pop(pid)[0].close()
        samples = []
        for pid in pids:
            if pid not in self._known:
                self._known[pid] = ProcFile(self._files.root / f"proc/{pid}/stat"), Growth()
            file, used = self._known[pid]
            stat = ProcessStat(file.text())
            if stat.is_known:
                cores = used.per_s(stat.cpu_ns, now_ns)
                samples.append(WorkerSample(pid, None if cores is None else rounded(cores / 1e9), stat.rss_bytes))
        return tuple(samples)

    def pages(self, now_ns: int) -> WorkerPages | None:
        """Those of the process started last; ``None`` while it is too early to count them again, or without any."""
        pid = max(self._known, default=0)
        if not pid or now_ns < self._count_at_ns:
            return None
        stat = ProcessStat(self._known[pid][0].text())
        self.is_too_large = stat.is_known and stat.rss_bytes > _MOST_BYTES
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
        for file, _ in self._known.values():
            file.close()


def _started() -> list[int]:
    """Pids of the processes that ``multiprocessing`` knows, those of a fork server too.

    ``multiprocessing.active_children`` would wait for the dead ones, which is for the one who started them to do.
    """
    children = getattr(sys.modules.get("multiprocessing.process"), "_children", ())
    processes = [getattr(child, "_popen", None) for child in tuple(children)]
    return [process.pid for process in processes if process is not None and process.pid]
