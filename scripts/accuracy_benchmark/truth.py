"""From blocks of steps to what a fix really saves, with its interval; and whether the host was quiet enough to tell."""

from collections.abc import Sequence

import numpy as np

#: Half-width of the 90 % interval of a true saving, share of the step, beyond which nothing can be said.
MOST_HALF_WIDTH = 0.03
#: Share of time in which processes waited for a core, beyond which the host is not quiet.
MOST_PRESSURE = 0.40
_RESAMPLES = 2_000


def saving_interval(bad_s: Sequence[float], fixed_s: Sequence[float]) -> dict[str, float]:
    """Median of ``1 - fixed / bad`` over rounds of neighbouring blocks, and its bootstrap 90 % interval.

    Rounds are compared each with itself: a machine that gets slower for a minute slows both of its blocks. Rounds are
    drawn, not steps: the steps of one block share what disturbed it.
    """
    savings = 1.0 - np.asarray(fixed_s, dtype=np.float64) / np.asarray(bad_s, dtype=np.float64)
    rng = np.random.default_rng(0)
    drawn = np.median(savings[rng.integers(len(savings), size=(_RESAMPLES, len(savings)))], axis=1)
    low, high = np.percentile(drawn, [5.0, 95.0])
    return {"saving": float(np.median(savings)), "low": float(low), "high": float(high)}


def noise(intervals: Sequence[dict[str, float]], pressures: Sequence[float | None]) -> str | None:
    """Why a row cannot be judged, or ``None``: the host was not quiet, or what a fix saves is not known well enough."""
    counted = [value for value in pressures if value is not None]
    if counted and max(counted) > MOST_PRESSURE:
        return f"noisy host: processes waited for a core {100 * max(counted):.0f} % of the time"
    wide = max(((interval["high"] - interval["low"]) / 2 for interval in intervals), default=0.0)
    if wide > MOST_HALF_WIDTH:
        return f"noisy host: the true saving is known to {100 * wide:.1f} points only"
    return None
