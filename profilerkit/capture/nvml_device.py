"""Ask NVML, where every query may fail alone: this process's device, found by its UUID, and the device's counters."""

import logging
import math
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter_ns, sleep, thread_time_ns
from typing import Any

from profilerkit.capture.environment import cuda_device
from profilerkit.capture.proc_files import Rates, rounded

_logger = logging.getLogger(__name__)

#: NVML's codes after which a query will never be answered: invalid argument, not supported, no permission, function
#: not found, wrong versions of library or argument, deprecated (nvml.h, nvmlReturn_t).
REFUSED = frozenset((2, 3, 4, 13, 18, 25, 26))
_LOST = frozenset((15, 16))  #: the device fell off the bus, or waits for a reset

#: A query that took this long in each of its first trials is asked once a minute: it would cost more than all others
#: together. Slow ones also hold the driver's lock, on which kernel launches of every process wait
#: (flightlessmango/MangoHud#2104: a list of processes took 4.5 ms, and asking 40 times per second blocked the threads
#: that submit work). Processor time shows those that compute. Those that sleep in the driver are shown by the time that
#: passes, as far as it is longer than any wait for Python's lock on the way back, 5 ms or more beside a busy training:
#: after each trial the lock is given away and waited for once more.
_SLOW_NS = 1_000_000
_TRIALS = 5
_PAUSE_NS = 60_000_000_000

#: One of the first calls of a query, ns: processor time, time that passed, and what the lock then took.
_Trial = tuple[int, int, int]


class Calls:
    """The functions of ``pynvml`` with their failures as ``None``."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.lost = ""  #: what NVML said when the device was lost; empty until then. Nothing is asked from then on.
        self._refused: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._tried: dict[tuple[Any, ...], list[_Trial]] = {}
        self._paused_until_ns: dict[tuple[Any, ...], int] = {}

    def ask(self, function: str, *args: Any) -> Any:
        """The answer of ``pynvml``'s function; ``None`` when there is none, this time or ever."""
        key = (function, *map(_named, args))
        if key in self._refused or self.lost:
            return None
        if key in self._paused_until_ns and perf_counter_ns() < self._paused_until_ns[key]:
            return None
        tried = self._tried.setdefault(key, [])
        is_trial = len(tried) < _TRIALS
        began_ns, cpu_ns = (perf_counter_ns(), thread_time_ns()) if is_trial else (0, 0)
        try:
            answer = getattr(self.nvml, function)(*args)
        except self.nvml.NVMLError as error:
            if error.value in _LOST:
                self.lost = str(error)
            elif error.value in REFUSED:
                self._refused[key] = args
            return None
        except (AttributeError, TypeError):  # an older pynvml without the function or the argument
            self._refused[key] = args
            return None
        if is_trial:
            cpu_ns, ended_ns = thread_time_ns() - cpu_ns, perf_counter_ns()
            sleep(0)
            tried.append((cpu_ns, ended_ns - began_ns, perf_counter_ns() - ended_ns))
        if len(tried) == _TRIALS and _are_slow(tried):
            self._paused_until_ns[key] = perf_counter_ns() + _PAUSE_NS
        return answer

    def give_back(self, function: str, *args: Any) -> None:
        """Call what frees something, also after the device was lost."""
        try:
            getattr(self.nvml, function)(*args)
        except self.nvml.NVMLError as error:
            _logger.debug("%s failed: %s", function, error)


def _are_slow(tried: list[_Trial]) -> bool:
    """Return whether a query with these trials is a slow one.

    >>> sleeps, waits = (10_000, 4_500_000, 20_000), (10_000, 5_100_000, 5_000_000)
    >>> _are_slow([sleeps, sleeps]), _are_slow([waits, waits])
    (True, False)
    """
    cpu_ns, wall_ns, lock_ns = zip(*tried, strict=True)
    return bool(max(min(wall_ns) - max(lock_ns), min(cpu_ns)) >= _SLOW_NS)


def _named(argument: Any) -> Any:
    """What tells an argument from others: pointers, which handles are, cannot be compared.

    Those of a refused query are kept, so that no other takes their place in memory.
    """
    return argument if argument is None or isinstance(argument, (int, bytes, tuple)) else id(argument)


@dataclass(frozen=True, slots=True)
class Device:
    """A device in NVML."""

    handle: Any  #: what the process has: a device, or a MIG device of it
    whole: Any  #: the device that ``handle`` is, or is a part of
    instance: int | None
    uuid: str | None
    found_by: str


def hides_all(visible: str | None) -> bool:
    """Whether ``CUDA_VISIBLE_DEVICES`` leaves no device: CUDA stops at the first number that is none."""
    return visible is not None and visible.split(",")[0].strip() in ("", "-1")


class Finder:
    """Finds the device of this process, as soon as that can be known."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._known: list[tuple[Any, list[Any]]] | None = None

    def find(self, visible: str | None) -> tuple[Device | None, str]:
        """The device, or why it is not known: by CUDA's UUID once CUDA is in use, before that by ``visible``."""
        _, uuid = cuda_device()
        if uuid is not None:
            found = self._by_uuid((uuid, uuid.replace("GPU-", "MIG-", 1)), "the UUID of the device that CUDA uses")
            return found, "" if found is not None else f"NVML has no device with CUDA's UUID, {uuid}"
        entries = [entry.strip() for entry in (visible or "").split(",") if entry.strip()]
        if len(entries) == 1 and entries[0].startswith(("GPU-", "MIG-")):
            found = self._by_uuid((entries[0],), "the UUID in CUDA_VISIBLE_DEVICES")
            if found is not None:
                return found, ""
            return None, f"NVML has no device {entries[0]}, which CUDA_VISIBLE_DEVICES names"
        return self._only_one(entries)

    def _only_one(self, entries: list[str]) -> tuple[Device | None, str]:
        if "torch" not in sys.modules:
            return None, "torch was not imported"
        there = [one for device, parts in self._devices() for one in (parts or [device])]
        if len(there) == 1:
            return self._described(there[0], "the only device"), ""
        if not there:
            return None, "NVML sees no device"
        named = f"; CUDA_VISIBLE_DEVICES is {','.join(entries)}" if entries else ""
        return None, f"this process never used CUDA, and could use any of {len(there)} devices{named}"

    def _by_uuid(self, uuids: tuple[str, ...], found_by: str) -> Device | None:
        for uuid in uuids:
            handle = self._calls.ask("nvmlDeviceGetHandleByUUID", uuid.encode())
            if handle is not None:
                return self._described(handle, found_by)
        everything = [one for device, parts in self._devices() for one in (device, *parts)]
        alike = [one for one in everything if (self._uuid(one) or "").startswith(uuids)]
        return self._described(alike[0], found_by) if len(alike) == 1 else None

    def _described(self, handle: Any, found_by: str) -> Device:
        ask, whole, instance = self._calls.ask, handle, None
        if ask("nvmlDeviceIsMigDeviceHandle", handle):
            instance = ask("nvmlDeviceGetGpuInstanceId", handle)
            whole = ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) or handle
        return Device(handle, whole, instance, self._uuid(handle), found_by)

    def _devices(self) -> list[tuple[Any, list[Any]]]:
        """Handles of the whole devices, each with those of its MIG devices. Asked once: a handle may take 6 ms."""
        if self._known is None:
            ask = self._calls.ask
            handles = [ask("nvmlDeviceGetHandleByIndex", index) for index in range(ask("nvmlDeviceGetCount") or 0)]
            self._known = [(handle, self._parts(handle)) for handle in handles if handle is not None]
        return self._known

    def _parts(self, device: Any) -> list[Any]:
        ask = self._calls.ask
        mode = ask("nvmlDeviceGetMigMode", device)
        most = (ask("nvmlDeviceGetMaxMigDeviceCount", device) or 0) if mode and mode[0] else 0
        handles = [ask("nvmlDeviceGetMigDeviceHandleByIndex", device, index) for index in range(most)]
        return [handle for handle in handles if handle is not None]

    def _uuid(self, handle: Any) -> str | None:
        return text(self._calls.ask("nvmlDeviceGetUUID", handle))


def text(answer: str | bytes | None) -> str | None:
    """What a function of ``pynvml`` says: bytes until version 11.5, text since."""
    return answer.decode("ascii", "replace") if isinstance(answer, bytes) else answer


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
_ECC: dict[str, _Key] = {"ecc_corrected": 3, "ecc_uncorrected": 4}  #: memory errors since the driver was loaded

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
        asked = tuple(key for key in keys if key not in self._refused)
        answers = self._calls.ask("nvmlDeviceGetFieldValues", self._device, asked) if asked else None
        pairs = list(zip(asked, answers, strict=True)) if answers is not None else []
        self._refused.update(key for key, value in pairs if value.nvmlReturn in REFUSED)
        return {key: value for key, value in pairs if value.nvmlReturn == 0}


def _number(value: Any) -> int | None:
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
        (before, now), device = self._samples, self._device
        taken = (
            self._calls.ask("nvmlGpmSampleGet", device.handle, now)
            if device.instance is None
            else self._calls.ask("nvmlGpmMigSampleGet", device.whole, device.instance, now)
        )
        if taken is None:
            self._last_ns = None
            return {}
        known, self._last_ns = self._last_ns is not None, now_ns
        self._samples.reverse()
        question = self._question
        question.sample1, question.sample2 = before, now
        if not known or self._calls.ask("nvmlGpmMetricsGet", question) is None:
            return {}
        return {name: _value(question.metrics[place], _METRICS[name][1]) for place, name in enumerate(_METRICS)}

    def close(self) -> None:
        """Free the samples; they are the driver's memory."""
        for sample in self._samples:
            self._calls.give_back("nvmlGpmSampleFree", sample)
        self._samples.clear()
        self.reason = self.reason or "closed"


def _value(metric: Any, unit: float) -> float | None:
    if metric.nvmlReturn or not math.isfinite(metric.value):
        return None
    return round(metric.value * unit) if unit == _MIB else rounded(metric.value * unit)
