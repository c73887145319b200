"""How the ranks of a job communicate: what was matched, who waits for whom, and how the work is divided."""

from typing import Literal

import msgspec

from profilerkit.model.crowd import Groups

ParallelName = Literal["data", "sharded data", "tensor", "pipeline", "expert"]


class LateRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank the others wait for, surely or likely beyond accident.

    Attributes:
        rank: global rank; ``None`` when its file does not say.
        origin: file name or rank directory.
        share: of all waiting in the judged steps, caused by it.
        last: in how many of ``of`` matched collectives it arrived last.
        of: matched collectives it took part in.
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
        name: the dimension.
        size: ranks in it; ``None`` when unknown.
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
        kind: as in ``Collective.kind``.
        group: description of the process group, else its name.
        group_size: its members; ``None`` where the recorder does not know.
        count: how many.
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
        rank: global rank.
        held: collectives and transfers in it.
        made: how many the process had issued; the recorder keeps the last ones.
        steps: judged steps in which some of these were issued.
        per_step: collectives in the median one of these; ``None`` without any.
        collectives: by name, type and group, most bytes first.
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
        backend: of its process group.
        world_size: ranks.
        parameter_bytes: size of the parameters.
        unused_parameter_bytes: of these, without a gradient.
        bucket_bytes: sizes of the gradient buckets in use, in the order in which they are reduced.
        bucket_cap_bytes: what ``bucket_cap_mb`` allows.
        rebuilt: whether the buckets follow the order in which gradients became ready.
        forward_ns: forward pass.
        backward_ns: computing the gradients.
        comm_ns: from the start of the first bucket's reduction to the end of the last one's, waiting for other ranks
            included.
        overlap_ns: of that, while gradients were still being computed.
        overlap_ratio: ``overlap_ns`` / ``comm_ns``.
        find_unused_parameters: whether the graph is searched for parameters without a gradient in each step.
        gradient_as_bucket_view: whether gradients lie in the buckets, which saves a copy.
        static_graph: whether the graph was said to be the same in each step.
        hook: name of a communication hook; empty without one.
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
        of: collectives that could have been.
        by: what matched them; ``None`` when nothing was matched.
        residual_ns: of the rank that fits worst, the median distance of its ends after alignment.
        most_shift: most collectives that one rank's capture lacks at its beginning.
        steps: judged steps with matched collectives, which the waiting was counted in.
        steps_needed: judged steps in which being last in each excludes chance, however late; ``None`` where as many
            were judged.
        blurred: whether one rank seems late, but the ends of one collective lie too far apart on its host, or the
            hosts' clocks may, to say so.
        waited_ns: waiting of all ranks in them, hidden or not.
        time_ns: time of all ranks in the matched collectives of the judged steps, waiting included.
        transfer_ns: the rest of that time; ``None`` where members of a group were not read, who may have come last.
        late: ranks the others wait for; empty when nobody is late but by turns.
        late_by_timers: global rank that spends much more than the others in what timers measure, where nothing was
            matched; ``None`` where there is none.
        problems: what could not be matched, in whole sentences.
        unclassified_ratio: share of the judged rank's communication whose collective is not known.
        parallelism: how the work is divided, as far as it shows.
        matched_in: whose collectives were matched: those of traces, or those of torch's flight recorders, which tell
            when ranks arrive and nothing about transfer.
        flight: what the flight recorder held; ``None`` where it was not asked or held nothing.
        ddp: models that DistributedDataParallel told about.
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
