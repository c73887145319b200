"""Numbers beside the first points of a figure: short enough for a narrow page, and joined where points lie together."""

from collections.abc import Sequence

from profilerkit.report.charts.chart import Label

#: Points that have a number, so that a legend can name them.
NUMBERED = 5
#: Nearer points, in percent of the box, would have their numbers on top of each other on a narrow page.
_BESIDE, _ABOVE = 5.0, 8.0
#: From here on a label ends at its point instead of beginning there.
_RIGHT_SIDE = 80.0


def numbers_of(points: Sequence[tuple[float, float]]) -> tuple[Label, ...]:
    """Labels ``1`` to ``5`` of the first points, which are given in percent, y downwards.

    >>> [label.text for label in numbers_of([(10, 10), (50, 50), (11, 12)])]
    ['1, 3', '2']
    """
    places: list[tuple[float, float, list[str]]] = []
    for number, (x, y) in enumerate(points[:NUMBERED], start=1):
        near = next((own for left, top, own in places if abs(left - x) < _BESIDE and abs(top - y) < _ABOVE), None)
        if near is None:
            places.append((x, y, [str(number)]))
        else:
            near.append(str(number))
    return tuple(Label(x, y, ", ".join(own), leftwards=x > _RIGHT_SIDE) for x, y, own in places)
