"""Whether something keeps growing from step to step, or only filled up and stayed."""

from itertools import pairwise

import msgspec

from profilerkit.analysis.stats import Numbers, Slope, median, theil_sen

#: With fewer points even a strictly rising series is no proof at 1 % on both sides.
FEWEST_POINTS = 8
#: Growth is persistent when the last third gains at least this ratio of what the third before it gained: a cache that
#: fills up gains less and less. 0.5 rejects an exponential approach faster than half of the window.
KEPT_GAIN = 0.5
#: And when the middle third gains at least this ratio of the last: a single jump is an event, not growth.
EARLY_GAIN = 0.25


class Growth(msgspec.Struct, frozen=True):
    """A robust slope, the number of points it rests on, and whether it is significant and persistent."""

    slope: Slope
    n: int
    grows: bool


def growth(x: Numbers, y: Numbers) -> Growth | None:
    """How fast ``y`` grows along ``x`` (ascending); ``None`` below ``FEWEST_POINTS`` points.

    >>> import numpy as np
    >>> growth(np.arange(12), 100 + 5 * np.arange(12)).grows
    True
    >>> growth(np.arange(12), np.minimum(100 + 50 * np.arange(12), 300)).grows
    False
    """
    slope = theil_sen(x, y) if len(x) >= FEWEST_POINTS else None
    if slope is None:
        return None
    return Growth(slope, len(x), slope.low > 0 and _persists(y))


def _persists(y: Numbers) -> bool:
    cuts = [len(y) * third // 3 for third in range(4)]
    first, middle, last = (median(y[low:high]) for low, high in pairwise(cuts))
    early, late = middle - first, last - middle
    return min(early, late) > 0 and late >= KEPT_GAIN * early and early >= EARLY_GAIN * late
