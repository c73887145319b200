"""What was passed to an operator, from the raw JSON of a trace. Hostile text: anything impossible is unknown."""

import json
from collections.abc import Iterable, Iterator
from math import prod

import msgspec


class ScalarType(msgspec.Struct, frozen=True):
    """One type.

    Attributes:
        name: torch's word, which the metadata of collectives has.
        short: what a type is called in a table of peaks; those with one peak share it.
        bytes: of an element.
    """

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

#: By torch's words.
BY_NAME: dict[str, ScalarType] = {found.name: found for found in BY_C_NAME.values()}


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
    """What one call was passed, by position.

    Attributes:
        tensors: the tensor at each position, ``None`` for what is no tensor, is absent, or has no dimensions.
        lists: position to the elements of all tensors of a list; their type is not recorded.
        values: the text of each scalar and list of scalars; empty where not recorded.
    """

    tensors: tuple[Tensor | None, ...]
    lists: dict[int, int]
    values: tuple[str, ...]

    def tensor(self, position: int) -> Tensor | None:
        """The tensor at a position with a type of known size, ``None`` if there is none."""
        found = self.tensors[position] if position < len(self.tensors) else None
        return found if found is not None and found.type is not None else None

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
    ((8, 3), 'fp32', {1: 18}, True)
    """
    shapes, kinds, texts = _list(dims), _list(types), _list(values) if values else []
    if shapes is None or kinds is None or texts is None:
        return None
    tensors: list[Tensor | None] = []
    lists: dict[int, int] = {}
    for position, entry in enumerate(shapes):
        kind = kinds[position] if position < len(kinds) else ""
        shape = _shape(entry)
        named = BY_C_NAME.get(kind) if isinstance(kind, str) else None
        tensors.append(Tensor(shape, named) if shape and named else None)
        if shape is None and isinstance(entry, list):
            lists[position] = sum(prod(found) for found in map(_shape, entry) if found)
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
