"""Microseconds as traces write them into exact nanoseconds."""

import struct
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import numpy.typing as npt

from profilerkit.trace.columns import I64, Bools, TraceColumns

Microseconds = int | float | Decimal
F64 = npt.NDArray[np.float64]

# A float64 tells neighbouring nanoseconds apart up to here (its spacing is 2**-10 µs); about 101 days in µs.
EXACT_FLOAT_US = float(2**43)
# An int64 of nanoseconds ends in the year 2262.
LAST_US = float((2**63 - 1) // 1000 - 1)
# No run is longer than ten years; kineto writes such durations when a stop was never recorded.
LONGEST_DURATION_US = 10 * 365.25 * 86_400 * 1e6


def float_us(values: Sequence[Microseconds]) -> F64:
    """Return the values as ``(n,)`` float64 µs, read-only; what no float can hold becomes infinite."""
    try:
        return np.frombuffer(struct.pack(f"{len(values)}d", *values), np.float64)
    except (OverflowError, ValueError, struct.error):
        return np.fromiter(map(_float_or_not, values), np.float64, len(values))


def _float_or_not(value: Microseconds) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")
    except ValueError:  # a signalling NaN
        return float("nan")


def stamps_to_ns(values: Sequence[Microseconds]) -> tuple[I64, F64] | None:
    """Return ``(n,)`` int64 ns and float µs of time stamps as decoded, or None when floats cannot tell the ns.

    Such stamps count from the epoch and have decimals (PyTorch releases of spring 2024); as float64 they are
    wrong by up to 125 ns, so they have to be decoded as ``Decimal``. The ns are 0 where no int64 can hold them.

    >>> stamps_to_ns([1, Decimal("1712195496004644.203")])[0].tolist()
    [1000, 1712195496004644203]
    >>> stamps_to_ns([1712195496004644.203]) is None
    True
    """
    us = float_us(values)
    ns = us_to_ns(us)
    if len(us) and not (us.min() > -EXACT_FLOAT_US and us.max() < EXACT_FLOAT_US):
        far = np.abs(us) >= EXACT_FLOAT_US
        types = set(map(type, values))
        if float in types and any(type(values[index]) is float for index in np.flatnonzero(far).tolist()):
            return None
        if Decimal in types:
            for index in np.flatnonzero(far & is_time(us)).tolist():
                ns[index] = round(values[index] * 1000)
    return ns, us


def us_to_ns(microseconds: F64) -> I64:
    """Return ``(n,)`` int64 ns of float µs; 0 where no int64 can hold it.

    Exact for stamps with up to three decimals below 2**43 µs and for whole ones below 2**53. The whole and the
    fraction are converted apart because ``round(us * 1000)`` is wrong by 1 ns for a quarter of the stamps
    between 4.4e12 and 4.5e12 µs.

    >>> us_to_ns(np.array([4458676524648.797, 0.001, -1.5])).tolist()
    [4458676524648797, 1, -1500]
    """
    if len(microseconds) and not (microseconds.min() >= -LAST_US and microseconds.max() <= LAST_US):
        microseconds = np.where(is_time(microseconds), microseconds, 0.0)
    whole = np.floor(microseconds)
    ns: I64 = whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000).astype(np.int64)
    return ns


def is_time(microseconds: F64) -> Bools:
    """Return ``(n,)`` whether each value can be a time: a number, and in ns within an int64."""
    return np.abs(microseconds) <= LAST_US


def resolution_ns(columns: TraceColumns) -> int:
    """Return 1 when the trace tells single nanoseconds apart, 1000 when all its times are whole microseconds."""
    whole = not (columns.ts_ns % 1000).any() and not (columns.dur_ns % 1000).any()
    return 1000 if whole else 1
