"""Reads the GPU this process trains on through NVML. Every query is read-only."""

import os
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, TypeVar

from profilerkit.capture.environment import cuda_device
from profilerkit.rundir.sampled import GpuSample, Sample

_T = TypeVar("_T")


class NvmlSource:
    """One device, found by UUID: NVML counts in PCI order, CUDA in an order of its own."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        self._unsupported: set[str] = set()

    def open(self) -> str:
        """Load the driver's library; the reason when there is none."""
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return f"NVML is not available: {error}"
        self._nvml = pynvml
        if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
            self.close()
            return "CUDA_VISIBLE_DEVICES hides every device"
        return ""

    def read(self) -> Sample | None:
        """One sample; ``None`` until it is known which device the process uses."""
        if self._handle is None:
            self._handle = self._find()
        return None if self._handle is None else Sample(t_ns=perf_counter_ns(), gpu=self._sample())

    def close(self) -> None:
        """Give the library back."""
        self._once("nvmlShutdown", self._nvml.nvmlShutdown)

    def _find(self) -> Any:
        """The device's handle: the one CUDA uses in this process, or the only one there is."""
        nvml = self._nvml
        _, uuid = cuda_device()
        if uuid is not None:
            return self._once("nvmlDeviceGetHandleByUUID", lambda: nvml.nvmlDeviceGetHandleByUUID(uuid.encode()))
        if "torch" in sys.modules and nvml_count(nvml) == 1:
            return self._once("nvmlDeviceGetHandleByIndex", lambda: nvml.nvmlDeviceGetHandleByIndex(0))
        return None

    def _sample(self) -> GpuSample:
        nvml, handle, once = self._nvml, self._handle, self._once
        use = once("utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        memory = once("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        if memory is None:
            memory = once("memory v1", lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        reasons = once("events", lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        if reasons is None:
            reasons = once("throttle", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return GpuSample(
            utilization_ratio=None if use is None else use.gpu / 100,
            memory_utilization_ratio=None if use is None else use.memory / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_mw=once("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle)),
            power_limit_mw=once("power limit", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle)),
            sm_clock_mhz=once("clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            sm_clock_max_mhz=once("max clock", lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
            temperature_c=once("temp", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            throttle_reasons=reasons,
        )

    def _once(self, name: str, query: Callable[[], _T]) -> _T | None:
        """The answer; ``None`` when the device does not support the query, which is then not asked again."""
        if name in self._unsupported:
            return None
        try:
            return query()
        except (self._nvml.NVMLError, AttributeError, TypeError):
            self._unsupported.add(name)
            return None


def nvml_count(nvml: Any) -> int:
    """How many devices NVML sees; 0 when it does not say."""
    try:
        return int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError:
        return 0
