"""Many ranks compared by what is kept of each: distributions, whom the others wait for, and when."""

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
        kind: one rank, or all ranks of a host.
        name: of it: ``rank 777``, or the host's. Hostile text.
        ranks: their numbers, the one that causes most first; a rank without a number is left out.
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
        name: hostile text.
        ranks: how many.
        step_ns: median of their median steps; ``None`` without steps.
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
        ranks: how many were read.
        members: numbers of the first of them, at most 8.
        step_ns: median of their median steps; ``None`` without steps.
        caused_ns: per step, waiting of all ranks for one of these; ``None`` where nothing was matched.
        late: matched collectives to which one of these came last; ``None`` likewise.
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
        slowed_ratio: share of that time in which heat, the supply or the hardware held the clock down.
        thermal_ratio: of it, in which heat did.
        power_capped_ratio: of it, in which the power limit did, which is normal at full load.
        temperature_c: of the device.
        host_cpu_ratio: median busy share of the machine's processors.
        cpu_pressure_ratio: median share of the time in which some task of the machine waited for a processor (PSI).
        running_tasks: median number of threads of the machine that ran or waited for a processor.
        thread_queue_ratio: median share of the time in which the training thread waited for a processor.
        cpu_quota_ratio: median share of the time in which a quota of processors held the job.
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
        ranks_each: ranks per row.
        columns: number of the first step of each column, which holds ``steps_each`` steps.
        steps_each: steps per column.
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

    Attributes:
        ranks: how many.
        kept: of their collectives.
        of: their collectives.
    """

    ranks: int
    kept: int
    of: int


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks of a run of which only some are told in detail.

    Attributes:
        ranks: that were read.
        missing: of the job, not read; ``None`` where its size is not known.
        unreadable: files that could not be read.
        told: numbers of the ranks in ``Report.ranks``.
        step_ns: median steps.
        parts: the largest parts, by median.
        culprits: the costliest first.
        hosts: those that cause most first, at most 20.
        host_count: hosts there are; ``None`` where traces do not say theirs.
        heat: ``None`` where nothing was matched.
        matched: collectives that were matched between ranks; ``None`` where none could be.
        of: collectives that could have been.
        residual_ns: largest median distance of a rank's ends of collectives from its clock's offset.
        left_out: what the summaries of the told ranks lack, in words.
        groups: by kind, of the kinds that the job named; the others are not measured.
        outliers: the ranks of the culprits, at most 16.
        typical: medians over all ranks whose condition was sampled; ``None`` without any.
        conditions: ranks whose condition was sampled.
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
