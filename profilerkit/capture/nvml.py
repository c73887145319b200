"""Reads the GPU this process trains on through NVML. Every query is read-only."""

import os
from time import perf_counter_ns
from typing import Any

from profilerkit.capture.gpm import Gpm
from profilerkit.capture.nvml_calls import Calls
from profilerkit.capture.nvml_counters import Counters
from profilerkit.capture.nvml_device import Device, Finder, hides_all
from profilerkit.capture.nvml_facts import read_facts
from profilerkit.rundir.sampled import GpuFacts, GpuSample, Sample

#: How often the other processes and memory errors are asked for, and which device it is: a list of processes took
#: 4.5 ms with one driver (flightlessmango/MangoHud#2104).
_RARELY_NS = 60_000_000_000
#: Numbers of other processes that are kept: a device shared by more is shared, whoever they are.
_MOST_PIDS = 64


class NvmlSource:
    """One device, found by UUID.

    Attributes:
        facts: what was asked once; ``None`` until the device is known.
    """

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
            self._device.close()
        if self._calls is not None:
            self._calls.give_back("nvmlShutdown")

    def _look(self, calls: Calls, finder: Finder) -> None:
        """Find the device, and again once a minute: a process may begin on another one than it trains on."""
        device, self._unknown = finder.find(os.environ.get("CUDA_VISIBLE_DEVICES"))
        if device is None or (self._device is not None and self._device.device.uuid == device.uuid):
            return
        if self._device is not None:
            self._device.close()
        self._device = _Watched(calls, device)
        self.facts = read_facts(calls, device, self._device.gpm.reason)


class _Watched:
    """The device that was found."""

    def __init__(self, calls: Calls, device: Device) -> None:
        self.device = device
        self.gpm = Gpm(calls, device)
        self._calls = calls
        self._counters = Counters(calls, device.whole)

    def read(self, *, rarely: bool) -> GpuSample:
        nvml, ask, handle, whole = self._calls.nvml, self._calls.ask, self.device.handle, self.device.whole
        use = ask("nvmlDeviceGetUtilizationRates", handle)
        memory = ask("nvmlDeviceGetMemoryInfo", handle, getattr(nvml, "nvmlMemory_v2", None))
        if memory is None:
            memory = ask("nvmlDeviceGetMemoryInfo", handle)
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", whole)
        if reasons is None:
            reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", whole)
        # The clock beside each counter: between two queries the thread may wait 5 ms for Python's lock.
        steady = self._counters.steady(perf_counter_ns())
        gpm = self.gpm.read(perf_counter_ns())
        tx, rx = gpm.pcie_tx_bytes_per_s, gpm.pcie_rx_bytes_per_s
        if self.gpm.reason:
            tx, rx = self._counters.pcie(perf_counter_ns())
        corrected, uncorrected = self._counters.ecc() if rarely else (None, None)
        others = self._others() if rarely else None
        return GpuSample(
            utilization_ratio=None if use is None else use.gpu / 100,
            memory_utilization_ratio=None if use is None else use.memory / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_mw=ask("nvmlDeviceGetPowerUsage", whole),
            power_instant_mw=steady.power_instant_mw,
            power_limit_mw=ask("nvmlDeviceGetEnforcedPowerLimit", whole) if rarely else None,
            energy_mj=ask("nvmlDeviceGetTotalEnergyConsumption", whole),
            sm_clock_mhz=ask("nvmlDeviceGetClockInfo", whole, nvml.NVML_CLOCK_SM),
            sm_clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", whole, nvml.NVML_CLOCK_SM) if rarely else None,
            memory_clock_mhz=ask("nvmlDeviceGetClockInfo", whole, nvml.NVML_CLOCK_MEM),
            temperature_c=ask("nvmlDeviceGetTemperature", whole, nvml.NVML_TEMPERATURE_GPU),
            pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration", whole),
            pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth", whole),
            throttle_reasons=reasons,
            power_throttle_ratio=steady.power_throttle_ratio,
            sw_thermal_throttle_ratio=steady.sw_thermal_throttle_ratio,
            hw_thermal_throttle_ratio=steady.hw_thermal_throttle_ratio,
            pcie_tx_bytes_per_s=tx,
            pcie_rx_bytes_per_s=rx,
            nvlink_tx_bytes_per_s=_either(gpm.nvlink_tx_bytes_per_s, steady.nvlink_tx_bytes_per_s),
            nvlink_rx_bytes_per_s=_either(gpm.nvlink_rx_bytes_per_s, steady.nvlink_rx_bytes_per_s),
            ecc_corrected=corrected,
            ecc_uncorrected=uncorrected,
            other_processes=None if others is None else len(others),
            other_processes_bytes=_together(others),
            sm_active_ratio=gpm.sm_active_ratio,
            sm_occupancy_ratio=gpm.sm_occupancy_ratio,
            tensor_active_ratio=gpm.tensor_active_ratio,
            fp32_active_ratio=gpm.fp32_active_ratio,
            dram_active_ratio=gpm.dram_active_ratio,
            other_pids=tuple(sorted(process.pid for process in others or ())[:_MOST_PIDS]),
        )

    def _others(self) -> list[Any] | None:
        """Processes on the device that are not this one.

        ``None`` where this process is not in the list: in a container the numbers of processes are the host's, so that
        it cannot be told from the others, or it is not on the device yet.
        """
        processes: list[Any] | None = self._calls.ask("nvmlDeviceGetComputeRunningProcesses", self.device.handle)
        if processes is None or os.getpid() not in [process.pid for process in processes]:
            return None
        return [process for process in processes if process.pid != os.getpid()]

    def close(self) -> None:
        self.gpm.close()


def _together(processes: list[Any] | None) -> int | None:
    """Memory of all of these; ``None`` where that of one is not told."""
    if processes is None or any(process.usedGpuMemory is None for process in processes):
        return None
    return sum(int(process.usedGpuMemory) for process in processes)


def _either(first: int | None, second: int | None) -> int | None:
    return second if first is None else first
