"""What the report says of many ranks: distributions instead of rows."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from profilerkit.analysis.crowd.condition import typical
from profilerkit.analysis.crowd.groups import side_by_side
from profilerkit.analysis.intervals import I64
from profilerkit.analysis.ranks.waiting import Ledger
from profilerkit.analysis.scale.compare import Crowd, Culprit, Member
from profilerkit.model import crowd as told

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
