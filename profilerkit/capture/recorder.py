"""Takes event records from the training thread and has a thread of its own write them."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter_ns

from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.writer import RankWriter, Record

#: Bounds what a kill can lose; 0.25 s of a 1 ms step with four records each is 1,000 records, packed in 0.5 ms.
FLUSH_SECONDS = 0.25
#: A name made anew for every step would grow without bound; later names share this many ids.
MOST_NAMES = 1000


class Recorder:
    """Buffer between the hot path and the disk.

    Attributes:
        record: appends one record, 0.1 µs, from any thread.
    """

    def __init__(self, writer: RankWriter, beat: Callable[[], object]) -> None:
        """``beat`` is called by the writer thread before each flush; it must not raise."""
        self._writer = writer
        self._beat = beat
        self._buffer: list[Record] = []
        self.record: Callable[[Record], None] = self._buffer.append
        self._names: dict[str, int] = {}
        self._unwritten_names: list[tuple[int, str]] = []
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="profilerkit-writer", daemon=True)

    def start(self) -> None:
        """Start the writer thread."""
        self._thread.start()

    def name_id(self, name: str) -> int:
        """The id of a phase name, from 1."""
        known = self._names.get(name)
        if known is not None:
            return known
        with self._lock:
            if len(self._names) >= MOST_NAMES:
                name = "(more names)"
            number = self._names.setdefault(name, len(self._names) + 1)
            if number == len(self._names):
                self._unwritten_names.append((number, name))
        return number

    def flush(self) -> None:
        """Write what the buffer holds now; names go first, so that no written record has an unknown name."""
        with self._lock:
            records = self._buffer[:]
            del self._buffer[: len(records)]
            names, self._unwritten_names = self._unwritten_names, []
            for number, name in names:
                self._writer.append_name(number, name)
            if records:
                self._writer.append_events(records)

    def stop(self) -> None:
        """Stop the writer thread and write the rest."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)
        self.flush()

    def disarm(self) -> None:
        """Forget the buffer, without taking a lock: a forked child may have copied a held one."""
        self._buffer.clear()

    def _run(self) -> None:
        while not self._done.wait(FLUSH_SECONDS):
            self._beat()


class Phase:
    """A named block of the user's; reusable, not reentrant."""

    __slots__ = ("_in_trace", "_name_id", "_record", "_span", "_start_ns")

    def __init__(
        self,
        record: Callable[[Record], None],
        name_id: int,
        span: Callable[[], AbstractContextManager[object] | None],
    ) -> None:
        """``span`` makes the block's span in the trace that is being recorded, if there is one."""
        self._record = record
        self._name_id = name_id
        self._span = span
        self._in_trace: AbstractContextManager[object] | None = None
        self._start_ns = 0

    def __enter__(self) -> None:
        self._in_trace = self._span()
        if self._in_trace is not None:
            self._in_trace.__enter__()
        self._start_ns = perf_counter_ns()

    def __exit__(self, *_error: object) -> None:
        start_ns = self._start_ns
        self._record((EventKind.PHASE, 0, self._name_id, start_ns, perf_counter_ns() - start_ns, 0))
        in_trace, self._in_trace = self._in_trace, None
        if in_trace is not None:
            in_trace.__exit__(None, None, None)
