"""The same collective on all ranks, on one clock: matched by process group and number, else by order."""

from collections.abc import Iterator
from collections.abc import Sequence as Several
from heapq import heappop, heappush
from typing import Literal

import msgspec
import numpy as np

from profilerkit.analysis.communication.log import Channel
from profilerkit.analysis.intervals import I64
from profilerkit.analysis.ranks.alignment import FEWEST_COMMON, Fit, Members, RankLog, fit, sequences_of

#: Clusters with a free place that a rank is compared with before it is taken for one of another group.
_MOST_TRIED = 64


class Placing:
    """Ranks placed one after the other over those before them."""

    def __init__(self, ranks: Several[RankLog], sequences: dict[Channel, Members], *, comparable: bool) -> None:
        self.ranks, self.sequences, self.comparable = ranks, sequences, comparable
        self.offset: dict[int, int] = {}
        self.residual: dict[int, int] = {}
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
        fits = [
            (channel, index, found)
            for channel in own
            for index, found in self._fits(rank, channel, None)
            if found.credible
        ]
        # Transfers tell the clocks only where nothing else does: a sender may leave long before the other side.
        best = max(
            fits,
            key=lambda entry: (not self.sequences[entry[0]][rank].between, entry[2].common, -entry[2].residual_ns),
            default=None,
        )
        if best is not None:
            channel, index, found = best
            if found.ambiguous:
                self.problems.append(
                    f"The collectives of {self.ranks[rank].name} fit those of other ranks in several ways, shifted by "
                    "whole steps. The alignment with most in common is used."
                )
            known = self.offset[next(iter(self.clusters[channel][index]))] + found.offset_ns
            self.residual[rank] = found.residual_ns
        self.offset[rank] = known or 0
        for channel in own:
            self._join(rank, channel, known)

    def _fits(self, rank: int, channel: Channel, known: int | None) -> Iterator[tuple[int, Fit]]:
        """The fit to the first rank of each cluster of the channel that has a free place, most ranks first."""
        members, clusters = self.sequences[channel], self.clusters[channel]
        free = [index for index, cluster in enumerate(clusters) if self._has_place(channel, cluster, rank)]
        for index in sorted(free, key=lambda index: -len(clusters[index]))[:_MOST_TRIED]:
            first = next(iter(clusters[index]))
            expected = None if known is None else known - self.offset[first]
            found = fit(members[first], members[rank], expected, comparable=self.comparable)
            if found is not None:
                yield index, found

    def _has_place(self, channel: Channel, cluster: dict[int, int], rank: int) -> bool:
        """Whether one more rank fits into the size of the group, as far as that is known."""
        members = self.sequences[channel]
        sizes = [size for member in (rank, *cluster) if (size := members[member].size) is not None]
        return not sizes or len(cluster) < max(sizes)

    def _join(self, rank: int, channel: Channel, known: int | None) -> None:
        clusters = self.clusters[channel]
        fits = self._fits(rank, channel, known) if known is not None else ()
        credible = [(index, found) for index, found in fits if found.credible]
        if credible:
            index, found = max(credible, key=lambda entry: (entry[1].common, -entry[1].residual_ns))
            first = next(iter(clusters[index]))
            clusters[index][rank] = clusters[index][first] + found.shift
            if not self.sequences[channel][rank].between:
                self.residual[rank] = max(self.residual.get(rank, 0), found.residual_ns)
            return
        if any(self._has_place(channel, cluster, rank) for cluster in clusters):
            self._complain(rank, channel)
        clusters.append({rank: 0})

    def _complain(self, rank: int, channel: Channel) -> None:
        """Say why a rank fits nobody in a channel."""
        members = self.sequences[channel]
        residuals_ns = [found.residual_ns for _, found in self._fits(rank, channel, None)]
        what = f"of process group {channel.group}" if channel.group else f"on communication stream {channel.order}"
        if channel.pair:
            what = "from rank {} to rank {}".format(*channel.pair)
        if residuals_ns:
            why = f"at the best alignment, their ends are {min(residuals_ns) / 1e6:.1f} ms apart (median)"
        elif min(len(members[rank].rows), *(len(own.rows) for own in members.values())) < FEWEST_COMMON:
            why = f"fewer than {FEWEST_COMMON} are in common"
        else:
            why = "their names or sizes differ, or the ranks finish none of them together"
        self.problems.append(
            f"The collectives {what} of {self.ranks[rank].name} could not be matched with those of other ranks: {why}."
        )


#: Sets of members that one cluster's collectives may be divided into: captures that start and end apart make two each.
_MOST_SETS = 64
#: Times beyond this, in 1973, count from the epoch.
EPOCH_NS = 100_000_000 * 1_000_000_000
#: Problems named one by one; the others are counted.
_MOST_PROBLEMS = 3


class MatchedGroup(msgspec.Struct, frozen=True):
    """The matched collectives of one channel: ``(m,)`` positions of the ranks and ``(m, n)`` rows of their logs."""

    channel: Channel
    by: Literal["sequence", "order"]
    members: I64
    rows: I64
    whole: bool
    between: bool = False


class Matching(msgspec.Struct, frozen=True):
    """How the collectives of all ranks belong together.

    Attributes:
        to_common_ns: per rank what to add to its trace's clock; ``None`` where it could not be aligned.
        offset_ns: per rank how far its clock is ahead, its base taken off.
        residual_ns: per rank median distance of its ends from that offset; ``None`` for the reference.
        shift: per rank how many collectives its capture lacks at the beginning, where order matched them.
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
    """Match the collectives of several ranks of one job; what does not fit is left unmatched and named.

    A rank joins those already placed through the channel that fits best; its other channels must then agree with the
    clock offset found there.
    """
    bases = [rank.base_ns for rank in ranks if rank.log is not None]
    comparable = _comparable(ranks)
    first_base = min((base for base in bases if base is not None), default=0)
    apart = [(rank.base_ns or first_base) - first_base for rank in ranks]
    # Of hostile ones that no int64 can take any other will do: they match nothing.
    delta = [between if abs(between) < 1 << 61 else 0 for between in apart]
    sequences = sequences_of(ranks, delta)
    placing = Placing(ranks, sequences, comparable=comparable)
    for rank in placing.order():
        placing.place(rank)
    groups, shift, of, short = _groups(placing, ranks, world_size)
    problems = [*placing.problems, *short]
    more = len(problems) - _MOST_PROBLEMS
    if more > 0:
        problems[_MOST_PROBLEMS:] = [f"{more} more groups of collectives could not be matched."]
    aligned = {int(member) for group in groups for member in group.members}
    offsets = [placing.offset[rank] if rank in aligned else None for rank in range(len(ranks))]
    return Matching(
        groups=groups,
        to_common_ns=tuple(
            None if offset is None else base - offset for offset, base in zip(offsets, delta, strict=True)
        ),
        offset_ns=tuple(offsets),
        residual_ns=tuple(placing.residual.get(rank) if rank in aligned else None for rank in range(len(ranks))),
        shift=tuple(shift.get(rank, 0) for rank in range(len(ranks))),
        matched=sum(group.rows.shape[1] for group in groups),
        of=of,
        problems=tuple(problems),
    )


def _comparable(ranks: Several[RankLog]) -> bool:
    """Whether the clocks count from the same instant: by their bases, or because they tell the time of day."""
    known = [(rank.base_ns, rank.log) for rank in ranks if rank.log is not None]
    bases = [base is not None for base, _ in known]
    return all(bases) or (not any(bases) and all(int(log.start[0]) > EPOCH_NS for _, log in known))


def _groups(
    placing: Placing, ranks: Several[RankLog], world_size: int | None
) -> tuple[tuple[MatchedGroup, ...], dict[int, int], int, list[str]]:
    """The matched collectives, how many each capture lacks at its beginning, how many could be, what is short."""
    groups: list[MatchedGroup] = []
    of = 0
    shift: dict[int, int] = {}
    short: list[str] = []
    for channel, clusters in placing.clusters.items():
        several = [cluster for cluster in clusters if len(cluster) > 1]
        if not several and len(clusters) > 1:
            of += max(len(entry.rows) for entry in placing.sequences[channel].values())
        for cluster in several:
            own = {rank: placing.sequences[channel][rank] for rank in sorted(cluster)}
            numbered = all(entry.number is not None for entry in own.values())
            positions = [
                entry.number if entry.number is not None else np.arange(len(entry.rows)) + cluster[rank]
                for rank, entry in own.items()
            ]
            found = _common_rows(own, positions)
            most = max(len(entry.rows) for entry in own.values())
            of += max(most, sum(rows.shape[1] for _, rows in found))
            if found and not numbered:
                lowest = min(cluster.values())
                shift.update({rank: max(shift.get(rank, 0), base - lowest) for rank, base in cluster.items()})
            sizes = [entry.size for entry in own.values() if entry.size is not None]
            expected = max(sizes, default=None) or world_size or len(ranks)
            by: Literal["sequence", "order"] = "sequence" if numbered else "order"
            between = next(iter(own.values())).between
            groups += [MatchedGroup(channel, by, who, rows, len(who) >= expected, between) for who, rows in found]
            without = [rank for rank in cluster if any(rank not in who for who, _ in found)]
            if without:
                held = ", ".join(f"{len(own[rank].rows)} by {ranks[rank].name}" for rank in sorted(without)[:3])
                short.append(f"Captures are short: of {most} collectives {held}. The others are matched without these.")
    return tuple(groups), shift, of, short


def _common_rows(own: Members, positions: Several[I64]) -> list[tuple[I64, I64]]:
    """The collectives under one label by the sets of ranks that hold them: ``(m,)`` ranks and ``(m, n)`` rows each."""
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
