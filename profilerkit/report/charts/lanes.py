"""Figures under one another on one x axis: where each lies in the box, with room for its words above it."""

import msgspec

from profilerkit.report.blocks import Label, Tick
from profilerkit.report.charts.chart import rectangle

#: Height of one, and of the words above it.
_LANE_PX, _WORDS_PX = 76, 24


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
