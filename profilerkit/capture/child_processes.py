"""CPU and memory of the processes that this one started: the workers of its loaders."""

import os
import sys

from profilerkit.capture.proc_files import ProcFile, ProcFiles
from profilerkit.capture.rates import Growth, rounded
from profilerkit.rundir.sampled import WorkerSample

#: Bounds the cost of a sample: one process takes 6 to 8 µs, measured on a two-core machine.
MOST = 64
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
    """Processes started through ``multiprocessing``, which is how a DataLoader starts its workers."""

    def __init__(self, files: ProcFiles) -> None:
        self._files = files
        self._known: dict[int, tuple[ProcFile, Growth]] = {}

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
