"""Samples torch's CUDA allocator once per second; never resets a peak, which is the user's."""

import sys
from collections.abc import Callable, Mapping
from time import monotonic, perf_counter_ns
from typing import Any

from profilerkit.capture.cuda import cuda_in_use
from profilerkit.capture.patches import Patches
from profilerkit.rundir.layout import SAMPLE_SECONDS
from profilerkit.rundir.sampled import AllocatorSample, Sample

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


class AllocatorWatch:
    """Writes the statistics of the device on which this process has reserved most.

    They come from the allocator's own counters: no call goes to the device. ``mem_get_info`` would be one, on a thread
    that cannot know whether a graph is being captured; the device's free memory is sampled through NVML.
    """

    name = "allocator"
    needs: tuple[str, ...] = ("torch", "torch.cuda")

    def __init__(
        self, write: Callable[[Sample], None], statistics: Callable[[], Mapping[str, Any]] | None = None
    ) -> None:
        """``statistics`` gives torch's nested statistics, empty while there are none."""
        self._write = write
        self._statistics = statistics or cuda_statistics
        self._due = 0.0
        self._seen = False

    def hang(self, patches: Patches) -> None:
        """Nothing is patched."""

    def beat(self) -> None:
        """Take a sample when a second has passed."""
        now = monotonic()
        if now >= self._due:
            self._due = now + SAMPLE_SECONDS
            self._sample()

    def close(self) -> None:
        """Take the last sample."""
        self._sample()

    def reason(self) -> str:
        """Why there is no sample."""
        return "" if self._seen else "CUDA's allocator is not in use"

    def _sample(self) -> None:
        statistics = self._statistics()
        if statistics:
            found = {field: _at(statistics, path) for field, path in _FIELDS.items()}
            self._write(Sample(t_ns=perf_counter_ns(), allocator=AllocatorSample(**found)))
            self._seen = True


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
