"""``ddp.json``: what DistributedDataParallel says of itself, one entry per wrapped model."""

from collections.abc import Mapping

import msgspec

from profilerkit.model.communication import DistributedModel

#: Buckets kept of one model; 25 MB each, these are 25 GB of gradients.
_MOST_BUCKETS = 1000


class DdpRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``ddp.json``: the models in the order in which they were wrapped."""

    models: tuple[DistributedModel, ...]


def ddp_model(numbers: Mapping[str, int], texts: Mapping[str, str]) -> DistributedModel:
    """The record of ``_get_ddp_logging_data`` (torch 2.13); what it lacks is ``None``."""

    def switch(name: str) -> bool | None:
        return bool(numbers[name]) if name in numbers else None

    def mean_ns(name: str) -> int | None:
        # Nothing was sampled where the mean stayed 0: an optimizer step inside backward, or no backward pass yet.
        return numbers.get(name) or None

    rebuilt = switch("has_rebuilt_buckets")
    buckets = (texts.get("rebuilt_bucket_sizes") if rebuilt else None) or texts.get("bucket_sizes", "")
    comm_ns = mean_ns("avg_backward_comm_time")
    return DistributedModel(
        module=texts.get("module_name", "")[:200],
        backend=texts.get("backend_name", "")[:200],
        world_size=numbers.get("world_size"),
        parameter_bytes=numbers.get("total_parameter_size_bytes"),
        unused_parameter_bytes=numbers.get("unused_parameter_size"),
        bucket_bytes=_sizes(buckets),
        bucket_cap_bytes=numbers.get("bucket_cap_bytes"),
        rebuilt=rebuilt,
        forward_ns=mean_ns("avg_forward_compute_time"),
        backward_ns=mean_ns("avg_backward_compute_time"),
        comm_ns=comm_ns,
        overlap_ns=numbers.get("avg_backward_compute_comm_overlap_time") if comm_ns else None,
        find_unused_parameters=switch("find_unused_parameters"),
        gradient_as_bucket_view=switch("gradient_as_bucket_view"),
        static_graph=switch("static_graph"),
        hook=texts.get("comm_hook", "")[:200],
    )


def _sizes(text: str) -> tuple[int, ...]:
    """Torch's list of sizes: ``16640, 512``."""
    parts = [part.strip() for part in text.split(",")][:_MOST_BUCKETS]
    return tuple(int(part) for part in parts if part.isdecimal() and len(part) < 20)
