"""The collectives of the judged steps: how the job is divided, a row for each kind, and what they cost."""

import re
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from profilerkit.analysis.communication.log import KINDS, CollectiveLog
from profilerkit.analysis.communication.registry import UNKNOWN, bus_factor
from profilerkit.analysis.device.kernels import matching
from profilerkit.analysis.intervals import Spans, covered, index_at, intersect, subtract, union
from profilerkit.analysis.partition import TraceView
from profilerkit.model import revise
from profilerkit.model.communication import DistributedModel, Parallelism, ParallelName
from profilerkit.model.report import Collective
from profilerkit.model.step import leaf
from profilerkit.rundir.documents import DdpRecord
from profilerkit.trace.columns import I64, Bools, Category, ProcessGroup, TraceColumns, TraceMeta, names_of


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
    used = names_of(columns, Category.ANNOTATION, Category.CPU_OP, Category.KERNEL)
    found = [entry for sign in _SIGNS if (entry := _dimension(sign, groups, columns, used, log)) is not None]
    if len(found) == 1 and found[0].size is None and found[0].name in ("data", "sharded data"):
        found = [revise(found[0], size=columns.meta.world_size)]
    return tuple(
        _with_bubble(entry, log, columns.meta, exposed, window) if entry.name == "pipeline" and log else entry
        for entry in found
    )


def _dimension(
    sign: _Sign, groups: list[ProcessGroup], columns: TraceColumns, used: I64, log: CollectiveLog | None
) -> Parallelism | None:
    group = next((group for group in groups if dimension_of(group) == sign.name), None)
    if group is not None:
        return Parallelism(name=sign.name, size=group.size, evidence=f"process group {group.description}")
    shown = np.flatnonzero(matching(columns, used, sign.event)).tolist()
    name = min((columns.strings[index] for index in shown), key=len, default=None)
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

    The receives per step give the number m of micro-batches: one each at the ends of the pipeline, two (one of
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


# Times are ns per steady step on the trace's own clock, waiting for other ranks left out where it is known. ``None``
# means that the trace cannot say.

#: Size of one collective: below 1 MB the link's latency rules, from 64 MB on its bandwidth.
SizeClass = Literal["small", "middle", "large"]


class Traffic(msgspec.Struct, frozen=True):
    """Collectives of one kind, process group, type and size class."""

    kind: str
    #: What of the job the process group divides, as its description says; ``None`` where it says nothing.
    dimension: ParallelName | None
    dtype: str | None
    group_size: int | None
    size: SizeClass | None  #: class by bytes; ``None`` where the bytes are unknown
    per_step: float
    bytes_per_step: float | None  #: of all of them, by nccl-tests' convention
    transfer_ns: float  #: when any of them ran
    exposed_ns: float  #: of that, when nothing hid it
    median_ns: float
    bus_bytes_per_s: float | None = None  #: by what a link carries; ``None`` where waiting is in the time as well


class Accumulation(msgspec.Struct, frozen=True):
    """Steps of several backward passes, each of which reduces its gradients."""

    passes: int  #: backward passes per step, or per optimizer step
    reductions: int
    early_ns: float  #: transfer per step of those in all passes but the last
    early_exposed_ns: float  #: of that, when nothing hid it
    transfer_ns: float
    groups: Spans | None = None  #: the optimizer steps, where each has a step for each of its passes; else ``None``


class ReducerWork(msgspec.Struct, frozen=True):
    """What DistributedDataParallel's reducer does beside reducing, by its own events, per step."""

    searches: float
    search_ns: float  #: of searches for parameters without a gradient, in which the device has nothing to do
    copies: float  #: gradients copied from a bucket back to where the optimizer finds them
    copy_ns: float
    fill_ns: float = 0.0  #: time in which gradients were brought into buckets, divided by the number of ranks


class Engine(msgspec.Struct, frozen=True):
    """An engine that devices have a better one for, and its transfers while the device computes nothing."""

    name: Literal["DataParallel", "gloo"]
    exposed_ns: float


class Contention(msgspec.Struct, frozen=True):
    """Kernels of one name and shape, beside a collective and alone."""

    groups: int  #: names with shapes that were seen in both places
    kernels: int  #: calls beside collectives that could be compared
    usual_ns: float  #: what these would take alone
    excess_ns: float
    beside_ns: float  #: time of all kernels beside collectives, those that could not be compared among them


class CollectiveWork(msgspec.Struct, frozen=True):
    """What a trace tells of its communication beyond its totals."""

    step_ns: float
    traffic: tuple[Traffic, ...] = ()
    exposed_ns: float = 0.0  #: exposed communication that is not known to be waiting
    transfer_ns: float = 0.0  #: when any collective ran
    #: Computing of the backward pass beside no collective; ``None`` where no backward pass shows.
    backward_alone_ns: float | None = None
    #: How long a transfer of next to nothing takes in this run; ``None`` where ranks were not matched.
    floor_ns: int | None = None
    #: ``None`` where a step has one backward pass, or its passes reduce different things.
    accumulation: Accumulation | None = None
    passes: int | None = None
    reducer: ReducerWork | None = None
    engine: Engine | None = None
    #: ``None`` where no kernel was seen both beside a collective and alone, with shapes.
    contention: Contention | None = None
    #: Share of the reductions before their step's first backward pass: they hold activations.
    before_backward_ratio: float = 0.0
    #: Transfer of the later half of each step's all-gathers, when nothing hid it.
    second_gathers_exposed_ns: float = 0.0
    #: Transfers while the host waits for data that would be waited for without that; 0 on a device.
    under_input_ns: float = 0.0
    #: Bursts of tiny collectives on the host beyond the first of each, with the calls and waits in them.
    burst_ns: float = 0.0


MOST_ROWS = 20  #: rows kept: the rest of the names took less time


class Split(msgspec.Struct, frozen=True):
    """How each collective of a log divides, ``(n,)`` int64."""

    wait: I64  #: ns until the last member had arrived, -1 where the collective was not matched
    transfer: I64  #: ns from then until the first member left, -1 where unmatched or where members are missing
    members: I64  #: how many ranks were matched, 0 where none

    @classmethod
    def unknown(cls, count: int) -> "Split":
        """Nothing was matched."""
        return cls(np.full(count, -1, np.int64), np.full(count, -1, np.int64), np.zeros(count, np.int64))


def collective_table(
    log: CollectiveLog, judged: Bools, exposed: Spans, split: Split | None = None
) -> tuple[Collective, ...]:
    """The collectives in ``judged`` grouped by name, type and group size, most time first."""
    rows = np.flatnonzero(judged)
    if not len(rows):
        return ()
    split = split or Split.unknown(len(log))
    size = np.where(log.size >= 0, log.size, np.where(split.transfer >= 0, split.members, -1))
    keys = np.stack([log.title, log.dtype, size, log.kind], axis=1)[rows].astype(np.int64)
    found, which = np.unique(keys, axis=0, return_inverse=True)
    which = which.ravel()
    time = np.zeros(len(found), dtype=np.int64)
    np.add.at(time, which, (log.end - log.start)[rows])
    most = np.argsort(-time, kind="stable")[:MOST_ROWS].tolist()
    return tuple(_table_row(log, rows[which == index], size, exposed, split) for index in most)


def _table_row(log: CollectiveLog, rows: I64, size: I64, exposed: Spans, split: Split) -> Collective:
    first = int(rows[0])
    time = (log.end - log.start)[rows]
    kind, members = KINDS[log.kind[first]], int(size[first]) if size[first] >= 0 else None
    sized = (log.bytes[rows] >= 0).all()
    matched = split.wait[rows] >= 0
    whole = (split.transfer[rows] >= 0).all()
    algorithm, bus = _bandwidths(log, rows, kind, members, split)
    spans = union(log.start[rows], log.end[rows])
    return Collective(
        name=log.names[log.title[first]],
        count=len(rows),
        total_ns=int(time.sum()),
        exposed_ns=intersect(exposed, spans).total_ns,
        bytes=int(log.bytes[rows].sum()) if sized else None,
        bytes_source=("measured" if log.measured[rows].all() else "derived") if sized else None,
        dtype=log.names[log.dtype[first]] if log.dtype[first] >= 0 else None,
        group_size=members,
        kind=kind,
        matched=int(matched.sum()) if matched.any() else None,
        wait_ns=int(split.wait[rows].sum()) if whole else None,
        transfer_ns=int(time.sum() - split.wait[rows].sum()) if whole else None,
        algorithm_bytes_per_s=algorithm,
        bus_bytes_per_s=bus,
        bandwidth_is_bound=algorithm is not None and not (split.transfer[rows] > 0).any(),
    )


def _bandwidths(
    log: CollectiveLog, rows: I64, kind: str, members: int | None, split: Split
) -> tuple[float | None, float | None]:
    """Algorithm and bus bandwidth, bytes/s: over the known transfers, else, as a lower bound, over whole events."""
    known = split.transfer[rows] > 0
    chosen = rows[known] if known.any() else rows
    chosen = chosen[log.bytes[chosen] > 0]
    time = split.transfer[chosen] if known.any() else (log.end - log.start)[chosen]
    factor = bus_factor(kind, members)
    if not len(chosen) or not time.sum():
        return None, None
    algorithm = float(log.bytes[chosen].sum()) / (float(time.sum()) * 1e-9)
    return algorithm, algorithm * factor if factor is not None else None


class CommFacts(msgspec.Struct, frozen=True):
    """Collectives per steady step: total, exposed, and what compute there is to hide behind.

    Of their time, ``small_ratio`` is in those below 1 MB, ``None`` without sizes, ``unclassified_ratio`` in events of
    unknown kind, and ``surplus_ratio`` what some take much beyond the median of their like: probably waiting.
    """

    step_ns: float
    per_step: float
    total_ns: float
    exposed_ns: float
    alone_compute_ns: float
    small_ratio: float | None
    table: tuple[Collective, ...]
    unclassified_ratio: float | None = None
    surplus_ratio: float = 0.0

    @property
    def overlap_ratio(self) -> float:
        """Hidden / total."""
        return 1.0 - self.exposed_ns / self.total_ns if self.total_ns else 1.0


#: Below this a collective runs at the latency floor of the link, not at its bandwidth.
SMALL_COLLECTIVE_BYTES = 1_000_000
#: A collective that takes longer than this multiple of the median of its kind has probably waited for a rank.
UNUSUAL = 1.5
#: The leaves of exposed communication.
EXPOSED = tuple(leaf(name) for name in ("comm.bw", "comm.lat", "comm.skew", "comm.other"))


def comm_facts(view: TraceView, log: CollectiveLog | None) -> CommFacts | None:
    """Communication in the steady steps, from the trace's collectives; ``None`` when none was seen.

    Only compute kernels hide it; on a CPU-only trace operators of the training's threads hide the ``gloo:*`` spans.
    """
    columns, window, parts, communicates = view.columns, view.window, view.parts, view.kinds.communication
    device = view.device_rows
    judged = covered(window, log.start) if log is not None else np.zeros(0, dtype=np.bool_)
    if log is None or not judged.any():
        return None
    count = max(len(window), 1)
    working = columns.is_a(Category.CPU_OP) if device is None else device & (columns.category == Category.KERNEL)
    work = working & ~communicates[columns.name]
    transfers = intersect(window, union(log.start[judged], log.end[judged]))
    compute = intersect(window, union(columns.ts_ns[work], columns.end_ns[work]))
    exposed = intersect(transfers, parts.segments.only(*EXPOSED))
    time = (log.end - log.start)[judged]
    sized, small = log.bytes[judged] >= 0, log.bytes[judged] < SMALL_COLLECTIVE_BYTES
    return CommFacts(
        step_ns=window.total_ns / count,
        per_step=int(judged.sum()) / count,
        total_ns=transfers.total_ns / count,
        exposed_ns=exposed.total_ns / count,
        alone_compute_ns=subtract(compute, transfers).total_ns / count,
        small_ratio=float(time[sized & small].sum()) / float(time[sized].sum()) if sized.any() else None,
        table=collective_table(log, judged, exposed),
        unclassified_ratio=float(time[log.is_a(UNKNOWN)[judged]].sum()) / float(time.sum()),
        surplus_ratio=_surplus(log, np.flatnonzero(judged)) / float(time.sum()),
    )


def _surplus(log: CollectiveLog, rows: I64) -> float:
    """Ns by which collectives outlast the median of the same name and size, of those that take ``UNUSUAL`` times it."""
    time = (log.end - log.start)[rows]
    alike = np.unique(np.stack([log.title[rows], log.bytes[rows]], axis=1), axis=0, return_inverse=True)[1].ravel()
    order = np.lexsort((time, alike))
    first, count = np.unique(alike[order], return_index=True, return_counts=True)[1:]
    usual = time[order][first + (count - 1) // 2][alike]
    return float((time - usual)[time > UNUSUAL * usual].sum())


LARGE_COLLECTIVE_BYTES = 64_000_000  #: from here on a collective shows the bandwidth of the links
#: Exposed communication that is not known to be waiting for another rank.
TRANSFER = ("comm.bw", "comm.lat", "comm.other")
TRANSFER_LEAVES = tuple(leaf(name) for name in TRANSFER)

_SIZES: tuple[SizeClass, ...] = ("small", "middle", "large")
_UNKNOWN_SIZE = -1


def transfers_of(log: CollectiveLog, split: Split) -> tuple[I64, I64]:
    """``(n,)`` when each collective moves data, ns: from the last arrival where that is known, else from its start."""
    return log.start + np.maximum(split.wait, 0), log.end


def traffic(
    log: CollectiveLog, window: Spans, exposed: Spans, split: Split, groups: Sequence[ProcessGroup]
) -> tuple[Traffic, ...]:
    """One record per kind, dimension, type, group size and size class, most transfer time first."""
    rows = np.flatnonzero(covered(window, log.start))
    if not len(rows):
        return ()
    told = {group.name: dimension_of(group) for group in groups if group.size > 1}
    dimensions = [told.get(channel.group) for channel in log.channels]
    names: list[ParallelName | None] = list(dict.fromkeys((None, *dimensions)))
    dimension = np.array([names.index(found) for found in dimensions], dtype=np.int64)[log.channel]
    edges = np.array([SMALL_COLLECTIVE_BYTES, LARGE_COLLECTIVE_BYTES])
    size = np.where(log.bytes >= 0, np.searchsorted(edges, log.bytes, side="right"), _UNKNOWN_SIZE)
    keys = np.stack([log.kind, dimension, log.dtype, log.size, size], axis=1)[rows].astype(np.int64)
    found, which = np.unique(keys, axis=0, return_inverse=True)
    which = which.ravel()
    start, end = transfers_of(log, split)
    count = max(len(window), 1)

    def row(own: I64, dimension: ParallelName | None, size: int) -> Traffic:
        first = int(own[0])
        spans = intersect(window, union(start[own], end[own]))
        sized, members = size != _UNKNOWN_SIZE, int(log.size[first]) if log.size[first] > 0 else None
        kind, known = KINDS[log.kind[first]], own[split.transfer[own] > 0]
        return Traffic(
            kind=kind,
            dimension=dimension,
            dtype=log.names[log.dtype[first]] if log.dtype[first] >= 0 else None,
            group_size=members,
            size=_SIZES[size] if sized else None,
            per_step=len(own) / count,
            bytes_per_step=float(log.bytes[own].sum()) / count if sized else None,
            transfer_ns=spans.total_ns / count,
            exposed_ns=intersect(exposed, spans).total_ns / count,
            median_ns=float(np.median((end - start)[own])),
            bus_bytes_per_s=_bandwidths(log, known, kind, members, split)[1] if sized and len(known) else None,
        )

    out = [row(rows[which == index], names[key[1]], key[4]) for index, key in enumerate(found.tolist())]
    return tuple(sorted(out, key=lambda entry: -entry.transfer_ns))


def second_gathers_ns(log: CollectiveLog, window: Spans, exposed: Spans, split: Split) -> float:
    """Exposed time per step of the later half of each step's all-gathers: those of the backward pass."""
    rows = np.flatnonzero(log.is_a("all_gather"))
    step = index_at(window, log.start[rows])
    later = [own[len(own) - len(own) // 2 :] for n in range(len(window)) if len(own := rows[step == n])]
    if not later:
        return 0.0
    start, end = (edges[np.concatenate(later)] for edges in transfers_of(log, split))
    return intersect(exposed, intersect(window, union(start, end))).total_ns / len(window)
