"""What the operators of a trace cost, computed once for each distinct call."""

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.costs.arguments import Arguments, parsed
from profilerkit.analysis.costs.formulas import COMPLETE, FAMILIES, seen_in
from profilerkit.analysis.costs.table import CostTable
from profilerkit.analysis.intervals import I64
from profilerkit.trace.columns import TraceColumns

Bools = npt.NDArray[np.bool_]
F64 = npt.NDArray[np.float64]

#: Distinct calls that are priced, the most frequent first. Real traces hold up to a few thousand.
_MOST_CALLS = 20_000

#: Types that are computed in, by id; the first stands for every other one.
DTYPES = ("other", "fp64", "fp32", "fp16", "bf16", "fp8", "int8")


class OperatorCosts(msgspec.Struct, frozen=True):
    """The cost of the call each row belongs to; arrays are ``(n,)``, in the order of the rows asked for.

    Attributes:
        known: whether it could be priced.
        family: int8 ids into ``FAMILIES``.
        flops: float64.
        bytes: float64.
        untyped: float64, elements moved besides ``bytes``, of a size that is not recorded.
        dtype: int8 ids into ``DTYPES``.
        pointwise_only: the cost belongs to pointwise kernels alone.
    """

    known: Bools
    family: npt.NDArray[np.int8]
    flops: F64
    bytes: F64
    untyped: F64
    dtype: npt.NDArray[np.int8]
    pointwise_only: Bools


def operator_costs(columns: TraceColumns, rows: I64) -> OperatorCosts:
    """Price the calls of the operators in ``rows``; -1 stands for none, which cannot be priced."""
    calls, member = distinct_calls(columns, rows)
    known = np.zeros(len(calls), dtype=np.bool_)
    values = np.zeros((3, len(calls)), dtype=np.float64)
    family, dtype = np.zeros((2, len(calls)), dtype=np.int8)
    pointwise_only = np.zeros(len(calls), dtype=np.bool_)
    table = CostTable(seen_in(_complete_calls(columns)))
    for index, name, passed in understood(columns, calls, member):
        cost = table.cost(name, passed)
        if cost is None:
            continue
        known[index] = True
        values[:, index] = cost.flops, cost.bytes, cost.untyped
        family[index] = FAMILIES.index(cost.family)
        dtype[index] = DTYPES.index(cost.dtype) if cost.dtype in DTYPES else 0
        pointwise_only[index] = cost.pointwise_only
    flops, moved, untyped = values[:, member]
    return OperatorCosts(known[member], family[member], flops, moved, untyped, dtype[member], pointwise_only[member])


def distinct_calls(columns: TraceColumns, rows: I64) -> tuple[I64, I64]:
    """``(n_calls, 4)`` string ids of name, shapes, types and values, and ``(n,)`` the call of each row."""
    size = len(columns.strings) + 1
    passed = (columns.name, columns.input_dims, columns.input_types, columns.concrete_inputs)
    picked = [np.where(rows >= 0, column[rows], -1).astype(np.int64) for column in passed]
    if size**4 < np.iinfo(np.int64).max:
        key = picked[0] + 1
        for column in picked[1:]:
            key = key * size + column + 1
        _, first, member = np.unique(key, return_index=True, return_inverse=True)
    else:
        member = np.zeros(len(rows), dtype=np.int64)
        first = member[:0]
        for column in picked:
            _, first, member = np.unique(member * size + column + 1, return_index=True, return_inverse=True)
    return np.stack(picked, axis=1)[first], member


def understood(columns: TraceColumns, calls: I64, member: I64) -> Iterator[tuple[int, str, Arguments]]:
    """Index, name and arguments of the distinct calls, the most frequent first."""
    often = np.argsort(-np.bincount(member, minlength=len(calls)), kind="stable")[:_MOST_CALLS].tolist()
    texts = [tuple(columns.strings[text] if text >= 0 else "" for text in calls[index].tolist()) for index in often]
    found = parsed((dims, types, values) for _, dims, types, values in texts)
    for index, (name, *_), passed in zip(often, texts, found, strict=True):
        if passed is not None:
            yield index, name, passed


def _complete_calls(columns: TraceColumns) -> Iterator[tuple[str, Arguments]]:
    """The distinct calls from which the others' missing shapes follow."""
    ids = [index for index, text in enumerate(columns.strings) if text in COMPLETE]
    rows = np.flatnonzero(np.isin(columns.name, np.array(ids, dtype=np.int32))) if ids else np.empty(0, np.int64)
    calls, member = distinct_calls(columns, rows)
    for _, name, passed in understood(columns, calls, member):
        yield name, passed
