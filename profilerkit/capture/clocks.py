"""What each thread is doing, by its clocks: fetching, or inside named phases, which are recorded."""

import os
import statistics
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from time import perf_counter_ns, thread_time_ns, time_ns

from profilerkit.capture.guard import Guard
from profilerkit.capture.patches import Patches, Watch
from profilerkit.rundir.files import Descriptor
from profilerkit.rundir.layout import EVALUATION, EventKind, wait_queue_field
from profilerkit.rundir.process import ClockAnchor
from profilerkit.rundir.writer import Record

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


_CALLS = 500  #: calls that are measured; opening a window falls into few of them and does not move the median


class Meter:
    """Own time of one kind of call."""

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


_ANCHOR_TRIES = 5  #: the tightest of so many tries is taken: between two readings the process may lose its core
#: The clocks drift apart by some ppm; a minute of that is below what a bracket is wide on a busy host.
_PERIOD_NS = 60 * 1_000_000_000


def take_anchor() -> ClockAnchor:
    """Both clocks at one moment."""
    tries = [(perf_counter_ns(), time_ns(), perf_counter_ns()) for _ in range(_ANCHOR_TRIES)]
    before_ns, unix_ns, after_ns = min(tries, key=lambda one: one[2] - one[0])
    width_ns = after_ns - before_ns
    return ClockAnchor(perf_ns=before_ns + width_ns // 2, unix_ns=unix_ns, width_ns=width_ns)


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


class ThreadState:
    """What a thread is doing.

    Attributes:
        began: the thread's clocks when the making of the newest iterator began.
        evaluations: those of them that are evaluations, by their names.
        nodes: that autograd had made on the thread as ``made_graphs`` was last asked; negative before.
    """

    __slots__ = ("began", "clock", "evaluations", "fetching", "nodes", "phases", "ready_ns")

    def __init__(self) -> None:
        self.fetching = False
        self.began: Moment = (0, 0, 0)
        self.ready_ns = 0
        self.phases = self.evaluations = 0
        self.clock = ThreadClock()
        self.nodes = -1

    def made_graphs(self) -> bool:
        """Whether autograd has recorded operators of the thread since this was last asked; without gradients none."""
        torch, before = sys.modules.get("torch"), self.nodes
        try:
            self.nodes = torch._C._autograd._get_sequence_nr() if torch is not None else -1  # torch 2.13 has it
        except AttributeError:
            self.nodes = -1
        return 0 <= before < self.nodes


class PerThread(threading.local):
    """What the calling thread is doing, found with one look for it."""

    def __init__(self, ended: Callable[[], None]) -> None:
        """``ended`` is called by a thread at its end, before another one may be given its number."""
        self.doing = ThreadState()
        self._last_word = _LastWord(ended)


class _LastWord:
    __slots__ = ("_ended",)

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended

    def __del__(self) -> None:
        self._ended()


_PHASE = int(EventKind.PHASE)
#: A block that is open: what the thread was doing that entered it, since when, and its span in the trace.
_Block = tuple[ThreadState, int, AbstractContextManager[object] | None]


class Phase:
    """A context manager that records one PHASE per block; it may be entered while it is open, and by many threads."""

    __slots__ = ("_guard", "_here", "_is_aside", "_name_id", "_open", "_record", "_span")

    def __init__(
        self,
        record: Callable[[Record], None],
        name: str,
        name_id: int,
        span: Callable[[], AbstractContextManager[object] | None],
        here: PerThread,
        guard: Guard,
    ) -> None:
        """``span`` makes the block's span in the trace that is being recorded, if there is one."""
        self._record = record
        self._name_id = name_id
        self._is_aside = EVALUATION.search(name) is not None
        self._span = span
        self._here = here
        self._guard = guard
        self._open: list[_Block] = []

    def __copy__(self) -> "Phase":
        """Itself, for what holds a phase and is copied."""
        return self

    def __deepcopy__(self, _copied: object) -> "Phase":
        return self

    def __reduce__(self) -> tuple[type[nullcontext[None]], tuple[()]]:
        """What is pickled records nothing: the process that reads it has no recording of ours."""
        return nullcontext, ()

    def __enter__(self) -> None:
        self._guard.call(self._begin)

    def __exit__(self, *_error: object) -> None:
        self._guard.call(self._end)

    def _begin(self) -> None:
        start_ns = perf_counter_ns()
        in_trace = self._span()
        if in_trace is not None:
            in_trace.__enter__()
        doing = self._here.doing
        doing.phases += 1
        if self._is_aside:
            doing.evaluations += 1
        self._open.append((doing, start_ns, in_trace))

    def _end(self) -> None:
        open_blocks = self._open
        if not open_blocks:
            return
        block = open_blocks.pop()
        if block[0] is not self._here.doing:
            block = self._ended_instead_of(block)
        doing, start_ns, in_trace = block
        doing.phases -= 1
        if self._is_aside:
            doing.evaluations -= 1
        self._record((_PHASE, 0, self._name_id, start_ns, perf_counter_ns() - start_ns, 0))
        if in_trace is not None:
            in_trace.__exit__(None, None, None)

    def _ended_instead_of(self, last: _Block) -> _Block:
        doing = self._here.doing
        self._open.append(last)
        block = next((block for block in reversed(self._open) if block[0] is doing), last)
        self._open.remove(block)
        return block
