"""How the ranks of a job communicate: who waits for whom, how the work is divided, and many ranks compared."""

from typing import Literal

import msgspec


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How a number is distributed over the ranks that have it."""

    n: int
    minimum: float
    p10: float
    median: float
    p90: float
    maximum: float


class PartSpread(msgspec.Struct, frozen=True, kw_only=True):
    """The share of one part of the step over the ranks, 0 to 1; a rank without it counts as 0."""

    part: str
    share: Spread


class CulpritRow(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the others wait for.

    Attributes:
        waited_ns: per step, by the median rank beside them.
        share: of all waiting that is left without the culprits before it.
        steps: share of the steps in which it causes most of the waiting.
    """

    kind: Literal["rank", "host"]
    name: str
    ranks: tuple[int, ...]
    waited_ns: int
    share: float
    steps: float


class HostRow(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of one host.

    Attributes:
        caused_ns: per step, waiting of all ranks for one of these; ``None`` where nothing was matched.
    """

    name: str
    ranks: int
    step_ns: int | None
    caused_ns: int | None


GroupKind = Literal["pipeline stage", "tensor group", "expert group", "data-parallel group", "shard group"]


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of one group of the job.

    Attributes:
        stage: position in the pipeline, from 0; ``None`` for a group that is no stage.
        members: numbers of the first of them, at most 8.
        caused_ns: per step, waiting of all ranks for one of these; ``None`` where nothing was matched.
    """

    stage: int | None
    ranks: int
    members: tuple[int, ...]
    step_ns: int | None
    caused_ns: int | None
    late: int | None


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of one kind: how many there are, and those that cause most waiting, at most 20."""

    kind: GroupKind
    count: int
    rows: tuple[GroupRow, ...]


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank's device and host did while it worked, over its recording until it was summarised.

    ``None`` means not measured.

    Attributes:
        sm_clock_mhz: median clock of the multiprocessors while the device was at work, like ``temperature_c``.
        power_capped_ratio: of it, in which the power limit did, which is normal at full load.
        cpu_pressure_ratio: median share of the time in which some task of the machine waited for a processor (PSI).
        thread_queue_ratio: median share of the time in which the training thread waited for a processor.
    """

    sm_clock_mhz: float | None = None
    slowed_ratio: float | None = None
    thermal_ratio: float | None = None
    power_capped_ratio: float | None = None
    temperature_c: float | None = None
    host_cpu_ratio: float | None = None
    cpu_pressure_ratio: float | None = None
    running_tasks: float | None = None
    thread_queue_ratio: float | None = None
    cpu_quota_ratio: float | None = None


class OutlierRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that the others wait for; ``condition`` is ``None`` where nothing was sampled. ``name`` is hostile."""

    name: str
    condition: Condition | None


class Heat(msgspec.Struct, frozen=True, kw_only=True):
    """Who makes the others wait, and when.

    Attributes:
        rows: number of the first rank of each row; a row holds ``ranks_each`` ranks, the last one maybe fewer.
        columns: number of the first step of each column, which holds ``steps_each`` steps.
        waited_ns: by row and column, of the rank in the row that causes most: waiting of the mean other member for it,
            in the worst of the column's steps.
    """

    rows: tuple[int, ...]
    ranks_each: int
    columns: tuple[int, ...]
    steps_each: int
    waited_ns: tuple[tuple[int, ...], ...]


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that have more collectives than is kept of each: those of whole steps, spread over the trace.

    Where a trace marks no steps, or does not number its collectives, the first are kept.
    """

    ranks: int
    kept: int
    of: int


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks of a run of which only some are told in detail.

    Attributes:
        missing: of the job, not read; ``None`` where its size is not known.
        host_count: hosts there are; ``None`` where traces do not say theirs.
        matched: collectives that were matched between ranks; ``None`` where none could be.
        residual_ns: largest median distance of a rank's ends of collectives from its clock's offset.
        groups: by kind, of the kinds that the job named; the others are not measured.
        outliers: the ranks of the culprits, at most 16.
        sampled: ranks of which not all collectives are compared; ``None`` where there are none.
    """

    ranks: int
    missing: int | None
    unreadable: int
    told: tuple[int, ...]
    step_ns: Spread | None
    parts: tuple[PartSpread, ...]
    culprits: tuple[CulpritRow, ...]
    hosts: tuple[HostRow, ...]
    host_count: int | None
    heat: Heat | None
    matched: int | None
    of: int | None
    residual_ns: int | None
    left_out: tuple[str, ...] = ()
    sampled: Sampled | None = None
    groups: tuple[Groups, ...] = ()
    outliers: tuple[OutlierRow, ...] = ()
    typical: Condition | None = None
    conditions: int = 0


ParallelName = Literal["data", "sharded data", "tensor", "pipeline", "expert"]


class LateRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank the others wait for, surely or likely beyond accident.

    Attributes:
        share: of all waiting in the judged steps, caused by it.
        cause: the part of its step that is longer than on the others; ``None`` when nothing explains enough: the
            waiting is unattributed.
        cause_ns: how much longer, ns per judged step, in the spans the others waited for it; ``None`` without a cause.
        waited_ns: exposed waiting of the median other rank in those spans, ns per judged step.
        coverage: explained / waited, 0 to 1; ``None`` where nothing was exposed, or nothing was measured to explain it.
        same_work: where computing is the cause, whether it runs the same kernels on as much as another rank, only
            slower; ``None`` where that is not known.
        few_steps: whether it is only likely late: too few steps show it to be sure.
    """

    rank: int | None
    origin: str
    share: float
    last: int
    of: int
    cause: str | None
    cause_ns: int | None
    waited_ns: int
    coverage: float | None
    same_work: bool | None = None
    few_steps: bool = False


class Parallelism(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which the job is divided, read from groups and names.

    Attributes:
        evidence: what in the trace says so.
        micro_batches: of a pipeline, per step; ``None`` when unknown.
        bubble_share: of a pipeline, exposed point-to-point time / step; ``None`` when it was not measured.
        schedule_share: of a pipeline, what its schedule leaves idle: (p - 1) / (m + p - 1); ``None`` when unknown.
    """

    name: ParallelName
    size: int | None
    evidence: str
    micro_batches: int | None = None
    bubble_share: float | None = None
    schedule_share: float | None = None


class RecordedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one name, type and group that a rank's flight recorder held. Count and bytes are measured.

    Attributes:
        name: as torch has it: ``gloo:all_reduce``.
        bytes: of all of them, the larger of each one's sides; ``None`` where a type is not known.
        dtype: element type in torch's words; ``None`` without a tensor.
        skew_ns: derived: from the first rank's arrival to the last one's, median of those that were matched; ``None``
            where nothing tells.
    """

    name: str
    kind: str
    group: str
    group_size: int | None
    count: int
    bytes: int | None
    dtype: str | None
    skew_ns: int | None = None


class FlightRecorder(msgspec.Struct, frozen=True, kw_only=True):
    """What torch's flight recorder held of the judged rank at the end of the run and of the windows.

    Attributes:
        made: how many the process had issued; the recorder keeps the last ones.
        per_step: collectives in the median one of these; ``None`` without any.
    """

    rank: int | None
    held: int
    made: int
    steps: int
    per_step: float | None
    collectives: tuple[RecordedCollective, ...]


class DistributedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What DistributedDataParallel measured of itself on the judged rank. ``None`` means that it did not say.

    Times are its means over the iterations that it samples: the first 10, then each hundredth.

    Attributes:
        module: class of the wrapped model. Hostile text.
        bucket_bytes: sizes of the gradient buckets in use, in the order in which they are reduced.
        comm_ns: from the start of the first bucket's reduction to the end of the last one's, waiting for other ranks
            included.
        overlap_ratio: ``overlap_ns`` / ``comm_ns``.
    """

    module: str = ""
    backend: str = ""
    world_size: int | None = None
    parameter_bytes: int | None = None
    unused_parameter_bytes: int | None = None
    bucket_bytes: tuple[int, ...] = ()
    bucket_cap_bytes: int | None = None
    rebuilt: bool | None = None
    forward_ns: int | None = None
    backward_ns: int | None = None
    comm_ns: int | None = None
    overlap_ns: int | None = None
    overlap_ratio: float | None = None
    find_unused_parameters: bool | None = None
    gradient_as_bucket_view: bool | None = None
    static_graph: bool | None = None
    hook: str = ""


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """What the collectives of all ranks say together.

    Attributes:
        matched: collectives that were matched across ranks; ``None``, as all numbers about several ranks, with one.
        residual_ns: of the rank that fits worst, the median distance of its ends after alignment.
        most_shift: most collectives that one rank's capture lacks at its beginning.
        steps_needed: judged steps in which being last in each excludes chance, however late; ``None`` where as many
            were judged.
        blurred: whether one rank seems late, but the ends of one collective lie too far apart on its host, or the
            hosts' clocks may, to say so.
        transfer_ns: the rest of that time; ``None`` where members of a group were not read, who may have come last.
        late_by_timers: global rank that spends much more than the others in what timers measure, where nothing was
            matched; ``None`` where there is none.
        groups: of the ranks told here side by side, of the kinds that the job named; the others are not measured.
    """

    matched: int | None = None
    of: int | None = None
    by: Literal["sequence", "order", "both"] | None = None
    residual_ns: int | None = None
    most_shift: int | None = None
    steps: int | None = None
    steps_needed: int | None = None
    blurred: bool = False
    waited_ns: int | None = None
    time_ns: int | None = None
    transfer_ns: int | None = None
    late: tuple[LateRank, ...] = ()
    late_by_timers: int | None = None
    problems: tuple[str, ...] = ()
    unclassified_ratio: float | None = None
    parallelism: tuple[Parallelism, ...] = ()
    matched_in: Literal["traces", "flight recorders"] = "traces"
    flight: FlightRecorder | None = None
    ddp: tuple[DistributedModel, ...] = ()
    groups: tuple[Groups, ...] = ()
