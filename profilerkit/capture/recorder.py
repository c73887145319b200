"""Takes event records from the training thread and has a thread of its own write them."""

import threading
from collections import deque
from collections.abc import Callable

from profilerkit.rundir.layout import EVENTS
from profilerkit.rundir.writer import RankWriter, Record

#: A name made anew for every step would grow without bound; later names share this many ids.
MOST_NAMES = 1000
#: Records that are kept, 40 MB of them, while a disk does not answer: 40 s of steps of 1 ms.
MOST_RECORDS = 200_000
_JOIN_SECONDS = 5.0


class Recorder:
    """Buffer between the hot path and the disk.

    Attributes:
        record: appends one record, 0.1 µs, from any thread.
        period_seconds: time between beats.
    """

    def __init__(self, writer: RankWriter, beat: Callable[[], object], period_seconds: float) -> None:
        """``beat`` is called by the writer thread before each flush; it must not raise."""
        self.period_seconds = period_seconds
        self._writer = writer
        self._beat = beat
        self._buffer: deque[Record] = deque(maxlen=MOST_RECORDS)
        self.record: Callable[[Record], None] = self._buffer.append
        self._names: dict[str, int] = {}
        self._unwritten_names: list[tuple[int, str]] = []
        self._lock = threading.RLock()  # a finalizer of the user's may name a phase while another is named
        self._writing = threading.Lock()  # not held where training needs it: a disk may hang
        self._late: Callable[[], object] | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="profilerkit-writer", daemon=True)

    def start(self) -> None:
        """Start the writer thread."""
        self._thread.start()

    def name_id(self, name: str) -> int:
        """The id of a phase name, from 1."""
        name = name.encode(errors="replace").decode()  # a lone surrogate cannot be written
        known = self._names.get(name)
        if known is not None:
            return known
        with self._lock:
            if len(self._names) >= MOST_NAMES:
                name = "(more names)"
            if name not in self._names:
                self._names[name] = len(self._names) + 1
                self._unwritten_names.append((self._names[name], name))
            return self._names[name]

    def flush(self) -> None:
        """Write what the buffer holds now; names go first, so that no written record has an unknown name."""
        with self._writing:
            overflows = len(self._buffer) == MOST_RECORDS
            records = [self._buffer.popleft() for _ in range(len(self._buffer))]
            with self._lock:
                names, self._unwritten_names = self._unwritten_names, []
            for number, name in names:
                self._writer.append_name(number, name)
            if records:
                self._writer.append_events(records)
            if overflows:
                self._writer.stop(
                    EVENTS, OSError("the disk did not respond for a long time, and the oldest records are lost")
                )

    def end(self) -> None:
        """Let the writer thread end; waits for nothing."""
        self._done.set()

    def stop(self, late: Callable[[], object]) -> bool:
        """Wait for the writer thread's end and write the rest; whether the disk answers within five seconds.

        Where it does not, the writer thread calls ``late`` once all is written, if the disk ever answers.
        """
        self.end()
        if self._thread.is_alive():
            self._thread.join(timeout=_JOIN_SECONDS)
        if self._thread.is_alive():
            self._late = late
            return False
        self.flush()
        return True

    def disarm(self) -> None:
        """Forget the buffer, without taking a lock: a forked child may have copied a held one."""
        self._buffer.clear()

    def _run(self) -> None:
        while not self._done.wait(self.period_seconds):
            self._beat()
        self.flush()
        if self._late is not None:
            self._late()
