"""What the run shares its device with, and how it is linked to the host, from the samples taken while it trained."""

from collections.abc import Sequence

import numpy as np

from profilerkit.analysis.logs.neighbours import hottest
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.surroundings import HostLink, Surroundings
from profilerkit.rundir.reader import RankRecord
from profilerkit.rundir.sampled import GpuSample

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
