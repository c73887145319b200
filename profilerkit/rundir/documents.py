"""Hold ``ddp.json`` and ``flight.json``, and make them of what torch says."""

from collections.abc import Mapping, Sequence
from math import prod

import msgspec

from profilerkit.model.communication import DistributedModel

_MOST_BUCKETS = 1000  #: buckets kept of one model; 25 MB each, these are 25 GB of gradients


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
    parts = [part.strip() for part in buckets.split(",")][:_MOST_BUCKETS]
    return DistributedModel(
        module=texts.get("module_name", "")[:200],
        backend=texts.get("backend_name", "")[:200],
        world_size=numbers.get("world_size"),
        parameter_bytes=numbers.get("total_parameter_size_bytes"),
        unused_parameter_bytes=numbers.get("unused_parameter_size"),
        bucket_bytes=tuple(int(part) for part in parts if part.isdecimal() and len(part) < 20),
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


_LONGEST_NAME = 200  #: longer names are cut: torch's own have 40 characters


class FlightGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A process group; ``size`` is ``None`` where the recorder does not know its members, as under gloo."""

    name: str
    description: str = ""
    size: int | None = None


class FlightEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One collective, or one transfer between two ranks. An array in the file, in this order."""

    name: int  #: position in ``Flight.names``, as is ``dtype``, ``None`` without a tensor or with several types
    group: int  #: position in ``Flight.groups``
    sequence: int  #: its number in the group; transfers between two are numbered apart
    between: bool
    created_ns: int
    input_elements: int
    output_elements: int
    dtype: int | None = None
    #: On the device; ``None`` unless the back-end times it (NCCL, ``TORCH_NCCL_ENABLE_TIMING=1``).
    duration_ns: int | None = None


class Flight(msgspec.Struct, frozen=True, kw_only=True):
    """``flight.json``."""

    made: int  #: collectives this process had issued by then; the recorder holds the last ones only
    names: tuple[str, ...]  #: of collectives and types. Hostile text.
    groups: tuple[FlightGroup, ...]
    entries: tuple[FlightEntry, ...]


class DumpedCall(msgspec.Struct):
    """What is used of an entry of torch's dump (2.13)."""

    record_id: int = -1
    profiling_name: str = ""
    process_group: list[str] = []
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    is_p2p: bool = False
    input_sizes: list[list[int]] = []
    output_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    output_dtypes: list[str] = []
    time_created_ns: int = 0
    duration_ms: float | None = None


class DumpedGroup(msgspec.Struct):
    """Members of a group, as text: ``[0, 1]``."""

    ranks: str = ""


class Dump(msgspec.Struct):
    """What is used of torch's dump."""

    entries: list[DumpedCall] = []
    pg_config: dict[str, DumpedGroup] = {}


def flight_of(dumps: Sequence[bytes], since_unix_ns: int) -> Flight:
    """The record of what torch's recorders dumped as JSON, without what was issued before ``since_unix_ns``.

    Raises:
        ValueError: a dump has another form than torch gives it.
    """
    try:
        read = [msgspec.json.decode(data, type=Dump) for data in dumps]
    except msgspec.DecodeError as error:  # no ValueError in msgspec 0.19
        raise ValueError(str(error)) from error
    return flight_of_dumps(read, since_unix_ns)


def flight_of_dumps(dumps: Sequence[Dump], since_unix_ns: int = 0) -> Flight:
    """The record of what torch's recorders dumped, without what was issued before ``since_unix_ns``."""
    names: dict[str, int] = {}
    groups: dict[tuple[str, str], int] = {}
    sizes: dict[str, int | None] = {}
    entries: list[FlightEntry] = []
    made = 0
    for dump in dumps:
        sizes.update({name: group_size(config.ranks) for name, config in dump.pg_config.items()})
        made += max((entry.record_id + 1 for entry in dump.entries), default=0)
        for entry in dump.entries:
            if entry.time_created_ns < since_unix_ns:
                continue
            name, description = (*entry.process_group, "", "")[:2]
            dtypes = {*entry.input_dtypes, *entry.output_dtypes}
            entries.append(
                FlightEntry(
                    name=names.setdefault(entry.profiling_name[:_LONGEST_NAME], len(names)),
                    group=groups.setdefault((name, description), len(groups)),
                    sequence=entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id,
                    between=entry.is_p2p,
                    created_ns=entry.time_created_ns,
                    input_elements=sum(prod(shape) for shape in entry.input_sizes),
                    output_elements=sum(prod(shape) for shape in entry.output_sizes),
                    dtype=names.setdefault(dtypes.pop()[:_LONGEST_NAME], len(names)) if len(dtypes) == 1 else None,
                    duration_ns=None if entry.duration_ms is None else round(entry.duration_ms * 1e6),
                )
            )
    entries.sort(key=lambda entry: entry.created_ns)
    return Flight(
        made=made,
        names=tuple(names),
        groups=tuple(
            FlightGroup(name=name[:_LONGEST_NAME], description=text[:_LONGEST_NAME], size=sizes.get(name))
            for name, text in groups
        ),
        entries=tuple(entries),
    )


def group_size(ranks: str) -> int | None:
    """Members of a group whose ranks are written as a list; ``None`` where none are."""
    count = len([part for part in ranks.strip("[] ").split(",") if part.strip().isdecimal()])
    return count or None
