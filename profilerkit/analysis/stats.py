"""Robust statistics on small samples: quantiles, spread, standard error of a median."""

import numpy as np
import numpy.typing as npt

#: Scales a median absolute deviation to a standard deviation under normality (1 / Φ⁻¹(0.75)).
MAD_TO_SIGMA = 1.4826
#: Standard error of a median relative to that of a mean, for normal data: sqrt(π / 2).
MEDIAN_EFFICIENCY = 1.2533

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]


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
