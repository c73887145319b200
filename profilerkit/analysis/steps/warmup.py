"""How many of the first steps are warm-up."""

import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.analysis.stats import median, quantile

#: A step longer than this multiple of the settled ones is slow.
WARMUP_RATIO = 1.5
#: The settled level is this quantile of the last half: steps that are longer at intervals, up to every fourth, are
#: part of what a run settles to.
SETTLED_QUANTILE = 0.75
#: A slow step left in the window harms more than a settled one left out.
SLOW_WEIGHT = 2
#: After warm-up steps stop getting shorter: the median of the first half of the rest exceeds that of the second by less
#: than this ratio of what the warm-up cost. Where they go on, as in a curriculum, nothing was warmed up. Steps right
#: behind a slow one may be the shorter ones: the host runs ahead while the device catches up.
DRIFT_RATIO = 0.25
#: Below this number of steps none can be told to be warm-up by its length.
FEWEST_TO_TELL = 6


def warmup_length(step_ns: I64) -> int:
    """How many leading steps are warm-up, at most half of all.

    The change point between slow and settled steps: the split that leaves fewest steps on the wrong side, a slow one
    behind it counting ``SLOW_WEIGHT``. So one quick step among compilations does not end the warm-up, and the first
    epoch of a cold data set is told as a whole. A run that does not begin with a slow step has no warm-up.

    >>> warmup_length(np.array([900, 400, 101, 99, 100, 102]))
    2
    >>> warmup_length(np.array([900, 850, 101, 800, 100, 102, 99, 100, 101, 100]))
    4
    >>> warmup_length(np.array([875, 910, 7, 7, 7, 22, 220, 221, 220, 219, 220]))
    2
    >>> warmup_length(np.arange(300, 100, -5))
    0
    """
    if len(step_ns) < FEWEST_TO_TELL:
        return 0
    half = len(step_ns) // 2
    slow = step_ns[:half] > WARMUP_RATIO * quantile(step_ns[half:], SETTLED_QUANTILE)
    if not slow[0]:
        return 0
    settled_before = np.r_[0, np.cumsum(~slow)]
    slow_behind = slow.sum() - np.r_[0, np.cumsum(slow)]
    length = int((settled_before + SLOW_WEIGHT * slow_behind).argmin())
    rest = step_ns[length:]
    early, late = np.array_split(rest, 2)
    cost = median(step_ns[:length]) - median(rest)
    return length if median(early) - median(late) <= DRIFT_RATIO * cost else 0
