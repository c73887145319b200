"""The mean and the median of steps that are not independent, and their errors: the circular block bootstrap."""

import math
import random
from collections.abc import Sequence
from itertools import accumulate, chain
from statistics import median, stdev

import msgspec

#: Resamples of each run: the 1 % points of an interval vary by a twentieth of its width with so many (a choice).
RESAMPLES = 2_000
#: Of medians, which take longer: the standard error varies by 3 % with so many (a choice).
MEDIAN_RESAMPLES = 500
#: Two-sided 99 %: one comparison in a hundred of equal runs may say otherwise where the assumptions hold.
Z99 = 2.576
#: Blocks last at least this long, so that a disturbance of a second lies within one (a choice).
BLOCK_NS = 1_000_000_000
#: A run is cut into at least so many blocks, or its mean would be resampled from too few.
FEWEST_BLOCKS = 10


class Resampled(msgspec.Struct, frozen=True):
    """The mean or median of a run's steady steps, its standard error by the block bootstrap, and its blocks."""

    centre_ns: float
    error_ns: float
    blocks: float


def resampled_mean(times_ns: Sequence[int], *, steps: int = 1, seed: int = 0) -> Resampled:
    """Mean and standard error of steps in their order; at least two of them.

    Each time may be that of several consecutive ``steps``: the mean and its error are always of one.

    >>> resampled_mean([100, 102, 98, 100] * 20).centre_ns, resampled_mean([202, 198] * 20, steps=2).centre_ns
    (100.0, 100.0)
    """
    count = len(times_ns)
    mean_ns = sum(times_ns) / (count * steps)
    length = max(block_length(count * steps, mean_ns) // steps, 1)
    sums = list(accumulate([*times_ns, *times_ns[:length]], initial=0))
    blocks = [sums[start + length] - sums[start] for start in range(count)]
    rng = random.Random(seed)  # noqa: S311 - nothing secret; the same runs give the same interval
    taken = max(round(count / length), 1)
    means = [sum(rng.choices(blocks, k=taken)) / (taken * length * steps) for _ in range(RESAMPLES)]
    centre = sum(means) / RESAMPLES
    error_ns = math.sqrt(sum((value - centre) ** 2 for value in means) / (RESAMPLES - 1))
    return Resampled(mean_ns, _corrected(error_ns, taken), count / length)


def resampled_median(times_ns: Sequence[int], *, steps: int = 1, seed: int = 0) -> Resampled:
    """Return the median and its standard error; blocks and arguments are those of ``resampled_mean``.

    Of several ``steps`` together it is the median of their means.

    >>> found = resampled_median([100, 102, 98, 100, 900] * 20)
    >>> found.centre_ns, found.error_ns < 2
    (100.0, True)
    """
    count = len(times_ns)
    length = max(block_length(count * steps, sum(times_ns) / (count * steps)) // steps, 1)
    circle = [*times_ns, *times_ns[:length]]
    blocks = [circle[start : start + length] for start in range(count)]
    rng = random.Random(seed)  # noqa: S311 - nothing secret; the same runs give the same interval
    taken = max(round(count / length), 1)
    medians = [median(chain.from_iterable(rng.choices(blocks, k=taken))) / steps for _ in range(MEDIAN_RESAMPLES)]
    return Resampled(median(times_ns) / steps, _corrected(stdev(medians), taken), count / length)


def _corrected(error_ns: float, taken: int) -> float:
    """The spread of a few blocks around their own centre is smaller than around the true one."""
    return error_ns * math.sqrt(taken / (taken - 1)) if taken > 1 else error_ns


def block_length(count: int, mean_ns: float) -> int:
    """Steps in a block: as many as fill a second, at least the square root of their number.

    >>> block_length(240, 30e6), block_length(240, 1e6), block_length(10, 1e9)
    (24, 24, 1)
    """
    wanted = max(math.isqrt(count), math.ceil(BLOCK_NS / mean_ns) if mean_ns > 0 else 1)
    return max(min(wanted, count // FEWEST_BLOCKS), 1)


def t99(degrees: float) -> float:
    """The 99.5 % point of Student's t, within 0.003 of the tables: tabulated for up to 4 whole degrees.

    Above by the Cornish–Fisher expansion around the normal point, to its fourth term (Abramowitz and Stegun 26.7.5).

    >>> round(t99(2.9), 2), round(t99(6), 2), round(t99(30), 2), round(t99(1e9), 2)
    (9.93, 3.71, 2.75, 2.58)
    """
    if degrees < 5:
        return _T99[max(int(degrees), 1)]
    z, n = Z99, degrees
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    g4 = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160
    return z + g1 / n + g2 / n**2 + g3 / n**3 + g4 / n**4


_T99 = {1: 63.66, 2: 9.925, 3: 5.841, 4: 4.604}
