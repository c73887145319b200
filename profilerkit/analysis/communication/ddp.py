"""What DistributedDataParallel measured of itself on one rank, for the report."""

from collections.abc import Sequence

from profilerkit.model.communication import DistributedModel, Parallelism
from profilerkit.rundir.documents import DdpModel, DdpRecord


def distributed_models(record: DdpRecord | None) -> tuple[DistributedModel, ...]:
    """The models of a rank in the order in which they were wrapped; none where nothing was asked."""
    return tuple(map(_model, record.models)) if record is not None else ()


def parallelism_of(models: Sequence[DistributedModel]) -> tuple[Parallelism, ...]:
    """That the job is divided by data, as DistributedDataParallel says; empty without it, or with a single rank."""
    sizes = [model.world_size for model in models if model.world_size is not None and model.world_size > 1]
    if not sizes:
        return ()
    return (Parallelism(name="data", size=max(sizes), evidence="DistributedDataParallel, by its own data"),)


def _model(model: DdpModel) -> DistributedModel:
    return DistributedModel(
        module=model.module,
        backend=model.backend,
        world_size=model.world_size,
        parameter_bytes=model.parameter_bytes,
        unused_parameter_bytes=model.unused_parameter_bytes,
        bucket_bytes=model.bucket_bytes,
        bucket_cap_bytes=model.bucket_cap_bytes,
        rebuilt=model.rebuilt,
        forward_ns=model.forward_ns,
        backward_ns=model.backward_ns,
        comm_ns=model.comm_ns,
        overlap_ns=model.overlap_ns,
        overlap_ratio=_ratio(model.overlap_ns, model.comm_ns),
        find_unused_parameters=model.find_unused_parameters,
        gradient_as_bucket_view=model.gradient_as_bucket_view,
        static_graph=model.static_graph,
        hook=model.hook,
    )


def _ratio(overlap_ns: int | None, comm_ns: int | None) -> float | None:
    if overlap_ns is None or comm_ns is None or comm_ns <= 0:
        return None
    return min(max(overlap_ns / comm_ns, 0.0), 1.0)
