"""Paths of shapes in percent of a chart's box, and the axis of steps."""

from collections.abc import Sequence

from profilerkit.report.blocks import Axis, Tick

#: A column of few steps is no wider than one of so many.
LEAST_COLUMNS = 30


def step_axis(indexes: Sequence[int]) -> Axis:
    """The axis of columns, one for each step, with the first and the last by number."""
    wide = 100.0 / max(len(indexes), LEAST_COLUMNS)
    ends = {0: indexes[0], len(indexes) - 1: indexes[-1]}
    return Axis("Step", tuple(Tick((number + 0.4) * wide, f"{index:,}") for number, index in ends.items()))


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
