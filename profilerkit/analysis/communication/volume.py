"""What a collective moves: bytes from its metadata or its operator's shapes, and the bandwidths they stand for."""

import json
from dataclasses import dataclass

import numpy as np

from profilerkit.analysis.communication.registry import UNKNOWN
from profilerkit.analysis.intervals import I64
from profilerkit.trace.columns import CollectiveArgs, TraceColumns

#: Bytes per element by the names torch writes into collective metadata.
_ELEMENT_BYTES = {
    "Double": 8, "Long": 8, "ComplexFloat": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2,
    "Byte": 1, "Char": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1,
}  # fmt: skip
#: The same types by the names that ``Input type`` of an operator has for them.
_C_TYPES = {
    "double": "Double", "long int": "Long", "long": "Long", "float": "Float", "int": "Int", "c10::Half": "Half",
    "c10::BFloat16": "BFloat16", "short int": "Short", "short": "Short", "unsigned char": "Byte",
    "signed char": "Char", "bool": "Bool", "c10::Float8_e4m3fn": "Float8_e4m3fn", "c10::Float8_e5m2": "Float8_e5m2",
    "c10::complex<float>": "ComplexFloat",
}  # fmt: skip
#: No tensor is larger; what says so is damaged.
MOST_BYTES = 1 << 50


def payload_bytes(args: CollectiveArgs) -> int | None:
    """Bytes a collective moves: the larger of its sides; ``None`` when the metadata does not say.

    All-gather counts its output, reduce-scatter its input, the others have two sides alike (nccl-tests' convention).
    """
    size = _ELEMENT_BYTES.get(args.dtype or "")
    elements = max(args.in_elements or 0, args.out_elements or 0)
    return min(size * elements, MOST_BYTES) if size and elements else None


@dataclass(frozen=True, slots=True)
class Shape:
    """The first tensor of an operator: its type in torch's words and its size."""

    dtype: str
    bytes: int


def shapes_of(columns: TraceColumns, rows: I64) -> dict[int, Shape]:
    """Row to the first tensor of its operator, for those of ``rows`` whose shapes were read and can be understood."""
    known = rows[(rows >= 0) & (columns.input_dims[rows] >= 0) & (columns.input_types[rows] >= 0)]
    pairs, which = np.unique(
        np.stack([columns.input_dims[known], columns.input_types[known]], axis=1), axis=0, return_inverse=True
    )
    found = [_shape(columns.strings[dims], columns.strings[types]) for dims, types in pairs.tolist()]
    sized = zip(known.tolist(), which.ravel().tolist(), strict=True)
    return {row: shape for row, index in sized if (shape := found[index]) is not None}


def _shape(dims: str, types: str) -> Shape | None:
    """The first tensor in the raw JSON of ``Input Dims`` and ``Input type``.

    >>> _shape("[[321271], []]", '["float", ""]')
    Shape(dtype='Float', bytes=1285084)
    """
    try:
        sizes, names = json.loads(dims), json.loads(types)
    except (ValueError, RecursionError):
        return None
    if not (isinstance(sizes, list) and isinstance(names, list)):
        return None
    for size, name in zip(sizes, names, strict=False):
        dtype = _C_TYPES.get(name) if isinstance(name, str) else None
        if not dtype or not isinstance(size, list) or not size:
            continue
        count = _ELEMENT_BYTES[dtype]
        for length in size:
            if not isinstance(length, int) or not 0 <= length <= MOST_BYTES:
                return None
            count = min(count * length, MOST_BYTES)
        return Shape(dtype, count) if count else None
    return None


def bus_factor(kind: str, group_size: int | None) -> float | None:
    """Bus bandwidth / algorithm bandwidth (nccl-tests, PERFORMANCE.md); ``None`` where kind or group is not known.

    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    if kind in ("broadcast", "reduce", "send_recv"):
        return 1.0
    if kind in (UNKNOWN, "barrier") or group_size is None or group_size < 2:
        return None
    share = (group_size - 1) / group_size
    return 2.0 * share if kind == "all_reduce" else share
