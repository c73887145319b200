"""Compare thousands of ranks: match their collectives, find the culprits, and what the report says of them all."""

import re
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.analysis.communication.table import dimension_of, named_groups
from profilerkit.analysis.intervals import Spans
from profilerkit.analysis.ranks.job import LATE_SHARE
from profilerkit.analysis.ranks.late import Lateness, late_ranks
from profilerkit.analysis.ranks.matching import Matching, RankLog, match_ranks
from profilerkit.analysis.ranks.waiting import Arrivals, Ledger, arrivals_of, ledger_of
from profilerkit.analysis.samples import signals
from profilerkit.analysis.surroundings import AT_WORK, throttling
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model import communication as told
from profilerkit.model import revise
from profilerkit.model.communication import Condition, GroupKind, GroupRow, Groups, ParallelName
from profilerkit.model.step import leaf_times
from profilerkit.rundir.sampled import Sample
from profilerkit.trace.columns import F64, I64, ProcessGroup

MOST_CULPRITS = 4  #: culprits that are looked for: each later one explains less (a choice)
_FEWEST_GROUPS = 3  #: a group is one of several: of two hosts one always is the slower


class Culprit(msgspec.Struct, frozen=True):
    """Ranks that the others wait for."""

    group: str  #: name of the host that all of them are on, where the host is what is late; empty for a rank
    members: tuple[int, ...]  #: their positions, the one that causes most first
    waited_ns: float  #: per step, by the median rank beside them
    share: float  #: of all waiting that was left when the culprits before it were taken out
    steps: float


def culprits_of(arrivals: Sequence[Arrivals], groups: Sequence[str], step_ns: float) -> list[Culprit]:
    """Late ranks and late hosts, the one that costs most first."""
    found: list[Culprit] = []
    left = list(arrivals)
    for _ in range(MOST_CULPRITS):
        ledger = ledger_of(left, len(groups))
        if not ledger.own.shape[1] or not ledger.total_ns:
            break
        late = late_ranks(ledger, step_ns)
        alone = _culprit("", late.ranks, late, ledger) if late.ranks else None
        culprit = alone or _late_group(ledger, groups, step_ns)
        if culprit is None or culprit.waited_ns < LATE_SHARE * step_ns:
            break
        found.append(culprit)
        left = [rest for entry in left if (rest := without(entry, culprit.members)) is not None]
    return found


def without(arrivals: Arrivals, members: Sequence[int]) -> Arrivals | None:
    """The collectives as the others alone would have met them; ``None`` where fewer than two are left."""
    kept = ~np.isin(arrivals.members, members)
    if kept.all():
        return arrivals
    if kept.sum() < 2:
        return None
    start = arrivals.start[kept]
    left = start + arrivals.wait[kept]
    arrived = start.max(axis=0)
    return revise(
        arrivals,
        members=arrivals.members[kept],
        rows=arrivals.rows[kept],
        start=start,
        wait=np.maximum(np.minimum(arrived, left) - start, 0),
        last=start.argmax(axis=0),
        arrived=arrived,
    )


def _late_group(ledger: Ledger, groups: Sequence[str], step_ns: float) -> Culprit | None:
    """The host whose ranks together cause what one alone does not."""
    names = sorted({name for name in groups if name})
    if len(names) < _FEWEST_GROUPS or not all(groups):
        return None
    position = {name: index for index, name in enumerate(names)}
    of_rank = np.array([position[name] for name in groups], dtype=np.int64)
    late = late_ranks(grouped(ledger, of_rank, len(names)), step_ns)
    if len(late.ranks) != 1:
        return None
    members = np.flatnonzero((of_rank == late.ranks[0]) & (ledger.of > 0))
    if len(members) < 2:
        return None
    ordered = members[np.argsort(-ledger.caused[members], kind="stable")]
    return _culprit(names[late.ranks[0]], tuple(ordered.tolist()), late, ledger)


def _culprit(group: str, members: tuple[int, ...], late: Lateness, ledger: Ledger) -> Culprit:
    return Culprit(group, members, ledger.median_waited_ns(members), late.share, late.steps)


def grouped(ledger: Ledger, of_rank: I64, count: int) -> Ledger:
    """The ledger of ``count`` groups of ranks; ``of_rank`` is ``(n_ranks,)``. A group waits as long as its last one."""

    def summed(values: I64) -> I64:
        total = np.zeros(count, dtype=np.int64)
        np.add.at(total, of_rank, values)
        return total

    own = np.full((count, ledger.own.shape[1]), np.iinfo(np.int64).max, dtype=np.int64)
    took_part = ledger.of > 0
    np.minimum.at(own, of_rank[took_part], ledger.own[took_part])
    own[own == np.iinfo(np.int64).max] = 0
    of = np.zeros(count, dtype=np.int64)
    np.maximum.at(of, of_rank, ledger.of)
    return revise(
        ledger,
        last=summed(ledger.last),
        of=of,
        caused=summed(ledger.caused),
        waited=summed(ledger.waited),
        peers=(np.flatnonzero(of > 0),) * count,
        owner=of_rank[ledger.owner],
        own=own,
    )


class Place(msgspec.Struct, frozen=True):
    """A rank in its groups: its number, median judged step, ns, and the groups that say what of the job they divide."""

    rank: int | None
    step_ns: float | None
    groups: tuple[ProcessGroup, ...]


class Member(Place, frozen=True):
    """One rank of many, on a ``host`` of hostile name; ``steady`` steps on its own clock with their numbers."""

    log: RankLog
    host: str
    steady: tuple[Spans, I64]
    shares: dict[str, float]
    condition: Condition | None

    @property
    def name(self) -> str:
        """For sentences: ``rank 2``, else the name of its file."""
        return self.log.name


def member_of(facts: TraceFacts, origin: str, condition: Condition | None = None) -> Member:
    """What is kept of a rank's facts; ``origin`` names it where the trace does not say its number."""
    rank, window, total = facts.meta.rank, facts.window, facts.window.total_ns
    name = origin if rank is None else f"rank {rank}"
    return Member(
        rank=rank,
        step_ns=float(np.median(window.end - window.start)) if len(window) else None,
        groups=named_groups(facts.meta.groups, facts.collectives),
        log=RankLog(name, facts.collectives, facts.meta.base_time_ns),
        host=facts.meta.host or "",
        steady=(window, facts.steps.index[facts.steps.judged]),
        shares={name: value / total for name, value in leaf_times(facts.totals).items()} if total else {},
        condition=condition,
    )


MOST_TOLD = 8  #: ranks that are told in detail beside the culprits: they are what a late one is compared with
_OF_A_HOST = 2  #: ranks of a late host that are told


class Crowd(msgspec.Struct, frozen=True):
    """Many ranks compared: whom the others wait for, the costliest first, and which are ``told`` in detail."""

    members: tuple[Member, ...]
    matching: Matching | None
    ledger: Ledger | None
    culprits: tuple[Culprit, ...]
    told: tuple[int, ...]


def compare_many(members: Sequence[Member], world_size: int | None) -> Crowd:
    """Match the collectives of all ranks and find whom the others wait for."""
    logs = [member.log.log for member in members]
    if sum(log is not None for log in logs) < 2:
        return Crowd(tuple(members), None, None, (), _told(members, ()))
    matching = match_ranks([member.log for member in members], world_size)
    arrivals = arrivals_of(matching, logs, [member.steady for member in members])
    joint = [entry for entry in arrivals if not entry.between]
    certain = [entry for entry in joint if entry.certain]
    steps = [member.step_ns for member in members if member.step_ns is not None]
    found = culprits_of(certain, [member.host for member in members], float(np.median(steps)) if steps else 0.0)
    ledger = ledger_of(joint, len(members)) if joint else None
    return Crowd(tuple(members), matching, ledger, tuple(found), _told(members, found))


def _told(members: Sequence[Member], culprits: Sequence[Culprit]) -> tuple[int, ...]:
    """The culprits, of a late host those that cause most, and evenly chosen ranks that represent the others."""
    late = [rank for culprit in culprits for rank in culprit.members[: _OF_A_HOST if culprit.group else None]]
    blamed = {rank for culprit in culprits for rank in culprit.members}
    others = [index for index in range(len(members)) if index not in blamed]
    count = min(len(others), MOST_TOLD)
    chosen = [others[at] for at in np.linspace(0, len(others) - 1, count).round().astype(int).tolist()] if count else []
    return tuple(sorted({*late, *chosen}))


_LARGEST = 1e9  #: no clock, temperature or count of threads is as large
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
    use = [(sample, sample.gpu.utilization_ratio) for sample in samples if sample.gpu is not None]
    working = [sample for sample, ratio in use if ratio is None or ratio > AT_WORK]
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
_MOST_GROUPS, _MOST_NAMED = 20, 8  #: rows that a table can show, and members that a row can name


def side_by_side(members: Sequence[Place], ledger: Ledger | None) -> tuple[Groups, ...]:
    """The groups of each kind that the job named, by the description that most ranks have."""
    return tuple(
        Groups(kind=kind, count=len(divided), rows=_rows(divided, kind, members, ledger))
        for dimension, kind in _KINDS.items()
        if (divided := _divided(dimension, members))
    )


def _divided(dimension: ParallelName, members: Sequence[Place]) -> dict[tuple[int, ...] | str, list[int]]:
    """Positions of the members by group: its ranks or its name; of a pipeline by the place in it."""
    held = [[group for group in member.groups if dimension_of(group) == dimension] for member in members]
    described = Counter(words for groups in held for words in {_kept(group.description) for group in groups})
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
    divided: dict[tuple[int, ...] | str, list[int]], kind: GroupKind, members: Sequence[Place], ledger: Ledger | None
) -> tuple[GroupRow, ...]:
    """The groups that cause most waiting first; stages in their order while all of them fit."""
    rows = [
        GroupRow(
            stage=int(key[0]) if kind == "pipeline stage" else None,
            ranks=len(own),
            members=tuple(sorted(rank for at in own if (rank := members[at].rank) is not None)[:_MOST_NAMED]),
            step_ns=_typical_step_ns([members[at] for at in own]),
            caused_ns=_caused_ns(own, ledger),
            late=int(ledger.last[own].sum()) if ledger is not None else None,
        )
        for key, own in divided.items()
    ]
    if kind == "pipeline stage" and len(rows) <= _MOST_GROUPS:
        return tuple(sorted(rows, key=lambda row: row.stage or 0))
    return tuple(sorted(rows, key=lambda row: (-(row.caused_ns or 0), row.members))[:_MOST_GROUPS])


def _typical_step_ns(members: Sequence[Place]) -> int | None:
    steps = [member.step_ns for member in members if member.step_ns is not None]
    return round(float(np.median(steps))) if steps else None


def _caused_ns(own: Sequence[int], ledger: Ledger | None) -> int | None:
    """Per step, what the others waited for these."""
    return None if ledger is None else round(float(ledger.caused[own].sum()) / max(ledger.own.shape[1], 1))


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
    steps = [member.step_ns for member in members if member.step_ns is not None]
    hosts = {member.host for member in members if member.host}
    # The costliest culprit first, each rank once.
    blamed = dict.fromkeys(at for culprit in found.culprits for at in culprit.members)
    numbers = {member.rank for member in members if member.rank is not None} or set(range(len(members)))
    return told.Crowd(
        ranks=len(members),
        missing=None if world_size is None else max(world_size - len(numbers), 0),
        unreadable=unreadable,
        told=tuple(rank for index in found.told if (rank := members[index].rank) is not None),
        step_ns=_spread(np.array(steps)) if steps else None,
        parts=_parts(members),
        culprits=tuple(
            told.CulpritRow(
                kind="host" if entry.group else "rank",
                name=entry.group or " and ".join(members[at].name for at in entry.members),
                ranks=tuple(rank for at in entry.members if (rank := members[at].rank) is not None),
                waited_ns=round(entry.waited_ns),
                share=entry.share,
                steps=entry.steps,
            )
            for entry in found.culprits
        ),
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
        outliers=tuple(
            told.OutlierRow(name=members[at].name, condition=members[at].condition) for at in [*blamed][:_MOST_OUTLIERS]
        ),
        typical=typical([member.condition for member in members]),
        conditions=sum(member.condition is not None for member in members),
    )


def _spread(values: F64) -> told.Spread:
    low, ten, middle, ninety, high = np.percentile(values, [0, 10, 50, 90, 100]).tolist()
    return told.Spread(n=len(values), minimum=low, p10=ten, median=middle, p90=ninety, maximum=high)


def _parts(members: Sequence[Member]) -> tuple[told.PartSpread, ...]:
    known = [member.shares for member in members if member.shares]
    names = sorted({name for shares in known for name in shares})
    spreads = [(name, _spread(np.array([shares.get(name, 0.0) for shares in known]))) for name in names]
    largest = sorted(spreads, key=lambda pair: (-pair[1].median, -pair[1].maximum))[:_MOST_PARTS]
    return tuple(told.PartSpread(part=name, share=spread) for name, spread in largest)


def _hosts(members: Sequence[Member], ledger: Ledger | None) -> tuple[told.HostRow, ...]:
    places: dict[str, list[int]] = {}
    for index, member in enumerate(members):
        if member.host:
            places.setdefault(member.host, []).append(index)
    if len(places) < 2:
        return ()
    rows = []
    for name, own in places.items():
        step_ns = _typical_step_ns([members[at] for at in own])
        rows.append(told.HostRow(name=name, ranks=len(own), step_ns=step_ns, caused_ns=_caused_ns(own, ledger)))
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
