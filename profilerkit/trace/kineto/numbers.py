"""Python values as files write them into integer and float arrays."""

import struct
from collections.abc import Collection, Sequence

import numpy as np

from profilerkit.trace.columns import F32, I32, I64

_INT64 = range(-(2**63), 2**63)
_UNPACKABLE = (struct.error, OverflowError, ValueError)


def whole_number(value: object) -> int:
    """Return the value as an int64, or -1 for what is none: null, text without a number, beyond 64 bits.

    >>> [whole_number(value) for value in (7, "0x10", 12.0, None, "INVALID", 2**64, 0.5)]
    [7, 16, 12, -1, -1, -1, -1]
    """
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return -1
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and value in _INT64 else -1


def whole_numbers(values: Sequence[object]) -> I64:
    """Return ``(n,)`` int64, -1 for what is not a whole number; read-only.

    Packing is three times as fast as ``np.fromiter`` and refuses all that is not a whole number of 64 bits.
    """
    count = len(values)
    try:
        return np.frombuffer(struct.pack(f"{count}q", *values), np.int64)
    except _UNPACKABLE:
        return np.fromiter(map(whole_number, values), np.int64, count)


#: More blocks for each multiprocessor than any grid has: 2**31 blocks on a device with a single one.
_MOST_BLOCKS = float(2**31)


def grid_size(value: object) -> float:
    """Return blocks per multiprocessor, or 0 for what is no such number: no grid is empty.

    >>> [grid_size(value) for value in (0.25, 3, "1.5", None, -1, 1e30)]
    [0.25, 3.0, 0.0, 0.0, 0.0, 0.0]
    """
    return float(value) if isinstance(value, int | float) and 0.0 < value <= _MOST_BLOCKS else 0.0


def grid_sizes(values: Sequence[object]) -> F32:
    """Return ``(n,)`` float32 blocks per multiprocessor, 0 where unknown."""
    return np.fromiter(map(grid_size, values), np.float32, len(values))


def small_numbers(values: Collection[int]) -> I32:
    """Return ``(n,)`` int32 of ids, which fit by the way they are given; read-only."""
    return np.frombuffer(struct.pack(f"{len(values)}i", *values), np.int32)


def as_int32(values: I64) -> I32:
    """Return the values as int32, -1 where they do not fit."""
    if len(values) and (values.min() < -(2**31) or values.max() >= 2**31):
        values = np.where(np.abs(values) < 2**31, values, -1)
    return values.astype(np.int32)
