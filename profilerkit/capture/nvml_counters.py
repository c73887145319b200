"""Read the counters of a device: throttling, traffic and memory errors by NVML, use of its parts by GPM."""

import math
import os
from collections.abc import Iterable
from typing import Any

from profilerkit.capture.nvml_device import REFUSED, Calls, Device
from profilerkit.capture.proc_files import Rates, rounded

_Key = int | tuple[int, int]
_ALL_LINKS = 0xFFFFFFFF
#: Numbers of the fields of a counter of 64 bits, in the order in which they are tried (nvml.h, "Field Value Enums").
#: 269 and 270 are 251 and 252 to drivers such as 580.65, which use the larger numbers for power smoothing
#: (NVIDIA/k8s-test-infra's simulated driver); 75 is the older number of the first.
_THROTTLED: dict[str, tuple[_Key, ...]] = {
    "power_throttle_ratio": (74,),
    "sw_thermal_throttle_ratio": (269, 251, 75),
    "hw_thermal_throttle_ratio": (270, 252),
}
#: Bytes from Blackwell on; KiB before. The second number asks for the sum of all links.
_TRAFFIC: dict[str, tuple[_Key, ...]] = {
    "nvlink_tx_bytes_per_s": ((202, _ALL_LINKS), (138, _ALL_LINKS)),
    "nvlink_rx_bytes_per_s": ((204, _ALL_LINKS), (139, _ALL_LINKS)),
}
_KIB_FIELDS = frozenset((138, 139))
#: ``nvmlDeviceGetPcieThroughput`` would hold the thread for 20 ms each time, and measure no more than that.
_PCIE: dict[str, tuple[_Key, ...]] = {"pcie_tx_bytes_per_s": (197,), "pcie_rx_bytes_per_s": (198,)}
_POWER_INSTANT = 186
#: Memory errors since the driver was loaded.
_ECC: dict[str, _Key] = {"ecc_corrected": 3, "ecc_uncorrected": 4}

#: Names of the member of ``nvmlValue_t`` that holds a value, by ``nvmlValueType_t``.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_WIDE = (2, 3, 4)


class Counters:
    """The counters of one whole device: throttling, traffic, memory errors.

    A counter says what happened between two readings; a momentary state read once per second would miss most of it.
    """

    def __init__(self, calls: Calls, whole_device: Any) -> None:
        self._calls = calls
        self._device = whole_device
        self._keys = {**_THROTTLED, **_TRAFFIC, **_PCIE}
        self._refused: set[_Key] = set()
        self._rates = Rates()

    def read(self, now_ns: int) -> dict[str, Any]:
        """Return the power at this moment, and what grew since the last reading, by the field of ``GpuSample``."""
        values = self._values((_POWER_INSTANT, *self._keys_of({**_THROTTLED, **_TRAFFIC})))
        found = {name: self._rates.ratio(name, self._total(name, values), now_ns) for name in _THROTTLED}
        power = {"power_instant_mw": _number(values.get(_POWER_INSTANT))}
        return {**power, **found, **self._traffic(_TRAFFIC, values, now_ns)}

    def pcie(self, now_ns: int) -> dict[str, Any]:
        """Return the bytes per second sent and received over PCIe, by the field of ``GpuSample``."""
        return self._traffic(_PCIE, self._values(self._keys_of(_PCIE)), now_ns)

    def ecc(self) -> dict[str, Any]:
        """Return the corrected and uncorrected memory errors, by the field of ``GpuSample``."""
        values = self._values(tuple(_ECC.values()))
        return {name: _number(values.get(key)) for name, key in _ECC.items()}

    def _keys_of(self, names: Iterable[str]) -> tuple[_Key, ...]:
        return tuple(key for name in names for key in self._keys[name])

    def _traffic(self, names: Iterable[str], values: dict[_Key, Any], now_ns: int) -> dict[str, Any]:
        return {name: self._rates.whole(name, self._total(name, values), now_ns) for name in names}

    def _total(self, name: str, values: dict[_Key, Any]) -> int | None:
        """Return the first total of a counter's fields. One that was read once stays: others count something else."""
        for key in self._keys[name]:
            total = _wide(values.get(key))
            if total is not None:
                self._keys[name] = (key,)
                return total
        return None

    def _values(self, keys: tuple[_Key, ...]) -> dict[_Key, Any]:
        """The fields that were answered; what was refused is not asked again."""
        asked = tuple(key for key in keys if key not in self._refused)
        answers = self._calls.ask("nvmlDeviceGetFieldValues", self._device, asked) if asked else None
        pairs = list(zip(asked, answers, strict=True)) if answers is not None else []
        self._refused.update(key for key, value in pairs if value.nvmlReturn in REFUSED)
        return {key: value for key, value in pairs if value.nvmlReturn == 0}


def _number(value: Any) -> int | None:
    """Return a field's value by its type; ``None`` for none, or a type that is not known."""
    kind = -1 if value is None else int(value.valueType)
    return int(getattr(value.value, _MEMBERS[kind])) if 0 <= kind < len(_MEMBERS) else None


def _wide(value: Any) -> int | None:
    """A counter of 64 bits, in bytes or nanoseconds; ``None`` otherwise.

    One of 32 bits wraps unseen several times per second at the speed of a link, and a field of that size under one of
    these numbers is another one, of another driver.
    """
    if value is None or int(value.valueType) not in _WIDE:
        return None
    total = _number(value)
    return total * 1024 if total is not None and int(value.fieldId) in _KIB_FIELDS else total


VARIABLE = "PROFILERKIT_GPM"
#: NVML wants them this far apart (nvmlGpmMetricsGet).
_SHORTEST_NS = 100_000_000
_MIB = 1 << 20
#: Number of each metric, by the field of ``GpuSample`` (nvml.h, nvmlGpmMetricId_t), and what one of it counts: percent,
#: or MiB per second.
_METRICS = {
    "sm_active_ratio": (2, 0.01),
    "sm_occupancy_ratio": (3, 0.01),
    "tensor_active_ratio": (5, 0.01),
    "fp32_active_ratio": (12, 0.01),
    "dram_active_ratio": (10, 0.01),
    "pcie_tx_bytes_per_s": (20, _MIB),
    "pcie_rx_bytes_per_s": (21, _MIB),
    "nvlink_tx_bytes_per_s": (61, _MIB),
    "nvlink_rx_bytes_per_s": (60, _MIB),
}


class Gpm:
    """GPU performance monitoring (GPM) of one device, or of one MIG device: how busy the parts of the chip are.

    It needs Hopper or later, and no profiler. Two readings are compared, here those of two samples a second apart.
    ``PROFILERKIT_GPM=0`` switches it off. NVIDIA says that GPM uses another unit than profilers and DCGM's profiling
    metrics, and runs beside them (NVIDIA/DCGM#62, January 2025); a user of nvtop saw it disturb DCGM (Syllo/nvtop#483).

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
        for place, (metric, _) in enumerate(_METRICS.values()):
            question.metrics[place].metricId = metric
        self._question = question
        return ""

    def read(self, now_ns: int) -> dict[str, Any]:
        """Return what the device did since the last reading, by the field of ``GpuSample``."""
        if self.reason or (self._last_ns is not None and now_ns - self._last_ns < _SHORTEST_NS):
            return {}
        before, now = self._samples
        if not self._take(now):
            self._last_ns = None
            return {}
        known, self._last_ns = self._last_ns is not None, now_ns
        self._samples.reverse()
        return self._compare(before, now) if known else {}

    def _take(self, sample: Any) -> bool:
        device = self._device
        if device.instance is None:
            return self._calls.ask("nvmlGpmSampleGet", device.handle, sample) is not None
        return self._calls.ask("nvmlGpmMigSampleGet", device.whole, device.instance, sample) is not None

    def _compare(self, before: Any, now: Any) -> dict[str, Any]:
        question = self._question
        question.sample1, question.sample2 = before, now
        if self._calls.ask("nvmlGpmMetricsGet", question) is None:
            return {}
        return {name: _value(question.metrics[place], _METRICS[name][1]) for place, name in enumerate(_METRICS)}

    def close(self) -> None:
        """Free the samples; they are the driver's memory."""
        for sample in self._samples:
            self._calls.give_back("nvmlGpmSampleFree", sample)
        self._samples.clear()
        self.reason = self.reason or "closed"


def _value(metric: Any, unit: float) -> float | None:
    """Return what one metric says; ``None`` when the device does not have it."""
    if metric.nvmlReturn or not math.isfinite(metric.value):
        return None
    return round(metric.value * unit) if unit == _MIB else rounded(metric.value * unit)
