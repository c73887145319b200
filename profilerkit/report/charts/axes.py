"""Scales: where a value lies in percent of an axis, and which values have ticks."""

import math
from collections.abc import Callable, Sequence

import msgspec

from profilerkit.report.blocks import Axis, Tick

_MOST_TICKS = 6
#: Characters that fit below the box of a small phone: of 360 px the box has 276, and 10.5 px type needs 6 for each.
_CHARACTERS = 46
#: Blank characters between two labels.
_APART = 1
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
        return Axis(name, self._ticks(words, _MOST_TICKS))

    def across(self, name: str, words: Callable[[float], str]) -> Axis:
        """The axis below a box: with fewer ticks, but two, where the labels of more have no room beside each other."""
        found = [self._ticks(words, most) for most in range(_MOST_TICKS, 1, -1)]
        scales = [ticks for ticks in found if len(ticks) > 1] or found
        return Axis(name, next((ticks for ticks in scales if _have_room(ticks)), scales[-1]))

    def _ticks(self, words: Callable[[float], str], most: int) -> tuple[Tick, ...]:
        values = self._decades(most) if self.is_log else self._rounds(most)
        return tuple(Tick(self.at(value), words(value)) for value in values)

    def _rounds(self, most: int) -> list[float]:
        size = (self.high - self.low) / (most - 1)
        power = 10.0 ** math.floor(math.log10(size))
        step = next(power * factor for factor in _STEPS if power * factor >= size * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        return [step * number for number in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _decades(self, most: int) -> list[float]:
        first = math.ceil(math.log10(self.low) - 1e-9)
        last = math.floor(math.log10(self.high) + 1e-9)
        every = max(1, -(-(last - first + 1) // most))
        return [10.0**power for power in range(first, last + 1, every)]


def _have_room(ticks: Sequence[Tick]) -> bool:
    """Whether no label below a narrow box touches the next."""
    starts = [tick.at / 100 * _CHARACTERS - tick.before * len(tick.label) for tick in ticks]
    ends = [start + len(tick.label) for start, tick in zip(starts, ticks, strict=True)]
    return all(end + _APART <= start for end, start in zip(ends, starts[1:], strict=False))


def decades(lowest: float, highest: float) -> Scale:
    """A logarithmic scale over whole decades around positive values."""
    low, high = math.floor(math.log10(lowest) - 1e-9), math.ceil(math.log10(highest) + 1e-9)
    return Scale(10.0**low, 10.0 ** max(high, low + 1), is_log=True)


def below(lowest: float, highest: float) -> Scale:
    """A logarithmic scale for positive values with room above the highest for a label; it has two ticks at least."""
    low = 10.0 ** math.floor(math.log10(min(lowest, 0.1 * highest)) - 1e-9)
    return Scale(low, low * (highest / low) ** _ROOM, is_log=True)
