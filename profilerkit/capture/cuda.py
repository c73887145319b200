"""Asks torch about CUDA without initialising it; ROCm goes by the same names."""

import sys
from collections.abc import Callable
from typing import Any, cast

from profilerkit.capture.guard import asked


class CudaDevice:
    """Serves the clock of this process's CUDA devices."""

    def in_use(self) -> bool:
        """Return whether the process uses one."""
        return cuda_in_use()

    @property
    def is_capturing(self) -> Callable[[], bool]:
        """Return torch's question whether the current stream captures a graph."""
        return cast("Callable[[], bool]", _cuda().is_current_stream_capturing)

    @property
    def stream(self) -> Callable[[Any], Any]:
        """Return torch's way to the calling thread's current stream of a device, or of the current one for ``None``."""
        return cast("Callable[[Any], Any]", _cuda().current_stream)

    def event(self) -> Any:
        """Make an event with timing."""
        return _cuda().Event(enable_timing=True)


def cuda_in_use() -> bool:
    """Return whether CUDA is initialised, and memory was ever allocated on a device.

    A seed or a look at a device's properties initialises CUDA in a run that trains on the CPU. An allocator of the
    user's own, which torch cannot ask, counts as use.
    """
    return any(peak is None or peak > 0 for peak in peaks_bytes())


def peaks_bytes() -> list[int | None]:
    """Return the most memory that was allocated on each device, bytes; nothing before CUDA is initialised.

    ``None`` is a device whose allocator torch cannot ask, as with ``torch.cuda.memory.CUDAPluggableAllocator``.
    """
    if not _is_initialized():
        return []
    cuda = _cuda()
    return [asked(cuda.max_memory_allocated, device) for device in range(cuda.device_count())]


def captures_graph() -> bool:
    """Return whether the calling thread's current stream captures a graph: a profiler that starts or ends ruins it.

    CUDA raises instead of answering once a kernel has failed an assertion. Nothing is captured then.
    """
    return _is_initialized() and bool(asked(_cuda().is_current_stream_capturing))


def _is_initialized() -> bool:
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(getattr(cuda, "is_initialized", bool)())


def _cuda() -> Any:
    return sys.modules["torch.cuda"]


def activities_in_use(torch: Any) -> list[Any]:
    """The CPU, and the devices in use: asking whether one is available could initialise it.

    ROCm goes by CUDA's name.
    """
    activity = torch.profiler.ProfilerActivity
    found = [activity.CPU]
    if cuda_in_use():
        found.append(activity.CUDA)
    xpu = getattr(torch, "xpu", None)
    if xpu is not None and xpu.is_initialized() and hasattr(activity, "XPU"):
        found.append(activity.XPU)
    return found
