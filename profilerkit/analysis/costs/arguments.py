"""What was passed to an operator, from the raw JSON of a trace. Hostile text: anything impossible is unknown."""

import json
from dataclasses import dataclass
from math import prod

#: Bytes of an element by the names traces write, and the short names used here; other types have neither.
_TYPES: dict[str, tuple[str, int]] = {
    "float": ("fp32", 4),
    "double": ("fp64", 8),
    "c10::Half": ("fp16", 2),
    "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e4m3fnuz": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1),
    "c10::Float8_e5m2fnuz": ("fp8", 1),
    "c10::Float8_e8m0fnu": ("scale", 1),
    "long int": ("int64", 8),
    "int": ("int32", 4),
    "short int": ("int16", 2),
    "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "bool": ("bool", 1),
    "c10::complex<float>": ("complex64", 8),
    "c10::complex<double>": ("complex128", 16),
}

#: Longest text that is parsed. The lists of a fused optimizer over 1,500 tensors stay below it; parsed, a text takes
#: some 16 times its length.
_LONGEST_TEXT = 2**17
#: More elements than any device holds, and more dimensions than torch allows: such a shape is none.
MOST_ELEMENTS, _MOST_DIMENSIONS = 2**44, 64

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its shape, the short name of its type and the bytes of an element, ``None`` where not known."""

    shape: Shape
    dtype: str | None
    item_bytes: int | None

    @property
    def elements(self) -> int:
        """Product of the shape."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Arguments:
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
        return found if found is not None and found.item_bytes is not None else None

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
    >>> found.tensors[0], found.lists, found.flag(2)
    (Tensor(shape=(8, 3), dtype='fp32', item_bytes=4), {1: 18}, True)
    """
    shapes, kinds, texts = _list(dims), _list(types), _list(values) if values else []
    if shapes is None or kinds is None or texts is None:
        return None
    tensors: list[Tensor | None] = []
    lists: dict[int, int] = {}
    for position, entry in enumerate(shapes):
        kind = kinds[position] if position < len(kinds) else ""
        shape = _shape(entry)
        named = _TYPES.get(kind) if isinstance(kind, str) else None
        known = shape and named is not None
        tensors.append(Tensor(shape, named[0], named[1]) if known and shape and named else None)
        if shape is None and isinstance(entry, list):
            lists[position] = sum(prod(found) for found in map(_shape, entry) if found)
    return Arguments(tuple(tensors), lists, tuple(text if isinstance(text, str) else "" for text in texts))


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
