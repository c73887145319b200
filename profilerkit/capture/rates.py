"""How fast a counter grows between two readings."""

#: Counters of processor time step by a hundredth of a second: over less than ten steps a rate is noise. The last
#: sample of a run may follow the one before at once.
_SHORTEST_NS = 100_000_000


class Growth:
    """A counter that only grows; after a wrap or a reset it starts anew."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._at_ns = 0

    def per_s(self, total: int | None, now_ns: int) -> float | None:
        """Growth per second since the reading before; ``None`` for the first, too early or smaller a ``total``.

        >>> counter = Growth()
        >>> [counter.per_s(total, second * 10**9) for second, total in ((1, 100), (2, 350), (4, 350), (5, 20), (6, 30))]
        [None, 250.0, 0.0, None, 10.0]
        """
        last, passed_ns = self._total, now_ns - self._at_ns
        if total is not None and last is not None and passed_ns < _SHORTEST_NS:
            return None
        self._total, self._at_ns = total, now_ns
        if total is None or last is None or total < last:
            return None
        return (total - last) * 1e9 / passed_ns

    def ratio(self, total_ns: int | None, now_ns: int) -> float | None:
        """Share of the time since the reading before by which a counter of nanoseconds grew, 0 to 1."""
        grown = self.per_s(total_ns, now_ns)
        return None if grown is None else rounded(min(1.0, grown / 1e9))


def rounded(value: float) -> float:
    """``value`` to a ten-thousandth: more digits would be noise on the disk."""
    return round(value, 4)


def whole(value: float | None) -> int | None:
    """``value`` as a whole number; a rate in bytes needs no fraction."""
    return None if value is None else round(value)
