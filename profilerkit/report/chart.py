"""A picture's axes, marks and colours, as records that any output can draw."""

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Literal

import msgspec

from profilerkit.model.step import Family
from profilerkit.report.blocks import Axis, Label, Tick

LEAST_COLUMNS = 30  #: a column of few steps is no wider than one of so many


def step_axis(indexes: Sequence[int]) -> Axis:
    """The axis of columns, one for each step, with the first and the last by number: in one label if they are close."""
    wide = 100.0 / max(len(indexes), LEAST_COLUMNS)
    ends = {0: indexes[0], len(indexes) - 1: indexes[-1]}
    ticks = tuple(Tick((number + 0.4) * wide, f"{index:,}") for number, index in ends.items())
    if not _have_room(ticks):
        middle = (ticks[0].at + ticks[-1].at) / 2
        ticks = (Tick(middle, f"{ticks[0].label} to {ticks[-1].label}"),)
    return Axis("Step", ticks)


def rectangle(left: float, top: float, right: float, bottom: float) -> str:
    """Path of a rectangle, in percent.

    >>> rectangle(0, 10, 25.5, 100)
    'M0 10H25.5V100H0z'
    """
    return f"M{_short(left)} {_short(top)}H{_short(right)}V{_short(bottom)}H{_short(left)}z"


def point(x: float, y: float) -> str:
    """Path of a point, in percent."""
    return f"M{_short(x)} {_short(y)}h0"


def polyline(points: list[tuple[float, float]]) -> str:
    """Path through the points, in percent; empty without any."""
    if not points:
        return ""
    return "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points)


def _short(value: float) -> str:
    """Two decimals are a tenth of a pixel on the widest page."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


_MOST_TICKS = 6
#: Characters that fit below the box of a small phone: of 360 px the box has 276, and 10.5 px type needs 6 for each.
_CHARACTERS = 46
#: Blank characters between two labels.
_APART = 1
_STEPS = (1.0, 2.0, 5.0, 10.0)
_ROOM = 1.1  #: length of an axis whose highest value needs a label above it, for a length of 1 up to that value


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


NUMBERED = 5  #: points that have a number, so that a legend can name them
_CHARACTER, _LINE = 2.2, 7.0  #: of a character and of a line in percent of the box, on a page of 360 pixels


class _Number(msgspec.Struct, frozen=True):
    """The numbers of points that lie together, above the uppermost of these."""

    x: float
    y: float
    text: str

    @property
    def leftwards(self) -> bool:
        """Whether there is no room at its right."""
        return self.x + _CHARACTER * len(self.text) > 100.0

    @property
    def middle(self) -> float:
        """Of the text, in percent from the left."""
        return self.x + (-0.5 if self.leftwards else 0.5) * _CHARACTER * (len(self.text) + 1)

    def covers(self, other: "_Number") -> bool:
        """Whether the points, or the texts, would lie one over the other."""
        wide = 0.5 * _CHARACTER * (len(self.text) + len(other.text))
        near = abs(self.x - other.x) < _CHARACTER or abs(self.middle - other.middle) < wide
        return near and abs(self.y - other.y) < _LINE


def numbers_of(points: Sequence[tuple[float, float]]) -> tuple[Label, ...]:
    """Labels ``1`` to ``5`` of the first points, which are given in percent, y downwards.

    >>> [label.text for label in numbers_of([(10, 10), (50, 50), (11, 12)])]
    ['1, 3', '2']
    """
    found = [_Number(x, y, str(number)) for number, (x, y) in enumerate(points[:NUMBERED], start=1)]
    while pair := next((pair for pair in combinations(found, 2) if pair[0].covers(pair[1])), None):
        first, second = pair
        numbers = sorted([*first.text.split(", "), *second.text.split(", ")])
        upper = min(pair, key=lambda own: own.y)
        joined = _Number(upper.x, upper.y, ", ".join(numbers))
        found = [joined if own is first else own for own in found if own is not second]
    return tuple(Label(own.x, own.y, own.text, "left" if own.leftwards else "right") for own in found)


_LANE_PX, _WORDS_PX = 76, 24  #: height of one, and of the words above it


class Lane(msgspec.Struct, frozen=True):
    """One of the figures; ``top`` and ``bottom`` are percent from the upper end of the box."""

    top: float
    bottom: float

    def y(self, percent: float) -> float:
        """Percent from the upper end of the box, of a value that lies at ``percent`` of the lane's own scale.

        >>> Lane(20.0, 60.0).y(25.0)
        50.0
        """
        return self.bottom - (self.bottom - self.top) * percent / 100.0

    def tick(self, percent: float, label: str) -> Tick:
        """A tick of the box's y axis at a value of this lane's scale."""
        return Tick(100.0 - self.y(percent), label)

    def words(self, text: str) -> Label:
        """Text above the lane."""
        return Label(0.0, self.top, text)

    def bar(self, left: float, right: float, percent: float) -> str:
        """Path of a bar that stands on the lane's lower end."""
        return rectangle(left, self.y(percent), right, self.bottom)


def lanes(count: int) -> tuple[Lane, ...]:
    """So many lanes, first on top; the lowest stands on the axis.

    >>> [round(lane.bottom) for lane in lanes(4)]
    [25, 50, 75, 100]
    """
    return tuple(
        Lane(100.0 * (number * _LANE_PX + _WORDS_PX) / height_px(count), 100.0 * (number + 1) / count)
        for number in range(count)
    )


def height_px(count: int) -> int:
    """Of a box with so many lanes."""
    return count * _LANE_PX


# The twelve fills were searched so that the two closest of a page stay CIE76 ΔE 20 apart for normal vision and after
# Machado 2009 simulation of protanopia, deuteranopia and tritanopia, with at least 3:1 against the page.

Scheme = Literal["light", "dark"]

FILLS: dict[Scheme, dict[Family, str]] = {
    "light": {
        "compute": "#466075",
        "memory": "#0E895C",
        "communication": "#833B1D",
        "input": "#C07333",
        "overhead": "#B405D4",
        "other": "#8B95A3",
    },
    "dark": {
        "compute": "#4881B4",
        "memory": "#16F3FF",
        "communication": "#FD956D",
        "input": "#E0C031",
        "overhead": "#EC29FF",
        "other": "#9C9EA0",
    },
}

#: Page, text, muted text, hairline, raised surface, link, and the four tones of a verdict or finding.
INKS: dict[Scheme, dict[str, str]] = {
    "light": {
        "page": "#FFFFFF",
        "text": "#182230",
        "muted": "#4A5769",
        "rule": "#D9DEE5",
        "raised": "#F5F7F9",
        "link": "#0B57C2",
        "high": "#A4161A",
        "medium": "#7A4E00",
        "low": "#0B57C2",
        "good": "#0B6B45",
        "info": "#4A5769",
    },
    "dark": {
        "page": "#15181D",
        "text": "#E8ECF1",
        "muted": "#A9B4C2",
        "rule": "#343B45",
        "raised": "#1D2229",
        "link": "#8AB8FF",
        "high": "#FF8A80",
        "medium": "#F2B84B",
        "low": "#8AB8FF",
        "good": "#6FD3A3",
        "info": "#A9B4C2",
    },
}

_LABELS = ("#FFFFFF", "#000000")


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2) of ``#RRGGBB``, 0 to 1."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio (WCAG 2) of two colours, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def label_on(fill: str) -> str:
    """The label colour with the higher contrast on ``fill``."""
    return max(_LABELS, key=lambda label: contrast(label, fill))


def css_variables(scheme: Scheme) -> str:
    """The scheme as CSS custom properties, for example ``--input:#C07333;--on-input:#000000``."""
    pairs = [f"--{name}:{colour}" for name, colour in INKS[scheme].items()]
    for family, fill in FILLS[scheme].items():
        pairs += [f"--{family}:{fill}", f"--on-{family}:{label_on(fill)}"]
    return ";".join(pairs)
