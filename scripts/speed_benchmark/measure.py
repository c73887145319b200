"""What one command costs in a process of its own: wall time, CPU time, peak memory."""

import os
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_SAMPLE_S = 0.05
_KIB = 1024
_SAID_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Cost:
    """One run.

    Attributes:
        wall_s: from the start of the process to its end.
        cpu_s: user and system time of the process and its children.
        peak_bytes: largest resident memory; with children the largest sum of all, sampled every 50 ms.
        exit_code: 0 when the command did its work.
        said: the end of what it printed.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    exit_code: int
    said: str


def run(command: list[str], environment: dict[str, str]) -> Cost:
    """Run a command to its end and measure it.

    Linux counts the memory of the parent at the time of the start into the child's peak, so the caller stays small.
    """
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        with _Family(process.pid) as family:
            _, status, usage = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read().decode("utf-8", "replace").strip()
    peak_bytes = max(usage.ru_maxrss * _KIB, family.peak_bytes)
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, peak_bytes, process.returncode, said[-_SAID_CHARACTERS:])


class _Family:
    """Watches the memory of a process together with its children; a process without children is not sampled."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "_Family":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            family = _descendants(self._pid)
            if len(family) > 1:
                self.peak_bytes = max(self.peak_bytes, sum(map(_resident_bytes, family)))


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, children.read_text().split())
            except OSError:  # the thread ended between the two calls
                continue
    return found


def _resident_bytes(pid: int) -> int:
    """Memory of a process; pages shared with its family count once among all who share them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it ended
        return 0
    return next((int(line.split()[1]) * _KIB for line in lines if line.startswith("Pss:")), 0)
