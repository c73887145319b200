"""Operators whose time is memory traffic: what they must read and write at least."""

from collections.abc import Sequence
from functools import partial
from math import prod

import msgspec

from profilerkit.analysis.costs.arguments import MOST_ELEMENTS, Arguments, Shape, Tensor
from profilerkit.analysis.costs.formulas import Cost, Model

#: How many arguments come before the result, for operators that libraries call with one (``out=``).
_BEFORE_OUT = {
    **dict.fromkeys(("aten::mul", "aten::div", "aten::clamp_min", "aten::clamp_max"), 2),
    **dict.fromkeys(("aten::add", "aten::sub", "aten::clamp"), 3),
}


def pointwise(passed: Arguments, name: str = "") -> Cost | None:
    """Every input read and the result, of the broadcast shape, written: any operator whose kernel is pointwise.

    >>> from profilerkit.analysis.costs.arguments import arguments
    >>> pointwise(arguments("[[8, 4], [4], []]", '["float", "float", "Scalar"]', "")).bytes  # (32 + 4 + 32) x 4
    272
    """
    inputs = [tensor for tensor in passed.tensors[: _BEFORE_OUT.get(name)] if tensor is not None]
    if not inputs or passed.lists or any(tensor.item_bytes is None for tensor in inputs):
        return None
    out = _broadcast([tensor.shape for tensor in inputs])
    if out is None:
        return None
    read = sum(_bytes(tensor) for tensor in inputs)
    return Cost("pointwise", read + prod(out) * (inputs[0].item_bytes or 0), pointwise_only=True)


def each_once(passed: Arguments) -> Cost | None:
    """Every tensor that is passed is read or written once: a fused kernel takes its results as arguments too."""
    tensors = [tensor for tensor in passed.tensors if tensor is not None]
    if not tensors or passed.lists or any(tensor.item_bytes is None for tensor in tensors):
        return None
    return Cost("pointwise", sum(map(_bytes, tensors)))


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The common shape, ``None`` where there is none or no device holds it."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    out = tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True))
    fits = all(size in (1, whole) for shape in padded for size, whole in zip(shape, out, strict=True))
    return out if fits and prod(out) <= MOST_ELEMENTS else None


def _bytes(tensor: Tensor | None) -> int:
    return tensor.elements * (tensor.item_bytes or 0) if tensor else 0


class _Passes(msgspec.Struct, frozen=True):
    """How often an operator goes over its tensors.

    Attributes:
        family: of the operator.
        reads: position to how often that tensor is read or, for results of its size, written.
    """

    family: str
    reads: dict[int, int]


def _passes(passed: Arguments, over: _Passes) -> Cost | None:
    if any(passed.tensor(position) is None for position in over.reads):
        return None
    moved = sum(times * _bytes(passed.tensor(position)) for position, times in over.reads.items())
    return Cost(over.family, moved)


def _rows(passed: Arguments, index: int) -> Cost | None:
    """Chosen rows of the first tensor are read and written; the table itself is not read whole."""
    table, chosen = passed.tensor(0), passed.tensor(index)
    if table is None or chosen is None:
        return None
    row = prod(table.shape[1:]) * (table.item_bytes or 0)
    return Cost("embedding", chosen.elements * (2 * row + (chosen.item_bytes or 0)))


def _gathered(passed: Arguments) -> Cost | None:
    table, chosen = passed.tensor(0), passed.tensor(2)
    if table is None or chosen is None:
        return None
    return Cost("embedding", chosen.elements * (2 * (table.item_bytes or 0) + (chosen.item_bytes or 0)))


def _lists(passed: Arguments, family: str, times: tuple[int, ...]) -> Cost | None:
    """Lists of tensors, the list at each position moved that often; a missing list is empty."""
    moved = sum(passed.lists.get(position, 0) * each for position, each in enumerate(times))
    return Cost(family, 0, untyped=moved) if moved else None


def foreach(passed: Arguments) -> Cost | None:
    """Every list read and a result of the first one's size written, in place or not."""
    times = [1] * (max(passed.lists, default=0) + 1)
    times[0] = 2
    return _lists(passed, "optimizer", tuple(times))


def _models(family: str, reads: dict[int, int], *names: str) -> dict[str, Model]:
    return {f"aten::{name}": partial(_passes, over=_Passes(family, reads)) for name in names}


TRAFFIC: dict[str, Model] = {
    **_models("copy", {0: 1, 1: 1}, "copy_"),
    **_models("copy", {0: 1}, "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"),
    "aten::cat": partial(_lists, family="copy", times=(2,)),
    **_models("reduction", {0: 1}, "sum", "mean", "amax", "amin", "max", "min", "all", "any", "argmax", "argmin"),
    **_models("reduction", {0: 1}, "linalg_vector_norm", "norm", "var", "std", "var_mean", "prod", "logsumexp"),
    **_models("reduction", {0: 2}, "cumsum", "cumprod"),
    **_models("softmax", {0: 2}, "_softmax", "_log_softmax"),
    **_models("softmax", {0: 2, 1: 1}, "_softmax_backward_data", "_log_softmax_backward_data"),
    **_models("norm", {0: 2}, "native_layer_norm", "native_group_norm", "native_batch_norm", "cudnn_batch_norm"),
    **_models("norm", {0: 2}, "miopen_batch_norm", "_batch_norm_with_update", "_fused_rms_norm"),
    **_models("norm", {0: 1, 1: 2}, "native_layer_norm_backward", "native_group_norm_backward"),
    **_models("norm", {0: 1, 1: 2}, "native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward"),
    **_models("norm", {0: 1, 1: 2}, "miopen_batch_norm_backward", "_fused_rms_norm_backward"),
    **_models("reduction", {0: 1}, "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d"),
    **_models("pointwise", {0: 2}, "native_dropout"),
    "aten::index_select": partial(_rows, index=2),
    "aten::embedding": partial(_rows, index=1),
    **_models("embedding", {0: 2, 1: 1}, "embedding_dense_backward"),
    "aten::gather": _gathered,
    "aten::_foreach_copy_": partial(_lists, family="copy", times=(1, 1)),
    **{f"aten::_foreach_{name}": partial(_lists, family="reduction", times=(1,)) for name in ("norm", "zero_")},
    # Parameters, gradients and two moments are read, all but the gradients written.
    **{f"aten::_fused_{name}_": partial(_lists, family="optimizer", times=(2, 1, 2, 2)) for name in ("adam", "adamw")},
    "aten::_fused_sgd_": partial(_lists, family="optimizer", times=(2, 1, 2)),
}
