"""Asks torch about CUDA without initialising it; ROCm goes by the same names."""

import sys
from collections.abc import Callable, Mapping
from time import monotonic, perf_counter_ns
from typing import Any, cast

from profilerkit.capture.guard import attempt
from profilerkit.capture.patches import Watch
from profilerkit.rundir.layout import SAMPLE_SECONDS
from profilerkit.rundir.sampled import AllocatorSample, Sample


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
    return [attempt(cuda.max_memory_allocated, device) for device in range(cuda.device_count())]


def captures_graph() -> bool:
    """Return whether the calling thread's current stream captures a graph: a profiler that starts or ends ruins it.

    CUDA raises instead of answering once a kernel has failed an assertion. Nothing is captured then.
    """
    return _is_initialized() and bool(attempt(_cuda().is_current_stream_capturing))


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


#: Field of a sample to its place in ``torch.cuda.memory_stats_as_nested_dict``.
_FIELDS = {
    "allocated_bytes": ("allocated_bytes", "all", "current"),
    "allocated_peak_bytes": ("allocated_bytes", "all", "peak"),
    "reserved_bytes": ("reserved_bytes", "all", "current"),
    "reserved_peak_bytes": ("reserved_bytes", "all", "peak"),
    "active_bytes": ("active_bytes", "all", "current"),
    "inactive_split_bytes": ("inactive_split_bytes", "all", "current"),
    "alloc_retries": ("num_alloc_retries",),
    "ooms": ("num_ooms",),
    "requested_bytes": ("requested_bytes", "all", "current"),
}


class AllocatorWatch(Watch):
    """Writes the statistics of the device on which this process has reserved most.

    They come from the allocator's own counters: no call goes to the device. ``mem_get_info`` would be one, on a thread
    that cannot know whether a graph is being captured; the device's free memory is sampled through NVML.
    """

    name = "allocator"
    needs = ("torch", "torch.cuda")
    unseen = "CUDA's allocator is not in use"

    def __init__(
        self, write: Callable[[Sample], None], statistics: Callable[[], Mapping[str, Any]] | None = None
    ) -> None:
        """``statistics`` gives torch's nested statistics, empty while there are none."""
        self._write = write
        self._statistics = statistics or cuda_statistics
        self._due = 0.0

    def beat(self) -> None:
        """Take a sample when a second has passed."""
        now = monotonic()
        if now >= self._due:
            self._due = now + SAMPLE_SECONDS
            self._sample()

    def close(self) -> None:
        """Take the last sample."""
        self._sample()

    def _sample(self) -> None:
        statistics = self._statistics()
        if statistics:
            found = {field: _at(statistics, path) for field, path in _FIELDS.items()}
            self._write(Sample(t_ns=perf_counter_ns(), allocator=AllocatorSample(**found)))
            self.seen = True


def cuda_statistics() -> Mapping[str, Any]:
    """The statistics of the device on which this process has reserved most; empty while CUDA is not in use."""
    if not cuda_in_use():
        return {}
    cuda: Any = sys.modules["torch.cuda"]
    devices = [cuda.memory_stats_as_nested_dict(device) for device in range(cuda.device_count())]
    return max(devices, key=lambda found: _at(found, _FIELDS["reserved_bytes"]) or 0, default={})


def _at(statistics: Mapping[str, Any], path: tuple[str, ...]) -> int | None:
    """The number at ``path``; ``None`` where this torch has none."""
    found: Any = statistics
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    return int(found)
