"""Reads the GPU this process trains on through NVML. Every query is read-only."""

import os
from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

from profilerkit.capture.nvml_device import Calls, Counters, Device, Finder, Gpm, hides_all, text
from profilerkit.rundir.sampled import GpuFacts, GpuSample, Sample

#: How often the other processes and memory errors are asked for, and which device it is: a list of processes took
#: 4.5 ms with one driver (flightlessmango/MangoHud#2104).
_RARELY_NS = 60_000_000_000
_MOST_PIDS = 64  #: numbers of other processes that are kept: a device shared by more is shared, whoever they are

_SM, _MEMORY, _GPU = 1, 2, 0  #: constants of nvml.h: NVML_CLOCK_SM, NVML_CLOCK_MEM and NVML_TEMPERATURE_GPU
#: Field of ``GpuSample`` to the function that is asked each time about the whole device, and the constant it takes.
_SAMPLED = {
    "power_mw": ("nvmlDeviceGetPowerUsage",),
    "energy_mj": ("nvmlDeviceGetTotalEnergyConsumption",),
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", _SM),
    "memory_clock_mhz": ("nvmlDeviceGetClockInfo", _MEMORY),
    "temperature_c": ("nvmlDeviceGetTemperature", _GPU),
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration",),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth",),
    "throttle_reasons": ("nvmlDeviceGetCurrentClocksEventReasons",),
}
#: Field of ``GpuFacts`` to the function that is asked once, likewise.
_FACTS = {
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration",),
    "pcie_generation_max": ("nvmlDeviceGetMaxPcieLinkGeneration",),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth",),
    "pcie_width_max": ("nvmlDeviceGetMaxPcieLinkWidth",),
    "power_limit_mw": ("nvmlDeviceGetEnforcedPowerLimit",),
    "power_limit_default_mw": ("nvmlDeviceGetPowerManagementDefaultLimit",),
    "sm_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", _SM),
}


class NvmlSource:
    """One device, found by UUID."""

    def __init__(self) -> None:
        self.facts: GpuFacts | None = None
        self._calls: Calls | None = None
        self._finder: Finder | None = None
        self._device: _Watched | None = None
        self._unknown = ""
        self._rarely_at_ns = 0

    def open(self) -> str:
        """Load the driver's library; the reason when there is none."""
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return f"NVML is not available: {error}"
        self._calls = Calls(pynvml)
        if hides_all(os.environ.get("CUDA_VISIBLE_DEVICES")):
            self.close()
            return "CUDA_VISIBLE_DEVICES excludes every device"
        self._finder = Finder(self._calls)
        return ""

    def read(self) -> Sample | None:
        """One sample; ``None`` until it is known which device the process uses, and after it was lost."""
        calls, finder = self._calls, self._finder
        if calls is None or finder is None or calls.lost:
            return None
        now_ns = perf_counter_ns()
        rarely = self._device is None or now_ns >= self._rarely_at_ns
        if rarely:
            self._look(calls, finder)
            self._rarely_at_ns = now_ns + _RARELY_NS
        if self._device is None:
            return None
        sample = self._device.read(rarely=rarely)
        return Sample(t_ns=now_ns, gpu=GpuSample(is_lost=True) if calls.lost else sample)

    def missing(self) -> str:
        """Why there was nothing to read, or nothing more; empty otherwise."""
        if self._calls is not None and self._calls.lost:
            return f"the device was lost: {self._calls.lost}"
        return self._unknown if self._device is None else ""

    def close(self) -> None:
        """Give the library back."""
        if self._device is not None:
            self._device.gpm.close()
        if self._calls is not None:
            self._calls.give_back("nvmlShutdown")

    def _look(self, calls: Calls, finder: Finder) -> None:
        """Find the device, and again once a minute: a process may begin on another one than it trains on."""
        device, self._unknown = finder.find(os.environ.get("CUDA_VISIBLE_DEVICES"))
        if device is None or (self._device is not None and self._device.device.uuid == device.uuid):
            return
        if self._device is not None:
            self._device.gpm.close()
        self._device = _Watched(calls, device)
        self.facts = _read_facts(calls, device, self._device.gpm.reason)


class _Watched:
    def __init__(self, calls: Calls, device: Device) -> None:
        self.device = device
        self.gpm = Gpm(calls, device)
        self._calls = calls
        self._counters = Counters(calls, device.whole)

    def read(self, *, rarely: bool) -> GpuSample:
        nvml, ask, handle, whole = self._calls.nvml, self._calls.ask, self.device.handle, self.device.whole
        found = _asked(self._calls, whole, _SAMPLED)
        use = ask("nvmlDeviceGetUtilizationRates", handle)
        if use is not None:
            found |= {"utilization_ratio": use.gpu / 100, "memory_utilization_ratio": use.memory / 100}
        memory = ask("nvmlDeviceGetMemoryInfo", handle, getattr(nvml, "nvmlMemory_v2", None))
        if memory is None:
            memory = ask("nvmlDeviceGetMemoryInfo", handle)
        if memory is not None:
            found |= {"memory_used_bytes": int(memory.used), "memory_total_bytes": int(memory.total)}
        if found["throttle_reasons"] is None:
            found["throttle_reasons"] = ask("nvmlDeviceGetCurrentClocksThrottleReasons", whole)
        # The clock beside each counter: between two queries the thread may wait 5 ms for Python's lock.
        found |= self._counters.read(perf_counter_ns())
        found |= {name: value for name, value in self.gpm.read(perf_counter_ns()).items() if value is not None}
        if self.gpm.reason:
            found |= self._counters.pcie(perf_counter_ns())
        return GpuSample(**found, **(self._rarely() if rarely else {}))

    def _rarely(self) -> dict[str, Any]:
        ask, whole, others = self._calls.ask, self.device.whole, self._others()
        sizes = None if others is None else [process.usedGpuMemory for process in others]
        return {
            **self._counters.ecc(),
            "power_limit_mw": ask("nvmlDeviceGetEnforcedPowerLimit", whole),
            "sm_clock_max_mhz": ask("nvmlDeviceGetMaxClockInfo", whole, _SM),
            "other_processes": None if others is None else len(others),
            "other_processes_bytes": None if sizes is None or None in sizes else sum(map(int, sizes)),
            "other_pids": tuple(sorted(process.pid for process in others or ())[:_MOST_PIDS]),
        }

    def _others(self) -> list[Any] | None:
        """Processes on the device that are not this one.

        ``None`` where this process is not in the list: in a container the numbers of processes are the host's, so that
        it cannot be told from the others, or it is not on the device yet.
        """
        processes: list[Any] | None = self._calls.ask("nvmlDeviceGetComputeRunningProcesses", self.device.handle)
        if processes is None or os.getpid() not in [process.pid for process in processes]:
            return None
        return [process for process in processes if process.pid != os.getpid()]


def _asked(calls: Calls, device: Any, table: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {name: calls.ask(function, device, *constants) for name, (function, *constants) in table.items()}


def _read_facts(calls: Calls, device: Device, gpm: str) -> GpuFacts:
    """The facts of ``device``; ``gpm`` is why it has no GPM metrics."""
    ask = calls.ask
    return GpuFacts(
        found_by=device.found_by,
        driver_version=text(ask("nvmlSystemGetDriverVersion")),
        name=text(ask("nvmlDeviceGetName", device.handle)),
        uuid=device.uuid,
        gpm=gpm,
        **_asked(calls, device.whole, _FACTS),
    )
