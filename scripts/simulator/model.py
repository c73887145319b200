"""What a training step of a transformer computes: forward nodes with their backward kernels, in order."""

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.job import Job
from simulator.kernels import Kernel, Maker

_HEAD_WIDTH = 64
_SEQUENCE = 1024


@dataclass(frozen=True, slots=True)
class Node:
    """One differentiable operation: the name of its backward node, its kernels forward and backward."""

    name: str
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]


def maker_of(job: Job) -> Maker:
    """The kernels of the job's chip and precision."""
    return Maker(job.chip, fp32=job.model.fp32, tf32=job.model.tf32, reached=job.reached)


def layers_of(job: Job) -> list[list[Node]]:
    """The nodes of every layer, forward order; a head counts as the end of the last layer."""
    model, make = job.model, maker_of(job)
    t, h = model.tokens, model.hidden
    if model.lean:
        return [[_linear(make, t, 4 * h, h), _linear(make, t, h, 4 * h)] for _ in range(model.layers)]

    def norm() -> Node:
        return Node("NativeLayerNormBackward0", (make.norm(t, h),), (make.norm(t, h, backward=True),))

    def linear(wide: int, deep: int) -> Node:
        return _linear(make, t, wide, deep)

    def gathers() -> list[Node]:
        return [Node("EmbeddingBackward0", (make.gather(model.gather_rows, h),), ()) for _ in range(model.gathers)]

    def attention() -> list[Node]:
        if not model.attention:
            return []
        shape = max(t // _SEQUENCE, 1), h // _HEAD_WIDTH, _SEQUENCE, _HEAD_WIDTH
        node = "ScaledDotProductFlashAttentionBackward0"
        return [Node(node, (make.attention(*shape),), (make.attention(*shape, backward=True),))]

    gelu = Node(
        "GeluBackward0",
        (make.pointwise(t, 4 * h, "aten::gelu", 1),),
        (make.pointwise(t, 4 * h, "aten::gelu_backward"),),
    )
    add = Node("AddBackward0", (make.pointwise(t, h),), ())
    layers = [
        [
            norm(), linear(3 * h, h), *gathers(), *attention(), linear(h, h), add,
            norm(), linear(4 * h, h), gelu, linear(h, 4 * h), add,
        ]
        for _ in range(model.layers)
    ]  # fmt: skip
    if model.head_rows:
        layers[-1].append(_linear(make, model.head_rows, model.vocabulary, h))
    return layers


def _linear(make: Maker, rows: int, wide: int, deep: int) -> Node:
    backward = (make.gemm(rows, deep, wide, backward=True), make.gemm(wide, deep, rows, backward=True))
    return Node("AddmmBackward0", (make.gemm(rows, wide, deep),), backward)


def optimizer_of(job: Job) -> list[Kernel]:
    """One fused kernel per layer."""
    return [maker_of(job).optimizer(12 * job.model.hidden**2)] * job.model.layers


def kernels_of(job: Job) -> Iterator[Kernel]:
    """Every kernel of a plain step, without injected causes."""
    for layer in layers_of(job):
        for node in layer:
            yield from node.forward
            yield from node.backward
    yield from optimizer_of(job)


def device_ns(job: Job) -> float:
    """How long the device computes in a plain step."""
    return sum(kernel.ns for kernel in kernels_of(job))
