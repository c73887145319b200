"""Collectives without a trace: what torch's flight recorders held of all ranks, and which rank the others wait for."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Literal

import msgspec
import numpy as np

from profilerkit.analysis.communication.log import labels
from profilerkit.analysis.communication.registry import MOST_BYTES, built_in
from profilerkit.analysis.device.formulas import BY_NAME
from profilerkit.analysis.intervals import EMPTY, Spans, index_at
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.ranks.waiting import Arrivals
from profilerkit.model import revise
from profilerkit.model.communication import FlightRecorder, RecordedCollective
from profilerkit.rundir.documents import Flight, FlightEntry
from profilerkit.rundir.process import Clock
from profilerkit.trace.columns import I32, I64, Bools, ProcessGroup

# A recorder tells when a host issued a collective, not when it ended. Where computing and issuing happen on the same
# host thread, who issues last is waited for; where a device computes, only timed collectives tell, and there the
# shortest is the last to arrive.

#: Share of the collectives of one group and number that must be the same call on every rank for the numbers to count.
FEWEST_ALIKE = 0.9
_WORLD = ("0", "default_pg")  #: the group of all ranks, as torch numbers and describes it
_HOST_BACKENDS = ("gloo:", "mpi:")  #: back-ends that run on the host, by the beginning of the collective's name
#: Rows of the table kept: the other collectives move less.
_MOST_ROWS = 20
_MOST_NS = 1 << 62


class FlightLog(msgspec.Struct, frozen=True):
    """Collectives of one rank by time; arrays are ``(n,)``; names and groups are hostile."""

    created: I64  #: ns since the epoch, when the host issued it
    duration: I64  #: ns on the device, -1 where it was not timed
    sequence: I64
    group: I32  #: ids into ``groups``, of name and description
    name: I32
    dtype: I32
    bytes: I64  #: the larger of its sides, -1 where unknown
    between: Bools  #: a transfer between two ranks
    step: I64  #: number of the judged step it was issued in, -1 outside of all
    names: tuple[str, ...]
    groups: tuple[tuple[str, str], ...]
    sizes: tuple[int | None, ...]
    made: int  #: collectives that the rank issued in all

    def __len__(self) -> int:
        return len(self.created)

    def of(self, group: tuple[str, str]) -> I64:
        """Rows of a group's joint collectives since its last restart, the first of each number."""
        if group not in self.groups:
            return np.empty(0, dtype=np.int64)
        rows = np.flatnonzero((self.group == self.groups.index(group)) & ~self.between)
        back = np.flatnonzero(np.diff(self.sequence[rows]) < 0)
        rows = rows[back[-1] + 1 :] if len(back) else rows
        return rows[np.unique(self.sequence[rows], return_index=True)[1]]

    def labels(self, rows: I64, known: dict[tuple[str, int], int]) -> I64:
        """``(n,)`` numbers of name and bytes, as ``labels`` gives them."""
        return labels(self.names, self.name[rows], self.bytes[rows], known)


def groups_of(log: FlightLog) -> tuple[ProcessGroup, ...]:
    """The process groups of a rank; a recorder does not list their members."""
    known = zip(log.groups, log.sizes, strict=True)
    return tuple(ProcessGroup(name, description, size or 0) for (name, description), size in known)


def flight_log(flights: Sequence[Flight], clock: Clock | None, steady: Spans, numbers: I64) -> FlightLog | None:
    """What the recorder held at the end of each window and of the run; ``None`` when it held nothing.

    Without a ``clock`` no collective lies in a judged step; ``numbers`` are those of the ``steady`` ones.
    """
    names: dict[str, int] = {}
    groups: dict[tuple[str, str], int] = {}
    sizes: dict[int, int | None] = {}
    seen: dict[tuple[int, int, bool, int], tuple[int, ...]] = {}
    for flight in flights:
        for entry in _sound(flight):
            told = flight.groups[entry.group]
            group = groups.setdefault((told.name, told.description), len(groups))
            sizes[group] = told.size if sizes.get(group) is None else sizes[group]
            text, dtype = flight.names[entry.name], None if entry.dtype is None else flight.names[entry.dtype]
            seen[group, entry.sequence, entry.between, entry.created_ns] = (
                -1 if entry.duration_ns is None else entry.duration_ns,
                names.setdefault(text, len(names)),
                -1 if dtype is None else names.setdefault(dtype, len(names)),
                _bytes(entry, dtype),
            )
    if not seen:
        return None
    keys = sorted(seen, key=lambda key: key[3])
    values = np.array([seen[key] for key in keys], dtype=np.int64)
    created = np.array([key[3] for key in keys], dtype=np.int64)
    step = np.full(len(created), -1, dtype=np.int64)
    if clock is not None:
        at = np.array([clock.perf_ns(instant) for instant in created.tolist()], dtype=np.int64)
        step = np.r_[numbers, -1][index_at(steady, at)]
    return FlightLog(
        created=created,
        duration=values[:, 0],
        sequence=np.array([key[1] for key in keys], dtype=np.int64),
        group=np.array([key[0] for key in keys], dtype=np.int32),
        name=values[:, 1].astype(np.int32),
        dtype=values[:, 2].astype(np.int32),
        bytes=values[:, 3],
        between=np.array([key[2] for key in keys], dtype=np.bool_),
        step=step,
        names=tuple(names),
        groups=tuple(groups),
        sizes=tuple(sizes[index] for index in range(len(groups))),
        made=max(flight.made for flight in flights),
    )


def _sound(flight: Flight) -> Iterable[FlightEntry]:
    """The entries whose numbers can be what they are said to be."""
    for entry in flight.entries:
        named = 0 <= entry.name < len(flight.names) and 0 <= entry.group < len(flight.groups)
        typed = entry.dtype is None or 0 <= entry.dtype < len(flight.names)
        numbers = (entry.created_ns, entry.sequence, entry.duration_ns or 0)
        if named and typed and min(numbers) >= 0 and max(numbers) < _MOST_NS:
            yield entry


def _bytes(entry: FlightEntry, dtype: str | None) -> int:
    """The larger side of a collective, -1 where its type is not known.

    >>> entry = dict(name=0, group=0, sequence=1, between=False, created_ns=1, input_elements=1, output_elements=2)
    >>> _bytes(FlightEntry(**entry), "Long")
    16
    """
    known = BY_NAME.get(dtype or "")
    elements = max(entry.input_elements, entry.output_elements)
    return min(known.bytes * elements, MOST_BYTES) if known and elements >= 0 else -1


class FlightMatch(msgspec.Struct, frozen=True):
    """The same collective on all ranks."""

    logs: tuple[FlightLog | None, ...]
    arrivals: tuple[Arrivals, ...]  #: one entry per group; only those whose times tell who waits
    matched: int
    of: int  #: collectives of the rank that has most, of each group
    untimed: bool  #: whether collectives of a device were matched that nobody timed
    by_clock: bool  #: whether who waits rests on the hosts' clocks


def match_flights(logs: Sequence[FlightLog | None], on_device: Sequence[bool], world_size: int | None) -> FlightMatch:
    """Match the collectives of several ranks."""
    groups = sorted({group for log in logs if log is not None for group in log.groups})
    arrivals: list[Arrivals] = []
    matched = of = 0
    untimed = by_clock = False
    for group in groups:
        rows = {rank: log.of(group) for rank, log in enumerate(logs) if log is not None}
        members = {rank: (log, rows[rank]) for rank, log in enumerate(logs) if log is not None and len(rows[rank])}
        if len(members) < 2:
            continue
        of += max(len(own) for _, own in members.values())
        common = common_calls(members)
        matched += common.shape[1]
        if not common.shape[1]:
            continue
        sizes = [log.sizes[log.groups.index(group)] for log, _ in members.values()]
        expected = max((size for size in sizes if size is not None), default=None)
        expected = world_size if expected is None and group == _WORLD else expected
        host = not any(on_device[rank] for rank in members) and all(_on_host(*entry) for entry in members.values())
        timed = not host and _of_each(members, common, "duration").min() >= 0
        untimed |= not host and not timed
        by_clock |= host
        if host or timed:
            whole = expected is not None and len(members) >= expected
            arrivals.append(_arrivals(members, common, timed=timed, whole=whole))
    return FlightMatch(tuple(logs), tuple(arrivals), matched, of, untimed, by_clock)


_Members = dict[int, tuple[FlightLog, I64]]


def issues_for_device(log: FlightLog) -> bool:
    """Whether a rank issued any collective that a device runs, so that it computes on one."""
    return not _on_host(log, np.arange(len(log)))


def _on_host(log: FlightLog, rows: I64) -> bool:
    return all(log.names[index].startswith(_HOST_BACKENDS) for index in np.unique(log.name[rows]).tolist())


def common_calls(members: Mapping[int, tuple[FlightLog, I64]]) -> I64:
    """``(m, n)`` rows of the collectives that all members hold; none where the numbers stand for different calls."""
    numbers: I64 = reduce(np.intersect1d, (log.sequence[rows] for log, rows in members.values()))
    if not len(numbers):
        return np.empty((len(members), 0), dtype=np.int64)
    found = np.stack([rows[np.searchsorted(log.sequence[rows], numbers)] for log, rows in members.values()])
    known: dict[tuple[str, int], int] = {}
    labels = np.stack([log.labels(rows, known) for (log, _), rows in zip(members.values(), found, strict=True)])
    alike = (labels == labels[0]).all(axis=0)
    if alike.mean() < FEWEST_ALIKE:
        return np.empty((len(members), 0), dtype=np.int64)
    kept: I64 = found[:, alike]
    return kept


def _of_each(members: _Members, common: I64, name: Literal["created", "duration", "step"]) -> I64:
    return np.stack([getattr(log, name)[rows] for (log, _), rows in zip(members.values(), common, strict=True)])


def _arrivals(members: _Members, common: I64, *, timed: bool, whole: bool) -> Arrivals:
    """Waiting until the last one has issued it; of timed ones what they take beyond the shortest."""
    created = _of_each(members, common, "created")
    arrived = created.max(axis=0)
    last, wait = created.argmax(axis=0), arrived - created
    if timed:
        duration = _of_each(members, common, "duration")
        last, wait = duration.argmin(axis=0), duration - duration.min(axis=0)
    steps = _of_each(members, common, "step")
    return Arrivals(
        members=np.array(list(members), dtype=np.int64),
        rows=common,
        start=arrived - wait,
        wait=wait,
        last=last,
        arrived=arrived,
        transfer=np.zeros(len(last), dtype=np.int64),
        step=steps[last, np.arange(len(last))],
        whole=whole,
        certain=True,
    )


def longest_per_step(entry: Arrivals) -> Arrivals:
    """Of each step the collective waited longest for: buckets side by side show one lateness several times."""
    waited = entry.wait.sum(axis=0)
    order = np.lexsort((-waited, entry.step))
    first = order[np.unique(entry.step[order], return_index=True)[1]]
    keep = np.sort(first[entry.step[first] >= 0])
    each = ("rows", "start", "wait", "last", "arrived", "transfer", "step")
    return revise(entry, **{name: getattr(entry, name)[..., keep] for name in each})


def recorded_collectives(position: int, log: FlightLog, arrivals: Sequence[Arrivals]) -> tuple[RecordedCollective, ...]:
    """What one rank's recorder held by name, type and group, most bytes first, with its skew where it was matched."""
    skew = np.full(len(log), -1, dtype=np.int64)
    for entry in arrivals:
        for index in np.flatnonzero(entry.members == position).tolist():
            skew[entry.rows[index]] = entry.wait.max(axis=0)
    keys = np.stack([log.name, log.dtype, log.group], axis=1)
    _, which, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(which.ravel(), kind="stable")
    rows = np.split(order, np.cumsum(counts)[:-1])
    table = [_row(log, own, skew) for own in rows]
    table.sort(key=lambda row: (-(row.bytes or 0), -row.count, row.name))
    return tuple(table[:_MOST_ROWS])


def _row(log: FlightLog, rows: I64, skew: I64) -> RecordedCollective:
    first = int(rows[0])
    name, group = log.names[log.name[first]], int(log.group[first])
    known = skew[rows][skew[rows] >= 0]
    sized = (log.bytes[rows] >= 0).all()
    return RecordedCollective(
        name=name,
        kind=built_in().kind(name),
        group=log.groups[group][1] or log.groups[group][0],
        group_size=log.sizes[group],
        count=len(rows),
        bytes=int(log.bytes[rows].sum()) if sized else None,
        dtype=log.names[log.dtype[first]] if log.dtype[first] >= 0 else None,
        skew_ns=round(float(np.median(known))) if len(known) else None,
    )


def recorded(rank: RankFacts) -> FlightLog | None:
    """What the recorder of a rank held; ``None`` where it held nothing."""
    if rank.record is None or not rank.record.flights:
        return None
    flights, log = rank.record.flights, rank.log
    if log is None:
        return flight_log(flights, None, EMPTY, EMPTY.start)
    keep = log.steady
    return flight_log(flights, rank.record.clock, Spans(log.start[keep], log.stop[keep]), log.index[keep])


def flight_recorder(found: FlightMatch | None, ranks: Sequence[RankFacts], position: int) -> FlightRecorder | None:
    """What the recorder of one rank held; ``None`` where it held nothing."""
    log = found.logs[position] if found is not None else recorded(ranks[position])
    if log is None:
        return None
    judged = log.step[(log.step >= 0)]
    counts = np.unique(judged, return_counts=True)[1]
    return FlightRecorder(
        rank=ranks[position].rank,
        held=len(log),
        made=log.made,
        steps=len(counts),
        per_step=float(np.median(counts)) if len(counts) else None,
        collectives=recorded_collectives(position, log, found.arrivals if found is not None else ()),
    )
