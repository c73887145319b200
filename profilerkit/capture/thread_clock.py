"""The clocks of one thread: what it took of the wall's time, of a processor's, and of the queue for one."""

import os
from contextlib import suppress
from time import perf_counter_ns, thread_time_ns

from profilerkit.rundir.files import Descriptor
from profilerkit.rundir.layout import wait_queue_field

_READ_BYTES = 256
#: Reading a file lets another thread run. Where one did for longer than this, the clocks are of two moments: they are
#: read again, at most so often.
_AT_ONCE_NS, _TRIES = 500_000, 3

#: Wall, CPU and run-queue ns of a thread (the last -1 where the kernel does not say), at a moment on the clock.
Moment = tuple[int, int, int]


class ThreadClock:
    """Wall, CPU and run-queue time of the thread that made it."""

    _file: Descriptor | None = None

    def __init__(self) -> None:
        with suppress(OSError):
            self._file = Descriptor("/proc/thread-self/schedstat", os.O_RDONLY)

    def now(self, tries: int = _TRIES) -> Moment:
        """The three clocks, ns; run-queue time is -1 where the kernel does not keep it. 2 µs, 20 beside other work."""
        for _ in range(tries):
            wall_ns, cpu_ns, queued_ns = perf_counter_ns(), thread_time_ns(), self._queued_ns()
            if perf_counter_ns() - wall_ns < _AT_ONCE_NS:
                break
        return wall_ns, cpu_ns, queued_ns

    def again(self, start: Moment) -> Moment:
        """Those of the clocks that were read at ``start``."""
        return self.now() if start[2] >= 0 else (perf_counter_ns(), thread_time_ns(), -1)

    def _queued_ns(self) -> int:
        if self._file is None or not self._file.is_ours:
            return -1
        try:
            return int(os.pread(self._file.number, _READ_BYTES, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return -1

    def __del__(self) -> None:
        """Close what was opened: a thread that fetched may end long before the program."""
        if self._file is not None:
            self._file.close()


def spent(start: Moment, end: Moment) -> tuple[int, int]:
    """What a WAIT record says of the thread's time: µs in the queue for a processor as ``wait_queue_field``, CPU ns."""
    return wait_queue_field(end[2] - start[2] if start[2] >= 0 and end[2] >= 0 else None), end[1] - start[1]


def open_for_reading(path: str) -> int:
    """A descriptor to pread from, -1 where there is no such file."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
