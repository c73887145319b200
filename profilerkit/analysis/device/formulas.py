"""Price one call by what was passed to it: matrix products, attention and convolutions, in operations and bytes."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import prod

import msgspec


class ScalarType(msgspec.Struct, frozen=True):
    """One type."""

    name: str
    short: str
    bytes: int


#: By the C++ names in ``Input type`` of an operator. Compilers do not agree on those of integers.
BY_C_NAME: dict[str, ScalarType] = {
    "float": ScalarType("Float", "fp32", 4),
    "double": ScalarType("Double", "fp64", 8),
    "c10::Half": ScalarType("Half", "fp16", 2),
    "c10::BFloat16": ScalarType("BFloat16", "bf16", 2),
    "c10::Float8_e4m3fn": ScalarType("Float8_e4m3fn", "fp8", 1),
    "c10::Float8_e4m3fnuz": ScalarType("Float8_e4m3fnuz", "fp8", 1),
    "c10::Float8_e5m2": ScalarType("Float8_e5m2", "fp8", 1),
    "c10::Float8_e5m2fnuz": ScalarType("Float8_e5m2fnuz", "fp8", 1),
    "c10::Float8_e8m0fnu": ScalarType("Float8_e8m0fnu", "scale", 1),
    **dict.fromkeys(("long int", "long"), ScalarType("Long", "int64", 8)),
    "int": ScalarType("Int", "int32", 4),
    **dict.fromkeys(("short int", "short"), ScalarType("Short", "int16", 2)),
    "signed char": ScalarType("Char", "int8", 1),
    "unsigned char": ScalarType("Byte", "uint8", 1),
    "bool": ScalarType("Bool", "bool", 1),
    "c10::complex<float>": ScalarType("ComplexFloat", "complex64", 8),
    "c10::complex<double>": ScalarType("ComplexDouble", "complex128", 16),
}

BY_NAME: dict[str, ScalarType] = {found.name: found for found in BY_C_NAME.values()}  #: by torch's words


#: Longest text that is parsed. The lists of a fused optimizer over 1,500 tensors stay below it; parsed, a text takes
#: some 16 times its length.
_LONGEST_TEXT = 2**17
#: Characters that are parsed in one go: 20,000 matrix products have half as many. One takes up to 130 ns.
_MOST_CHARACTERS = 2**21
#: More elements than any device holds, and more dimensions than torch allows: such a shape is none.
MOST_ELEMENTS, _MOST_DIMENSIONS = 2**44, 64

Shape = tuple[int, ...]


class Tensor(msgspec.Struct, frozen=True):
    """One tensor: its shape and type, ``None`` for a type that is not known."""

    shape: Shape
    type: ScalarType | None

    @property
    def dtype(self) -> str | None:
        """The short name of its type."""
        return self.type.short if self.type else None

    @property
    def item_bytes(self) -> int | None:
        """Bytes of an element."""
        return self.type.bytes if self.type else None

    @property
    def elements(self) -> int:
        """Product of the shape."""
        return prod(self.shape)


class Arguments(msgspec.Struct, frozen=True):
    """What one call was passed, by position."""

    #: The tensor at each position, ``None`` for what is no tensor, is absent, or has no dimensions.
    tensors: tuple[Tensor | None, ...]
    lists: dict[int, Counter[Shape]]  #: position to how often a list has each shape; its type is not recorded
    values: tuple[str, ...]

    def tensor(self, position: int) -> Tensor | None:
        """The tensor at a position with a type of known size, ``None`` if there is none."""
        found = self.tensors[position] if position < len(self.tensors) else None
        return found if found is not None and found.type is not None else None

    def listed(self, position: int) -> int:
        """Elements of all tensors of a list, 0 where none was passed there."""
        return sum(prod(shape) * count for shape, count in self.lists.get(position, {}).items())

    def flag(self, position: int) -> bool | None:
        """A recorded truth value."""
        return {"True": True, "False": False}.get(self.value(position))

    def value(self, position: int) -> str:
        """A recorded value as text, empty without one."""
        return self.values[position] if position < len(self.values) else ""

    def numbers(self, position: int) -> tuple[int, ...] | None:
        """A recorded list of whole numbers of at most three digits, ``None`` if it is something else."""
        texts = [text.strip() for text in self.value(position).strip("[]").split(",")]
        known = all(text.isdecimal() and len(text) <= 3 for text in texts)
        return tuple(int(text) for text in texts) if known else None


def arguments(dims: str, types: str, values: str) -> Arguments | None:
    """Parse the raw JSON of ``Input Dims``, ``Input type`` and ``Concrete Inputs``; ``None`` for what is no such text.

    >>> found = arguments('[[8, 3], [[2], [4, 4]], []]', '["float", "TensorList", "Scalar"]', '["", "", "True"]')
    >>> found.tensor(0).shape, found.tensor(0).dtype, found.lists, found.flag(2)
    ((8, 3), 'fp32', {1: Counter({(2,): 1, (4, 4): 1})}, True)
    """
    shapes, kinds, texts = _list(dims), _list(types), _list(values) if values else []
    if shapes is None or kinds is None or texts is None:
        return None
    tensors: list[Tensor | None] = []
    lists: dict[int, Counter[Shape]] = {}
    for position, entry in enumerate(shapes):
        kind = kinds[position] if position < len(kinds) else ""
        shape = _shape(entry)
        named = BY_C_NAME.get(kind) if isinstance(kind, str) else None
        tensors.append(Tensor(shape, named) if shape and named else None)
        if shape is None and isinstance(entry, list):
            lists[position] = Counter(filter(None, map(_shape, entry)))
    return Arguments(tuple(tensors), lists, tuple(text if isinstance(text, str) else "" for text in texts))


def parsed(calls: Iterable[tuple[str, str, str]]) -> Iterator[Arguments | None]:
    """What ``arguments`` makes of each of many calls; what would make the texts too long together is left out."""
    left = _MOST_CHARACTERS
    known: dict[tuple[str, str, str], Arguments | None] = {}
    for texts in calls:
        length = sum(map(len, texts))
        fits = length <= left
        left -= length if fits else 0
        if fits and texts not in known:
            known[texts] = arguments(*texts)
        yield known[texts] if fits else None


def _list(text: str) -> list[object] | None:
    if len(text) > _LONGEST_TEXT:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def _shape(entry: object) -> Shape | None:
    """The shape, empty for a scalar or an absent tensor, ``None`` for what is none."""
    if not isinstance(entry, list) or len(entry) > _MOST_DIMENSIONS:
        return None
    if any(type(size) is not int or not 0 <= size <= MOST_ELEMENTS for size in entry):
        return None
    return tuple(entry) if prod(entry) <= MOST_ELEMENTS else None


#: What an operator is.
FAMILIES = (
    "matmul",
    "convolution",
    "attention",
    "norm",
    "softmax",
    "pointwise",
    "reduction",
    "embedding",
    "optimizer",
    "copy",
)


class Cost(msgspec.Struct, frozen=True):
    """Arithmetic and compulsory traffic of one call: every input read once, every output written once."""

    family: str
    bytes: int
    flops: int = 0  #: of matrix units and their like, a multiply and an add counting two; 0 where only traffic counts
    dtype: str | None = None  #: short name of the type that is computed in; ``None`` where it does not matter
    untyped: int = 0  #: elements moved besides ``bytes`` whose size only the kernel's name tells: lists carry no type
    pointwise_only: bool = False  #: holds for the pointwise kernels of the call, not for others


Model = Callable[[Arguments], Cost | None]  #: the cost of one kind of call; ``None`` where the arguments do not tell


def _product(passed: Arguments, first: int) -> Cost | None:
    """``(…, M, K) x (…, K, N)`` at ``first`` and the next position, added to what stands before them.

    >>> _product(arguments("[[4, 8], [8, 2]]", '["float", "float"]', ""), 0)
    Cost(family='matmul', bytes=224, flops=128, dtype='fp32', untyped=0, pointwise_only=False)
    """
    a, b = passed.tensor(first), passed.tensor(first + 1)
    if a is None or b is None or len(a.shape) < 2 or len(b.shape) != len(a.shape) or a.shape[-1] != b.shape[-2]:
        return None
    return _product_cost(passed, first, a, b, a.elements // max(a.shape[-1], 1) * b.shape[-1])


def sizes(name: str, passed: Arguments) -> tuple[int, int, int] | None:
    """(M, N, K) of each product of a call, ``None`` where it multiplies no two matrices.

    >>> sizes("aten::bmm", arguments("[[2, 4, 8], [2, 8, 3]]", '["float", "float"]', ""))
    (4, 3, 8)
    """
    first = _FIRST_FACTOR.get(name)
    a, b = (passed.tensor(first + offset) for offset in range(2)) if first is not None else (None, None)
    if a is None or b is None or min(len(a.shape), len(b.shape)) < 2 or a.shape[-1] != b.shape[-2]:
        return None
    return a.shape[-2], b.shape[-1], a.shape[-1]


def _grouped(passed: Arguments) -> Cost | None:
    """A product per group: ``(T, K) x (E, K, N)`` over rows, or ``(M, T) x (T, N)`` into ``(E, M, N)``."""
    a, b = passed.tensor(0), passed.tensor(1)
    if a is None or b is None:
        return None
    if len(a.shape) == 3 and len(b.shape) == 3:
        return _product(passed, 0)
    if len(a.shape) == 2 and len(b.shape) == 3 and a.shape[1] == b.shape[1]:
        return _product_cost(passed, 0, a, b, a.shape[0] * b.shape[2])
    ends = [ends for ends in passed.tensors[2:] if ends is not None and ends.dtype == "int32"]
    if len(a.shape) == 2 and len(b.shape) == 2 and a.shape[1] == b.shape[0] and ends:
        groups = ends[0].elements
        # Each group sums over its own rows of T only.
        return _product_cost(passed, 0, a, b, groups * a.shape[0] * b.shape[1], depth=a.shape[1] / max(groups, 1))
    return None


def _product_cost(passed: Arguments, first: int, a: Tensor, b: Tensor, out: int, depth: float | None = None) -> Cost:
    """Both factors are read, the product of ``out`` elements written, and a full matrix that is added to it read."""
    item = a.item_bytes or 0
    written = max(item, 2)  # products of 8-bit factors are written in 16 bits
    added = sum(tensor.elements * (tensor.item_bytes or 0) for tensor in passed.tensors[:first] if tensor)
    moved = a.elements * item + b.elements * (b.item_bytes or 0) + out * written + added
    return Cost("matmul", moved, round(2 * out * (a.shape[-1] if depth is None else depth)), a.dtype)


#: Products of two matrices, or of as many pairs, to the position of the first factor.
_FIRST_FACTOR = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::_int_mm", "aten::_scaled_mm"), 0),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm", "aten::_addmm_activation"), 1),
}

MATMUL: dict[str, Model] = {
    **{name: partial(_product, first=first) for name, first in _FIRST_FACTOR.items()},
    **dict.fromkeys(("aten::_grouped_mm", "aten::_scaled_grouped_mm"), _grouped),
}


_BACKWARD = 2.5  #: matrix products backward / forward: the scores again, and two gradients for each of the two products
#: Values of ``custom_mask_type`` of the memory-efficient kernel: none, causal from the top left, from the bottom right.
_MASK_TYPES = {"0": False, "1": True, "2": True}


def _attention(passed: Arguments, query: int, causal: int, heads: int) -> Cost | None:
    """4·B·H·S·S·D forward for equal sizes, x 2.5 backward, of tensors (batch, positions, heads, size) or heads before.

    Key and value follow the ``query``; a backward operator takes the gradient first. At ``causal`` is the flag, or the
    type of mask.

    Sequences packed into one (positions, heads, size) tensor are not counted: their lengths are not recorded. Neither
    is a call of which it is not known whether it is causal.
    """
    q, k, v = (passed.tensor(query + offset) for offset in range(3))
    if q is None or k is None or v is None or not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        return None
    is_causal = _MASK_TYPES.get(passed.value(causal), passed.flag(causal))
    if is_causal is None:
        return None
    positions, is_backward = 3 - heads, query == 1
    pairs = q.shape[0] * q.shape[heads] * q.shape[positions] * k.shape[positions]
    # With fewer queries than keys (a cache) a causal mask hides little: only the square part is halved.
    hidden = min(q.shape[positions], k.shape[positions]) / max(k.shape[positions], 1) / 2 if is_causal else 0.0
    products = 2 * pairs * (q.shape[3] + v.shape[3]) * (1 - hidden)
    out = q.elements // max(q.shape[3], 1) * v.shape[3]
    read = q.elements + k.elements + v.elements
    # Backward reads the output and its gradient too and writes three gradients.
    moved = (2 * read + 2 * out) if is_backward else read + out
    flops = round(products * (_BACKWARD if is_backward else 1))
    return Cost("attention", moved * (q.item_bytes or 0), flops, q.dtype)


ATTENTION: dict[str, Model] = {
    "aten::_flash_attention_forward": partial(_attention, query=0, causal=8, heads=2),
    "aten::_flash_attention_backward": partial(_attention, query=1, causal=11, heads=2),
    "aten::_efficient_attention_forward": partial(_attention, query=0, causal=9, heads=2),
    "aten::_efficient_attention_backward": partial(_attention, query=1, causal=14, heads=2),
    "aten::_scaled_dot_product_cudnn_attention": partial(_attention, query=0, causal=6, heads=1),
    "aten::_cudnn_attention_forward": partial(_attention, query=0, causal=10, heads=1),
    "aten::_scaled_dot_product_cudnn_attention_backward": partial(_attention, query=1, causal=14, heads=1),
    "aten::_cudnn_attention_backward": partial(_attention, query=1, causal=14, heads=1),
    "aten::_scaled_dot_product_flash_attention_for_cpu": partial(_attention, query=0, causal=4, heads=1),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": partial(_attention, query=1, causal=7, heads=1),
    "flash_attn::_flash_attn_forward": partial(_attention, query=0, causal=5, heads=2),
    "flash_attn::_flash_attn_backward": partial(_attention, query=1, causal=11, heads=2),
}


Pairs = Mapping[tuple[Shape, Shape], Shape]
_TRANSPOSED = "_transpose"


#: Positions of stride, padding and dilation of the forward operators, -1 for none.
_FORWARD = {
    "aten::cudnn_convolution": (3, 2, 4),
    "aten::miopen_convolution": (4, 3, 5),
    "aten::miopen_depthwise_convolution": (4, 3, 5),
    "aten::mkldnn_convolution": (4, 3, 5),
    "aten::cudnn_convolution_relu": (3, 4, 5),
    "aten::cudnn_convolution_add_relu": (5, 6, 7),
    "aten::_conv_depthwise2d": (4, 5, 6),
    "aten::_slow_conv2d_forward": (4, 5, -1),
    "aten::cudnn_convolution_transpose": (4, 2, 5),
}


class Seen(msgspec.Struct, frozen=True):
    """Shapes that occur together in a trace, for calls whose own arguments leave one of them open."""

    outputs: Pairs  #: (input, weight) to the output; releases before 1.12 did not record the stride
    weights: Pairs  #: (input, output) to the weight, which the weight's gradient is not passed


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
        **{name: partial(_forward, name=name, seen=seen) for name in _FORWARD},
        "aten::convolution_backward": _backward,
        "aten::cudnn_convolution_backward_input": _input_gradient,
        "aten::cudnn_convolution_backward_weight": partial(_weight_gradient, seen=seen),
    }


def _forward(passed: Arguments, name: str, seen: Seen) -> Cost | None:
    source, weight = passed.tensor(0), passed.tensor(1)
    if source is None or weight is None or len(source.shape) != len(weight.shape):
        return None
    out = _output(passed, name, source.shape, weight.shape) or seen.outputs.get((source.shape, weight.shape))
    if out is None:
        return None
    reached = source.shape if name.endswith(_TRANSPOSED) else out
    return _convolution_cost(source, weight.shape, prod(reached), source.elements + weight.elements + prod(out))


def _output(passed: Arguments, name: str, source: Shape, weight: Shape) -> Shape | None:
    """``(N, C, …)`` of the output, ``None`` where stride or padding were not recorded.

    >>> passed = arguments("[]", "[]", '["", "", "[3, 3]", "[2, 2]", "[1, 1]"]')
    >>> _output(passed, "aten::cudnn_convolution", (32, 3, 224, 224), (64, 3, 7, 7))
    (32, 64, 112, 112)
    """
    *places, spreads = _FORWARD[name]
    stride, padding = map(passed.numbers, places)
    dilation, transposed = passed.numbers(spreads) if spreads >= 0 else (1,), name.endswith(_TRANSPOSED)
    if not stride or not padding or not dilation or 0 in stride:
        return None
    sizes = []
    for axis in range(len(source) - 2):
        step, pad, spread = (given[axis] if axis < len(given) else given[-1] for given in (stride, padding, dilation))
        reach = spread * (weight[axis + 2] - 1) + 1
        length = source[axis + 2]
        sizes.append((length - 1) * step - 2 * pad + reach if transposed else (length + 2 * pad - reach) // step + 1)
    return (source[0], weight[int(transposed)], *sizes) if min(sizes, default=1) > 0 else None


def _backward(passed: Arguments) -> Cost | None:
    """Each gradient that is asked for costs as much as the forward call; where the mask was not recorded, two."""
    gradient, source, weight = passed.tensor(0), passed.tensor(1), passed.tensor(2)
    if gradient is None or source is None or weight is None:
        return None
    asked = [text.strip() != "False" for text in passed.value(10).strip("[]").split(",")][:2]
    gradients = sum(asked) if len(asked) == 2 else 2
    reached = source if passed.flag(7) else gradient
    moved = gradient.elements + weight.elements + source.elements
    return _convolution_cost(source, weight.shape, gradients * reached.elements, gradients * moved)


def _input_gradient(passed: Arguments) -> Cost | None:
    """Is passed the gradient of the output and the weight; what it writes is not recorded and left out of the bytes."""
    gradient, weight = passed.tensor(1), passed.tensor(2)
    if gradient is None or weight is None:
        return None
    return _convolution_cost(gradient, weight.shape, gradient.elements, gradient.elements + weight.elements)


def _weight_gradient(passed: Arguments, seen: Seen) -> Cost | None:
    """Is passed the gradient of the output and the input, from which the weight follows where the trace has all."""
    gradient, source = passed.tensor(1), passed.tensor(2)
    weight = seen.weights.get((source.shape, gradient.shape)) if gradient and source else None
    if gradient is None or source is None or weight is None:
        return None
    return _convolution_cost(source, weight, gradient.elements, gradient.elements + source.elements + prod(weight))


def _convolution_cost(source: Tensor, weight: Shape, reached: int, moved: int) -> Cost:
    """``reached`` elements each take a product with a filter's worth of weights."""
    return Cost("convolution", moved * (source.item_bytes or 0), 2 * reached * prod(weight[1:]), source.dtype)
