"""What the operators of a trace cost, computed once for each distinct call."""

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

import msgspec
import numpy as np

from profilerkit.analysis.device import formulas
from profilerkit.analysis.device.kernels import COMPILED
from profilerkit.trace.columns import F64, I8, I64, Bools, TraceColumns


def pointwise(passed: formulas.Arguments, before_out: int | None = None) -> formulas.Cost | None:
    """Every input read and the result, of the broadcast shape, written: any operator whose kernel is pointwise.

    ``before_out`` is how many arguments come before the result, for operators that libraries call with one (``out=``).

    >>> from profilerkit.analysis.device.formulas import arguments
    >>> pointwise(arguments("[[8, 4], [4], []]", '["float", "float", "Scalar"]', "")).bytes  # (32 + 4 + 32) x 4
    272
    """
    inputs = [tensor for tensor in passed.tensors[:before_out] if tensor is not None]
    if not inputs or passed.lists or any(tensor.item_bytes is None for tensor in inputs):
        return None
    out = _broadcast([tensor.shape for tensor in inputs])
    if out is None:
        return None
    read = sum(_bytes(tensor) for tensor in inputs)
    return formulas.Cost("pointwise", read + prod(out) * (inputs[0].item_bytes or 0), pointwise_only=True)


def each_once(passed: formulas.Arguments) -> formulas.Cost | None:
    """Every tensor that is passed is read or written once: a fused kernel takes its results as arguments too."""
    tensors = [tensor for tensor in passed.tensors if tensor is not None]
    if not tensors or passed.lists or any(tensor.item_bytes is None for tensor in tensors):
        return None
    return formulas.Cost("pointwise", sum(map(_bytes, tensors)))


def _broadcast(shapes: Sequence[formulas.Shape]) -> formulas.Shape | None:
    """The common shape, ``None`` where there is none or no device holds it."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    out = tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True))
    fits = all(size in (1, whole) for shape in padded for size, whole in zip(shape, out, strict=True))
    return out if fits and prod(out) <= formulas.MOST_ELEMENTS else None


def _bytes(tensor: formulas.Tensor | None) -> int:
    return tensor.elements * (tensor.item_bytes or 0) if tensor else 0


def _passes(passed: formulas.Arguments, family: str, reads: dict[int, int]) -> formulas.Cost | None:
    """Tensors at the positions of ``reads``, each moved that often; results of one's size count with it."""
    if any(passed.tensor(position) is None for position in reads):
        return None
    return formulas.Cost(family, sum(times * _bytes(passed.tensor(position)) for position, times in reads.items()))


def _rows(passed: formulas.Arguments, index: int, *, whole: bool = True) -> formulas.Cost | None:
    """Chosen rows of the first tensor, or elements, are read and written; the table itself is not read whole."""
    table, chosen = passed.tensor(0), passed.tensor(index)
    if table is None or chosen is None:
        return None
    row = (prod(table.shape[1:]) if whole else 1) * (table.item_bytes or 0)
    return formulas.Cost("embedding", chosen.elements * (2 * row + (chosen.item_bytes or 0)))


def _lists(passed: formulas.Arguments, family: str, times: tuple[int, ...]) -> formulas.Cost | None:
    """Lists of tensors, the list at each position moved that often; a missing list is empty."""
    moved = sum(passed.listed(position) * each for position, each in enumerate(times))
    return formulas.Cost(family, 0, untyped=moved) if moved else None


def foreach(passed: formulas.Arguments) -> formulas.Cost | None:
    """Every list read and a result of the first one's size written, in place or not."""
    times = [1] * (max(passed.lists, default=0) + 1)
    times[0] = 2
    return _lists(passed, "optimizer", tuple(times))


def _models(family: str, reads: dict[int, int], *names: str) -> dict[str, formulas.Model]:
    return {f"aten::{name}": partial(_passes, family=family, reads=reads) for name in names}


TRAFFIC: dict[str, formulas.Model] = {
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
    **dict.fromkeys(("aten::mul", "aten::div", "aten::clamp_min", "aten::clamp_max"), partial(pointwise, before_out=2)),
    **dict.fromkeys(("aten::add", "aten::sub", "aten::clamp"), partial(pointwise, before_out=3)),
    "aten::index_select": partial(_rows, index=2),
    "aten::embedding": partial(_rows, index=1),
    **_models("embedding", {0: 2, 1: 1}, "embedding_dense_backward"),
    "aten::gather": partial(_rows, index=2, whole=False),
    "aten::_foreach_copy_": partial(_lists, family="copy", times=(1, 1)),
    **{f"aten::_foreach_{name}": partial(_lists, family="reduction", times=(1,)) for name in ("norm", "zero_")},
    # Parameters, gradients and two moments are read, all but the gradients written.
    **{f"aten::_fused_{name}_": partial(_lists, family="optimizer", times=(2, 1, 2, 2)) for name in ("adam", "adamw")},
    "aten::_fused_sgd_": partial(_lists, family="optimizer", times=(2, 1, 2)),
}


def models_of(seen: formulas.Seen) -> dict[str, formulas.Model]:
    """The models of all operators of a trace in which these shapes were seen."""
    return {**formulas.MATMUL, **formulas.ATTENTION, **TRAFFIC, **formulas.convolutions(seen)}


def model_of(name: str, models: dict[str, formulas.Model]) -> formulas.Model | None:
    """What prices the calls of an operator; only operators that launch kernels themselves have one."""
    if name in models:
        return models[name]
    if name.startswith(COMPILED):
        return each_once
    if not name.startswith("aten::"):
        return None
    return foreach if name.startswith("aten::_foreach_") else pointwise


_MOST_CALLS = 20_000  #: distinct calls that are priced, the most frequent first. Real traces hold up to a few thousand.

#: Types that are computed in, by id; the first stands for every other one.
DTYPES = ("other", "fp64", "fp32", "fp16", "bf16", "fp8", "int8")


class OperatorCosts(msgspec.Struct, frozen=True):
    """The cost of the call each row belongs to; arrays are ``(n,)``, in the order of the rows asked for."""

    known: Bools
    family: I8
    flops: F64
    bytes: F64
    untyped: F64
    dtype: I8
    pointwise_only: Bools


def operator_costs(columns: TraceColumns, rows: I64) -> OperatorCosts:
    """Price the calls of the operators in ``rows``; -1 stands for none, which cannot be priced."""
    calls, member = distinct_calls(columns, rows)
    known = np.zeros(len(calls), dtype=np.bool_)
    values = np.zeros((3, len(calls)), dtype=np.float64)
    family, dtype = np.zeros((2, len(calls)), dtype=np.int8)
    pointwise_only = np.zeros(len(calls), dtype=np.bool_)
    models = models_of(formulas.seen_in(_complete_calls(columns)))
    priced: dict[tuple[formulas.Model, int], formulas.Cost | None] = {}  # of arguments, which live as long as the loop
    for index, name, passed in understood(columns, calls, member):
        model = model_of(name, models)
        if model is None:
            continue
        key = model, id(passed)
        cost = priced[key] = priced[key] if key in priced else model(passed)
        if cost is None:
            continue
        known[index] = True
        values[:, index] = cost.flops, cost.bytes, cost.untyped
        family[index] = formulas.FAMILIES.index(cost.family)
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


def understood(columns: TraceColumns, calls: I64, member: I64) -> Iterator[tuple[int, str, formulas.Arguments]]:
    """Index, name and arguments of the distinct calls, the most frequent first."""
    often = np.argsort(-np.bincount(member, minlength=len(calls)), kind="stable")[:_MOST_CALLS].tolist()
    texts = [tuple(columns.strings[text] if text >= 0 else "" for text in calls[index].tolist()) for index in often]
    found = formulas.parsed((dims, types, values) for _, dims, types, values in texts)
    for index, (name, *_), passed in zip(often, texts, found, strict=True):
        if passed is not None:
            yield index, name, passed


def _complete_calls(columns: TraceColumns) -> Iterator[tuple[str, formulas.Arguments]]:
    """The distinct calls from which the others' missing shapes follow."""
    ids = [index for index, text in enumerate(columns.strings) if text in formulas.COMPLETE]
    calls, member = distinct_calls(columns, np.flatnonzero(np.isin(columns.name, ids)))
    for _, name, passed in understood(columns, calls, member):
        yield name, passed
