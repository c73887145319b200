"""Leave out events that a file holds twice, so that nothing counts double."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from profilerkit.model.change import revise
from profilerkit.trace.columns import I64, Bools, Flows, MemoryInstants, TraceColumns

Array = npt.NDArray[Any]
_Record = TypeVar("_Record", TraceColumns, MemoryInstants, Flows)

# An odd constant of 64 random bits: sums of products with it differ wherever one summand does, but for chance.
_MIX = np.uint64(0x9E3779B97F4A7C15)


def distinct(columns: TraceColumns) -> TraceColumns:
    """The columns without exact copies: events, or memory instants, that agree with an earlier one in everything read.

    Recorders do not write such copies; files that were put together do.
    """
    keep_instant = ~copies(list(_rows(columns.memory, len(columns.memory.ts_ns)).values()))
    if not keep_instant.all():
        columns = revise(columns, memory=only(columns.memory, keep_instant))
    keep = ~copies(list(_rows(columns, len(columns)).values()))
    if keep.all():
        return columns
    note = f"{int((~keep).sum()):,} events are exact copies of others and count once."
    return revise(kept(columns, keep), damage=revise(columns.damage, notes=(*columns.damage.notes, note)))


def kept(columns: TraceColumns, keep: Bools) -> TraceColumns:
    """The columns with the events in ``keep`` and what is said of them; flow links and memory instants stay."""
    row: I64 = np.cumsum(keep) - 1
    collectives = tuple(revise(args, row=int(row[args.row])) for args in columns.collectives if keep[args.row])
    return revise(only(columns, keep), collectives=collectives)


def copies(arrays: Sequence[Array]) -> Bools:
    """``(n,)`` mask of the rows that agree with an earlier one in every array.

    >>> copies([np.array([1, 2, 1, 1]), np.array([5, 6, 5, 7])]).tolist()
    [False, False, True, False]
    """
    repeated = np.zeros(len(arrays[0]), dtype=np.bool_)
    mixed = np.zeros(len(repeated), dtype=np.uint64)
    for array in arrays:
        mixed ^= array.astype(np.uint64)
        mixed *= _MIX
        mixed ^= mixed >> np.uint64(29)
    ordered = np.sort(mixed)
    if not (ordered[1:] == ordered[:-1]).any():
        return repeated
    order = np.argsort(mixed, kind="stable")
    same = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
    for array in arrays:
        same &= array[order[1:]] == array[order[:-1]]
    repeated[order[1:][same]] = True
    return repeated


def _rows(record: TraceColumns | MemoryInstants | Flows, length: int) -> dict[str, Array]:
    """The arrays of a record that hold one value per row."""
    found = {name: getattr(record, name) for name in record.__struct_fields__}
    return {name: value for name, value in found.items() if isinstance(value, np.ndarray) and value.shape == (length,)}


def only(record: _Record, keep: Bools) -> _Record:
    """The record with the rows in ``keep``."""
    rows = {name: array[keep] for name, array in _rows(record, len(keep)).items()}
    return revise(record, **rows)  # the names are those of arrays
