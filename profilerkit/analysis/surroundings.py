"""The record of what the run shares its device with, and how it is linked to the host; ``None`` means not measured."""

import msgspec

from profilerkit.analysis.logs.neighbours import HotDevice

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
    """What surrounds the judged rank; ``None`` means not measured.

    Attributes:
        strangers: most processes seen on the device at once that are neither ranks of the run nor workers of theirs.
        strangers_bytes: device memory of all processes but this one, where there were strangers.
        siblings: most other processes of the run itself seen on the device at once.
        link: of the device to the host; ``None`` where its limits are not known, or the device was never seen busy.
        utilization_p95: 95th percentile of NVML's utilisation during the steps.
        utilization_samples: how many that rests on.
        hottest: the hottest of several devices at work.
    """

    strangers: int | None = None
    strangers_bytes: int | None = None
    siblings: int | None = None
    link: HostLink | None = None
    utilization_p95: float | None = None
    utilization_samples: int = 0
    hottest: HotDevice | None = None
