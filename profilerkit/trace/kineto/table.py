"""Columns that grow in place, so that joining them at the end needs no second copy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from profilerkit.trace.columns import Bools

_FIRST_ROWS = 4096
# Large arrays are grown by the operating system moving pages, not bytes, so small steps cost little and leave
# at most an eighth unused.
_LARGE_ROWS = 2**18


class Table:
    """Arrays of one common length to which rows are appended.

    >>> table = Table({"id": np.int64})
    >>> table.append({"id": np.array([4, 5, 6])}, keep=np.array([True, False, True]))
    >>> table.rows, table.take("id").tolist()
    (2, [4, 6])
    """

    def __init__(self, dtypes: Mapping[str, npt.DTypeLike]) -> None:
        self.rows = 0
        self._capacity = 0
        self._columns: dict[str, npt.NDArray[Any]] = {name: np.empty(0, dtype) for name, dtype in dtypes.items()}

    def append(self, values: Mapping[str, npt.NDArray[Any]], *, keep: Bools | None = None) -> None:
        """Append the kept rows of every column, all of them without ``keep``."""
        count = len(next(iter(values.values()))) if keep is None else int(np.count_nonzero(keep))
        end = self.rows + count
        if end > self._capacity:
            self._grow(end)
        for name, column in self._columns.items():
            column[self.rows : end] = values[name] if keep is None else values[name][keep]
        self.rows = end

    def view(self, name: str) -> npt.NDArray[Any]:
        """Return a whole column, not to be kept."""
        return self._columns[name][: self.rows]

    def views(self) -> dict[str, npt.NDArray[Any]]:
        """Return all columns by name, not to be kept."""
        return {name: self.view(name) for name in self._columns}

    def take(self, name: str) -> npt.NDArray[Any]:
        """Return a whole column and forget it."""
        column = self._columns.pop(name)
        column.resize(self.rows, refcheck=False)
        return column

    def _grow(self, rows: int) -> None:
        step = self._capacity // (8 if self._capacity > _LARGE_ROWS else 1)
        self._capacity = max(rows, self._capacity + step, _FIRST_ROWS)
        for column in self._columns.values():
            column.resize(self._capacity, refcheck=False)
