"""A kernel by the operator that launched it."""

from profilerkit.model.report import Kernel
from profilerkit.report.inert import inert

_SHORT_NAME = 44


def short_name(kernel: Kernel) -> str:
    """The operator says more than the name of its kernel, of which the end and the beginning are kept."""
    if kernel.operator in (None, kernel.name):
        return inert(kernel.name, _SHORT_NAME)
    operator = inert(kernel.operator or "", _SHORT_NAME // 2)
    return f"{operator} · {inert(kernel.name, _SHORT_NAME - len(operator) - 3)}"
