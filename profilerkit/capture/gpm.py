"""GPU performance monitoring (GPM), Hopper and later: how busy the parts of the chip are, without a profiler.

Two readings are compared, here those of two samples a second apart. ``PROFILERKIT_GPM=0`` switches it off. NVIDIA says
that GPM uses another unit than profilers and DCGM's profiling metrics, and runs beside them (NVIDIA/DCGM#62, January
2025); a user of nvtop saw it disturb DCGM (Syllo/nvtop#483).
"""

import math
import os
from typing import Any, NamedTuple

from profilerkit.capture.nvml_calls import Calls
from profilerkit.capture.nvml_device import Device
from profilerkit.capture.rates import rounded

VARIABLE = "PROFILERKIT_GPM"
#: NVML wants them this far apart (nvmlGpmMetricsGet).
_SHORTEST_NS = 100_000_000
#: Numbers of metrics (nvml.h, nvmlGpmMetricId_t): the first five in percent, the others in MiB per second.
_METRICS = (2, 3, 5, 12, 10, 20, 21, 61, 60)
_MIB = 1 << 20


class GpmReading(NamedTuple):
    """Means since the sample before; ``None`` is not measured. In the order of ``_METRICS``."""

    sm_active_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    tensor_active_ratio: float | None = None
    fp32_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    pcie_tx_bytes_per_s: int | None = None
    pcie_rx_bytes_per_s: int | None = None
    nvlink_tx_bytes_per_s: int | None = None
    nvlink_rx_bytes_per_s: int | None = None


class Gpm:
    """The metrics of one device, or of one MIG device.

    Attributes:
        reason: why there are none; empty while there are.
    """

    def __init__(self, calls: Calls, device: Device) -> None:
        self._calls = calls
        self._device = device
        self._samples: list[Any] = []
        self._last_ns: int | None = None
        self.reason = self._start()

    def _start(self) -> str:
        if os.environ.get(VARIABLE) == "0":
            return f"switched off by {VARIABLE}=0"
        support = self._calls.ask("nvmlGpmQueryDeviceSupport", self._device.whole)
        if support is None or not support.isSupportedDevice:
            return "the device has none: it needs Hopper or later, and a driver that allows it"
        for _ in range(2):
            sample = self._calls.ask("nvmlGpmSampleAlloc")
            if sample is None:
                self.close()
                return "NVML gave no room for samples"
            self._samples.append(sample)
        question = self._calls.nvml.c_nvmlGpmMetricsGet_t()
        question.version = self._calls.nvml.NVML_GPM_METRICS_GET_VERSION
        question.numMetrics = len(_METRICS)
        for place, metric in enumerate(_METRICS):
            question.metrics[place].metricId = metric
        self._question = question
        return ""

    def read(self, now_ns: int) -> GpmReading:
        """What the device did since the reading before."""
        if self.reason or (self._last_ns is not None and now_ns - self._last_ns < _SHORTEST_NS):
            return GpmReading()
        before, now = self._samples
        if not self._take(now):
            self._last_ns = None
            return GpmReading()
        known, self._last_ns = self._last_ns is not None, now_ns
        self._samples.reverse()
        return self._compare(before, now) if known else GpmReading()

    def _take(self, sample: Any) -> bool:
        device = self._device
        if device.instance is None:
            return self._calls.ask("nvmlGpmSampleGet", device.handle, sample) is not None
        return self._calls.ask("nvmlGpmMigSampleGet", device.whole, device.instance, sample) is not None

    def _compare(self, before: Any, now: Any) -> GpmReading:
        question = self._question
        question.sample1, question.sample2 = before, now
        if self._calls.ask("nvmlGpmMetricsGet", question) is None:
            return GpmReading()
        values = [_value(question.metrics[place]) for place in range(len(_METRICS))]
        busy, occupied, tensor, fp32, dram = (None if value is None else rounded(value / 100) for value in values[:5])
        pcie_tx, pcie_rx, link_tx, link_rx = (None if value is None else round(value * _MIB) for value in values[5:])
        return GpmReading(busy, occupied, tensor, fp32, dram, pcie_tx, pcie_rx, link_tx, link_rx)

    def close(self) -> None:
        """Free the samples; they are the driver's memory."""
        for sample in self._samples:
            self._calls.give_back("nvmlGpmSampleFree", sample)
        self._samples.clear()
        self.reason = self.reason or "closed"


def _value(metric: Any) -> float | None:
    """What one metric says; ``None`` when the device has it not."""
    return float(metric.value) if metric.nvmlReturn == 0 and math.isfinite(metric.value) else None
