"""Numbers beside the first points of a figure: short enough for a narrow page, and joined where points lie together."""

from collections.abc import Sequence
from itertools import combinations

import msgspec

from profilerkit.report.blocks import Label

#: Points that have a number, so that a legend can name them.
NUMBERED = 5
#: Of a character and of a line in percent of the box, on a page of 360 pixels.
_CHARACTER, _LINE = 2.2, 7.0


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
