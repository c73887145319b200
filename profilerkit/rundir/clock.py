"""From a process's own clock to the time of day and back, by the anchors that it took."""

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from profilerkit.rundir.layout import RankMeta
from profilerkit.rundir.times import TimeNs

#: What NTP may slew a clock by (Linux: 500 ppm); a faster change is a step of the clock.
_FASTEST_DRIFT = 500e-6
#: Steps below this are nobody's concern: hosts' clocks are not set any better.
_SMALLEST_STEP_NS = 1_000_000


class ClockAnchor(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``clock.jsonl``: both clocks at one moment.

    Attributes:
        perf_ns: ``perf_counter_ns``.
        unix_ns: ns since the epoch.
        width_ns: between the two readings of the one clock that lie around that of the other.
    """

    perf_ns: TimeNs
    unix_ns: TimeNs
    width_ns: TimeNs


class Clock(msgspec.Struct, frozen=True):
    """The anchors of one process, at least one, by time.

    Between two anchors the distance of the clocks is interpolated, before the first and after the last it stays.

    >>> clock = Clock((0, 1_000), (50_000, 51_010))  # the time of day gained 10 ns
    >>> clock.unix_ns(500), clock.perf_ns(50_505), clock.unix_ns(3_000)
    (50505, 500, 53010)
    """

    perf: tuple[int, ...]
    unix: tuple[int, ...]
    error_ns: int = 0

    def unix_ns(self, perf_ns: int) -> int:
        """Ns since the epoch at ``perf_ns``."""
        return perf_ns + self._distance(perf_ns, self.perf)

    def perf_ns(self, unix_ns: int) -> int:
        """``perf_counter_ns`` at ``unix_ns``."""
        return unix_ns - self._distance(unix_ns, self.unix)

    def steps_ns(self) -> tuple[int, ...]:
        """By how much the time of day was set, each time; empty where it ran on."""
        distance = [unix - perf for perf, unix in zip(self.perf, self.unix, strict=True)]
        found = []
        for index in range(1, len(distance)):
            change = distance[index] - distance[index - 1]
            slewed = _FASTEST_DRIFT * (self.perf[index] - self.perf[index - 1])
            if abs(change) > slewed + _SMALLEST_STEP_NS + 2 * self.error_ns:
                found.append(change)
        return tuple(found)

    def _distance(self, at_ns: int, known: tuple[int, ...]) -> int:
        """Unix less perf time at ``at_ns`` of the clock whose readings are ``known``."""
        after = bisect_right(known, at_ns)
        if after in (0, len(known)):
            index = min(after, len(known) - 1)
            return self.unix[index] - self.perf[index]
        before = after - 1
        first, last = (self.unix[index] - self.perf[index] for index in (before, after))
        span = known[after] - known[before]
        return first + (last - first) * (at_ns - known[before]) // span


def clock_of(anchors: Sequence[ClockAnchor], meta: RankMeta | None) -> Clock | None:
    """The clock of a rank: by its anchors, else by the one in its meta; ``None`` without any.

    Anchors at which a clock goes back are left out: the time of day was set back there.
    """
    kept: list[ClockAnchor] = []
    for anchor in anchors:
        if not kept or (anchor.perf_ns > kept[-1].perf_ns and anchor.unix_ns > kept[-1].unix_ns):
            kept.append(anchor)
    if kept:
        return Clock(
            tuple(anchor.perf_ns for anchor in kept),
            tuple(anchor.unix_ns for anchor in kept),
            max(anchor.width_ns for anchor in kept) // 2,
        )
    return None if meta is None else Clock((meta.anchor_perf_ns,), (meta.anchor_unix_ns,))
