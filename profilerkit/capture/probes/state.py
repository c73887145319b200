"""A copy of everything that training steps change, put back bit for bit.

Kept are the tensors and plain values of all modules, optimizers, LR schedulers, gradient scalers and averages of
weights, gradients, all random generators of Python and numpy, and torch's default ones and those that loaders hold. Not
kept are values in variables of the training loop: nobody but Python knows them.
"""

import functools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from profilerkit.capture.guard import attempt
from profilerkit.capture.probes.found import Found, UnprobedError
from profilerkit.capture.proc_files import FreeMemory, ProcFiles
from profilerkit.units import format_bytes

#: Of the memory that is free, copies may take this much (a choice: the rest of the step needs some too).
_MOST_OF_FREE = 0.5
#: Longer lists and mappings are not looked into: they are data, not state.
_LONGEST = 100_000
_PLAIN = (int, float, bool, complex, str, bytes, type(None))


class Snapshot:
    """What ``found`` held when this was made."""

    def __init__(self, found: Found) -> None:
        """Copy it all.

        Raises:
            UnprobedError: a kind of tensor that cannot be copied back, or not enough memory.
        """
        self._torch = sys.modules["torch"]
        self._seen: set[int] = set()
        self._tensors: list[Any] = []
        self._copies: list[Any] = []
        self._grads: list[tuple[Any, Any]] = []
        self._values: list[tuple[Any, Any]] = []  # containers and what was in them
        for one in (*found.optimizers, *found.others):
            self._keep(getattr(one, "__dict__", {}))
        self._mid_step = len(self._values)  # those behind it are of modules and scalers, which a step may be using
        for one in found.scalers:
            self._keep(vars(one))
        for module in found.modules:
            self._keep(vars(module))
            for value in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                self._keep(value)
        self._copy()
        self._rng = _generators(self._torch, self._tensors, found.generators)

    def restore(self) -> None:
        """Put everything back."""
        self.restore_state()
        for container, content in self._values[self._mid_step :]:
            _refill(container, content)
        for tensor, grad in self._grads:
            tensor.grad = grad
        for restore in self._rng:
            restore()

    def restore_state(self) -> None:
        """Put back what can be seen from outside of a step, in the middle of one: tensors, optimizers, schedulers.

        A backward pass may be still to come whose forward pass has seen other values. Its gradients are those of a
        step that is taken back anyway; it must not fail, so the tensors' versions stay (``data``, not ``detach()``).
        """
        with self._torch.no_grad():
            for tensor, copy in zip(self._tensors, self._copies, strict=True):
                tensor.data.copy_(copy)
        for container, content in self._values[: self._mid_step]:
            _refill(container, content)

    def _keep(self, value: Any) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, self._torch.Tensor):
            self._keep_tensor(value)
        elif isinstance(value, (dict, list, deque)) and len(value) <= _LONGEST:
            self._values.append((value, value.copy()))
            # Keys of an optimizer's state are tensors too.
            for one in (*value.keys(), *value.values()) if isinstance(value, dict) else value:
                self._keep(one)
        elif isinstance(value, tuple):
            for one in value:
                self._keep(one)

    def _keep_tensor(self, tensor: Any) -> None:
        if tensor.grad_fn is not None:
            return  # of a step that is over: it is not trained on, and the reference is kept
        strided = tensor.layout == self._torch.strided and not tensor.is_quantized and not tensor.is_inference()
        kind = type(tensor)
        if not strided or kind.__module__.partition(".")[0] != "torch" or kind.__name__ not in _KINDS:
            raise UnprobedError(f"the state of the training holds a tensor of kind {kind.__name__}")
        self._tensors.append(tensor)
        if tensor.is_leaf and tensor.requires_grad:
            self._grads.append((tensor, tensor.grad))
            if tensor.grad is not None:
                self._keep(tensor.grad)

    def _copy(self) -> None:
        places = _places(self._torch, self._tensors)
        with self._torch.no_grad():
            self._copies = [tensor.detach().to(places[tensor.device], copy=True) for tensor in self._tensors]


_KINDS = ("Tensor", "Parameter", "Buffer")


def _refill(container: Any, content: Any) -> None:
    """Make ``container`` hold what it held; what is there already stays."""
    if isinstance(container, dict):
        for key in [key for key in container if key not in content]:
            del container[key]
        for key, value in content.items():
            if key not in container or container[key] is not value:
                container[key] = value
    elif len(container) != len(content) or any(a is not b for a, b in zip(container, content, strict=True)):
        container.clear()
        container.extend(content)


def _places(torch: Any, tensors: Iterable[Any]) -> dict[Any, Any]:
    """Where the copies of each device's tensors go: onto the device if there is room, else into the host's memory.

    Raises:
        UnprobedError: there is room in neither.
    """
    host = torch.device("cpu")
    sizes: dict[Any, int] = {}
    for tensor in tensors:
        sizes[tensor.device] = sizes.get(tensor.device, 0) + tensor.numel() * tensor.element_size()
    places = {device: device if _has_room(torch, device, size) else host for device, size in sizes.items()}
    on_host = sum(size for device, size in sizes.items() if places[device] == host)
    free = free_host_bytes()
    if on_host and (free is None or on_host > _MOST_OF_FREE * free):
        left = "is not known" if free is None else f"is {format_bytes(free)}"
        raise UnprobedError(f"a copy of the state takes {format_bytes(on_host)}, and the free memory {left}")
    return places


def _has_room(torch: Any, device: Any, size: int) -> bool:
    if device.type != "cuda":
        return False
    free = torch.cuda.mem_get_info(device)[0]
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return bool(size <= _MOST_OF_FREE * (free + unused))


def free_host_bytes() -> int | None:
    """Memory that this process may still take: the host's, or what its control group allows, if that is less."""
    files = ProcFiles(Path("/"))
    try:
        return FreeMemory(files).now_bytes()
    finally:
        files.close()


def _generators(torch: Any, tensors: Iterable[Any], others: Iterable[Any]) -> list[Callable[[], None]]:
    """What puts the random generators back to where they are now."""
    cpu = torch.get_rng_state()
    restore: list[Callable[[], None]] = [lambda: torch.set_rng_state(cpu)]
    numpy = getattr(sys.modules.get("numpy"), "random", None)
    if numpy is not None:
        state = numpy.get_state()
        restore.append(lambda: numpy.set_state(state))
    restore += [put_back for one in others if (put_back := attempt(_put_back, one)) is not None]
    for device in {tensor.device for tensor in tensors if tensor.device.type == "cuda"}:
        restore.append(_on_device(torch, device))
    return restore


def _put_back(generator: Any) -> Callable[[], None]:
    """For one of Python's, numpy's or torch's. Raises what it does where it has no state, as the system's."""
    if isinstance(generator, random.Random):
        return functools.partial(generator.setstate, generator.getstate())
    if hasattr(generator, "get_state"):
        return functools.partial(generator.set_state, generator.get_state())
    bits = generator.bit_generator
    return functools.partial(setattr, bits, "state", bits.state)


def _on_device(torch: Any, device: Any) -> Callable[[], None]:
    state = torch.cuda.get_rng_state(device)
    return lambda: torch.cuda.set_rng_state(state, device)
