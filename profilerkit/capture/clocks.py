"""The clocks of one thread: what it took of the wall's time, of a processor's, and of the queue for one."""

import os
import statistics
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns, thread_time_ns, time_ns

from profilerkit.capture.patches import Patches, Watch
from profilerkit.rundir.clock import ClockAnchor
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


#: Calls that are measured; opening a window falls into few of them and does not move the median.
_CALLS = 500


class Meter:
    """Own time of one kind of call.

    Attributes:
        is_open: more calls are to be measured.
    """

    __slots__ = ("_known_ns", "_own_ns", "is_open")

    def __init__(self) -> None:
        self._own_ns: list[int] = []
        self._known_ns: float | None = None
        self.is_open = True

    def add(self, own_ns: int) -> None:
        """One call took that long beside what it was called for."""
        self._own_ns.append(own_ns)
        self.is_open = len(self._own_ns) < _CALLS

    @property
    def median_ns(self) -> float | None:
        """The median, ns; ``None`` when nothing was measured."""
        if self._known_ns is not None:
            return self._known_ns
        found = float(statistics.median(self._own_ns)) if self._own_ns else None
        if not self.is_open:
            self._known_ns = found  # sorting hundreds of times takes 40 µs, and the writer thread asks again and again
        return found


#: The tightest of so many tries is taken: between two readings the process may lose its core.
_ANCHOR_TRIES = 5
#: The clocks drift apart by some ppm; a minute of that is below what a bracket is wide on a busy host.
_PERIOD_NS = 60 * 1_000_000_000


def take_anchor() -> ClockAnchor:
    """Both clocks at one moment."""
    best: ClockAnchor | None = None
    for _ in range(_ANCHOR_TRIES):
        before_ns = perf_counter_ns()
        unix_ns = time_ns()
        width_ns = perf_counter_ns() - before_ns
        if best is None or width_ns < best.width_ns:
            best = ClockAnchor(perf_ns=before_ns + width_ns // 2, unix_ns=unix_ns, width_ns=width_ns)
    assert best is not None
    return best


class ClockWatch(Watch):
    """Appends an anchor at the start, every minute and at the end."""

    name = "clock"

    def __init__(self, write: Callable[[ClockAnchor], None]) -> None:
        self._write = write
        self._next_ns = 0

    def install(self, _patches: Patches) -> None:
        """Take the first anchor."""
        self._take()

    def beat(self) -> None:
        """Take an anchor when it is due."""
        if perf_counter_ns() >= self._next_ns:
            self._take()

    def close(self) -> None:
        """Take the last anchor."""
        self._take()

    def _take(self) -> None:
        anchor = take_anchor()
        self._next_ns = anchor.perf_ns + _PERIOD_NS
        self._write(anchor)
