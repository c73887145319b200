"""Puts a virtual device where torch looks for CUDA, and takes it away again."""

import sys
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from virtual_device import device as virtual
from virtual_device.device import Device
from virtual_device.nvml import Nvml

_MISSING = object()


@dataclass
class Installed:
    """What was put in place.

    Attributes:
        device: the device; ``launch``, ``copy``, ``drain``, ``allocate`` are for programs that run on it.
        nvml: what answers for it in the place of ``pynvml``.
    """

    device: Device
    nvml: Nvml
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute until ``remove``."""
        before = owner.__dict__.get(name, _MISSING)
        setattr(owner, name, value)
        if before is _MISSING:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, before))

    def replace_module(self, name: str, module: types.ModuleType) -> None:
        """Set a module until ``remove``."""
        before = sys.modules.get(name)
        sys.modules[name] = module
        self._undo.append(lambda: sys.modules.update({name: before}) if before else sys.modules.pop(name))

    def remove(self) -> None:
        """Put torch back as it was."""
        while self._undo:
            self._undo.pop()()


def install(device: Device | None = None, *, nvml: bool = True) -> Installed:
    """Replace what programs and profilers ask of ``torch.cuda`` and of a tensor's copies; without NVML if asked."""
    device = device or Device()
    placed = Installed(device, Nvml(device))
    for name, value in _functions(device).items():
        placed.replace(torch.cuda, name, value)
    # One call below, as in torch: there the recorder of synchronisation looks.
    placed.replace(torch._C, "_cuda_synchronize", device.synchronize)
    placed.replace(torch.cuda, "synchronize", lambda _device=None: torch._C._cuda_synchronize())
    _replace_graphs(placed)
    _replace_profiler(placed)
    _replace_memory(placed)
    _replace_copies(placed)
    activities = {torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA}
    placed.replace(torch.autograd.profiler, "_supported_activities", lambda: activities)
    if nvml:
        placed.replace_module("pynvml", placed.nvml)
    return placed


def _functions(device: Device) -> dict[str, Any]:
    properties = types.SimpleNamespace(
        name=device.name,
        uuid=device.uuid,
        total_memory=device.memory_bytes,
        major=9,
        minor=0,
        multi_processor_count=132,
    )

    class Event(virtual.Event):
        def __init__(self, *_args: object, **_settings: object) -> None:
            super().__init__(device)

        def synchronize(self) -> None:
            super().synchronize()

    class Stream(virtual.Stream):
        def __init__(self, *_args: object, **_settings: object) -> None:
            super().__init__(device)

        def synchronize(self) -> None:
            super().synchronize()

    device.default = device.current = Stream()
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "is_current_stream_capturing": lambda: device.captured_s is not None,
        "current_device": lambda: 0,
        "set_device": lambda _device: None,
        "device_count": lambda: 1,
        "get_device_name": lambda _device=None: device.name,
        "get_device_properties": lambda _device=None: properties,
        "get_device_capability": lambda _device=None: (properties.major, properties.minor),
        "Event": Event,
        "Stream": Stream,
        "graph": _Capture,
        "current_stream": lambda _device=None: device.current,
        "default_stream": lambda _device=None: device.default,
        "stream": device.on,
        "utilization": lambda _device=None: round(100 * device.utilization_ratio()),
    }


def _replace_graphs(placed: Installed) -> None:
    """Put graphs below ``torch.cuda.CUDAGraph``: a profiler may have patched the class before the device is there."""
    base = torch.cuda.graphs.CUDAGraph.__base__
    placed.replace(base, "__new__", staticmethod(lambda of, *_args, **_settings: object.__new__(of)))
    placed.replace(base, "__init__", lambda graph, *_args, **_settings: virtual.Graph.__init__(graph, placed.device))
    for name in ("capture_begin", "capture_end", "replay"):
        placed.replace(base, name, getattr(virtual.Graph, name))


def _replace_profiler(placed: Installed) -> None:
    """Let a profiler that starts or ends amid a capture ruin it, as CUPTI does."""

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def refused(*args: Any, **settings: Any) -> Any:
            placed.device.refuse_in_capture()
            return original(*args, **settings)

        return refused

    profiler = torch.autograd.profiler
    for name in ("_prepare_profiler", "_enable_profiler", "_disable_profiler"):
        placed.replace(profiler, name, refusing(getattr(profiler, name)))


class _Capture(AbstractContextManager[None]):
    """``torch.cuda.graph``."""

    def __init__(self, graph: torch.cuda.CUDAGraph, **_settings: object) -> None:
        self._graph = graph

    def __enter__(self) -> None:
        self._graph.capture_begin()

    def __exit__(self, *_error: object) -> None:
        self._graph.capture_end()


def _replace_memory(placed: Installed) -> None:
    device = placed.device
    allocate = device.allocate

    def allocate_or_raise(size_bytes: int) -> None:
        try:
            allocate(size_bytes)
        except virtual.OutOfMemoryError as error:
            raise torch.cuda.OutOfMemoryError(str(error)) from None

    placed.replace(device, "allocate", allocate_or_raise)

    def nested(_device: object = None) -> dict[str, Any]:
        def of(current: int, peak: int) -> dict[str, Any]:
            return {"all": {"current": current, "peak": peak, "allocated": 0, "freed": 0}}

        allocated = of(device.allocated, device.peak)
        return {
            "allocated_bytes": allocated, "active_bytes": allocated, "requested_bytes": allocated,
            "reserved_bytes": of(device.reserved, device.reserved_peak), "inactive_split_bytes": of(0, 0),
            "num_alloc_retries": device.retries, "num_ooms": device.ooms,
        }  # fmt: skip

    found = {
        "memory_stats_as_nested_dict": nested,
        "memory_stats": lambda _device=None: dict(_flat(nested())),
        "memory_allocated": lambda _device=None: device.allocated,
        "max_memory_allocated": lambda _device=None: device.peak,
        "memory_reserved": lambda _device=None: device.reserved,
        "max_memory_reserved": lambda _device=None: device.reserved_peak,
        "mem_get_info": lambda _device=None: (device.memory_bytes - device.reserved, device.memory_bytes),
        "empty_cache": lambda: setattr(device, "reserved", device.allocated),
        "reset_peak_memory_stats": lambda _device=None: setattr(device, "peak", device.allocated),
    }
    for name, value in found.items():
        placed.replace(torch.cuda, name, value)


def _flat(nested: dict[str, Any], before: str = "") -> Any:
    for name, value in nested.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def _replace_copies(placed: Installed) -> None:
    """Tensors stay where they are; what a copy or a read costs is given to the device.

    ``item()`` waits where the tensor has a gradient: the optimizer's own counters are on the host.
    """
    device, tensor = placed.device, torch.Tensor
    item, to = tensor.item, tensor.to

    def read(self: Any) -> Any:
        if self.requires_grad and device.captured_s is None:
            device.drain()
        return item(self)

    def copied(self: Any, *args: Any, **settings: Any) -> Any:
        named = "device" in settings
        target = settings.pop("device") if named else args[0] if args else None
        if not str(target).startswith("cuda"):
            return to(self, *args, **settings, **({"device": target} if named else {}))
        rest = args if named else args[1:]
        waits = not (settings.get("non_blocking") or True in rest[:2])
        device.copy(self.nbytes, pinned=self.is_pinned() and not waits)
        return to(self, "cpu", *rest, **settings)

    def pinned(self: Any, _device: object = None) -> Any:
        found = self.clone()
        found.is_virtually_pinned = True
        return found

    placed.replace(tensor, "item", read)
    placed.replace(tensor, "to", copied)
    placed.replace(tensor, "cuda", lambda self, *_, **settings: copied(self, "cuda", **settings))
    placed.replace(tensor, "pin_memory", pinned)
    placed.replace(tensor, "is_pinned", lambda self, *_: getattr(self, "is_virtually_pinned", False))
