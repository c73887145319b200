"""Scales: where a value lies in percent of an axis, and which values have ticks."""

import math
from collections.abc import Callable

import msgspec

from profilerkit.report.charts.chart import Axis, Tick

_MOST_TICKS = 6
_STEPS = (1.0, 2.0, 5.0, 10.0)
#: Length of an axis whose highest value needs a label above it, for a length of 1 up to that value.
_ROOM = 1.1


class Scale(msgspec.Struct, frozen=True):
    """From ``low`` to ``high``, linear or logarithmic; ``high`` is larger, and a logarithmic ``low`` is positive."""

    low: float
    high: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Percent of the axis, 0 to 100: values beyond the ends lie on them.

        >>> Scale(0, 50).at(10), Scale(1, 100, is_log=True).at(10)
        (20.0, 50.0)
        """
        if self.is_log:
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return 100.0 * min(1.0, max(0.0, share))

    def axis(self, name: str, words: Callable[[float], str]) -> Axis:
        """The axis with ticks at round values; ``words`` says a value with its unit."""
        values = self._decades() if self.is_log else self._rounds()
        return Axis(name, tuple(Tick(self.at(value), words(value)) for value in values))

    def _rounds(self) -> list[float]:
        size = (self.high - self.low) / (_MOST_TICKS - 1)
        power = 10.0 ** math.floor(math.log10(size))
        step = next(power * factor for factor in _STEPS if power * factor >= size * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        return [step * number for number in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _decades(self) -> list[float]:
        first = math.ceil(math.log10(self.low) - 1e-9)
        last = math.floor(math.log10(self.high) + 1e-9)
        every = max(1, -(-(last - first + 1) // _MOST_TICKS))
        return [10.0**power for power in range(first, last + 1, every)]


def decades(lowest: float, highest: float) -> Scale:
    """A logarithmic scale over whole decades around positive values."""
    low, high = math.floor(math.log10(lowest) - 1e-9), math.ceil(math.log10(highest) + 1e-9)
    return Scale(10.0**low, 10.0 ** max(high, low + 1), is_log=True)


def below(lowest: float, highest: float) -> Scale:
    """A logarithmic scale for positive values with room above the highest for a label; it has two ticks at least."""
    low = 10.0 ** math.floor(math.log10(min(lowest, 0.1 * highest)) - 1e-9)
    return Scale(low, low * (highest / low) ** _ROOM, is_log=True)
