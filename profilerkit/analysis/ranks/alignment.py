"""The collectives of each channel on all ranks: which belong together, and how far the clocks differ."""

from collections.abc import Sequence as Several

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.communication.log import Channel, CollectiveLog, labels
from profilerkit.analysis.intervals import I64
from profilerkit.model.change import revise

#: Captures of one job start apart by 1 to 4 collectives on real four-rank sets; more is looked for, to be sure.
MOST_SHIFT = 32
#: Fewer collectives in common than this cannot tell an alignment from a coincidence, unless the clocks are known, the
#: group numbers them, or neither rank's capture holds more of a named group.
FEWEST_COMMON = 3
#: Share of the collectives that must have the same name and size on both ranks.
SAME_LABELS = 0.9
#: Ends of one collective differ by 5 to 50 µs on a device when aligned, by 7 ms and more when not (real four-rank
#: sets). A group that has no name may be several, of which chance brings the ends within 100 µs: twice the measured is
#: taken.
MOST_RESIDUAL_NS = 1_000_000
MOST_UNNAMED_NS = 100_000
#: From so many collectives on a few may be off: somebody may leave one late.
MANY_COMMON = 8
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
    """One rank's collectives of one channel in order; arrays are ``(n,)``, ``end`` on a roughly common clock.

    Attributes:
        label: what must be the same on all members: id of name and size.
        together: whether all members leave it together; the root of a broadcast goes when it has sent.
        number: the process group's own number, ascending; ``None`` where the trace has none.
        unnamed: whether nothing but a device's stream tells it from others: it may be several groups on as many ranks.
        between: whether they are transfers between two ranks, of which the sender may leave once it has sent.
    """

    rows: I64
    end: I64
    duration: I64
    label: I64
    together: npt.NDArray[np.bool_]
    number: I64 | None
    unnamed: bool
    size: int | None
    on_host: bool
    between: bool


class Fit(msgspec.Struct, frozen=True):
    """How one rank's sequence lies over another's: its i-th collective is the (i + ``shift``)-th of the first.

    Attributes:
        residual_ns: median distance of the ends from the offset of the clocks.
        credible: whether ends and names agree well enough to be the same collectives.
        ambiguous: whether another shift fits as well, and nothing tells which is right.
    """

    shift: int
    offset_ns: int
    residual_ns: int
    common: int
    credible: bool
    ambiguous: bool = False


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
    close = [
        found for found in fits if found.residual_ns <= best.residual_ns + _allowance(best, found, blurred=blurred)
    ]
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
#: Collectives of one number that are told apart by their order (coalesced ones share a number).
_PER_NUMBER = 64


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
        if any(own.number is None for own in members.values()):
            members.update({rank: _unnumbered(own) for rank, own in members.items()})
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


def _unnumbered(own: Sequence) -> Sequence:
    """The same collectives by time alone: they begin in one order on all ranks, transfers both ways only end in one."""
    order = np.argsort(own.end if own.between else own.end - own.duration, kind="stable")
    ordered = {name: getattr(own, name)[order] for name in ("rows", "end", "duration", "label", "together")}
    return revise(own, number=None, **ordered)
