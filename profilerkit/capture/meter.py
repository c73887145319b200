"""Measures what capture itself costs where it costs it: between the user's own calls, with their caches."""

import statistics

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
