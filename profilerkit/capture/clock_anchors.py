"""Reads both clocks at once, at the start, every minute and at the end, so that hosts and tools can be compared."""

from collections.abc import Callable
from time import perf_counter_ns, time_ns

from profilerkit.capture.patches import Patches
from profilerkit.rundir.process import ClockAnchor

#: The tightest of so many tries is taken: between two readings the process may lose its core.
_TRIES = 5
#: The clocks drift apart by some ppm; a minute of that is below what a bracket is wide on a busy host.
_PERIOD_NS = 60 * 1_000_000_000


def take_anchor() -> ClockAnchor:
    """Both clocks at one moment."""
    best: ClockAnchor | None = None
    for _ in range(_TRIES):
        before_ns = perf_counter_ns()
        unix_ns = time_ns()
        width_ns = perf_counter_ns() - before_ns
        if best is None or width_ns < best.width_ns:
            best = ClockAnchor(perf_ns=before_ns + width_ns // 2, unix_ns=unix_ns, width_ns=width_ns)
    assert best is not None
    return best


class ClockWatch:
    """Appends an anchor at the start, every minute and at the end."""

    name = "clock"
    needs: tuple[str, ...] = ()

    def __init__(self, write: Callable[[ClockAnchor], None]) -> None:
        self._write = write
        self._next_ns = 0

    def hang(self, _patches: Patches) -> None:
        """Take the first anchor."""
        self._take()

    def beat(self) -> None:
        """Take an anchor when it is due."""
        if perf_counter_ns() >= self._next_ns:
            self._take()

    def close(self) -> None:
        """Take the last anchor."""
        self._take()

    def reason(self) -> str:
        """There are always clocks."""
        return ""

    def _take(self) -> None:
        anchor = take_anchor()
        self._next_ns = anchor.perf_ns + _PERIOD_NS
        self._write(anchor)
