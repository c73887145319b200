"""Which of several devices that do the same runs hotter than the others, and at how much more power."""

from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.analysis.throttling import AT_WORK
from profilerkit.rundir.sampled import GpuSample, Sample

#: Of two devices nobody knows which is the usual one.
FEWEST_DEVICES = 3


class HotDevice(msgspec.Struct, frozen=True):
    """The device that is hottest beside the others, at work.

    Attributes:
        label: how the report calls it: ``GPU 1``, ``the GPU of rank 1``.
        n: its samples.
        others: how many devices it is compared with.
        temperature_c: its mean.
        others_temperature_c: median of the others' means.
        power_mw: its mean; ``None`` where not sampled.
        others_power_mw: median of the others' means; ``None`` likewise.
    """

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
    """The device farthest above the median of the others; ``None`` below three devices at work with a temperature.

    Args:
        devices: label and samples of each.
    """
    found = [(label, *_at_work([sample.gpu for sample in samples if sample.gpu])) for label, samples in devices]
    known = [(label, n, heat, power) for label, n, heat, power in found if heat is not None]
    if len(known) < FEWEST_DEVICES:
        return None
    told = []
    for place, (label, n, heat, power) in enumerate(known):
        others = [entry for index, entry in enumerate(known) if index != place]
        powers = [entry[3] for entry in others if entry[3] is not None]
        told.append(
            HotDevice(
                label=label,
                n=n,
                others=len(others),
                temperature_c=heat,
                others_temperature_c=float(np.median([entry[2] for entry in others])),
                power_mw=power,
                others_power_mw=float(np.median(powers)) if powers else None,
            )
        )
    return max(told, key=lambda device: device.hotter_c)


def _at_work(samples: Sequence[GpuSample]) -> tuple[int, float | None, float | None]:
    """Samples with a temperature while the device works, their mean temperature in °C and mean power in mW."""
    working = [
        sample for sample in samples if sample.temperature_c is not None and (sample.utilization_ratio or 0.0) > AT_WORK
    ]
    heat = [sample.temperature_c for sample in working if sample.temperature_c is not None]
    power = [sample.power_mw for sample in working if sample.power_mw is not None]
    return len(working), float(np.mean(heat)) if heat else None, float(np.mean(power)) if power else None
