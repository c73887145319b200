"""Counts the gradients and the optimizer state that a training step still has to allocate."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

_Group = Mapping[str, Any]


def _tensors(always: int, *options: str) -> Callable[[_Group], int]:
    """Count ``always``, and one more for each of the ``options`` that a group has switched on."""
    return lambda group: always + sum(bool(group.get(option)) for option in options)


#: Tensors of a parameter's size that each class of ``torch.optim`` keeps, by the options of the group. torch 2.13; a
#: test steps each class. Adagrad has its state from the start. Adafactor and LBFGS keep other sizes: not known.
_STATE: dict[str, Callable[[_Group], int]] = {
    "ASGD": _tensors(1),
    "Adadelta": _tensors(2),
    "Adam": _tensors(2, "amsgrad"),
    "AdamW": _tensors(2, "amsgrad"),
    "Adamax": _tensors(2),
    "Muon": _tensors(1),
    "NAdam": _tensors(2),
    "RAdam": _tensors(2),
    "RMSprop": _tensors(1, "momentum", "centered"),
    "Rprop": _tensors(2),
    "SGD": _tensors(0, "momentum"),
    "SparseAdam": _tensors(2),
}


def unallocated_bytes(torch: Any, optimizers: Iterable[Any], size: Callable[[Any], int]) -> int | None:
    """Bytes of the trained parameters' missing gradients and missing optimizer state.

    ``None`` where no optimizer is there, or where one without state yet is of a class that nobody here knows. A
    parameter counts once. What an optimizer takes for the length of a step (lists of ``foreach``) is left out.

    Args:
        torch: the module.
        optimizers: the live ones; a wrapper and what it wraps may both be among them.
        size: bytes that a parameter has on the judged device, 0 on another one.
    """
    parameters: dict[int, Any] = {}
    tensors: dict[int, int | None] = {}
    for optimizer in optimizers:
        kept = _of_class(torch, optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                key = id(parameter)
                parameters[key] = parameter
                count = 0 if optimizer.state.get(parameter) else kept(group) if kept is not None else None
                known = tensors.get(key)
                tensors[key] = count if known is None else known
    total = 0
    for key, parameter in parameters.items():
        own, count = size(parameter) if parameter.requires_grad else 0, tensors[key]
        if own and count is None:
            return None
        total += own * ((count or 0) + (parameter.grad is None))
    return total if parameters else None


def _of_class(torch: Any, optimizer: Any) -> Callable[[_Group], int] | None:
    """Count for torch's own classes; ``None`` for a class of the user's, which may keep anything."""
    kind = type(optimizer)
    return _STATE.get(kind.__name__) if getattr(torch.optim, kind.__name__, None) is kind else None
