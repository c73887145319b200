"""What DistributedDataParallel measured of itself on one rank, for the report."""

from collections.abc import Sequence

from profilerkit.model.change import revise
from profilerkit.model.communication import DistributedModel, Parallelism
from profilerkit.rundir.ddp import DdpRecord


def distributed_models(record: DdpRecord | None) -> tuple[DistributedModel, ...]:
    """The models of a rank in the order in which they were wrapped; none where nothing was asked."""
    models = record.models if record is not None else ()
    return tuple(revise(one, overlap_ratio=_ratio(one.overlap_ns, one.comm_ns)) for one in models)


def parallelism_of(models: Sequence[DistributedModel]) -> tuple[Parallelism, ...]:
    """That the job is divided by data, as DistributedDataParallel says; empty without it, or with a single rank."""
    sizes = [model.world_size for model in models if model.world_size is not None and model.world_size > 1]
    if not sizes:
        return ()
    return (Parallelism(name="data", size=max(sizes), evidence="DistributedDataParallel, by its own data"),)


def _ratio(overlap_ns: int | None, comm_ns: int | None) -> float | None:
    if overlap_ns is None or comm_ns is None or comm_ns <= 0:
        return None
    return min(max(overlap_ns / comm_ns, 0.0), 1.0)
