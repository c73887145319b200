"""Tell from samples what the run shares its device with, how it is linked, and how far its clock is held down."""

from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.analysis.steps.log import StepLog
from profilerkit.model import revise
from profilerkit.rundir.reader import RankRecord
from profilerkit.rundir.sampled import GpuSample, Sample

AT_WORK = 0.5  #: utilisation above which a sample is one of a device at work
#: Bits of ``throttle_reasons`` (nvml.h, nvmlClocksEventReason*): HwSlowdown, SwThermalSlowdown, HwThermalSlowdown,
#: HwPowerBrakeSlowdown. A power cap by software (0x4) is normal at full load.
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
_THERMAL, _BRAKE, _POWER_CAP = 0x20 | 0x40, 0x80, 0x4
#: Fields of a sample that tell why the clock was held down.
_REASONS = ("throttle_reasons", "hw_thermal_throttle_ratio", "sw_thermal_throttle_ratio")


class Throttling(msgspec.Struct, frozen=True):
    """The samples of one device at work."""

    n: int
    slowed_ratio: float  #: mean share of their time in which heat, the supply, or the hardware held the clock down
    thermal_ratio: float  #: of the time, in which heat did
    brake_ratio: float  #: of the samples, in which the supply did
    #: Mean share of the time in which the power limit held the clock down; ``None`` where not told.
    capped_ratio: float | None
    clock_mhz: float
    #: Median clock of the samples in which nothing but the power limit held it down; ``None`` without such samples.
    free_clock_mhz: float | None
    max_clock_mhz: float | None  #: the highest the device has; ``None`` where not told
    power_mw: float | None = None
    power_limit_mw: float | None = None
    power_limit_default_mw: float | None = None
    other_clock_mhz: float | None = None  #: median of the other ranks' mean clocks at work; ``None`` for a single rank
    #: The most that another rank's power limit held its clock down; ``None`` likewise.
    others_capped_ratio: float | None = None
    device: str | None = None  #: what a log calls the device; ``None`` for that of the judged rank


def throttling(
    ranks: Sequence[Sequence[Sample]], judged: int, default_limit_mw: float | None = None
) -> Throttling | None:
    """What the samples of the judged rank say, beside those of the others; ``None`` without a clock or its reasons."""
    found = [_of_one([sample.gpu for sample in samples if sample.gpu is not None]) for samples in ranks]
    own = found[judged]
    others = [one for place, one in enumerate(found) if one is not None and place != judged]
    if own is None:
        return None
    own = revise(own, power_limit_default_mw=default_limit_mw)
    if not others:
        return own
    capped = [one.capped_ratio for one in others if one.capped_ratio is not None]
    return revise(
        own,
        other_clock_mhz=float(np.median([one.clock_mhz for one in others])),
        others_capped_ratio=max(capped) if len(capped) == len(others) else None,
    )


def _of_one(samples: Sequence[GpuSample]) -> Throttling | None:
    working = [
        sample
        for sample in samples
        if sample.sm_clock_mhz is not None
        and any(getattr(sample, name) is not None for name in _REASONS)
        and (sample.utilization_ratio is None or sample.utilization_ratio > AT_WORK)
    ]
    if not working:
        return None
    clock = np.array([sample.sm_clock_mhz for sample in working], dtype=np.float64)
    reasons = np.array([sample.throttle_reasons or 0 for sample in working], dtype=np.int64)
    slowed = np.array([_slowed(sample) for sample in working])
    capped = [_capped(sample) for sample in working]
    known = [ratio for ratio in capped if ratio is not None]
    return Throttling(
        n=len(working),
        slowed_ratio=float(slowed.mean()),
        thermal_ratio=float(np.mean([_thermal(sample) for sample in working])),
        brake_ratio=float((reasons & _BRAKE > 0).mean()),
        capped_ratio=float(np.mean(known)) if known else None,
        clock_mhz=float(clock.mean()),
        free_clock_mhz=float(np.median(clock[slowed == 0])) if (slowed == 0).any() else None,
        max_clock_mhz=max((sample.sm_clock_max_mhz for sample in samples if sample.sm_clock_max_mhz), default=None),
        power_mw=_mean([sample.power_mw for sample in working]),
        power_limit_mw=max((sample.power_limit_mw for sample in samples if sample.power_limit_mw), default=None),
    )


def _thermal(sample: GpuSample) -> float:
    """Share of the time since the sample before in which heat held the clock down; the bits say all or nothing."""
    counted = [ratio for ratio in (sample.sw_thermal_throttle_ratio, sample.hw_thermal_throttle_ratio) if ratio]
    bit = 1.0 if (sample.throttle_reasons or 0) & _THERMAL else 0.0
    return min(max(counted, default=bit), 1.0)


def _slowed(sample: GpuSample) -> float:
    return 1.0 if (sample.throttle_reasons or 0) & SLOWED & ~_THERMAL else _thermal(sample)


def _capped(sample: GpuSample) -> float | None:
    if sample.power_throttle_ratio is not None:
        return min(sample.power_throttle_ratio, 1.0)
    return None if sample.throttle_reasons is None else float(bool(sample.throttle_reasons & _POWER_CAP))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


FEWEST_DEVICES = 3  #: of two devices nobody knows which is the usual one


class HotDevice(msgspec.Struct, frozen=True):
    """The device that is hottest beside the others, at work."""

    label: str
    n: int
    others: int
    temperature_c: float
    others_temperature_c: float
    power_mw: float | None = None
    others_power_mw: float | None = None

    @property
    def hotter_c(self) -> float:
        """By how much it is hotter than the others."""
        return self.temperature_c - self.others_temperature_c

    @property
    def more_power_ratio(self) -> float | None:
        """How much more power it takes than the others, as a ratio of theirs; ``None`` where not sampled."""
        if self.power_mw is None or not self.others_power_mw:
            return None
        return self.power_mw / self.others_power_mw - 1.0


def hottest(devices: Sequence[tuple[str, Sequence[Sample]]]) -> HotDevice | None:
    """The device farthest above the median of the others; ``None`` below three devices at work with a temperature."""
    found = [(label, *_at_work([sample.gpu for sample in samples if sample.gpu])) for label, samples in devices]
    known = [(label, n, heat, power) for label, n, heat, power in found if heat is not None]
    if len(known) < FEWEST_DEVICES:
        return None
    # The farthest above the others is the hottest: their median is lowest for it.
    at = max(range(len(known)), key=lambda place: known[place][2])
    (label, n, heat, power), others = known[at], [*known[:at], *known[at + 1 :]]
    powers = [entry[3] for entry in others if entry[3] is not None]
    return HotDevice(
        label=label,
        n=n,
        others=len(others),
        temperature_c=heat,
        others_temperature_c=float(np.median([entry[2] for entry in others])),
        power_mw=power,
        others_power_mw=float(np.median(powers)) if powers else None,
    )


def _at_work(samples: Sequence[GpuSample]) -> tuple[int, float | None, float | None]:
    """Samples with a temperature while the device works, their mean temperature in °C and mean power in mW."""
    hot = [sample for sample in samples if sample.temperature_c is not None]
    working = [sample for sample in hot if (sample.utilization_ratio or 0.0) > AT_WORK]
    return len(working), _mean([one.temperature_c for one in working]), _mean([one.power_mw for one in working])


#: Bytes per second of one PCIe lane in one direction by generation, after encoding (PCI-SIG).
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9, 7: 15.125e9}


class HostLink(msgspec.Struct, frozen=True):
    """The PCIe link of the device: the best it was seen to run at while the device was busy, and the best it could.

    ``samples`` is how often it was seen so.
    """

    generation: int
    generation_max: int
    width: int
    width_max: int
    samples: int

    @property
    def rate_ratio(self) -> float:
        """Rate of the link / the best it could have, 0 to 1.

        >>> HostLink(generation=3, generation_max=4, width=8, width_max=16, samples=9).rate_ratio
        0.25...
        """
        best = self.width_max * _LANE.get(self.generation_max, 0.0)
        return min(self.width * _LANE.get(self.generation, 0.0) / best, 1.0) if best else 1.0


class Surroundings(msgspec.Struct, frozen=True):
    """What surrounds the judged rank; ``None`` means not measured."""

    #: Most processes seen on the device at once that are neither ranks of the run nor workers of theirs.
    strangers: int | None = None
    strangers_bytes: int | None = None  #: device memory of all processes but this one, where there were strangers
    siblings: int | None = None  #: most other processes of the run itself seen on the device at once
    #: Of the device to the host; ``None`` where its limits are not known, or the device was never seen busy.
    link: HostLink | None = None
    utilization_p95: float | None = None  #: 95th percentile of NVML's utilisation during the steps
    utilization_samples: int = 0  #: how many that rests on
    hottest: HotDevice | None = None  #: the hottest of several devices at work


#: NVML's utilisation from which the link is not idle: an idle one is slowed down to save power (a choice).
BUSY_DEVICE = 0.1


def surroundings(record: RankRecord, log: StepLog, ranks: Sequence[RankRecord]) -> Surroundings:
    """What the samples of one rank say; ``ranks`` are all that were recorded, itself among them."""
    low, high = int(log.start[0]), int(log.stop[-1])
    seen = [known for sample in record.samples if (known := sample.gpu) and low <= sample.t_ns < high]
    use = [known.utilization_ratio for known in seen if known.utilization_ratio is not None]
    # Who else is on the device is asked once a minute: what was seen before the first step counts as well.
    others = [known for sample in record.samples if (known := sample.gpu) and known.other_processes is not None]
    own = _own_processes(record, ranks)
    # Some were counted and not named: in recordings of old, or more than were kept.
    unnamed = [max((known.other_processes or 0) - len(known.other_pids), 0) for known in others]
    strangers = [len(set(known.other_pids) - own) + more for known, more in zip(others, unnamed, strict=True)]
    present = [known for known, count in zip(others, strangers, strict=True) if count]
    held = [known.other_processes_bytes for known in present if known.other_processes_bytes]
    return Surroundings(
        strangers=max(strangers, default=None),
        strangers_bytes=max(held, default=None),
        siblings=max((len(set(known.other_pids) & own) for known in others), default=None),
        link=_link(record, seen),
        utilization_p95=float(np.quantile(use, 0.95)) if use else None,
        utilization_samples=len(use),
        hottest=hottest([(f"the GPU of rank {known.rank}", known.samples) for known in ranks]),
    )


def _own_processes(record: RankRecord, ranks: Sequence[RankRecord]) -> set[int]:
    """Numbers of the processes of the run on the host of this rank: its ranks, and what they started."""
    host = record.meta.host if record.meta else None
    own: set[int] = set()
    for other in ranks:
        if other.meta is None or other.meta.host != host:
            continue
        own.add(other.meta.pid)
        own.update(worker.pid for sample in other.samples if sample.host for worker in sample.host.workers)
        own.update(worker.pid for worker in other.workers)
    return own


def _link(record: RankRecord, seen: Sequence[GpuSample]) -> HostLink | None:
    gpu = record.meta.gpu if record.meta else None
    if gpu is None or not gpu.pcie_generation_max or not gpu.pcie_width_max:
        return None
    busy = [known for known in seen if (known.utilization_ratio or 0.0) >= BUSY_DEVICE]
    found = [(known.pcie_generation, known.pcie_width) for known in busy if known.pcie_generation and known.pcie_width]
    if not found:
        return None
    return HostLink(
        generation=max(generation for generation, _ in found if generation),
        generation_max=gpu.pcie_generation_max,
        width=max(width for _, width in found if width),
        width_max=gpu.pcie_width_max,
        samples=len(found),
    )
