"""How the ranks of a job communicate: what was matched, who waits for whom, and how the work is divided."""

from typing import Literal

import msgspec

ParallelName = Literal["data", "sharded data", "tensor", "pipeline", "expert"]


class LateRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank the others wait for, beyond accident.

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
        coverage: explained / waited, 0 to 1; ``None`` where nothing was exposed.
        same_work: where computing is the cause, whether it runs the same kernels on as much as another rank, only
            slower; ``None`` where that is not known.
        few_steps: whether the steps are too few to exclude chance, and it is named because the others wait for it most
            of the time.
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


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """What the collectives of all ranks say together.

    Attributes:
        matched: collectives that were matched across ranks; ``None``, as all numbers about several ranks, with one.
        of: collectives that could have been.
        by: what matched them; ``None`` when nothing was matched.
        residual_ns: of the rank that fits worst, the median distance of its ends after alignment.
        most_shift: most collectives that one rank's capture lacks at its beginning.
        steps: judged steps with matched collectives, which the waiting was counted in.
        steps_needed: judged steps from which a late rank could be told from chance, where there are fewer.
        blurred: whether one rank seems late, but the ends of one collective lie too far apart on its host to say so.
        waited_ns: waiting of all ranks in them, hidden or not.
        time_ns: time of all ranks in the matched collectives of the judged steps, waiting included.
        transfer_ns: the rest of that time; ``None`` where members of a group were not read, who may have come last.
        late: ranks the others wait for; empty when nobody is late but by turns.
        late_by_timers: global rank that spends much more than the others in what timers measure, where nothing was
            matched; ``None`` where there is none.
        problems: what could not be matched, in whole sentences.
        unclassified_ratio: share of the judged rank's communication whose collective is not known.
        parallelism: how the work is divided, as far as it shows.
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
