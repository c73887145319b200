"""A ``pynvml`` that answers for the virtual device: what capture asks once per second, and no more."""

import os
import types

from virtual_device.device import Device

_NOT_SUPPORTED = 3
_HANDLE = "virtual device"


class NVMLError(Exception):
    """NVML's error: ``value`` is its code."""

    def __init__(self, value: int) -> None:
        super().__init__("Not Supported" if value == _NOT_SUPPORTED else f"NVML error {value}")
        self.value = value


class Nvml(types.ModuleType):
    """The module; its state can be set by tests.

    Attributes:
        throttle_reasons: bits of nvml.h, nvmlClocksEventReason*.
        neighbours: (process number, bytes) of other processes on the device.
    """

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVMLError = NVMLError

    def __init__(self, device: Device) -> None:
        super().__init__("pynvml")
        self._device = device
        self.sm_clock_mhz, self.sm_clock_max_mhz, self.memory_clock_mhz = 1980, 1980, 2619
        self.power_limit_mw, self.idle_mw, self.temperature_c = 700_000, 80_000, 62
        self.throttle_reasons = 0
        self.neighbours: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> object:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def refuse(*_: object) -> object:
            raise NVMLError(_NOT_SUPPORTED)

        return refuse

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        """Nothing to load."""

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Nothing to give back."""

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        """A driver."""
        return "580.95.05"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """One device."""
        return 1

    def nvmlDeviceGetHandleByIndex(self, _index: int) -> str:  # noqa: N802
        """The device."""
        return _HANDLE

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:  # noqa: N802
        """The device, if it is the one."""
        if uuid.decode() != self.nvmlDeviceGetUUID(_HANDLE):
            raise NVMLError(6)
        return _HANDLE

    def nvmlDeviceGetUUID(self, _handle: str) -> str:  # noqa: N802
        """As NVML writes it."""
        return f"GPU-{self._device.uuid}"

    def nvmlDeviceGetName(self, _handle: str) -> str:  # noqa: N802
        """As CUDA says it."""
        return self._device.name

    def nvmlDeviceIsMigDeviceHandle(self, _handle: str) -> int:  # noqa: N802
        """It is whole."""
        return 0

    def nvmlDeviceGetUtilizationRates(self, _handle: str) -> types.SimpleNamespace:  # noqa: N802
        """Of the past second, percent."""
        busy = round(100 * self._device.utilization_ratio())
        return types.SimpleNamespace(gpu=busy, memory=busy // 2)

    def nvmlDeviceGetMemoryInfo(self, _handle: str, _version: object = None) -> types.SimpleNamespace:  # noqa: N802
        """Bytes."""
        used = self._device.reserved + (600 << 20) + sum(size for _, size in self.neighbours)
        return types.SimpleNamespace(used=used, total=self._device.memory_bytes)

    def nvmlDeviceGetCurrentClocksEventReasons(self, _handle: str) -> int:  # noqa: N802
        """What holds the clock down."""
        return self.throttle_reasons

    def nvmlDeviceGetPowerUsage(self, _handle: str) -> int:  # noqa: N802
        """mW, by utilisation."""
        return round(self.idle_mw + 0.75 * (self.power_limit_mw - self.idle_mw) * self._device.utilization_ratio())

    def nvmlDeviceGetEnforcedPowerLimit(self, _handle: str) -> int:  # noqa: N802
        """The limit in mW."""
        return self.power_limit_mw

    def nvmlDeviceGetPowerManagementDefaultLimit(self, _handle: str) -> int:  # noqa: N802
        """The limit that it boots with, in mW."""
        return 700_000

    def nvmlDeviceGetClockInfo(self, _handle: str, kind: int) -> int:  # noqa: N802
        """MHz."""
        return self.sm_clock_mhz if kind == self.NVML_CLOCK_SM else self.memory_clock_mhz

    def nvmlDeviceGetMaxClockInfo(self, _handle: str, kind: int) -> int:  # noqa: N802
        """MHz."""
        return self.sm_clock_max_mhz if kind == self.NVML_CLOCK_SM else self.memory_clock_mhz

    def nvmlDeviceGetTemperature(self, _handle: str, _sensor: int) -> int:  # noqa: N802
        """°C."""
        return self.temperature_c

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: str) -> list[types.SimpleNamespace]:  # noqa: N802
        """This process and its neighbours."""
        own = types.SimpleNamespace(pid=os.getpid(), usedGpuMemory=self._device.reserved + (500 << 20))
        return [own, *(types.SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.neighbours)]
