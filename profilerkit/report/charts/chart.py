"""One figure: shapes in percent of a box that the page may stretch, and everything that is text as text."""

from typing import Literal

import msgspec

from profilerkit.report.records import Table

Form = Literal["area", "line", "dash", "point"]


#: From this percent on the label of a tick would leave the page, if it stood in the middle below it.
_END = 92.0


class Tick(msgspec.Struct, frozen=True):
    """A value on an axis; ``at`` is percent from its left or lower end."""

    at: float
    label: str

    @property
    def before(self) -> float:
        """How much of a label below the box stands before its tick, as a ratio of its length."""
        return 0.85 if self.at > _END else 0.5


class Axis(msgspec.Struct, frozen=True):
    """What an axis shows, with its unit, and its ticks."""

    name: str
    ticks: tuple[Tick, ...]


class Shape(msgspec.Struct, frozen=True):
    """Areas, lines or points of one colour.

    Attributes:
        colour: a family of parts, ``mark`` for the colour of text, ``rule`` for that of hairlines, or ``unknown`` for
            an outline without a fill; with `` pale`` or `` faint`` behind it, a lighter shade.
        form: how the path is drawn; points have a size of their own, whatever the box becomes.
        path: SVG path data in a box of 100 × 100 with y downwards. A point is ``Mx yh0``.
        title: what it is, for those who hover or listen; may be empty.
    """

    colour: str
    form: Form
    path: str
    title: str = ""


class Label(msgspec.Struct, frozen=True):
    """Text at a place of the box, in percent from its left and upper end; it stands above that place.

    It begins there (``right``), or ends there (``left``), as text near the right end must; or it stays ``within`` the
    box: right of its place at the left end, left of it at the right end.
    """

    x: float
    y: float
    text: str
    side: Literal["right", "left", "within"] = "right"


class Chart(msgspec.Struct, frozen=True):
    """One figure with its twin.

    Attributes:
        anchor: its name for links.
        title: its finding in words, with the numbers.
        caption: how many, of which rank and steps, and how each number was got.
        height_px: of the box.
        shapes: drawn in this order.
        x: the axis below.
        y: the axis at the left; the name stands above the box.
        legend: colour and name of what is shown, at most seven; empty where direct labels say it. ``blank`` is the
            colour of the page.
        labels: direct labels.
        table: the same numbers as a table.
    """

    anchor: str
    title: str
    caption: str
    height_px: int
    shapes: tuple[Shape, ...]
    x: Axis
    y: Axis
    legend: tuple[tuple[str, str], ...]
    labels: tuple[Label, ...]
    table: Table


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
