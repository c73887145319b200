"""The same collective on all ranks, on one clock: matched by process group and number, else by order."""

from collections.abc import Iterator
from collections.abc import Sequence as Several
from heapq import heappop, heappush
from typing import Literal

import msgspec
import numpy as np

from profilerkit.analysis.communication.log import Channel, CollectiveLog, labels
from profilerkit.model import revise
from profilerkit.trace.columns import I64, Bools

#: Captures of one job start apart by 1 to 4 collectives on real four-rank sets; more is looked for, to be sure.
MOST_SHIFT = 32
#: Fewer collectives in common than this cannot tell an alignment from a coincidence, unless the clocks are known, the
#: group numbers them, or neither rank's capture holds more of a named group.
FEWEST_COMMON = 3
SAME_LABELS = 0.9  #: share of the collectives that must have the same name and size on both ranks
#: Ends of one collective differ by 5 to 50 µs on a device when aligned, by 7 ms and more when not (real four-rank
#: sets). A group that has no name may be several, of which chance brings the ends within 100 µs: twice the measured is
#: taken.
MOST_RESIDUAL_NS = 1_000_000
MOST_UNNAMED_NS = 100_000
MANY_COMMON = 8  #: from so many collectives on a few may be off: somebody may leave one late
#: Over gloo on a busy host ends differ by up to 10 ms in steps of 50 ms. Where the clocks count from the same instant
#: and agree, names and sizes in order say which collectives belong together, as long as ends and clocks are not apart
#: by this share of the time between two of the same name and size: half of it would be as near to another.
MOST_RESIDUAL_RATIO = 0.25
#: Equal steps make a shift by a whole step fit nearly as well: within this factor, and this time, of the best residual
#: the shift with the clocks closest together counts. The time is what rounding to microseconds does.
TIE_RATIO, TIE_NS = 2.0, 2_000
#: Over gloo on a busy host, of many shifts with half of the collectives in common one fitted 2 to 8 times better by
#: accident in one of ten recordings. Up to this factor, a gain is no reason to move clocks that count from the same
#: instant unless it is this share of the move; by accident it was 0.1 to 4 %. A hundredth of the move never is one: of
#: equal steps the ends agree to the nanosecond by chance.
ACCIDENT_RATIO, LEAST_GAIN, NO_GAIN = 16.0, 0.05, 0.01


class Sequence(msgspec.Struct, frozen=True):
    """One rank's collectives of one channel in order; arrays are ``(n,)``, ``end`` on a roughly common clock."""

    rows: I64
    end: I64
    duration: I64
    label: I64  #: what must be the same on all members: id of name and size
    #: Whether all members leave it together; the root of a broadcast goes when it has sent.
    together: Bools
    number: I64 | None  #: the process group's own number, ascending; ``None`` where the trace has none
    #: Whether nothing but a device's stream tells it from others: it may be several groups on as many ranks.
    unnamed: bool
    size: int | None
    on_host: bool
    between: bool  #: whether they are transfers between two ranks, of which the sender may leave once it has sent


class Fit(msgspec.Struct, frozen=True):
    """How one rank's sequence lies over another's: its i-th collective is the (i + ``shift``)-th of the first."""

    shift: int
    offset_ns: int
    residual_ns: int  #: median distance of the ends from the offset of the clocks
    common: int
    credible: bool  #: whether ends and names agree well enough to be the same collectives
    ambiguous: bool = False  #: whether another shift fits as well, and nothing tells which is right


def fit(first: Sequence, other: Sequence, offset_ns: int | None, *, comparable: bool) -> Fit | None:
    """The best fit; ``None`` where too few collectives are in common or their names differ.

    ``offset_ns`` of the clocks is given where another channel told it. ``comparable`` clocks count from the same
    instant, so that a small offset is likelier than a large one.
    """
    if first.number is not None and other.number is not None:
        _, a, b = np.intersect1d(first.number, other.number, assume_unique=True, return_indices=True)
        return _fit(first, other, a, b, 0, offset_ns, fewest=1, comparable=comparable)
    # Two short captures that hold as many are taken for the same ones.
    short = len(first.end) == len(other.end) < FEWEST_COMMON and not first.unnamed and not other.unnamed
    fewest = 1 if offset_ns is not None else len(first.end) if short else FEWEST_COMMON
    least = max(fewest, min(len(first.end), len(other.end)) // 2)
    fits = []
    for shift in range(-MOST_SHIFT, MOST_SHIFT + 1):
        low, high = max(shift, 0), min(len(first.end), len(other.end) + shift)
        if high - low < least:
            continue
        a = np.arange(low, high)
        found = _fit(first, other, a, a - shift, shift, offset_ns, fewest=fewest, comparable=comparable)
        if found is not None:
            fits.append(found)
    if not fits:
        return None
    best = min(fits, key=lambda found: (found.residual_ns, abs(found.shift)))
    if offset_ns is not None:
        return best
    blurred = comparable and first.on_host and other.on_host
    close = [one for one in fits if one.residual_ns <= best.residual_ns + _allowance(best, one, blurred=blurred)]
    if comparable:
        return min(close, key=lambda found: (abs(found.offset_ns), found.residual_ns, -found.common, abs(found.shift)))
    likeliest = min(close, key=lambda found: (-found.common, abs(found.shift), found.residual_ns))
    return revise(likeliest, ambiguous=len(close) > 1)


def _allowance(best: Fit, other: Fit, *, blurred: bool) -> float:
    """How much larger the residual of another fit may be than the best one's, ns, and still be as good."""
    tie = (TIE_RATIO - 1) * best.residual_ns + TIE_NS
    if not blurred:
        return tie
    moved_ns = abs(best.offset_ns) - abs(other.offset_ns)
    by_accident = min((ACCIDENT_RATIO - 1) * best.residual_ns, LEAST_GAIN * moved_ns)
    return max(tie, by_accident, NO_GAIN * moved_ns)


def _fit(
    first: Sequence,
    other: Sequence,
    a: I64,
    b: I64,
    shift: int,
    offset_ns: int | None,
    *,
    fewest: int,
    comparable: bool,
) -> Fit | None:
    """The fit when ``first[a]`` and ``other[b]`` are the same collectives."""
    same = first.label[a] == other.label[b]
    if len(a) < fewest or same.mean() < SAME_LABELS:
        return None
    a, b = a[same], b[same]
    joint = first.together[a] & other.together[b]
    if joint.sum() < fewest:
        return None
    a, b = a[joint], b[joint]
    apart = other.end[b] - first.end[a]
    offset = round(float(np.median(apart - apart[0]))) + int(apart[0]) if offset_ns is None else offset_ns
    residual = round(float(np.median(np.abs(apart - offset))))
    on_host = comparable and first.on_host and other.on_host
    blurred = on_host and max(residual, abs(offset)) <= MOST_RESIDUAL_RATIO * _spacing(first.end[a], first.label[a])
    unnamed = first.unnamed or other.unnamed
    # Of few ends of what may be several groups all must agree: half of three do by chance.
    worst = int(np.abs(apart - offset).max()) if unnamed and len(apart) < MANY_COMMON else residual
    agree = worst <= (MOST_UNNAMED_NS if unnamed else MOST_RESIDUAL_NS)
    return Fit(shift, offset, residual, int(same.sum()), agree or blurred)


def _spacing(end: I64, label: I64) -> float:
    """Median time from one collective to the next of the same name and size; 0 where none comes again."""
    order = np.argsort(label, kind="stable")
    between = np.diff(end[order])[np.diff(label[order]) == 0]
    return float(np.median(between)) if len(between) else 0.0


#: Kinds whose members all move the same bytes, so that a difference in size is a difference in the collective.
_SAME_SIZE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
#: Kinds in which some member may leave before the others have all they need.
_ONE_SIDED = ("broadcast", "reduce", "gather", "scatter")
_PER_NUMBER = 64  #: collectives of one number that are told apart by their order (coalesced ones share a number)


class RankLog(msgspec.Struct, frozen=True):
    """What matching needs of one rank; its clock counts from ``base_ns`` since the epoch, where that is known."""

    name: str
    log: CollectiveLog | None
    base_ns: int | None = None


Members = dict[int, Sequence]


def sequences_of(ranks: Several[RankLog], delta: Several[int]) -> dict[Channel, Members]:
    """Channel to rank to its collectives, with labels that are common to all ranks."""
    known: dict[tuple[str, int], int] = {}
    out: dict[Channel, Members] = {}
    for rank, entry in enumerate(ranks):
        log = entry.log
        if log is None:
            continue
        label = labels(log.names, log.name, np.where(log.is_a(*_SAME_SIZE), log.bytes, -1), known)
        joint = log.joint
        for index, channel in enumerate(log.channels):
            rows = np.flatnonzero(joint & (log.channel == index))
            if not len(rows) and channel.group:
                # The transfers between two known ranks or of a group of two, where a send meets its receive.
                rows = np.flatnonzero(log.channel == index)
                rows = rows if channel.pair or (log.size[rows] == 2).all() else rows[:0]
            if len(rows):
                out.setdefault(channel, {})[rank] = _sequence(log, rows, label, delta[rank])
    for members in out.values():
        if all(own.number is not None for own in members.values()):
            continue
        for rank, own in members.items():
            # By time alone: they begin in one order on all ranks, transfers both ways only end in one.
            order = np.argsort(own.end if own.between else own.end - own.duration, kind="stable")
            ordered = {name: getattr(own, name)[order] for name in ("rows", "end", "duration", "label", "together")}
            members[rank] = revise(own, number=None, **ordered)
    return out


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
        between=not log.joint[rows[0]],
    )


_MOST_TRIED = 64  #: clusters with a free place that a rank is compared with before it is taken for one of another group


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
        # Transfers tell the clocks only where nothing else does: a sender may leave long before the other side.
        fits = [
            ((not self.sequences[channel][rank].between, found.common, -found.residual_ns), channel, index, found)
            for channel in own
            for index, found in self._fits(rank, channel, None)
            if found.credible
        ]
        if fits:
            _, channel, index, found = max(fits, key=lambda entry: entry[0])
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
EPOCH_NS = 100_000_000 * 1_000_000_000  #: times beyond this, in 1973, count from the epoch
_MOST_PROBLEMS = 3  #: problems named one by one; the others are counted


class MatchedGroup(msgspec.Struct, frozen=True):
    """The matched collectives of one channel: ``(m,)`` positions of the ranks and ``(m, n)`` rows of their logs."""

    channel: Channel
    by: Literal["sequence", "order"]
    members: I64
    rows: I64
    whole: bool
    between: bool = False


class Matching(msgspec.Struct, frozen=True):
    """How the collectives of all ranks belong together."""

    groups: tuple[MatchedGroup, ...]
    #: Per rank what to add to its trace's clock; ``None`` where it could not be aligned.
    to_common_ns: tuple[int | None, ...]
    offset_ns: tuple[int | None, ...]  #: per rank how far its clock is ahead, its base taken off
    #: Per rank median distance of its ends from that offset; ``None`` for the reference.
    residual_ns: tuple[int | None, ...]
    #: Per rank how many collectives its capture lacks at the beginning, where order matched them.
    shift: tuple[int, ...]
    matched: int
    of: int  #: collectives that could have been: of each channel those of the rank that has most
    problems: tuple[str, ...]  #: what could not be matched, in whole sentences


def match_ranks(ranks: Several[RankLog], world_size: int | None = None) -> Matching:
    """Match the collectives of several ranks of one job; what does not fit is left unmatched and named.

    A rank joins those already placed through the channel that fits best; its other channels must then agree with the
    clock offset found there.
    """
    known = [(rank.base_ns, rank.log) for rank in ranks if rank.log is not None]
    bases = [base for base, _ in known]
    # Clocks count from the same instant by their bases, or because they tell the time of day.
    by_day = bases.count(None) == len(bases) and all(int(log.start[0]) > EPOCH_NS for _, log in known)
    comparable = None not in bases or by_day
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
            places = {rank: np.arange(len(entry.rows)) + cluster[rank] for rank, entry in own.items()}
            positions = [places[rank] if entry.number is None else entry.number for rank, entry in own.items()]
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
