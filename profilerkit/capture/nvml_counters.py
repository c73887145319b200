"""Counters that NVML gives by the number of a field: throttling, traffic, memory errors.

A counter says what happened between two readings; a momentary state read once per second would miss most of it.
"""

from typing import Any, NamedTuple

from profilerkit.capture.nvml_calls import REFUSED, Calls
from profilerkit.capture.rates import Growth, whole

_Key = int | tuple[int, int]

#: Numbers of fields, in the order in which they are tried (nvml.h, "Field Value Enums").
_POWER_INSTANT = 186
_POWER_THROTTLE: tuple[_Key, ...] = (74,)
#: 269 and 270 are 251 and 252 to drivers such as 580.65, which use the larger numbers for power smoothing
#: (NVIDIA/k8s-test-infra's simulated driver); 75 is the older number of the first.
_SW_THERMAL: tuple[_Key, ...] = (269, 251, 75)
_HW_THERMAL: tuple[_Key, ...] = (270, 252)
#: Bytes from Blackwell on; KiB before. The second number asks for the sum of all links.
_ALL_LINKS = 0xFFFFFFFF
_NVLINK_TX: tuple[_Key, ...] = ((202, _ALL_LINKS), (138, _ALL_LINKS))
_NVLINK_RX: tuple[_Key, ...] = ((204, _ALL_LINKS), (139, _ALL_LINKS))
_KIB_FIELDS = frozenset((138, 139))
_PCIE_TX, _PCIE_RX = 197, 198
_ECC_CORRECTED, _ECC_UNCORRECTED = 3, 4

#: Names of the member of ``nvmlValue_t`` that holds a value, by ``nvmlValueType_t``.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_WIDE = (2, 3, 4)


class Steady(NamedTuple):
    """What is asked every time; ``None`` is not measured."""

    power_instant_mw: int | None
    power_throttle_ratio: float | None
    sw_thermal_throttle_ratio: float | None
    hw_thermal_throttle_ratio: float | None
    nvlink_tx_bytes_per_s: int | None
    nvlink_rx_bytes_per_s: int | None


class Counters:
    """The counters of one whole device."""

    def __init__(self, calls: Calls, whole_device: Any) -> None:
        self._calls = calls
        self._device = whole_device
        self._groups = [_POWER_THROTTLE, _SW_THERMAL, _HW_THERMAL, _NVLINK_TX, _NVLINK_RX]
        self._refused: set[_Key] = set()
        self._throttle = (Growth(), Growth(), Growth())
        self._nvlink = (Growth(), Growth())
        self._pcie = (Growth(), Growth())

    def steady(self, now_ns: int) -> Steady:
        """Power at this moment, and what grew since the reading before."""
        values = self._values((_POWER_INSTANT, *(key for group in self._groups for key in group)))
        power = values.get(_POWER_INSTANT)
        totals = []
        for place, group in enumerate(self._groups):
            counted = [(key, total) for key in group if (total := _wide(values.get(key))) is not None]
            totals.append(counted[0][1] if counted else None)
            # One that was read once stays: its neighbours count something else, or from elsewhere.
            self._groups[place] = (counted[0][0],) if counted else group
        (by_power, by_software, by_hardware), (sent, received) = self._throttle, self._nvlink
        return Steady(
            power_instant_mw=None if power is None else _number(power),
            power_throttle_ratio=by_power.ratio(totals[0], now_ns),
            sw_thermal_throttle_ratio=by_software.ratio(totals[1], now_ns),
            hw_thermal_throttle_ratio=by_hardware.ratio(totals[2], now_ns),
            nvlink_tx_bytes_per_s=whole(sent.per_s(totals[3], now_ns)),
            nvlink_rx_bytes_per_s=whole(received.per_s(totals[4], now_ns)),
        )

    def pcie(self, now_ns: int) -> tuple[int | None, int | None]:
        """Bytes per second sent and received over PCIe.

        ``nvmlDeviceGetPcieThroughput`` would hold the thread for 20 ms each time, and measure no more than that.
        """
        values = self._values((_PCIE_TX, _PCIE_RX))
        totals = [_wide(values.get(key)) for key in (_PCIE_TX, _PCIE_RX)]
        tx, rx = (whole(counter.per_s(total, now_ns)) for counter, total in zip(self._pcie, totals, strict=True))
        return tx, rx

    def ecc(self) -> tuple[int | None, int | None]:
        """Corrected and uncorrected memory errors since the driver was loaded."""
        values = self._values((_ECC_CORRECTED, _ECC_UNCORRECTED))
        corrected, uncorrected = (values.get(key) for key in (_ECC_CORRECTED, _ECC_UNCORRECTED))
        return None if corrected is None else _number(corrected), None if uncorrected is None else _number(uncorrected)

    def _values(self, keys: tuple[_Key, ...]) -> dict[_Key, Any]:
        """The fields that were answered; what was refused is not asked again."""
        asked = tuple(key for key in keys if key not in self._refused)
        answers = self._calls.ask("nvmlDeviceGetFieldValues", self._device, asked) if asked else None
        pairs = list(zip(asked, answers, strict=True)) if answers is not None else []
        self._refused.update(key for key, value in pairs if value.nvmlReturn in REFUSED)
        return {key: value for key, value in pairs if value.nvmlReturn == 0}


def _number(value: Any) -> int | None:
    """A field's value by its type; ``None`` for a type that is not known."""
    kind = int(value.valueType)
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
