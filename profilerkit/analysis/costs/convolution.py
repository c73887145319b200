"""Convolutions: two operations for each output element and each weight that reaches it."""

from collections.abc import Iterable, Mapping
from functools import partial
from math import prod

import msgspec

from profilerkit.analysis.costs.arguments import Arguments, Shape, Tensor
from profilerkit.analysis.costs.cost import Cost, Model

Pairs = Mapping[tuple[Shape, Shape], Shape]


class _Positions(msgspec.Struct, frozen=True):
    """Where a forward operator takes what decides the shape of its output."""

    stride: int
    padding: int
    dilation: int
    transposed: bool = False


_FORWARD = {
    "aten::cudnn_convolution": _Positions(3, 2, 4),
    "aten::miopen_convolution": _Positions(4, 3, 5),
    "aten::miopen_depthwise_convolution": _Positions(4, 3, 5),
    "aten::mkldnn_convolution": _Positions(4, 3, 5),
    "aten::cudnn_convolution_relu": _Positions(3, 4, 5),
    "aten::cudnn_convolution_add_relu": _Positions(5, 6, 7),
    "aten::_conv_depthwise2d": _Positions(4, 5, 6),
    "aten::_slow_conv2d_forward": _Positions(4, 5, -1),
    "aten::cudnn_convolution_transpose": _Positions(4, 2, 5, transposed=True),
}


class Seen(msgspec.Struct, frozen=True):
    """Shapes that occur together in a trace, for calls whose own arguments leave one of them open.

    Attributes:
        outputs: (input, weight) to the output; releases before 1.12 did not record the stride.
        weights: (input, output) to the weight, which the weight's gradient is not passed.
    """

    outputs: Pairs
    weights: Pairs


#: Backward operators that are passed all three, and the positions of input, weight and the gradient of the output.
COMPLETE = {"aten::convolution_backward": (1, 2, 0), "aten::cudnn_convolution_backward": (0, 2, 1)}


def seen_in(calls: Iterable[tuple[str, Arguments]]) -> Seen:
    """What the calls of the operators in ``COMPLETE`` tell; a pair seen with two different thirds tells nothing."""
    outputs: dict[tuple[Shape, Shape], Shape | None] = {}
    weights: dict[tuple[Shape, Shape], Shape | None] = {}
    for name, passed in calls:
        found = [passed.tensor(position) for position in COMPLETE[name]]
        if any(tensor is None for tensor in found):
            continue
        source, weight, out = (tensor.shape for tensor in found if tensor)
        for known, pair, third in ((outputs, (source, weight), out), (weights, (source, out), weight)):
            known[pair] = third if known.get(pair, third) == third else None
    return Seen(
        {pair: third for pair, third in outputs.items() if third},
        {pair: third for pair, third in weights.items() if third},
    )


def convolutions(seen: Seen) -> dict[str, Model]:
    """The models of all convolutions of a trace."""
    return {
        **{name: partial(_forward, where=where, seen=seen) for name, where in _FORWARD.items()},
        "aten::convolution_backward": _backward,
        "aten::cudnn_convolution_backward_input": _input_gradient,
        "aten::cudnn_convolution_backward_weight": partial(_weight_gradient, seen=seen),
    }


def _forward(passed: Arguments, where: _Positions, seen: Seen) -> Cost | None:
    source, weight = passed.tensor(0), passed.tensor(1)
    if source is None or weight is None or len(source.shape) != len(weight.shape):
        return None
    out = _output(passed, where, source.shape, weight.shape) or seen.outputs.get((source.shape, weight.shape))
    if out is None:
        return None
    reached = source.shape if where.transposed else out
    return _cost(source, weight.shape, prod(reached), source.elements + weight.elements + prod(out))


def _output(passed: Arguments, where: _Positions, source: Shape, weight: Shape) -> Shape | None:
    """``(N, C, …)`` of the output, ``None`` where stride or padding were not recorded.

    >>> from profilerkit.analysis.costs.arguments import arguments
    >>> passed = arguments("[]", "[]", '["", "", "[3, 3]", "[2, 2]", "[1, 1]"]')
    >>> _output(passed, _Positions(3, 2, 4), (32, 3, 224, 224), (64, 3, 7, 7))
    (32, 64, 112, 112)
    """
    rank = len(source) - 2
    stride, padding = passed.numbers(where.stride), passed.numbers(where.padding)
    dilation = passed.numbers(where.dilation) if where.dilation >= 0 else (1,)
    if not stride or not padding or not dilation or 0 in stride:
        return None
    sizes = []
    for axis in range(rank):
        step, pad, spread = (given[axis] if axis < len(given) else given[-1] for given in (stride, padding, dilation))
        reach = spread * (weight[axis + 2] - 1) + 1
        length = source[axis + 2]
        sizes.append(
            (length - 1) * step - 2 * pad + reach if where.transposed else (length + 2 * pad - reach) // step + 1
        )
    channels = weight[1] if where.transposed else weight[0]
    return (source[0], channels, *sizes) if min(sizes, default=1) > 0 else None


def _backward(passed: Arguments) -> Cost | None:
    """Each gradient that is asked for costs as much as the forward call; where the mask was not recorded, two."""
    gradient, source, weight = passed.tensor(0), passed.tensor(1), passed.tensor(2)
    if gradient is None or source is None or weight is None:
        return None
    asked = [text.strip() != "False" for text in passed.value(10).strip("[]").split(",")][:2]
    gradients = sum(asked) if len(asked) == 2 else 2
    reached = source if passed.flag(7) else gradient
    moved = gradient.elements + weight.elements + source.elements
    return _cost(source, weight.shape, gradients * reached.elements, gradients * moved)


def _input_gradient(passed: Arguments) -> Cost | None:
    """Is passed the gradient of the output and the weight; what it writes is not recorded and left out of the bytes."""
    gradient, weight = passed.tensor(1), passed.tensor(2)
    if gradient is None or weight is None:
        return None
    return _cost(gradient, weight.shape, gradient.elements, gradient.elements + weight.elements)


def _weight_gradient(passed: Arguments, seen: Seen) -> Cost | None:
    """Is passed the gradient of the output and the input, from which the weight follows where the trace has all."""
    gradient, source = passed.tensor(1), passed.tensor(2)
    weight = seen.weights.get((source.shape, gradient.shape)) if gradient and source else None
    if gradient is None or source is None or weight is None:
        return None
    return _cost(source, weight, gradient.elements, gradient.elements + source.elements + prod(weight))


def _cost(source: Tensor, weight: Shape, reached: int, moved: int) -> Cost:
    """``reached`` elements each take a product with a filter's worth of weights."""
    return Cost(
        family="convolution",
        bytes=moved * (source.item_bytes or 0),
        flops=2 * reached * prod(weight[1:]),
        dtype=source.dtype,
    )
