"""Finds the live tensors on a device and says what each is for, within two seconds and without keeping any."""

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

from profilerkit.capture.guard import asked
from profilerkit.capture.unallocated import unallocated_bytes
from profilerkit.model.oom import LiveBytes, LiveKind, LiveTensor

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
                asked(_add, found, kind, tensor, device, index)
        missing = asked(unallocated_bytes, torch, optimizers, lambda parameter: _bytes(parameter, device, index))
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
        parameters.extend(asked(_values, module, "_parameters") or ())
    for optimizer in optimizers:
        parameters.extend(asked(_trained, optimizer) or ())
    yield "parameters", parameters
    yield "gradients", [grad for tensor in tensors if (grad := asked(_gradient, tensor)) is not None]
    yield "optimizer state", [tensor for one in optimizers for tensor in asked(_state, torch, one) or ()]
    yield "buffers", [tensor for module in modules for tensor in asked(_values, module, "_buffers") or ()]
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
