"""Robust statistics on small samples: quantiles, spread, standard error of a median, slopes."""

import math

import msgspec
import numpy as np

from profilerkit.trace.columns import F64, I64

MAD_TO_SIGMA = 1.4826  #: scales a median absolute deviation to a standard deviation under normality (1 / Φ⁻¹(0.75))
MEDIAN_EFFICIENCY = 1.2533  #: standard error of a median relative to that of a mean, for normal data: sqrt(π / 2)
Z99 = 2.576  #: quantile of the normal distribution for a two-sided 99 % interval (p < 0.01)
#: Pairs of points grow with the square of their number, so more than this many points are put together in blocks.
MOST_POINTS = 200

Numbers = I64 | F64


def median(values: Numbers) -> float:
    """The median; 0.0 for nothing."""
    return float(np.median(values)) if len(values) else 0.0


def quantile(values: Numbers, q: float) -> float:
    """The ``q`` quantile (0 to 1), linear between neighbours; 0.0 for nothing."""
    return float(np.quantile(values, q)) if len(values) else 0.0


def spread(values: Numbers) -> float:
    """Robust standard deviation: scaled median absolute deviation; 0.0 below two values.

    >>> spread(np.array([10, 11, 12, 13, 100]))
    1.4826
    """
    if len(values) < 2:
        return 0.0
    return MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))


def median_error(values: Numbers) -> float | None:
    """Standard error of the median, from the robust spread; ``None`` below two values: one says nothing of it."""
    return MEDIAN_EFFICIENCY * spread(values) / float(np.sqrt(len(values))) if len(values) > 1 else None


class Slope(msgspec.Struct, frozen=True):
    """Change of y per unit of x, and its 99 % interval."""

    value: float
    low: float
    high: float


def ratio_error(part: Numbers, whole: Numbers) -> float | None:
    """Return the relative standard error of ``sum(part) / sum(whole)``; ``None`` for fewer than two, or no part.

    What slows a step slows its neighbours, and what comes every few steps evens out within a block: residuals of the
    ratio are added up in blocks of about the root of their number.

    >>> round(ratio_error(np.array([0, 90] * 8), np.array([10, 100] * 8)), 3)
    0.0
    """
    count, total = len(part), float(np.sum(part))
    if count < 2 or not total:
        return None
    residual = np.asarray(part, dtype=np.float64) - total / float(np.sum(whole)) * np.asarray(whole, dtype=np.float64)
    blocks = np.add.reduceat(residual, np.arange(0, count, math.isqrt(count)))
    return float(np.sqrt(np.square(blocks).sum())) / total


def theil_sen(x: Numbers, y: Numbers) -> Slope | None:
    """The median of the slopes between all pairs of points, with Sen's interval; ``None`` below three points.

    Up to 29 % of the points may lie anywhere. The interval is widened where neighbours deviate alike (Hamed and Rao's
    correction of Kendall's variance, first order): memory and step times wander. Of more than ``MOST_POINTS`` points
    the medians of equal blocks are taken.

    >>> theil_sen(np.arange(8), np.array([1, 3, 5, 7, 900, 11, 13, 15])).value
    2.0
    """
    x, y = _in_blocks(x), _in_blocks(y)
    first, second = np.triu_indices(len(x), k=1)
    run = x[second] - x[first]
    apart = run > 0
    if len(x) < 3 or not apart.any():
        return None
    slopes = np.sort((y[second] - y[first])[apart] / run[apart])
    value, count = float(np.median(slopes)), len(x)
    # The standard deviation of Kendall's S for so many independent points without order.
    sigma = float(np.sqrt(count * (count - 1) * (2 * count + 5) / 18))
    deviation = Z99 * sigma * float(np.sqrt(_variance_ratio(y - value * x)))
    low, high = (len(slopes) - deviation) / 2, (len(slopes) + deviation) / 2
    last = len(slopes) - 1
    return Slope(value, float(slopes[max(int(np.floor(low)) - 1, 0)]), float(slopes[min(int(np.ceil(high)), last)]))


def _in_blocks(values: Numbers) -> F64:
    """The values, or the medians of ``MOST_POINTS`` equal blocks of them."""
    if len(values) <= MOST_POINTS:
        return values.astype(np.float64)
    return np.array([np.median(block) for block in np.array_split(values, MOST_POINTS)])


def _variance_ratio(residuals: F64) -> float:
    """How much more the mean of these residuals varies than that of independent ones, by their lag-1 correlation."""
    centred = residuals - np.median(residuals)
    limit = 3.0 * spread(centred)
    centred = np.clip(centred, -limit, limit)
    power = float((centred**2).sum())
    if power <= 0.0:
        return 1.0
    correlation = min(max(float((centred[1:] * centred[:-1]).sum()) / power, 0.0), 0.99)
    return (1.0 + correlation) / (1.0 - correlation)
