"""Matrix products: 2·M·N·K for each of a batch."""

from functools import partial

from profilerkit.analysis.costs.arguments import Arguments, Tensor
from profilerkit.analysis.costs.cost import Cost, Model


def _product(passed: Arguments, first: int) -> Cost | None:
    """``(…, M, K) x (…, K, N)`` at ``first`` and the next position, added to what stands before them.

    >>> from profilerkit.analysis.costs.arguments import arguments
    >>> _product(arguments("[[4, 8], [8, 2]]", '["float", "float"]', ""), 0)
    Cost(family='matmul', bytes=224, flops=128, dtype='fp32', untyped=0, pointwise_only=False)
    """
    a, b = passed.tensor(first), passed.tensor(first + 1)
    if a is None or b is None or len(a.shape) < 2 or len(b.shape) != len(a.shape) or a.shape[-1] != b.shape[-2]:
        return None
    return _cost(passed, first, a, b, a.elements // max(a.shape[-1], 1) * b.shape[-1])


def sizes(name: str, passed: Arguments) -> tuple[int, int, int] | None:
    """(M, N, K) of each product of a call, ``None`` where it multiplies no two matrices.

    >>> from profilerkit.analysis.costs.arguments import arguments
    >>> sizes("aten::bmm", arguments("[[2, 4, 8], [2, 8, 3]]", '["float", "float"]', ""))
    (4, 3, 8)
    """
    first = _FIRST_FACTOR.get(name)
    a, b = (passed.tensor(first + offset) for offset in range(2)) if first is not None else (None, None)
    if a is None or b is None or min(len(a.shape), len(b.shape)) < 2 or a.shape[-1] != b.shape[-2]:
        return None
    return a.shape[-2], b.shape[-1], a.shape[-1]


def _times_vector(passed: Arguments, first: int) -> Cost | None:
    """``(M, K) x (K)``, or ``(K) x (K)``."""
    a, b = passed.tensor(first), passed.tensor(first + 1)
    if a is None or b is None or len(b.shape) != 1 or a.shape[-1] != b.shape[0]:
        return None
    return _cost(passed, first, a, b, a.elements // max(a.shape[-1], 1))


def _by_rows(passed: Arguments) -> Cost | None:
    """A linear layer in one call: ``(…, K) x (N, K)``."""
    a, b = passed.tensor(0), passed.tensor(1)
    if a is None or b is None or len(b.shape) != 2 or a.shape[-1] != b.shape[1]:
        return None
    return _cost(passed, 0, a, b, a.elements // max(a.shape[-1], 1) * b.shape[0])


def _grouped(passed: Arguments) -> Cost | None:
    """A product per group: ``(T, K) x (E, K, N)`` over rows, or ``(M, T) x (T, N)`` into ``(E, M, N)``.

    The rows of all groups together are at most T; padded rows count, as they are computed too.
    """
    a, b = passed.tensor(0), passed.tensor(1)
    if a is None or b is None:
        return None
    if len(a.shape) == 3 and len(b.shape) == 3:
        return _product(passed, 0)
    if len(a.shape) == 2 and len(b.shape) == 3 and a.shape[1] == b.shape[1]:
        return _cost(passed, 0, a, b, a.shape[0] * b.shape[2])
    ends = [ends for ends in passed.tensors[2:] if ends is not None and ends.dtype == "int32"]
    if len(a.shape) == 2 and len(b.shape) == 2 and a.shape[1] == b.shape[0] and ends:
        groups = ends[0].elements
        # Each group sums over its own rows of T only.
        return _cost(passed, 0, a, b, groups * a.shape[0] * b.shape[1], depth=a.shape[1] / max(groups, 1))
    return None


def _cost(passed: Arguments, first: int, a: Tensor, b: Tensor, out: int, depth: float | None = None) -> Cost:
    """Both factors are read, the product of ``out`` elements written, and a full matrix that is added to it read."""
    item = a.item_bytes or 0
    written = max(item, 2)  # products of 8-bit factors are written in 16 bits
    added = sum(
        tensor.elements * (tensor.item_bytes or 0) for tensor in passed.tensors[:first] if tensor and tensor.elements
    )
    return Cost(
        family="matmul",
        bytes=a.elements * item + b.elements * (b.item_bytes or 0) + out * written + added,
        flops=round(2 * out * (a.shape[-1] if depth is None else depth)),
        dtype=a.dtype,
    )


#: Products of two matrices, or of as many pairs, to the position of the first factor.
_FIRST_FACTOR = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::_int_mm", "aten::_scaled_mm"), 0),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm", "aten::_addmm_activation"), 1),
}

MATMUL: dict[str, Model] = {
    **{name: partial(_product, first=first) for name, first in _FIRST_FACTOR.items()},
    **dict.fromkeys(("aten::mv", "aten::dot"), partial(_times_vector, first=0)),
    "aten::addmv": partial(_times_vector, first=1),
    **dict.fromkeys(("mkldnn::_linear_pointwise", "aten::mkldnn_linear"), _by_rows),
    **dict.fromkeys(("aten::_grouped_mm", "aten::_scaled_grouped_mm"), _grouped),
}
