"""The record of what one call costs."""

from collections.abc import Callable

import msgspec

from profilerkit.analysis.costs.arguments import Arguments

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
    """Arithmetic and compulsory traffic of one call: every input read once, every output written once.

    Attributes:
        family: one of ``FAMILIES``.
        bytes: moved to and from device memory.
        flops: of matrix units and their like, a multiply and an add counting two; 0 where only traffic counts.
        dtype: short name of the type that is computed in; ``None`` where it does not matter.
        untyped: elements moved besides ``bytes`` whose size only the kernel's name tells: lists carry no type.
        pointwise_only: holds for the pointwise kernels of the call, not for others.
    """

    family: str
    bytes: int
    flops: int = 0
    dtype: str | None = None
    untyped: int = 0
    pointwise_only: bool = False


#: The cost of one kind of call; ``None`` where the arguments do not tell.
Model = Callable[[Arguments], Cost | None]
