"""How the job is divided, as far as groups and names say so, and what DistributedDataParallel measured of itself."""

import re
from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.analysis.communication.log import CollectiveLog
from profilerkit.analysis.intervals import I64, Spans, index_at, intersect, union
from profilerkit.model.change import revise
from profilerkit.model.communication import DistributedModel, Parallelism, ParallelName
from profilerkit.rundir.documents import DdpRecord
from profilerkit.trace.columns import Category, ProcessGroup, TraceColumns, TraceMeta


class _Sign(msgspec.Struct, frozen=True):
    """What shows one dimension: a process group's description, or an event's name; ``kinds`` tell its size."""

    name: ParallelName
    group: re.Pattern[str]
    event: re.Pattern[str]
    kinds: tuple[str, ...]


def _word(*words: str) -> re.Pattern[str]:
    """Any of the words between separators: ``mesh_tp``, ``tp``, ``dp_cp``."""
    return re.compile(rf"(?:^|[^a-z])(?:{'|'.join(words)})(?:[^a-z]|$)", re.IGNORECASE)


_SIGNS = (
    _Sign(
        "sharded data",
        _word("fsdp", "dp_shard", "zero", "shard"),
        re.compile(r"FullyShardedDataParallel|^FSDP::|DeepSpeedZero"),
        ("all_gather", "reduce_scatter"),
    ),
    _Sign(
        "data",
        _word("dp", "ddp", "dp_cp", "data_parallel_group", "data_parallel_group_with_cp", "dp_replicate"),
        re.compile(r"^DistributedDataParallel\.forward"),
        ("all_reduce",),
    ),
    _Sign(
        "tensor",
        _word("tp", "tensor_parallel", "tensor_model_parallel_group"),
        re.compile(r"(?:To|From)(?:Tensor|Sequence)?(?:Model)?ParallelRegion|ColumnParallel|RowParallel"),
        ("all_reduce", "all_gather", "reduce_scatter"),
    ),
    _Sign(
        "pipeline",
        _word("pp", "pipeline", "pipeline_parallel", "pipeline_model_parallel_group"),
        re.compile(r"^PipelineStage|^PP:\d"),
        ("send_recv",),
    ),
    _Sign(
        "expert",
        _word("ep", "expert", "expert_parallel", "expert_model_parallel_group"),
        re.compile(r"deep_?ep::|dpsk::ep"),
        ("all_to_all",),
    ),
)


def parallelism_of(
    columns: TraceColumns, log: CollectiveLog | None, exposed: Spans, window: Spans
) -> tuple[Parallelism, ...]:
    """The dimensions that show; empty where nothing tells.

    A collective alone is no sign: all-gather with reduce-scatter are sharded data as well as sequence parallelism,
    all-to-all moves tokens as well as embeddings, and attention over a ring sends like the stages of a pipeline.
    """
    groups = [group for group in columns.meta.groups if group.size > 1]
    rows = columns.is_a(Category.ANNOTATION, Category.CPU_OP, Category.KERNEL)
    used = np.flatnonzero(np.bincount(columns.name[rows], minlength=len(columns.strings)))
    names = [columns.strings[index] for index in used.tolist()]
    found = [entry for sign in _SIGNS if (entry := _dimension(sign, groups, names, log)) is not None]
    if len(found) == 1 and found[0].size is None and found[0].name in ("data", "sharded data"):
        found = [revise(found[0], size=columns.meta.world_size)]
    return tuple(
        _with_bubble(entry, log, columns.meta, exposed, window) if entry.name == "pipeline" and log else entry
        for entry in found
    )


def _dimension(
    sign: _Sign, groups: list[ProcessGroup], names: list[str], log: CollectiveLog | None
) -> Parallelism | None:
    group = next((group for group in groups if dimension_of(group) == sign.name), None)
    if group is not None:
        return Parallelism(name=sign.name, size=group.size, evidence=f"process group {group.description}")
    name = min((name for name in names if sign.event.search(name)), key=len, default=None)
    if name is not None:
        sizes = np.unique(log.size[log.is_a(*sign.kinds) & (log.size > 0)]).tolist() if log else []
        return Parallelism(name=sign.name, size=sizes[0] if len(sizes) == 1 else None, evidence=name)
    return None


def dimension_of(group: ProcessGroup) -> ParallelName | None:
    """The first dimension that a group's description names, as ``dp_shard`` shards; ``None`` where it says nothing."""
    return next((sign.name for sign in _SIGNS if sign.group.search(group.description)), None)


def named_groups(groups: Sequence[ProcessGroup], log: CollectiveLog | None) -> tuple[ProcessGroup, ...]:
    """The groups of a rank that say what they divide: by their descriptions, else by the names its collectives tell."""
    found = list(groups)
    if log is not None:
        for name in sorted({channel.group for channel in log.channels} - {group.name for group in groups}):
            own = [at for at, channel in enumerate(log.channels) if channel.group == name and channel.pair is None]
            found.append(ProcessGroup(name, name, int(max(log.size[np.isin(log.channel, own)], default=0))))
    return tuple(group for group in found if group.size != 1 and dimension_of(group) is not None)


def _with_bubble(entry: Parallelism, log: CollectiveLog, meta: TraceMeta, exposed: Spans, window: Spans) -> Parallelism:
    """The pipeline with its bubble: exposed point-to-point time, and what (p - 1) / (m + p - 1) expects of p stages.

    The number m of micro-batches is told by the receives per step: one each at the ends of the pipeline, two (one of
    each direction) between. Transfers that were issued together show no receive, and m is unknown.
    """
    rows = log.is_a("send_recv")
    inside = intersect(window, intersect(exposed, union(log.start[rows], log.end[rows])))
    measured = inside.total_ns / window.total_ns if window.total_ns else None
    divides = [group for group in meta.groups if group.size > 1 and _SIGNS[3].group.search(group.description)]
    micro, stages = _micro_batches(log, divides[0].ranks, meta.rank, window) if divides else None, entry.size
    return revise(
        entry,
        micro_batches=micro,
        bubble_share=measured,
        schedule_share=(stages - 1) / (micro + stages - 1) if stages and micro else None,
    )


def _micro_batches(log: CollectiveLog, ranks: Sequence[int], rank: int | None, window: Spans) -> int | None:
    if rank not in ranks or not len(window):
        return None
    receives = np.array([text.lower().startswith("recv") for text in log.names], dtype=np.bool_)[log.title]
    step = index_at(window, log.start[receives])
    per_step: I64 = np.bincount(step[step >= 0], minlength=len(window))
    count = int(np.median(per_step))
    return (count if rank in (ranks[0], ranks[-1]) else count // 2) or None


def distributed_models(record: DdpRecord | None) -> tuple[DistributedModel, ...]:
    """The models of a rank in the order in which they were wrapped; none where nothing was asked."""
    models = record.models if record is not None else ()
    ratios = [
        min(max(one.overlap_ns / one.comm_ns, 0.0), 1.0)
        if one.overlap_ns is not None and one.comm_ns is not None and one.comm_ns > 0
        else None
        for one in models
    ]
    return tuple(revise(one, overlap_ratio=ratio) for one, ratio in zip(models, ratios, strict=True))


def parallelism_by_ddp(models: Sequence[DistributedModel]) -> tuple[Parallelism, ...]:
    """That the job is divided by data, as DistributedDataParallel says; empty without it, or with a single rank."""
    sizes = [model.world_size for model in models if model.world_size is not None and model.world_size > 1]
    if not sizes:
        return ()
    return (Parallelism(name="data", size=max(sizes), evidence="DistributedDataParallel, by its own data"),)
