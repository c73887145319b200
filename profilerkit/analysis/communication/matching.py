"""The same collective on all ranks: matched by process group and number, else by order, on one clock."""

from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from profilerkit.analysis.communication.alignment import FEWEST_COMMON, Fit, Sequence, fit
from profilerkit.analysis.communication.log import Channel, CollectiveLog
from profilerkit.analysis.intervals import I64

#: Kinds whose members all move the same bytes, so that a difference in size is a difference in the collective.
_SAME_SIZE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
#: Kinds in which some member may leave before the others have all they need.
_ONE_SIDED = ("broadcast", "reduce", "gather", "scatter")
#: Collectives of one number that are told apart by their order (coalesced ones share a number).
_PER_NUMBER = 64
#: Clusters with a free place that a rank is compared with before it is taken for one of another group.
_MOST_TRIED = 64
#: Sets of members that one cluster's collectives may be divided into: captures that start and end apart make two each.
_MOST_SETS = 64
#: Times beyond this, in 1973, count from the epoch.
EPOCH_NS = 100_000_000 * 1_000_000_000
#: Problems named one by one; the others are counted.
_MOST_PROBLEMS = 3


@dataclass(frozen=True, slots=True)
class RankLog:
    """What matching needs of one rank.

    Attributes:
        name: for sentences: ``rank 2``.
        log: its collectives; ``None`` where none was seen.
        base_ns: what its clock counts from, ns since the epoch; ``None`` where the trace does not say.
    """

    name: str
    log: CollectiveLog | None
    base_ns: int | None = None


@dataclass(frozen=True, slots=True)
class MatchedGroup:
    """The matched collectives of one channel.

    Attributes:
        channel: whose they are.
        by: process-group numbers, or order.
        members: ``(m,)`` int64 positions of the ranks.
        rows: ``(m, n)`` int64 rows of their logs.
        whole: whether these are all members of the group; else somebody who was not recorded may be the last.
        between: whether these are transfers from one to the other, as between two stages of a pipeline.
    """

    channel: Channel
    by: Literal["sequence", "order"]
    members: I64
    rows: I64
    whole: bool
    between: bool = False


@dataclass(frozen=True, slots=True)
class Matching:
    """How the collectives of all ranks belong together.

    Attributes:
        groups: matched collectives, one entry per channel and set of members.
        to_common_ns: per rank what to add to its trace's clock; ``None`` where it could not be aligned.
        offset_ns: per rank how far its clock is ahead, its base taken off; ``None`` likewise.
        residual_ns: per rank median distance of its ends from that offset; ``None`` for the reference.
        shift: per rank how many collectives its capture lacks at the beginning, where order matched them.
        matched: collectives that were matched.
        of: collectives that could have been: of each channel those of the rank that has most.
        problems: what could not be matched, in whole sentences.
    """

    groups: tuple[MatchedGroup, ...]
    to_common_ns: tuple[int | None, ...]
    offset_ns: tuple[int | None, ...]
    residual_ns: tuple[int | None, ...]
    shift: tuple[int, ...]
    matched: int
    of: int
    problems: tuple[str, ...]


def match_ranks(ranks: Several[RankLog], world_size: int | None = None) -> Matching:
    """Match the collectives of several ranks of one job.

    Of point-to-point transfers only those between two known ranks, or of a named group of two, are matched: a send meets
    its receive.

    A rank joins those already placed through the channel that fits best; its other channels must then agree with the
    clock offset found there. What does not fit is left unmatched and named.

    Args:
        ranks: of the job, in the report's order.
        world_size: ranks of the whole job; ``None`` if unknown.
    """
    bases = [rank.base_ns for rank in ranks if rank.log is not None]
    comparable = _comparable(ranks)
    first_base = min((base for base in bases if base is not None), default=0)
    delta = [_small((rank.base_ns or first_base) - first_base) for rank in ranks]
    sequences = _sequences(ranks, delta)
    placing = _Placing(ranks, sequences, comparable=comparable)
    for rank in placing.order():
        placing.place(rank)
    groups, shift, short = _groups(placing, ranks, world_size)
    aligned = {int(member) for group in groups for member in group.members}
    reference = placing.references
    offsets = [placing.offset[rank] if rank in aligned else None for rank in range(len(ranks))]
    return Matching(
        groups=groups,
        to_common_ns=tuple(
            None if offset is None else base - offset for offset, base in zip(offsets, delta, strict=True)
        ),
        offset_ns=tuple(offsets),
        residual_ns=tuple(
            placing.residual.get(rank) if rank in aligned and rank not in reference else None
            for rank in range(len(ranks))
        ),
        shift=tuple(shift.get(rank, 0) for rank in range(len(ranks))),
        matched=sum(group.rows.shape[1] for group in groups),
        of=_possible(placing, groups),
        problems=_named([*placing.problems, *short]),
    )


def _comparable(ranks: Several[RankLog]) -> bool:
    """Whether the clocks count from the same instant: by their bases, or because they tell the time of day."""
    known = [(rank.base_ns, rank.log) for rank in ranks if rank.log is not None]
    bases = [base is not None for base, _ in known]
    return all(bases) or (not any(bases) and all(int(log.start[0]) > EPOCH_NS for _, log in known))


def _possible(placing: "_Placing", groups: Several[MatchedGroup]) -> int:
    """Collectives that could have been matched: of each set of ranks those of the rank that has most."""
    total = 0
    for channel, clusters in placing.clusters.items():
        members = placing.sequences[channel]
        several = [cluster for cluster in clusters if len(cluster) > 1]
        if not several and len(members) > 1:
            total += max(len(own.rows) for own in members.values())
        for cluster in several:
            found = sum(
                group.rows.shape[1]
                for group in groups
                if group.channel == channel and set(group.members.tolist()) <= set(cluster)
            )
            total += max(found, *(len(members[rank].rows) for rank in cluster))
    return total


def _small(difference: int) -> int:
    """A difference of bases that an int64 can take; of hostile ones any other will do, they match nothing."""
    return difference if abs(difference) < 1 << 61 else 0


def _named(problems: Several[str]) -> tuple[str, ...]:
    more = len(problems) - _MOST_PROBLEMS
    rest = (f"{more} more groups of collectives could not be matched.",) if more > 0 else ()
    return (*problems[:_MOST_PROBLEMS], *rest)


Members = dict[int, Sequence]


def _sequences(ranks: Several[RankLog], delta: Several[int]) -> dict[Channel, Members]:
    """Channel to rank to its collectives, with labels that are common to all ranks."""
    labels: dict[tuple[str, int], int] = {}
    out: dict[Channel, Members] = {}
    for rank, entry in enumerate(ranks):
        log = entry.log
        if log is None:
            continue
        same_size = log.is_a(*_SAME_SIZE)
        pairs, which = np.unique(
            np.stack([log.name.astype(np.int64), np.where(same_size, log.bytes, -1)], axis=1),
            axis=0,
            return_inverse=True,
        )
        ids = [labels.setdefault((log.names[name], size), len(labels)) for name, size in pairs.tolist()]
        label = np.array(ids, dtype=np.int64)[which.ravel()]
        joint = log.joint
        for index, channel in enumerate(log.channels):
            rows = np.flatnonzero(joint & (log.channel == index))
            if not len(rows) and channel.group:
                rows = _of_a_pair(log, np.flatnonzero(log.channel == index), channel)
            if len(rows):
                out.setdefault(channel, {})[rank] = _sequence(log, rows, label, delta[rank])
    for members in out.values():
        if any(own.number is None for own in members.values()):
            members.update({rank: _unnumbered(own) for rank, own in members.items()})
    return out


def _of_a_pair(log: CollectiveLog, rows: I64, channel: Channel) -> I64:
    """The transfers between two known ranks or of a group of two: a send and its receive meet; else none of the rows."""
    return rows if channel.pair or (log.size[rows] == 2).all() else rows[:0]


def _sequence(log: CollectiveLog, rows: I64, label: I64, delta: int) -> Sequence:
    """The rows in order; with the group's numbers where most of them have one, those without left out.

    The numbers of transfers between two ranks are each rank's own count of all its transfers: they match nothing.
    """
    channel = log.channels[int(log.channel[rows[0]])]
    known = (log.sequence[rows] >= 0) & (log.sequence[rows] < np.iinfo(np.int64).max // _PER_NUMBER)
    number = None
    if channel.group and not channel.pair and known.mean() > 0.5:
        rows = rows[known]
        rows = rows[np.argsort(log.sequence[rows], kind="stable")]
        own = log.sequence[rows]
        first = np.searchsorted(own, own, side="left")
        number = own * _PER_NUMBER + np.minimum(np.arange(len(own)) - first, _PER_NUMBER - 1)
        rows, number = rows[np.r_[True, number[1:] > number[:-1]]], np.unique(number)
    together = ~log.is_a(*_ONE_SIDED)[rows]
    size = 2 if channel.pair else int(log.size[rows].max())
    return Sequence(
        rows=rows,
        end=log.end[rows] + delta,
        duration=(log.end - log.start)[rows],
        label=label[rows],
        together=together,
        number=number,
        unnamed=not channel.group and not log.on_host,
        size=size if size > 0 else None,
        on_host=log.on_host,
    )


def _unnumbered(own: Sequence) -> Sequence:
    """The same collectives by time alone: by their ends, which the ranks share, as transfers both ways run at once."""
    order = np.argsort(own.end, kind="stable")
    ordered = {name: getattr(own, name)[order] for name in ("rows", "end", "duration", "label", "together")}
    return replace(own, number=None, **ordered)


class _Placing:
    """Ranks placed one after the other over those before them."""

    def __init__(self, ranks: Several[RankLog], sequences: dict[Channel, Members], *, comparable: bool) -> None:
        self.ranks, self.sequences, self.comparable = ranks, sequences, comparable
        self.offset: dict[int, int] = {}
        self.residual: dict[int, int] = {}
        self.references: set[int] = set()
        #: Per channel clusters of ranks that fit each other: rank to the position of its first collective.
        self.clusters: dict[Channel, list[dict[int, int]]] = {channel: [] for channel in sequences}
        self.problems: list[str] = []

    def order(self) -> list[int]:
        """The ranks, those with most collectives first: what a short capture holds lies within a long one.

        Whoever shares a channel with a rank before it comes before those who share none, so that the stages of a
        pipeline, of which each meets only its neighbours, come out on one clock.
        """
        length = [0] * len(self.ranks)
        channels: list[list[Channel]] = [[] for _ in self.ranks]
        for channel, members in self.sequences.items():
            for rank, own in members.items():
                length[rank] += len(own.rows)
                channels[rank].append(channel)
        out: dict[int, None] = {}
        entered: set[Channel] = set()
        for first in sorted(range(len(self.ranks)), key=lambda rank: -length[rank]):
            reached = [(-length[first], first)]
            while reached:
                rank = heappop(reached)[1]
                if rank in out:
                    continue
                out[rank] = None
                for channel in channels[rank]:
                    for other in self.sequences[channel] if channel not in entered else ():
                        heappush(reached, (-length[other], other))
                    entered.add(channel)
        return list(out)

    def place(self, rank: int) -> None:
        """Align a rank with those before it; one that shares no channel with any is a reference of its own."""
        own = [channel for channel, members in self.sequences.items() if rank in members]
        known: int | None = None
        best = self._best_channel(rank, own)
        if best is not None:
            channel, index, found = best
            if found.ambiguous:
                self.problems.append(
                    f"The collectives of {self.ranks[rank].name} fit those of other ranks as well when they are moved "
                    "by whole steps: the alignment with most in common is taken."
                )
            known = self.offset[next(iter(self.clusters[channel][index]))] + found.offset_ns
            self.residual[rank] = found.residual_ns
        else:
            self.references.add(rank)
        self.offset[rank] = known or 0
        for channel in own:
            self._join(rank, channel, known)

    def _best_channel(self, rank: int, own: Several[Channel]) -> tuple[Channel, int, Fit] | None:
        """The credible fit with most collectives in common, and the cluster it is a fit to."""
        fits = []
        for channel in own:
            for index, found in self._fits(rank, channel, None):
                if found is not None and found.credible:
                    fits.append((channel, index, found))
        return max(fits, key=lambda entry: (entry[2].common, -entry[2].residual_ns), default=None)

    def _fits(self, rank: int, channel: Channel, known: int | None) -> Iterator[tuple[int, Fit | None]]:
        """The fit to the first rank of each cluster of the channel that has a free place, most ranks first."""
        members, clusters = self.sequences[channel], self.clusters[channel]
        free = [index for index, cluster in enumerate(clusters) if self._has_place(channel, cluster, rank)]
        for index in sorted(free, key=lambda index: -len(clusters[index]))[:_MOST_TRIED]:
            first = next(iter(clusters[index]))
            expected = None if known is None else known - self.offset[first]
            yield index, fit(members[first], members[rank], expected, comparable=self.comparable)

    def _has_place(self, channel: Channel, cluster: dict[int, int], rank: int) -> bool:
        """Whether one more rank fits into the size of the group, as far as that is known."""
        members = self.sequences[channel]
        sizes = [size for member in (rank, *cluster) if (size := members[member].size) is not None]
        return not sizes or len(cluster) < max(sizes)

    def _join(self, rank: int, channel: Channel, known: int | None) -> None:
        clusters = self.clusters[channel]
        fits = self._fits(rank, channel, known) if known is not None else ()
        credible = [(index, found) for index, found in fits if found is not None and found.credible]
        if credible:
            index, found = max(credible, key=lambda entry: (entry[1].common, -entry[1].residual_ns))
            first = next(iter(clusters[index]))
            clusters[index][rank] = clusters[index][first] + found.shift
            return
        if any(self._has_place(channel, cluster, rank) for cluster in clusters):
            self._complain(rank, channel)
        clusters.append({rank: 0})

    def _complain(self, rank: int, channel: Channel) -> None:
        """Say why a rank fits nobody in a channel."""
        members = self.sequences[channel]
        tried = [found for _, found in self._fits(rank, channel, None) if found is not None]
        what = f"of process group {channel.group}" if channel.group else f"on communication stream {channel.order}"
        if channel.pair:
            what = "from rank {} to rank {}".format(*channel.pair)
        if tried:
            residual_ns = min(found.residual_ns for found in tried)
            why = f"their ends lie {residual_ns / 1e6:.1f} ms apart (median) at the best alignment"
        elif min(len(members[rank].rows), *(len(own.rows) for own in members.values())) < FEWEST_COMMON:
            why = f"fewer than {FEWEST_COMMON} are in common"
        else:
            why = "their names or sizes differ, or none of them is left by all ranks together"
        self.problems.append(
            f"The collectives {what} of {self.ranks[rank].name} could not be matched with those of other ranks: {why}."
        )


def _groups(
    placing: _Placing, ranks: Several[RankLog], world_size: int | None
) -> tuple[tuple[MatchedGroup, ...], dict[int, int], list[str]]:
    """The matched collectives of every cluster, per rank how many its capture lacks at the beginning, what is short."""
    groups: list[MatchedGroup] = []
    shift: dict[int, int] = {}
    short: list[str] = []
    for channel, clusters in placing.clusters.items():
        for cluster in clusters:
            if len(cluster) < 2:
                continue
            own = {rank: placing.sequences[channel][rank] for rank in sorted(cluster)}
            numbered = all(entry.number is not None for entry in own.values())
            positions = [
                entry.number if entry.number is not None else np.arange(len(entry.rows)) + cluster[rank]
                for rank, entry in own.items()
            ]
            found = _common_rows(own, positions)
            if found and not numbered:
                lowest = min(cluster.values())
                shift.update({rank: max(shift.get(rank, 0), base - lowest) for rank, base in cluster.items()})
            sizes = [entry.size for entry in own.values() if entry.size is not None]
            expected = max(sizes, default=None) or world_size or len(ranks)
            by: Literal["sequence", "order"] = "sequence" if numbered else "order"
            first, of_first = next((ranks[rank].log, entry.rows[0]) for rank, entry in own.items())
            between = first is not None and not first.joint[of_first]
            groups += [MatchedGroup(channel, by, who, rows, len(who) >= expected, between) for who, rows in found]
            without = [rank for rank in cluster if any(rank not in who for who, _ in found)]
            if without:
                most = max(len(entry.rows) for entry in own.values())
                held = ", ".join(f"{len(own[rank].rows)} by {ranks[rank].name}" for rank in sorted(without)[:3])
                short.append(f"Captures are short: of {most} collectives {held}. The others are matched without these.")
    return tuple(groups), shift, short


def _common_rows(own: Members, positions: Several[I64]) -> list[tuple[I64, I64]]:
    """The collectives, under the same label, by the ranks that hold them: ``(m,)`` ranks and ``(m, n)`` rows.

    Where captures start or end apart, some ranks share more collectives than all do: these are matched among them, too.
    """
    every = np.unique(np.concatenate(positions))
    at = np.stack([np.searchsorted(own_positions, every) for own_positions in positions])
    lengths = np.array([len(own_positions) for own_positions in positions])[:, None]
    inside = np.minimum(at, lengths - 1)
    holds = np.stack([p[i] == every for p, i in zip(positions, inside, strict=True)])
    rows = np.stack([entry.rows[i] for entry, i in zip(own.values(), inside, strict=True)])
    label = np.stack([entry.label[i] for entry, i in zip(own.values(), inside, strict=True)])
    low = np.where(holds, label, np.iinfo(np.int64).max).min(axis=0)
    alike = low == np.where(holds, label, -1).max(axis=0)
    sets, which, counts = np.unique(holds, axis=1, return_inverse=True, return_counts=True)
    of_all = int(holds.all(axis=0).sum())
    members = np.array(list(own), dtype=np.int64)
    out = []
    for index in np.argsort(-counts, kind="stable")[:_MOST_SETS].tolist():
        held = sets[:, index]
        chosen = (which.ravel() == index) & alike
        if held.sum() > 1 and chosen.any() and (held.all() or counts[index] > of_all):
            out.append((members[held], rows[held][:, chosen]))
    return out
