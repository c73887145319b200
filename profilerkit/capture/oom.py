"""What filled the memory of a device, or of the host, when an allocation failed."""

import gc
import os
import re
import resource
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from profilerkit.capture.guard import attempt
from profilerkit.capture.proc_files import FreeMemory, ProcFiles
from profilerkit.model.memory import LiveBytes, LiveKind, LiveTensor, OutOfMemory
from profilerkit.model.run import Loader
from profilerkit.secrets import masked

#: A process of a million objects is looked through in 0.3 s; after this time the rest is left out.
_SECONDS = 2.0
_MOST_TENSORS = 10
_STRIDE = 4096  #: objects between two looks at the clock
_DEPTH = 4  #: how deep tensors lie in an optimizer's state: state, parameter, name, and lists in LBFGS


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
    return lambda group: always + sum(bool(group.get(option)) for option in options)


#: Tensors of a parameter's size that each class of ``torch.optim`` keeps, by the options of the group. torch 2.13; a
#: test steps each class. Adagrad has its state from the start. Adafactor and LBFGS keep other sizes: not known.
_STATE: dict[str, Callable[[_Group], int]] = {
    **dict.fromkeys(("ASGD", "Muon"), _count(1)),
    **dict.fromkeys(("Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "SparseAdam"), _count(2)),
    **dict.fromkeys(("Adam", "AdamW"), _count(2, "amsgrad")),
    "RMSprop": _count(1, "momentum", "centered"),
    "SGD": _count(0, "momentum"),
}


def unallocated_bytes(torch: Any, optimizers: Iterable[Any], size: Callable[[Any], int]) -> int | None:
    """Bytes of the trained parameters' missing gradients and missing optimizer state.

    ``None`` where no optimizer is there, or where one without state yet is of a class that nobody here knows. A
    parameter counts once. What an optimizer takes for the length of a step (lists of ``foreach``) is left out.
    """
    parameters: dict[int, Any] = {}
    tensors: dict[int, int | None] = {}
    for optimizer in optimizers:
        kind = type(optimizer)
        kept = _STATE.get(kind.__name__) if getattr(torch.optim, kind.__name__, None) is kind else None
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


#: What torch's allocator for the host, CUDA outside of torch's allocator, and cuBLAS say. torch 2.13.
_TELLING = re.compile(
    r"can't allocate memory: you tried to allocate|not enough memory: you tried to allocate"
    r"|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
)
#: ``Tried to allocate 20.00 MiB``, ``you tried to allocate 4096 bytes``, numpy's ``Unable to allocate 7.28 TiB``.
_REQUEST = re.compile(r"allocate (\d+(?:\.\d+)?) ?(bytes|KiB|MiB|GiB|TiB|PiB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}
_GPU = re.compile(r"\bGPU (\d{1,4}) has")
_LONGEST_MESSAGE = 500
#: Modules of torch whose lines ask for memory once the forward pass has made all activations.
_AFTER_FORWARD = {"torch.nn.modules.loss", "torch.autograd", "torch.optim.optimizer"}
#: All that stays when the batch shrinks.
_FIXED = ("parameters", "gradients", "optimizer state", "buffers")
_ROOT = Path("/")

_Limit = Literal["device", "host", "control group", "address space"]

_Room = dict[str, Any]  #: the memory that ran out, by the field of ``OutOfMemory``


def dossier(error: Exception, *, steps: int, loader: Loader | None) -> OutOfMemory | None:
    """What the memory holds now; ``None`` for an ``error`` that is not about memory. Nothing is kept alive by it.

    Call it on the training thread while ``error``, whose traceback holds what was live, is on its way.
    """
    torch = sys.modules.get("torch")
    text = attempt(str, error) or ""
    of_device = _is_of_a_device(error, text, torch)
    of_host = isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _TELLING.search(text) is not None)
    if not (of_device or of_host):
        return None
    if of_device:
        live, room = attempt(_on_device, text, torch) or (None, {"device": "device"})
    else:
        live, room = attempt(_on_host, torch) or (None, {"device": "host"})
    batch, requested = loader.batch_size if loader else None, _requested(text)
    return OutOfMemory(
        **room,
        message=masked(next(iter(text.splitlines()), "") or type(error).__name__)[:_LONGEST_MESSAGE],
        requested_bytes=requested,
        step=steps,
        live=() if live is None else _kinds(live, room),
        largest=live.largest if live is not None else (),
        complete=live is not None and live.complete,
        batch_size=batch,
        fitting_batch_size=_fitting(live, room, batch, requested) if _is_after_forward(error) else None,
    )


def _is_after_forward(error: Exception) -> bool:
    """Return whether all activations were there: nothing tells what the rest of a forward pass would have taken."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [str(frame.f_globals.get("__name__")) for frame in frames]
    if "torch.utils.checkpoint" in names:
        return False  # makes activations within the backward pass
    is_foreign = False
    for name, frame in zip(reversed(names), reversed(frames), strict=True):
        if name in _AFTER_FORWARD:
            # Gradients are asked for within a forward pass too; an optimizer calls a closure that holds both passes.
            return frame.f_code.co_name != "grad" and not (is_foreign and name == "torch.optim.optimizer")
        if name == "torch.nn.modules.module":
            return False
        is_foreign = is_foreign or name.partition(".")[0] != "torch"
    return False


def _kinds(live: LiveMemory, room: _Room) -> tuple[LiveBytes, ...]:
    kinds = list(live.kinds)
    unseen = (room["allocated_bytes"] or 0) - sum(kind.bytes for kind in kinds)
    if unseen > 0:
        kinds.append(LiveBytes(kind="unseen", bytes=unseen))
    return tuple(sorted(kinds, key=lambda kind: -kind.bytes))


def _fitting(live: LiveMemory | None, room: _Room, batch: int | None, requested: int | None) -> int | None:
    held, free = room.get("allocated_bytes"), room.get("free_bytes")
    if live is None or not live.complete or held is None or free is None or batch is None or requested is None:
        return None
    if live.unallocated_bytes is None:
        return None
    fixed = sum(kind.bytes for kind in live.kinds if kind.kind in _FIXED)
    capacity = (room["reserved_bytes"] or held) + free - live.unallocated_bytes
    return fitting(batch, fixed, held, capacity, requested)


def _is_of_a_device(error: Exception, text: str, torch: Any) -> bool:
    kind = getattr(torch, "OutOfMemoryError", None)
    if kind is not None and isinstance(error, kind):
        return True
    return isinstance(error, RuntimeError) and ("CUDA error: out of memory" in text or "CUBLAS_STATUS_ALLOC" in text)


def _requested(text: str) -> int | None:
    """The bytes that were asked for.

    >>> _requested("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total"), _requested("")
    (1610612736, None)
    """
    match = _REQUEST.search(text)
    return round(float(match[1]) * _UNITS[match[2]]) if match else None


def _on_device(text: str, torch: Any) -> tuple[LiveMemory | None, _Room]:
    cuda = torch.cuda
    match = _GPU.search(text)
    index = int(match[1]) if match else int(cuda.current_device())
    free, total = attempt(cuda.mem_get_info, index) or (None, None)
    live = attempt(live_memory, torch, "cuda", index)
    return live, {
        "device": f"cuda:{index}",
        "allocated_bytes": int(cuda.memory_allocated(index)),
        "reserved_bytes": int(cuda.memory_reserved(index)),
        "free_bytes": free,
        "total_bytes": total,
        "limit": "device",
    }


def _on_host(torch: Any) -> tuple[LiveMemory | None, _Room]:
    held, limit, free, total = _tightest()
    live = attempt(live_memory, torch, "cpu", None) if torch is not None else None
    room = {"allocated_bytes": held, "reserved_bytes": None, "free_bytes": free, "total_bytes": total, "limit": limit}
    return live, {"device": "host", **room}


def _tightest() -> tuple[int, _Limit, int, int]:
    """What this process holds, and of the limits of its memory the tightest: its name, what is free of it, its size."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    virtual, resident = (int(pages) * page_bytes for pages in Path("/proc/self/statm").read_text("ascii").split()[:2])
    files = ProcFiles(_ROOT)
    limits: list[tuple[int, _Limit, int, int]]
    limits = [(left, name, resident, size) for left, name, size in FreeMemory(files).limits()]
    files.close()
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append((soft - virtual, "address space", virtual, soft))
    free, limit, held, total = min(limits)
    return held, limit, max(free, 0), total


def fitting(batch: int, fixed: int, held: int, capacity: int, requested: int) -> int | None:
    """Return the largest batch for which there may be room; ``None`` where that cannot be known.

    ``fixed`` bytes of those ``held`` stay. The rest, with what was ``requested``, is proportional to the batch. The
    ``capacity`` is without what is still to be allocated for any batch. A batch of 32 needs 2 GB + 32 × 0.25 GB here:
    24 fit into 8 GB, and 12 where gradients and state will take 3 GB of them.

    >>> fitting(32, fixed=2, held=8, capacity=8, requested=2), fitting(32, fixed=2, held=8, capacity=8 - 3, requested=2)
    (24, 12)

    Where the room would do, it was in pieces; where not even one sample fits, the request was not about the batch.
    """
    fits = batch * (capacity - fixed) // (held - fixed + requested)
    return fits if 1 <= fits < batch else None
