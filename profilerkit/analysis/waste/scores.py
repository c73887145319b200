"""Attention that writes its score matrices to memory, told by the shapes that its operators pass on."""

from math import prod

import msgspec
import numpy as np

from profilerkit.analysis.costs.arguments import Arguments, Shape
from profilerkit.analysis.costs.formulas import sizes
from profilerkit.analysis.device.roofline import peak_flops_per_ns
from profilerkit.analysis.intervals import I64
from profilerkit.analysis.kernel_losses.records import Scores
from profilerkit.analysis.kernel_losses.shapes import Bools, Judged

#: Normalise along the last dimension; their first tensor has the shape of the scores.
_SOFTMAX = ("aten::_softmax", "aten::_safe_softmax", "aten::_masked_softmax", "aten::_softmax_backward_data")
#: Kinds of score matrices that are told, those with most time.
_MOST_SHAPES = 16

#: Score matrices in one tensor, queries, keys.
_Kind = tuple[int, int, int]


class _Calls(msgspec.Struct):
    """Distinct calls over tensors of one kind; products that make the scores, or take them, and the others."""

    made: set[int] = msgspec.field(default_factory=set)
    taken: set[int] = msgspec.field(default_factory=set)
    others: set[int] = msgspec.field(default_factory=set)

    @property
    def all(self) -> set[int]:
        """Every one of them."""
        return self.made | self.taken | self.others


def scores(work: Judged) -> tuple[Scores, ...]:
    """Score matrices that one product makes, a softmax goes over, and another product takes; largest time first."""
    chosen = work.operator >= 0
    member, calls = work.calls(chosen)
    told = list(calls)
    found: dict[_Kind, _Calls] = {}
    for _, name, passed in told:
        first = passed.tensors[0] if name in _SOFTMAX and passed.tensors else None
        if first is not None and len(first.shape) >= 3 and first.elements:
            found[_kind(first.shape)] = _Calls()
    if not found:
        return ()
    for index, name, passed in told:
        _assign(found, index, name, passed)
    spent_ns = np.bincount(member, weights=work.dur_ns[chosen])
    whole = {kind: own for kind, own in found.items() if own.made and own.taken}
    # A pass over all kernels for each kind: only for those that are told.
    told_kinds = sorted(whole, key=lambda kind: -float(spent_ns[list(whole[kind].all)].sum()))[:_MOST_SHAPES]
    rows = [_scores(work, chosen, member, kind, whole[kind]) for kind in told_kinds]
    return tuple(sorted(rows, key=lambda row: -row.share))


def _kind(shape: Shape) -> _Kind:
    matrices: int = prod(shape[:-2])
    return matrices, shape[-2], shape[-1]


def _assign(found: dict[_Kind, _Calls], index: int, name: str, passed: Arguments) -> None:
    """Add one distinct call to the kinds of matrices it makes, takes, or goes over."""
    product = sizes(name, passed)
    tensors = [tensor.shape for tensor in passed.tensors if tensor and len(tensor.shape) >= 2]
    if product is None:
        for kind in {_kind(shape) for shape in tensors} & found.keys():
            found[kind].others.add(index)
        return
    # The factors are the last two tensors; what is added to a product stands before them.
    pairs = prod(tensors[-1][:-2])
    made = (pairs, product[0], product[1])
    if made in found:
        found[made].made.add(index)
        return
    for shape in tensors[-2:]:
        # Backward takes them transposed too. A call counts with one kind only.
        either = ((pairs, shape[-2], shape[-1]), (pairs, shape[-1], shape[-2]))
        taken = next((kind for kind in either if kind in found), None)
        if taken is not None:
            found[taken].taken.add(index)
            return


def _scores(work: Judged, chosen: Bools, member: I64, kind: _Kind, own: _Calls) -> Scores:
    multiplies = work.of_calls(chosen, member, own.made | own.taken)
    between = work.of_calls(chosen, member, own.others)
    computing = multiplies & work.kinds.math[work.name]
    flops = work.roof.flops[work.at]
    peak = peak_flops_per_ns(work.roof.dtype[work.at], work.kinds.math_type[work.name], work.roof.spec)
    least = flops / peak
    is_known = bool(computing.any() and np.isfinite(least[computing]).all())
    return Scores(
        queries=kind[1],
        keys=kind[2],
        matrices=kind[0],
        share=work.share(multiplies | between),
        pointwise_share=work.share(between),
        peak_share=work.part(least, computing) if is_known else None,
    )
