"""What the report says of many ranks: distributions instead of rows, groups, and the condition of devices and hosts."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.communication.parallelism import dimension_of
from profilerkit.analysis.intervals import I64
from profilerkit.analysis.ranks.waiting import Ledger
from profilerkit.analysis.samples import signals
from profilerkit.analysis.scale.compare import Crowd, Culprit, Member
from profilerkit.analysis.surroundings import AT_WORK, throttling
from profilerkit.model import communication as told
from profilerkit.model.communication import Condition, GroupKind, GroupRow, Groups, ParallelName
from profilerkit.rundir.sampled import Sample
from profilerkit.trace.columns import ProcessGroup

#: No clock, temperature or count of threads is as large.
_LARGEST = 1e9
#: Field of a condition and the sampled signal whose median it is.
_MEDIANS = (
    ("host_cpu_ratio", "host.cpu"),
    ("cpu_pressure_ratio", "host.cpu_pressure"),
    ("running_tasks", "host.running_tasks"),
    ("thread_queue_ratio", "host.thread_queue"),
    ("cpu_quota_ratio", "host.cpu_throttled"),
)


def condition_of(samples: Sequence[Sample]) -> Condition | None:
    """Medians over the samples, of the device those at work; ``None`` where nothing of it was sampled."""
    working = [
        sample
        for sample in samples
        if sample.gpu is not None and (sample.gpu.utilization_ratio is None or sample.gpu.utilization_ratio > AT_WORK)
    ]
    of_device = {signal.name: float(np.median(signal.values)) for signal in signals(working)}
    of_host = {signal.name: float(np.median(signal.values)) for signal in signals(samples)}
    held = throttling([samples], 0)
    found = {
        "sm_clock_mhz": of_device.get("gpu.sm_clock"),
        "slowed_ratio": held.slowed_ratio if held else None,
        "thermal_ratio": held.thermal_ratio if held else None,
        "power_capped_ratio": held.capped_ratio if held else None,
        "temperature_c": of_device.get("gpu.temperature"),
        **{name: of_host.get(signal) for name, signal in _MEDIANS},
    }
    kept = {name: value for name, value in found.items() if value is not None and 0.0 <= value < _LARGEST}
    return Condition(**kept) if kept else None


def is_sound(condition: Condition) -> bool:
    """Whether its numbers are such as ``condition_of`` gives."""
    values = (getattr(condition, name) for name in Condition.__struct_fields__)
    return all(value is None or 0.0 <= value < _LARGEST for value in values)


def typical(conditions: Sequence[Condition | None]) -> Condition | None:
    """The median of each number over the ranks that have it; ``None`` where nobody has any."""
    known = [entry for entry in conditions if entry is not None]
    found = {}
    for name in Condition.__struct_fields__:
        values = [value for entry in known if (value := getattr(entry, name)) is not None]
        found[name] = float(np.median(values)) if values else None
    return Condition(**found) if known else None


#: What of the job a process group divides, and what its ranks are called.
_KINDS: dict[ParallelName, GroupKind] = {
    "pipeline": "pipeline stage",
    "tensor": "tensor group",
    "expert": "expert group",
    "data": "data-parallel group",
    "sharded data": "shard group",
}
#: Rows that a table can show, and members that a row can name.
_MOST_GROUPS, _MOST_NAMED = 20, 8


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
    if kind == "pipeline stage" and len(rows) <= _MOST_GROUPS:
        return tuple(sorted(rows, key=lambda row: row.stage or 0))
    return tuple(sorted(rows, key=lambda row: (-(row.caused_ns or 0), row.members))[:_MOST_GROUPS])


F64 = npt.NDArray[np.float64]

#: Rows and columns of the heat map that a page can show, hosts and parts that a table can.
_MOST_ROWS, _MOST_COLUMNS, _MOST_HOSTS, _MOST_PARTS, _MOST_OUTLIERS = 64, 64, 20, 8, 16


def crowd_record(
    found: Crowd,
    *,
    world_size: int | None,
    unreadable: int,
    left_out: Sequence[str] = (),
    sampled: told.Sampled | None = None,
) -> told.Crowd:
    """The comparison for the report; the last two are what the summaries of told ranks, and of any rank, lack."""
    members, ledger, matching = found.members, found.ledger, found.matching
    steps = [step for member in members if (step := member.step_ns) is not None]
    hosts = {member.host for member in members if member.host}
    numbers = {member.rank for member in members if member.rank is not None} or set(range(len(members)))
    return told.Crowd(
        ranks=len(members),
        missing=None if world_size is None else max(world_size - len(numbers), 0),
        unreadable=unreadable,
        told=tuple(rank for index in found.told if (rank := members[index].rank) is not None),
        step_ns=_spread(np.array(steps)) if steps else None,
        parts=_parts(members),
        culprits=tuple(_culprit(entry, members) for entry in found.culprits),
        hosts=_hosts(members, ledger),
        host_count=len(hosts) or None,
        heat=_heat(members, ledger) if ledger is not None else None,
        matched=matching.matched if matching else None,
        of=matching.of if matching else None,
        residual_ns=max((value for value in matching.residual_ns if value is not None), default=None)
        if matching
        else None,
        left_out=tuple(left_out),
        sampled=sampled,
        groups=side_by_side(members, ledger),
        outliers=_outliers(found),
        typical=typical([member.condition for member in members]),
        conditions=sum(member.condition is not None for member in members),
    )


def _outliers(found: Crowd) -> tuple[told.OutlierRow, ...]:
    """The ranks of all culprits, the costliest culprit first, each once."""
    blamed = dict.fromkeys(index for culprit in found.culprits for index in culprit.members)
    rows = [told.OutlierRow(name=found.members[at].name, condition=found.members[at].condition) for at in blamed]
    return tuple(rows[:_MOST_OUTLIERS])


def _spread(values: F64) -> told.Spread:
    low, ten, middle, ninety, high = np.percentile(values, [0, 10, 50, 90, 100]).tolist()
    return told.Spread(n=len(values), minimum=low, p10=ten, median=middle, p90=ninety, maximum=high)


def _parts(members: Sequence[Member]) -> tuple[told.PartSpread, ...]:
    known = [member.shares for member in members if member.shares]
    names = sorted({name for shares in known for name in shares})
    spreads = [(name, _spread(np.array([shares.get(name, 0.0) for shares in known]))) for name in names]
    largest = sorted(spreads, key=lambda pair: (-pair[1].median, -pair[1].maximum))[:_MOST_PARTS]
    return tuple(told.PartSpread(part=name, share=spread) for name, spread in largest)


def _culprit(found: Culprit, members: Sequence[Member]) -> told.CulpritRow:
    return told.CulpritRow(
        kind="host" if found.group else "rank",
        name=found.group or " and ".join(members[index].name for index in found.members),
        ranks=tuple(rank for index in found.members if (rank := members[index].rank) is not None),
        waited_ns=round(found.waited_ns),
        share=found.share,
        steps=found.steps,
    )


def _hosts(members: Sequence[Member], ledger: Ledger | None) -> tuple[told.HostRow, ...]:
    places: dict[str, list[int]] = {}
    for index, member in enumerate(members):
        if member.host:
            places.setdefault(member.host, []).append(index)
    if len(places) < 2:
        return ()
    count = max(ledger.own.shape[1], 1) if ledger is not None else 1
    rows = []
    for name, own in places.items():
        steps = [step for index in own if (step := members[index].step_ns) is not None]
        rows.append(
            told.HostRow(
                name=name,
                ranks=len(own),
                step_ns=round(float(np.median(steps))) if steps else None,
                caused_ns=round(float(ledger.caused[own].sum()) / count) if ledger is not None else None,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-(row.caused_ns or 0), row.name))[:_MOST_HOSTS])


def _heat(members: Sequence[Member], ledger: Ledger) -> told.Heat | None:
    """Waiting of the mean other member for each rank and step, the worst of each row and column."""
    steps = ledger.own.shape[1]
    if not steps:
        return None
    order = np.argsort([index if member.rank is None else member.rank for index, member in enumerate(members)])
    caused = np.zeros((len(members), steps), dtype=np.int64)
    np.add.at(caused, (ledger.owner, ledger.step), ledger.amount // np.maximum(ledger.members - 1, 1))
    high, wide = -(-len(members) // _MOST_ROWS), -(-steps // _MOST_COLUMNS)
    rows, columns = np.arange(0, len(members), high), np.arange(0, steps, wide)
    worst: I64 = np.maximum.reduceat(np.maximum.reduceat(caused[order], rows, axis=0), columns, axis=1)
    ranks = [members[int(order[row])].rank for row in rows]
    return told.Heat(
        rows=tuple(int(row) if rank is None else rank for row, rank in zip(rows, ranks, strict=True)),
        ranks_each=high,
        columns=tuple(ledger.numbers[columns].tolist()),
        steps_each=wide,
        waited_ns=tuple(tuple(line) for line in worst.tolist()),
    )
