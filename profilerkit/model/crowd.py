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
