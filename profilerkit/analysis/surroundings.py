"""What the run shares its device with, and how it is linked to the host, from samples; ``None`` means not measured."""

from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.throttling import HotDevice, hottest
from profilerkit.rundir.reader import RankRecord
from profilerkit.rundir.sampled import GpuSample

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
    strangers = [len(set(known.other_pids) - own) + _unnamed(known) for known in others]
    present = [known for known, count in zip(others, strangers, strict=True) if count]
    return Surroundings(
        strangers=max(strangers, default=None),
        strangers_bytes=max(
            (known.other_processes_bytes for known in present if known.other_processes_bytes), default=None
        ),
        siblings=max((len(set(known.other_pids) & own) for known in others), default=None),
        link=_link(record, seen),
        utilization_p95=float(np.quantile(use, 0.95)) if use else None,
        utilization_samples=len(use),
        hottest=hottest([(f"the GPU of rank {known.rank}", known.samples) for known in ranks]),
    )


def _unnamed(known: GpuSample) -> int:
    """Other processes that were counted and not named: recordings of old, or more than were kept."""
    return max((known.other_processes or 0) - len(known.other_pids), 0)


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
