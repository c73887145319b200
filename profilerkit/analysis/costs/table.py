"""Which operator has which cost."""

from profilerkit.analysis.costs.arguments import Arguments
from profilerkit.analysis.costs.formulas import ATTENTION, MATMUL, Cost, Model, Seen, convolutions
from profilerkit.analysis.costs.traffic import TRAFFIC, each_once, foreach, pointwise

#: Kernels that torch.compile fuses: pointwise, and reductions with what stands around them. Templates of matrix
#: products have other names.
_FUSED = ("triton_poi_", "triton_red_", "triton_per_")


class CostTable:
    """The cost of a call by the operator's name; only operators that launch kernels themselves have one.

    An operator that calls others (``aten::linear``, ``aten::conv2d``) is left out, so that nothing is counted twice.
    """

    def __init__(self, seen: Seen) -> None:
        self._models: dict[str, Model] = {**MATMUL, **ATTENTION, **TRAFFIC, **convolutions(seen)}

    def cost(self, name: str, passed: Arguments) -> Cost | None:
        """The cost of one call, ``None`` where its arguments do not tell."""
        model = self._models.get(name)
        if model is not None:
            return model(passed)
        if name.startswith(_FUSED):
            return each_once(passed)
        if not name.startswith("aten::"):
            return None
        return foreach(passed) if name.startswith("aten::_foreach_") else pointwise(passed, name)
