"""Ranks placed one after the other over those before them, on one clock."""

from collections.abc import Iterator
from collections.abc import Sequence as Several
from heapq import heappop, heappush

from profilerkit.analysis.communication.alignment import FEWEST_COMMON, Fit, fit
from profilerkit.analysis.communication.log import Channel
from profilerkit.analysis.communication.sequences import Members, RankLog

#: Clusters with a free place that a rank is compared with before it is taken for one of another group.
_MOST_TRIED = 64


class Placing:
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
                    f"The collectives of {self.ranks[rank].name} fit those of other ranks in several ways, shifted by "
                    "whole steps. The alignment with most in common is used."
                )
            known = self.offset[next(iter(self.clusters[channel][index]))] + found.offset_ns
            self.residual[rank] = found.residual_ns
        else:
            self.references.add(rank)
        self.offset[rank] = known or 0
        for channel in own:
            self._join(rank, channel, known)

    def _best_channel(self, rank: int, own: Several[Channel]) -> tuple[Channel, int, Fit] | None:
        """The credible fit with most collectives in common, and the cluster it is a fit to.

        Transfers tell the clocks only where nothing else does: a sender may leave long before the other side.
        """
        fits = []
        for channel in own:
            for index, found in self._fits(rank, channel, None):
                if found is not None and found.credible:
                    fits.append((channel, index, found))
        return max(
            fits,
            key=lambda entry: (not self._is_between(rank, entry[0]), entry[2].common, -entry[2].residual_ns),
            default=None,
        )

    def _is_between(self, rank: int, channel: Channel) -> bool:
        return self.sequences[channel][rank].between

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
            if not self._is_between(rank, channel):
                self.residual[rank] = max(self.residual.get(rank, 0), found.residual_ns)
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
            why = f"at the best alignment, their ends are {residual_ns / 1e6:.1f} ms apart (median)"
        elif min(len(members[rank].rows), *(len(own.rows) for own in members.values())) < FEWEST_COMMON:
            why = f"fewer than {FEWEST_COMMON} are in common"
        else:
            why = "their names or sizes differ, or the ranks finish none of them together"
        self.problems.append(
            f"The collectives {what} of {self.ranks[rank].name} could not be matched with those of other ranks: {why}."
        )
