"""Whole numbers as files write them into integer columns, and the parts of a column into one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from profilerkit.trace.columns import I32, I64, Bools

_INT64 = range(-(2**63), 2**63)


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
    """Return ``(n,)`` int64, -1 for what is not a whole number."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter(map(whole_number, values), np.int64, len(values))


def as_int32(values: I64) -> I32:
    """Return the values as int32, -1 where they do not fit."""
    fits = np.abs(values) < 2**31
    return np.where(fits, values, -1).astype(np.int32)


class Parts:
    """The chunks of each column of a table, joined once at the end."""

    def __init__(self) -> None:
        self._chunks: dict[str, list[npt.NDArray[Any]]] = {}

    def append(self, columns: dict[str, npt.NDArray[Any]], *, keep: Bools) -> None:
        """Append the kept rows of one chunk of every column."""
        everything = bool(keep.all())
        for column, values in columns.items():
            self._chunks.setdefault(column, []).append(values if everything else values[keep])

    def joined(self, column: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return the whole column and forget its chunks; empty where there were none."""
        chunks = self._chunks.pop(column, [])
        return np.concatenate(chunks) if chunks else np.empty(0, dtype)
