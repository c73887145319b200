"""Sees steps that are far slower than the others, and when they will come again."""

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from profilerkit.capture.observers import NEVER

#: Steps of which the median is taken.
_KEPT = 64
#: The median is taken anew after so many steps: sorting 64 numbers costs 2 µs, so 0.1 µs per step.
_ANEW = 16
#: Before so many steps nothing is said to be slow.
_FEWEST = 20
#: A step is slow above this multiple of the median.
SLOW_RATIO = 3
#: Slow steps after which their distances tell a period: one distance may be chance.
_TO_PREDICT = 3
#: Distances that differ by no more than this have a period; the window is longer by as much.
_MOST_SPREAD = 8
#: Slow steps without a period are worth a window if so many steps, the longest such window, are likely to hold one.
LONGEST_STEPS = 20
#: Steps traced before and after the one that is expected to be slow.
_AROUND = 2


@dataclass(frozen=True, slots=True)
class Expected:
    """Where slow steps are expected: the first step to trace, at most how many, how often they come, also in words."""

    first_step: int
    steps: int
    period: int
    why: str


class StepTimes:
    """The times of the last steps.

    Attributes:
        median_ns: of those; 0 until there are enough.
        limit_ns: a longer step is slow, by the last median.
        to_go: steps until the median is taken anew.
    """

    __slots__ = ("_ring", "limit_ns", "median_ns", "to_go")

    def __init__(self) -> None:
        self._ring: deque[int] = deque(maxlen=_KEPT)
        self.to_go = _FEWEST
        self.limit_ns = NEVER
        self.median_ns = 0

    def add(self, dur_ns: int, steps: int = 1) -> bool:
        """Take the time of so many steps, 0.2 µs; return whether one of them is slow."""
        self._ring.append(dur_ns // steps)
        self.to_go -= 1
        if not self.to_go:
            self._take_median()
        return self.slowest_ns(dur_ns, steps) > self.limit_ns

    def is_slow(self, dur_ns: int, steps: int = 1) -> bool:
        """Return whether one of so many steps is slow, which took this long together."""
        return self.slowest_ns(dur_ns, steps) > self.limit_ns

    def slowest_ns(self, dur_ns: int, steps: int) -> int:
        """Return what the slowest of so many steps took, which took this long together, if the others were usual.

        >>> times = StepTimes()
        >>> for _ in range(20): _ = times.add(10)
        >>> times.slowest_ns(150, 8)
        80
        """
        return dur_ns - (steps - 1) * self.median_ns

    def last(self, count: int) -> list[int]:
        """The last steps, fewer at the beginning."""
        return list(self._ring)[-count:]

    def _take_median(self) -> None:
        self.median_ns = sorted(self._ring)[len(self._ring) // 2]
        self.limit_ns = SLOW_RATIO * self.median_ns
        self.to_go = _ANEW


class Recurrence:
    """The slow steps so far, and where the next one is expected."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._last = -2

    def add(self, number: int, steps: int = 1) -> None:
        """Step ``number``, or one of the steps up to it, was slow; neighbours count once."""
        if number - steps > self._last:
            self._starts = [*self._starts[-_TO_PREDICT:], number]
        self._last = number

    def expected(self, earliest: int) -> Expected | None:
        """Where a slow step is expected, to be traced from ``earliest`` on at the earliest; ``None`` if nobody knows.

        >>> seen = Recurrence()
        >>> for step in (100, 200, 300): seen.add(step)
        >>> seen.expected(earliest=302)
        Expected(first_step=398, steps=5, period=100, why='every 100 steps')
        """
        starts = self._starts
        if len(starts) < _TO_PREDICT:
            return None
        gaps = [after - before for before, after in pairwise(starts)]
        period, spread = min(gaps), max(gaps) - min(gaps)
        if spread <= min(_MOST_SPREAD, period // 4):
            first = starts[-1] + period - _AROUND
            first += -(-max(0, earliest - first) // period) * period
            return Expected(first, spread + 2 * _AROUND + 1, period, f"every {period} steps")
        usual = sorted(gaps)[len(gaps) // 2]
        if len(starts) > _TO_PREDICT and usual <= LONGEST_STEPS:
            return Expected(earliest, LONGEST_STEPS, usual, f"about every {usual} steps")
        return None
