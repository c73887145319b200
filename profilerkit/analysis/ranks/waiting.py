"""Who waits for whom: each matched collective divided into waiting and transfer, and every rank in every step."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from profilerkit.analysis.communication.log import CollectiveLog
from profilerkit.analysis.communication.table import Split
from profilerkit.analysis.intervals import Segments, Spans, index_at, paint, union, with_label
from profilerkit.analysis.partition import Partition, leaf_ns
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.ranks.alike import comparable
from profilerkit.analysis.ranks.matching import Matching
from profilerkit.analysis.steps.series import StepSeries, shown_rows
from profilerkit.analysis.steps.table import queued_per_step, step_times, stretches
from profilerkit.errors import InvariantError
from profilerkit.model import revise
from profilerkit.model.step import JobSteps, RankSteps, leaf
from profilerkit.trace.columns import I64, Bools


class Arrivals(msgspec.Struct, frozen=True):
    """The matched collectives of one group on the common clock; ``(m, n)`` members by collectives, int64 ns."""

    members: I64  #: ``(m,)`` positions of the ranks
    rows: I64  #: ``(m, n)`` rows of their logs
    start: I64  #: ``(m, n)`` when each member came
    wait: I64  #: ``(m, n)`` how long it waited for the last to arrive
    last: I64  #: ``(n,)`` which member arrived last, an index into ``members``
    arrived: I64  #: ``(n,)`` when it arrived
    transfer: I64  #: ``(n,)`` from then until the first member left
    step: I64  #: ``(n,)`` number of the judged step in which the last member arrived, -1 outside of all
    whole: bool
    certain: bool  #: whether these are known to be one group: by its name, or because all ranks of the job are in it
    #: Whether these are transfers between two: who waits for the other stage waits for no late rank.
    between: bool = False


def arrivals_of(
    matching: Matching, logs: Sequence[CollectiveLog | None], steady: Sequence[tuple[Spans, I64]]
) -> tuple[Arrivals, ...]:
    """Split every matched collective.

    With s and e a member's start and end, the last arrival is S = max s; a member waits min(S, e) - s (who leaves
    before the last one has come waited for nobody else), and the transfer lasts from S to min e.
    """
    out = []
    for group in matching.groups:
        start, end = np.empty_like(group.rows), np.empty_like(group.rows)
        members = [(rank, matching.to_common_ns[rank] or 0) for rank in group.members.tolist()]
        for index, ((rank, to_common), rows) in enumerate(zip(members, group.rows, strict=True)):
            if (log := logs[rank]) is not None:
                start[index], end[index] = log.start[rows] + to_common, log.end[rows] + to_common
        last, arrived = start.argmax(axis=0), start.max(axis=0)
        step = np.full(len(last), -1, dtype=np.int64)
        for index, (rank, to_common) in enumerate(members):
            window, numbers = steady[rank]
            own = np.flatnonzero(last == index)
            step[own] = np.r_[numbers, -1][index_at(window, arrived[own] - to_common)]
        out.append(
            Arrivals(
                members=group.members,
                rows=group.rows,
                start=start,
                wait=np.minimum(arrived, end) - start,
                last=last,
                arrived=arrived,
                transfer=np.maximum(end.min(axis=0) - arrived, 0),
                step=step,
                whole=group.whole,
                certain=group.whole or bool(group.channel.group),
                between=group.between,
            )
        )
    return tuple(out)


def splits_of(arrivals: Sequence[Arrivals], logs: Sequence[CollectiveLog | None]) -> tuple[Split | None, ...]:
    """Per rank how each of its collectives divides; no transfer is known where members were not recorded."""
    splits = [None if log is None else Split.unknown(len(log)) for log in logs]
    for entry in arrivals:
        for index, rank in enumerate(entry.members.tolist()):
            split = splits[rank]
            if split is not None:
                rows = entry.rows[index]
                split.wait[rows] = entry.wait[index]
                split.members[rows] = len(entry.members)
                if entry.whole:
                    split.transfer[rows] = entry.transfer
    return tuple(splits)


class Ledger(msgspec.Struct, frozen=True):
    """Who waited for whom in the judged steps."""

    last: I64  #: ``(n_ranks,)`` int64, in how many collectives each rank arrived last
    of: I64  #: ``(n_ranks,)`` int64, in how many it took part
    caused: I64  #: ``(n_ranks,)`` int64 ns that the others waited for it
    waited: I64  #: ``(n_ranks,)`` int64 ns that it waited itself
    #: Per rank the positions of the members of the group in which it caused most of that, itself among them.
    peers: tuple[I64, ...]
    owner: I64  #: ``(n,)`` int64, the rank that arrived last in each collective
    amount: I64  #: ``(n,)`` int64 ns that the others waited in it, all together
    members: I64  #: ``(n,)`` int64, how many took part in it
    step: I64  #: ``(n,)`` int64, position of its step among those with a collective
    numbers: I64  #: ``(n_steps,)`` int64, numbers of these steps
    own: I64  #: ``(n_ranks, n_steps)`` int64 ns that each rank waited itself in each step

    @property
    def total_ns(self) -> int:
        """Waiting of all ranks."""
        return int(self.waited.sum())

    def median_waited_ns(self, late: Sequence[int]) -> float:
        """Waiting per step of the median rank beside the late ones; 0 without any."""
        others = np.delete(self.waited, list(late))[np.delete(self.of, list(late)) > 0]
        return float(np.median(others)) / self.own.shape[1] if len(others) else 0.0


def ledger_of(arrivals: Sequence[Arrivals], count: int) -> Ledger:
    """Book the waiting in every judged collective on the rank that arrived last, no instant of a rank's twice."""
    last, of, caused, waited = (np.zeros(count, dtype=np.int64) for _ in range(4))
    most, peers = np.full(count, -1, dtype=np.int64), [np.array([rank]) for rank in range(count)]
    judged = [entry.step >= 0 for entry in arrivals]
    none = np.empty(0, dtype=np.int64)
    steps = np.unique(np.concatenate([none, *(entry.step[rows] for entry, rows in zip(arrivals, judged, strict=True))]))
    own = np.zeros((count, len(steps)), dtype=np.int64)
    owners, amounts, groups, positions = [none], [none], [none], [none]
    for entry, rows, wait in zip(arrivals, judged, _once(arrivals, judged), strict=True):
        at = np.searchsorted(steps, entry.step[rows])
        owner, amount = entry.members[entry.last[rows]], wait.sum(axis=0)
        here = np.zeros(count, dtype=np.int64)
        np.add.at(here, owner, amount)
        np.add.at(last, owner, 1)
        np.add.at(own, (entry.members[:, None], at[None, :]), wait)
        caused += here
        of[entry.members] += int(rows.sum())
        waited[entry.members] += wait.sum(axis=1)
        for rank in entry.members[here[entry.members] > most[entry.members]].tolist():
            peers[rank] = entry.members
        most = np.maximum(most, here)
        owners.append(owner)
        amounts.append(amount)
        groups.append(np.full(len(at), len(entry.members)))
        positions.append(at)
    each = (owners, amounts, groups, positions)
    owner, amount, members, at = (np.concatenate(parts).astype(np.int64) for parts in each)
    return Ledger(last, of, caused, waited, tuple(peers), owner, amount, members, at, steps, own)


def _once(arrivals: Sequence[Arrivals], judged: Sequence[Bools]) -> list[I64]:
    """Per entry ``(m, n)`` waiting in its judged collectives, no instant of a rank's twice."""
    waits = [entry.wait[:, rows].copy() for entry, rows in zip(arrivals, judged, strict=True)]
    places: dict[int, list[tuple[int, int]]] = {}
    for index, entry in enumerate(arrivals):
        for at, rank in enumerate(entry.members.tolist()):
            places.setdefault(rank, []).append((index, at))
    for own in places.values():
        start = np.concatenate([arrivals[index].start[at, judged[index]] for index, at in own])
        end = start + np.concatenate([waits[index][at] for index, at in own])
        order = np.argsort(start, kind="stable")
        before = np.maximum.accumulate(np.r_[start[order[:1]], end[order]])[:-1]
        alone = np.empty_like(start)
        alone[order] = np.maximum(end[order] - np.maximum(start[order], before), 0)
        first = 0
        for index, at in own:
            waits[index][at] = alone[first : first + waits[index].shape[1]]
            first += waits[index].shape[1]
    return waits


#: Transfers below this size take as long as an empty one: their median is the latency floor of the run.
TINY_BYTES = 64 * 1024
LATENCY_FLOOR_NS = 44_000  #: the floor where no transfer is known to be tiny: an all-reduce of 32 KB over 8 A100


def latency_floor_ns(arrivals: Sequence[Arrivals], logs: Sequence[CollectiveLog | None]) -> int:
    """How long a transfer of next to nothing takes in this run."""
    found = []
    for entry in arrivals:
        log = logs[int(entry.members[0])]
        if log is not None and entry.whole:
            size = log.bytes[entry.rows[0]]
            found.append(entry.transfer[(size >= 0) & (size < TINY_BYTES) & (entry.transfer > 0)])
    tiny = np.concatenate(found) if found else np.empty(0, np.int64)
    return round(float(np.median(tiny))) if len(tiny) else LATENCY_FLOOR_NS


def relabelled(parts: Partition, steps: Spans, log: CollectiveLog, split: Split, floor_ns: int) -> Partition:
    """The partition with its exposed communication divided; what was not matched stays ``comm.other``.

    Of collectives side by side the one that transfers owns the instant: it would be exposed without the waiting too.
    ``floor_ns`` of each transfer is latency; of a tiny one all is, on however busy a host it took longer.

    Raises:
        InvariantError: the parts of a step would change their sum.
    """
    waits, moves = split.wait >= 0, split.transfer >= 0
    arrived = log.start + np.maximum(split.wait, 0)
    tiny = (log.bytes >= 0) & (log.bytes < TINY_BYTES)
    floor = np.where(tiny, log.end, np.minimum(arrived + floor_ns, log.end))
    layers = [
        with_label(union(start[rows], end[rows]), leaf(name))
        for name, start, end, rows in (
            ("comm.bw", floor, log.end, moves),
            ("comm.lat", arrived, floor, moves),
            ("comm.skew", log.start, arrived, waits),
        )
    ]
    other = leaf("comm.other")
    segments = parts.segments
    painted = paint(segments.only(other), layers)
    kept = segments.label != other
    start = np.r_[segments.start[kept], painted.start]
    order = np.argsort(start, kind="stable")
    divided = Segments(
        start[order],
        np.r_[segments.end[kept], painted.end][order],
        np.r_[segments.label[kept], np.where(painted.label < 0, other, painted.label)][order],
    )
    per_step = leaf_ns(divided, steps)
    if not np.array_equal(per_step.sum(axis=1), parts.per_step.sum(axis=1)):
        raise InvariantError(
            "dividing the communication changed the sum of a step's parts",
            hint="this is a bug in profilerkit; please report it with the traces",
        )
    return revise(parts, segments=divided, per_step=per_step)


#: What a figure can show and a report can hold: 6,400 numbers are at most 70 kB of JSON (a choice).
MOST_STEPS, MOST_ROWS = 100, 64
_UNKNOWN = -1


def rank_steps(ranks: Sequence[RankFacts], ledger: Ledger | None) -> RankSteps | None:
    """What tells the ranks apart, step by step; ``None`` where fewer than two can be compared.

    Ranks that train together have equal steps, so who waited for whom tells most. Where that is not known, exposed
    communication is taken off the steps if every rank shows some, because it holds the waiting.
    """
    if len(ranks) < 2:
        return None
    if ledger is not None and len(ledger.numbers):
        shown = shown_rows(len(ledger.numbers), MOST_STEPS)
        # Each other member on average.
        caused = np.zeros(ledger.own.shape)
        np.add.at(caused, (ledger.owner, ledger.step), ledger.amount / np.maximum(ledger.members - 1, 1))
        caused[ledger.of == 0] = _UNKNOWN
        waits: I64 = caused[:, shown].round().astype(np.int64)
        return _told("caused", ledger.numbers[shown], waits, len(ledger.numbers))
    series = [rank.series if rank.series is not None and rank.series.steady.any() else None for rank in ranks]
    known = [entry for entry in series if entry is not None]
    if len(known) < 2:
        return None
    numbers = np.unique(np.concatenate([entry.index[entry.steady] for entry in known]))
    index = numbers[shown_rows(len(numbers), MOST_STEPS)]
    exposed = all(any(part.startswith("comm.") for part in entry.parts) for entry in known)
    times = [_times(entry, index, without_communication=exposed) for entry in series]
    return _told("own" if exposed else "step", index, np.stack(times), len(numbers))


def job_steps(ranks: Sequence[RankFacts], judged: int) -> JobSteps | None:
    """The judged rank's steady steps as means over all ranks recorded alike; ``None`` of fewer than two."""
    alike = [index for index in comparable(ranks) if (own := ranks[index].series) is not None and own.steady.any()]
    chosen, series = ranks[judged], ranks[judged].series
    if len(alike) < 2 or judged not in alike or series is None:
        return None
    numbers = series.index[series.steady]
    times = np.stack([_times(ranks[index].series, numbers, without_communication=False) for index in alike])
    seen = times != _UNKNOWN
    mean: I64 = (np.where(seen, times, 0).sum(axis=0) / seen.sum(axis=0)).round().astype(np.int64)
    found, log = step_times(mean), chosen.log
    queued = queued_per_step(chosen.record.samples, log.start, log.stop - log.start) if log and chosen.record else None
    steady_queued = None if queued is None else queued[series.steady]
    return JobSteps(ranks=len(alike), time_ns=found, stretches=stretches(mean, steady_queued)) if found else None


def _times(series: StepSeries | None, index: I64, *, without_communication: bool) -> I64:
    """``(n_steps,)`` ns that a rank took in the steps of these numbers."""
    out: I64 = np.full(len(index), _UNKNOWN, dtype=np.int64)
    if series is None:
        return out
    time = series.time.copy()
    if without_communication:
        for part, spent in series.parts.items():
            if part.startswith("comm."):
                time -= spent
    own, first = np.unique(series.index[series.steady], return_index=True)
    at = np.minimum(np.searchsorted(own, index), len(own) - 1)
    here = own[at] == index
    out[here] = np.maximum(time[series.steady][first[at[here]]], 0)
    return out


def _told(of: Literal["caused", "own", "step"], index: I64, times: I64, count: int) -> RankSteps:
    """The record: of many ranks the slowest of neighbouring ones."""
    group = -(-len(times) // MOST_ROWS)
    rows = [times[first : first + group].max(axis=0).tolist() for first in range(0, len(times), group)]
    time_ns = tuple(tuple(None if value == _UNKNOWN else value for value in row) for row in rows)
    return RankSteps(of=of, group=group, count=count, index=tuple(index.tolist()), time_ns=time_ns)
