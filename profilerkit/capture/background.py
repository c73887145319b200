"""Takes event records from the training thread and has a thread of its own write them."""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from profilerkit.capture.guard import Guard
from profilerkit.rundir.layout import EVENTS, SAMPLE_SECONDS
from profilerkit.rundir.sampled import Sample
from profilerkit.rundir.writer import RankWriter, Record

MOST_NAMES = 1000  #: a name made anew for every step would grow without bound; later names share this many ids
#: Records that are kept, 40 MB of them, while a disk does not answer: 40 s of steps of 1 ms.
MOST_RECORDS = 200_000
_JOIN_SECONDS = 5.0


class Recorder:
    """Buffer between the hot path and the disk; ``record`` appends one record, 0.1 µs, from any thread."""

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
            self._writer.append_events(records)  # of none, too: what waits is tried again
            if overflows:
                self._writer.stop(
                    EVENTS, OSError("the disk did not respond for a long time, and the oldest records are lost")
                )

    def end(self) -> None:
        """Let the writer thread end; waits for nothing."""
        self._done.set()

    def stop(self, late: Callable[[], object]) -> bool:
        """Wait for the writer thread's end and write the rest; whether the disk answers within five seconds.

        Where it does not, the writer thread calls ``late`` once all is written.
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


_SAMPLER_JOIN_SECONDS = 2.0


class Source(Protocol):
    """Something that can be read once per second."""

    def open(self) -> str:
        """Get ready; the reason when there is nothing to read, else an empty string."""

    def read(self) -> Sample | None:
        """One sample; ``None`` when there is nothing to say yet."""

    def missing(self) -> str:
        """Why there was nothing to read, or nothing more after some samples; empty otherwise."""

    def close(self) -> None:
        """Give back what ``open`` took."""


class Sampler:
    """Reads a source at the start, every second, and at the end; ``reason`` is why it is off, empty while it is on."""

    def __init__(
        self, name: str, source: Source, write: Callable[[Sample], None], pause: Callable[[float], float] = float
    ) -> None:
        """``pause`` says how long to wait for the next sample, s, given ``period_seconds``."""
        self.reason = ""
        self.period_seconds = SAMPLE_SECONDS
        self._pause = pause
        self._guard = Guard(f"profilerkit's {name} sampler")
        self._source = source
        self._write = write
        self._done = threading.Lock()  # and no event, whose wait costs three times as much
        self._done.acquire()
        self._thread = threading.Thread(target=self._guarded, name=f"profilerkit-{name}", daemon=True)

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def end(self) -> None:
        """Take a last sample and end; waits for nothing."""
        with suppress(RuntimeError):  # it was called before
            self._done.release()

    def stop(self) -> None:
        """``end``, and wait for it; a source that hangs is left behind."""
        self.end()
        self._thread.join(timeout=_SAMPLER_JOIN_SECONDS)

    def _guarded(self) -> None:
        self._guard.call(self._run)
        self.reason = self._guard.failure or self.reason

    def _run(self) -> None:
        self.reason = self._source.open()
        if self.reason:
            return
        try:
            self._sample()
            while not self._done.acquire(timeout=self._pause(self.period_seconds)):
                self._sample()
            self._sample()
            self.reason = self._source.missing()
        finally:
            self._source.close()

    def _sample(self) -> None:
        sample = self._source.read()
        if sample is not None:
            self._write(sample)
