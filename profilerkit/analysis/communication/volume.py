"""What a collective moves: bytes from its metadata or its operator's shapes, and the bandwidths they stand for."""

import msgspec
import numpy as np

from profilerkit.analysis.communication.registry import UNKNOWN
from profilerkit.analysis.costs.arguments import BY_NAME, Arguments, parsed
from profilerkit.analysis.intervals import I64
from profilerkit.trace.columns import CollectiveArgs, TraceColumns

#: No tensor is larger; what says so is damaged.
MOST_BYTES = 1 << 50


def payload_bytes(args: CollectiveArgs) -> int | None:
    """Bytes a collective moves: the larger of its sides; ``None`` when the metadata does not say.

    All-gather counts its output, reduce-scatter its input, the others have two sides alike (nccl-tests' convention).
    """
    found = BY_NAME.get(args.dtype or "")
    elements = max(args.in_elements or 0, args.out_elements or 0)
    return min(found.bytes * elements, MOST_BYTES) if found and elements else None


class Shape(msgspec.Struct, frozen=True):
    """The first tensor of an operator: its type in torch's words and its size."""

    dtype: str
    bytes: int


def shapes_of(columns: TraceColumns, rows: I64) -> dict[int, Shape]:
    """Row to the first tensor of its operator, for those of ``rows`` whose shapes were read and can be understood."""
    known = rows[(rows >= 0) & (columns.input_dims[rows] >= 0) & (columns.input_types[rows] >= 0)]
    pairs, which = np.unique(
        np.stack([columns.input_dims[known], columns.input_types[known]], axis=1), axis=0, return_inverse=True
    )
    texts = ((columns.strings[dims], columns.strings[types], "") for dims, types in pairs.tolist())
    found = [_first_tensor(passed) for passed in parsed(texts)]
    sized = zip(known.tolist(), which.ravel().tolist(), strict=True)
    return {row: shape for row, index in sized if (shape := found[index]) is not None}


def _first_tensor(passed: Arguments | None) -> Shape | None:
    """The first tensor of what was passed; ``None`` if there is none, or nothing in it.

    >>> from profilerkit.analysis.costs.arguments import arguments
    >>> _first_tensor(arguments("[[321271], []]", '["float", ""]', ""))
    Shape(dtype='Float', bytes=1285084)
    """
    first = next((tensor for tensor in passed.tensors if tensor), None) if passed else None
    if first is None or first.type is None or not first.elements:
        return None
    return Shape(first.type.name, first.elements * first.type.bytes)


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
