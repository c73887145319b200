"""What is asked of a device once."""

from typing import Any

from profilerkit.capture.nvml_calls import Calls
from profilerkit.capture.nvml_device import Device, text
from profilerkit.rundir.sampled import GpuFacts

#: Words of 64 processors for the affinity: 1,024 processors.
_WORDS = 16


def read_facts(calls: Calls, device: Device, gpm: str) -> GpuFacts:
    """The facts of ``device``; ``gpm`` is why it has no GPM metrics."""
    nvml, whole = calls.nvml, device.whole

    def ask(function: str, *args: Any) -> Any:
        return calls.ask(function, whole, *args)

    ecc, mig, rows = ask("nvmlDeviceGetEccMode"), ask("nvmlDeviceGetMigMode"), ask("nvmlDeviceGetRemappedRows")
    corrected, uncorrected, pending, _ = rows or (None,) * 4
    return GpuFacts(
        found_by=device.found_by,
        driver_version=text(calls.ask("nvmlSystemGetDriverVersion")),
        name=text(calls.ask("nvmlDeviceGetName", device.handle)),
        uuid=device.uuid,
        gpm=gpm,
        pcie_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_generation_max=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_width_max=ask("nvmlDeviceGetMaxPcieLinkWidth"),
        power_limit_mw=ask("nvmlDeviceGetEnforcedPowerLimit"),
        power_limit_default_mw=ask("nvmlDeviceGetPowerManagementDefaultLimit"),
        sm_clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        memory_clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM),
        ecc_is_on=None if ecc is None else bool(ecc[0]),
        mig_is_on=None if mig is None else bool(mig[0]),
        nvlinks_up=_links_up(calls, whole),
        numa_node=_numa_node(calls, whole),
        cpu_affinity=_affinity(ask("nvmlDeviceGetCpuAffinity", _WORDS)),
        remapped_rows_correctable=corrected,
        remapped_rows_uncorrectable=uncorrected,
        remapping_is_pending=None if pending is None else bool(pending),
    )


def _links_up(calls: Calls, device: Any) -> int | None:
    """NVLinks that are up; ``None`` when the device has none that it tells of."""
    most = getattr(calls.nvml, "NVML_NVLINK_MAX_LINKS", 0)
    states = []
    for link in range(most):
        state = calls.ask("nvmlDeviceGetNvLinkState", device, link)
        if state is None:
            break
        states.append(state)
    return sum(map(bool, states)) if states else None


def _numa_node(calls: Calls, device: Any) -> int | None:
    """The NUMA node; ``None`` also where the machine has no such nodes, which is told as -1."""
    node = calls.ask("nvmlDeviceGetNumaNodeId", device)
    return node if node is not None and 0 <= node < 1 << 16 else None


def _affinity(words: Any) -> str | None:
    """Numbers of processors as ranges.

    >>> _affinity([0b1111, 0b10]), _affinity([0, 0]), _affinity(None)
    ('0-3,65', None, None)
    """
    mask = sum(int(word) << (64 * place) for place, word in enumerate(words or ()))
    ranges, number = [], 0
    while mask >> number:
        if not (mask >> number) & 1:
            number += 1
            continue
        first = number
        while (mask >> number) & 1:
            number += 1
        ranges.append(f"{first}" if number - first == 1 else f"{first}-{number - 1}")
    return ",".join(ranges) or None
