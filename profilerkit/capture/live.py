"""Finds the live tensors on a device and says what each is for, within two seconds and without keeping any."""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from profilerkit.capture.guard import attempt
from profilerkit.model.memory import LiveBytes, LiveKind, LiveTensor

#: A process of a million objects is looked through in 0.3 s; after this time the rest is left out.
_SECONDS = 2.0
_MOST_TENSORS = 10
#: Objects between two looks at the clock.
_STRIDE = 4096
#: How deep tensors lie in an optimizer's state: state, parameter, name, and lists in LBFGS.
_DEPTH = 4


@dataclass(frozen=True, slots=True)
class LiveMemory:
    """Live storages by kind, the largest of them, and whether all objects were looked at.

    ``unallocated_bytes`` are of gradients and optimizer state that are still to come; ``None`` where not known.
    """

    kinds: tuple[LiveBytes, ...]
    largest: tuple[LiveTensor, ...]
    complete: bool
    unallocated_bytes: int | None


def live_memory(torch: Any, device: str, index: int | None) -> LiveMemory:
    """The memory that Python's tensors hold on one device; each storage counts once, for the first kind it has.

    Tensors that only C++ holds, such as most that are saved for the backward pass, are not among them.
    """
    deadline = monotonic() + _SECONDS
    with torch._C.DisableTorchFunctionSubclass():
        tensors, modules, optimizers, complete = _objects(torch, deadline)
        found: dict[int, LiveTensor] = {}
        for kind, of_kind in _by_kind(torch, tensors, modules, optimizers):
            for number, tensor in enumerate(of_kind):
                if number % _STRIDE == 0 and monotonic() > deadline:
                    complete = False
                    break
                attempt(_add, found, kind, tensor, device, index)
        missing = attempt(unallocated_bytes, torch, optimizers, lambda parameter: _bytes(parameter, device, index))
    sums: dict[LiveKind, tuple[int, int]] = {}
    for entry in found.values():
        held, count = sums.get(entry.kind, (0, 0))
        sums[entry.kind] = held + entry.bytes, count + 1
    kinds = tuple(LiveBytes(kind=kind, bytes=held, count=count) for kind, (held, count) in sums.items())
    largest = tuple(sorted(found.values(), key=lambda entry: -entry.bytes)[:_MOST_TENSORS])
    return LiveMemory(kinds, largest, complete, missing)


def _objects(torch: Any, deadline: float) -> tuple[list[Any], list[Any], list[Any], bool]:
    """All tensors, modules and optimizers that the garbage collector knows, and whether that are all."""
    wanted = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
    lists: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    which: dict[type, int | None] = {}
    for number, thing in enumerate(gc.get_objects()):
        if number % _STRIDE == 0 and monotonic() > deadline:
            return *lists, False
        # Never `isinstance`, which asks the object itself.
        kind = type(thing)
        if kind not in which:
            which[kind] = next((place for place, base in enumerate(wanted) if base in kind.__mro__), None)
        place = which[kind]
        if place is not None:
            lists[place].append(thing)
    return *lists, True


def _by_kind(
    torch: Any, tensors: list[Any], modules: list[Any], optimizers: list[Any]
) -> Iterator[tuple[LiveKind, list[Any]]]:
    """Tensors by what they are for; one may come again under a later kind."""
    parameters = [tensor for tensor in tensors if torch.nn.Parameter in type(tensor).__mro__]
    for module in modules:
        parameters.extend(attempt(_values, module, "_parameters") or ())
    for optimizer in optimizers:
        parameters.extend(attempt(_trained, optimizer) or ())
    yield "parameters", parameters
    yield "gradients", [grad for tensor in tensors if (grad := attempt(_gradient, tensor)) is not None]
    yield "optimizer state", [tensor for one in optimizers for tensor in attempt(_state, torch, one) or ()]
    yield "buffers", [tensor for module in modules for tensor in attempt(_values, module, "_buffers") or ()]
    yield "other", tensors


def _values(module: Any, name: str) -> list[Any]:
    return [tensor for tensor in module.__dict__[name].values() if tensor is not None]


def _trained(optimizer: Any) -> list[Any]:
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


def _gradient(tensor: Any) -> Any:
    return tensor.grad if tensor.is_leaf else None  # asking another tensor for it warns


def _state(torch: Any, optimizer: Any) -> list[Any]:
    return list(_tensors(torch, optimizer.state.values(), _DEPTH))


def _tensors(torch: Any, values: Iterable[Any], depth: int) -> Iterator[Any]:
    for value in values:
        if torch.Tensor in type(value).__mro__:
            yield value
        elif depth and isinstance(value, dict):
            yield from _tensors(torch, value.values(), depth - 1)
        elif depth and isinstance(value, (list, tuple)):
            yield from _tensors(torch, value, depth - 1)


def _add(found: dict[int, LiveTensor], kind: LiveKind, tensor: Any, device: str, index: int | None) -> None:
    """Count the storage of ``tensor`` if it is on the device and new."""
    tensor = _local(tensor)
    if not _is_on(tensor, device, index):
        return
    storage = tensor.untyped_storage()
    address = int(storage.data_ptr())
    if address and address not in found:
        shape = tuple(int(size) for size in tensor.shape)
        dtype = str(tensor.dtype).removeprefix("torch.")
        found[address] = LiveTensor(kind=kind, shape=shape, dtype=dtype, bytes=int(storage.nbytes()))


def _bytes(tensor: Any, device: str, index: int | None) -> int:
    """Bytes of a tensor's own elements on the device; of a view into FSDP's flat parameter not those of the whole."""
    tensor = _local(tensor)
    return int(tensor.numel()) * int(tensor.element_size()) if _is_on(tensor, device, index) else 0


def _local(tensor: Any) -> Any:
    return getattr(tensor, "_local_tensor", tensor)  # this rank's part of a DTensor


def _is_on(tensor: Any, device: str, index: int | None) -> bool:
    place = tensor.device
    return bool(place.type == device and (index is None or place.index == index))


_Group = Mapping[str, Any]


def _count(always: int, *options: str) -> Callable[[_Group], int]:
    """Count ``always``, and one more for each of the ``options`` that a group has switched on."""
    return lambda group: always + sum(bool(group.get(option)) for option in options)


#: Tensors of a parameter's size that each class of ``torch.optim`` keeps, by the options of the group. torch 2.13; a
#: test steps each class. Adagrad has its state from the start. Adafactor and LBFGS keep other sizes: not known.
_STATE: dict[str, Callable[[_Group], int]] = {
    "ASGD": _count(1),
    "Adadelta": _count(2),
    "Adam": _count(2, "amsgrad"),
    "AdamW": _count(2, "amsgrad"),
    "Adamax": _count(2),
    "Muon": _count(1),
    "NAdam": _count(2),
    "RAdam": _count(2),
    "RMSprop": _count(1, "momentum", "centered"),
    "Rprop": _count(2),
    "SGD": _count(0, "momentum"),
    "SparseAdam": _count(2),
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
