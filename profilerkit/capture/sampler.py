"""Takes a sample per second on a thread of its own."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from profilerkit.capture.guard import Guard
from profilerkit.rundir.layout import SAMPLE_SECONDS
from profilerkit.rundir.sampled import Sample

_JOIN_SECONDS = 2.0


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
    """Reads a source at the start, every second, and at the end.

    Attributes:
        reason: why it is off; empty while it is on.
        period_seconds: time between samples.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        write: Callable[[Sample], None],
        pause: Callable[[float], float] = float,
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
        self._thread.join(timeout=_JOIN_SECONDS)

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
