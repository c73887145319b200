"""Ranks that belong together by the process groups that the job named: stages, tensor groups, experts, copies."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from profilerkit.analysis.communication.parallelism import dimension_of
from profilerkit.analysis.ranks.waiting import Ledger
from profilerkit.model.communication import ParallelName
from profilerkit.model.crowd import GroupKind, GroupRow, Groups
from profilerkit.trace.columns import ProcessGroup

#: What of the job a process group divides, and what its ranks are called.
_KINDS: dict[ParallelName, GroupKind] = {
    "pipeline": "pipeline stage",
    "tensor": "tensor group",
    "expert": "expert group",
    "data": "data-parallel group",
    "sharded data": "shard group",
}
#: Rows that a table can show, and members that a row can name.
_MOST_ROWS, _MOST_NAMED = 20, 8


class Placed(Protocol):
    """A rank in its groups: its number, median judged step in ns, and the groups that say what they divide."""

    @property
    def rank(self) -> int | None:
        """Its number; ``None`` where nothing says it."""

    @property
    def step_ns(self) -> float | None:
        """``None`` without a step."""

    @property
    def groups(self) -> tuple[ProcessGroup, ...]:
        """Those with a description, or a name, that says what of the job they divide."""


class Place(msgspec.Struct, frozen=True):
    """One of a few ranks in its groups."""

    rank: int | None
    step_ns: float | None
    groups: tuple[ProcessGroup, ...]


def side_by_side(members: Sequence[Placed], ledger: Ledger | None) -> tuple[Groups, ...]:
    """The groups of each kind that the job named; a kind without a name is not there.

    Of several descriptions of one kind the one that most ranks have is taken. What is divided in a way that
    contradicts itself, as names that several groups share, is left out.
    """
    return tuple(
        Groups(kind=kind, count=len(divided), rows=_rows(divided, kind, members, ledger))
        for dimension, kind in _KINDS.items()
        if (divided := _divided(dimension, members))
    )


def _divided(dimension: ParallelName, members: Sequence[Placed]) -> dict[tuple[int, ...] | str, list[int]]:
    """Positions of the members by group: by its ranks, or its name where they are too many to be listed.

    Of a pipeline, by the place in it: its groups run through the stages.
    """
    held = [[group for group in member.groups if dimension_of(group) == dimension] for member in members]
    described = Counter(
        description for groups in held for description in {_kept(group.description) for group in groups}
    )
    if not described:
        return {}
    wanted = min(described, key=lambda description: (-described[description], description))
    found: dict[tuple[int, ...] | str, list[int]] = {}
    sizes: dict[tuple[int, ...] | str, int] = {}
    for at, groups in enumerate(held):
        group = next((group for group in groups if _kept(group.description) == wanted), None)
        if group is None:
            continue
        key: tuple[int, ...] | str = group.ranks or group.name
        if dimension == "pipeline":
            rank = members[at].rank
            if rank is None or rank not in group.ranks:
                return {}
            key = (group.ranks.index(rank),)
        else:
            sizes[key] = group.size
        found.setdefault(key, []).append(at)
    too_many = any(0 < sizes[key] < len(found[key]) for key in sizes)
    return {} if too_many else dict(sorted(found.items(), key=lambda pair: (pair[1][0], str(pair[0]))))


def _kept(description: str) -> str:
    """A description without the numbers that tell apart groups of one kind."""
    return re.sub(r"\d", "", description)


def _rows(
    divided: dict[tuple[int, ...] | str, list[int]], kind: GroupKind, members: Sequence[Placed], ledger: Ledger | None
) -> tuple[GroupRow, ...]:
    """The groups that cause most waiting first; stages in their order while all of them fit."""
    count = max(ledger.own.shape[1], 1) if ledger is not None else 1
    rows = []
    for key, own in divided.items():
        steps = [step for index in own if (step := members[index].step_ns) is not None]
        numbers = sorted(rank for index in own if (rank := members[index].rank) is not None)
        rows.append(
            GroupRow(
                stage=int(key[0]) if kind == "pipeline stage" else None,
                ranks=len(own),
                members=tuple(numbers[:_MOST_NAMED]),
                step_ns=round(float(np.median(steps))) if steps else None,
                caused_ns=round(float(ledger.caused[own].sum()) / count) if ledger is not None else None,
                late=int(ledger.last[own].sum()) if ledger is not None else None,
            )
        )
    if kind == "pipeline stage" and len(rows) <= _MOST_ROWS:
        return tuple(sorted(rows, key=lambda row: row.stage or 0))
    return tuple(sorted(rows, key=lambda row: (-(row.caused_ns or 0), row.members))[:_MOST_ROWS])
