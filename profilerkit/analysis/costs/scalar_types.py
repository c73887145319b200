"""The types of a tensor's elements, by the names that traces have for them."""

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
