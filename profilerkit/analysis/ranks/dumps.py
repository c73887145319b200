"""Ranks of which only dumped flight recorders are known; their steps are what the collectives repeat."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.intervals import EMPTY
from profilerkit.analysis.rank_facts import RankFacts, rank_facts
from profilerkit.analysis.ranks.alike import APART_NS
from profilerkit.analysis.ranks.flight import FlightLog, common_calls, flight_log
from profilerkit.analysis.steps.series import Doubt
from profilerkit.model import revise
from profilerkit.model.run import Signal
from profilerkit.rundir.documents import Flight
from profilerkit.rundir.ending import CLOCK_ERROR_NS
from profilerkit.rundir.layout import EVENT, EventFlag, EventKind
from profilerkit.rundir.process import Clock
from profilerkit.rundir.reader import RankRecord, named_ranks
from profilerkit.trace.columns import F64, I64
from profilerkit.trace.logs import FlightDump
from profilerkit.units import format_count, format_long_ns, format_ns, format_ratio

#: Times that a sequence must follow itself before it is a habit: the first step is never judged, and three show one.
FEWEST_REPEATS = 4
#: Share of the collectives that must lie in one such stretch: less of them may be what is done once, at the start.
MOST_OF_THEM = 0.5
#: The last collectives that are looked at: four times what torch's recorder holds by default. The search takes time
#: that grows with their square.
MOST_CALLS = 8_000


class Repetition(msgspec.Struct, frozen=True):
    """The steps of several ranks by what they repeat, in a process group of hostile name and description.

    ``starts`` is ``(n_ranks, n_steps + 1)`` int64 ns since the epoch: when each rank issued the first collective of
    each step; the last column is where the last step ends.
    """

    group: tuple[str, str]
    calls: int
    starts: I64


def find_repetition(logs: Sequence[FlightLog]) -> Repetition | None:
    """The steps that all ranks took, by the group that all have and that issued most; ``None`` without a clear period.

    The period is the shortest one in name and size that the collectives keep, call for call, over most of the dump. A
    step may be several iterations of the loop where those differ by turns, and part of one where it is made of equal
    parts. It begins, on every rank at the same collective, with the one that the longest silence comes before.
    """
    shared = [group for group in logs[0].groups if all(len(log.of(group)) for log in logs)]
    matched = [(group, common_calls({rank: (log, log.of(group)) for rank, log in enumerate(logs)})) for group in shared]
    if not matched:
        return None
    group, rows = max(matched, key=lambda entry: entry[1].shape[1])
    if not rows.shape[1]:
        return None
    rows = rows[:, -MOST_CALLS:]
    created = np.stack([log.created[own] for log, own in zip(logs, rows, strict=True)])
    labels = logs[0].labels(rows[0], {})
    silence = np.diff(created, axis=1, prepend=created[:, :1]).astype(np.float64).sum(axis=0)
    places = _places(labels, silence)
    if places is None:
        return None
    calls, first = places
    starts = created[:, first]
    # A clock that was set back meanwhile leaves no step its length.
    return Repetition(group, calls, starts) if (np.diff(starts, axis=1) > 0).all() else None


def _places(labels: I64, silence: F64) -> tuple[int, I64] | None:
    """Length of what repeats, and where it stands; ``None`` where nothing does.

    >>> _places(np.array([9, 1, 2, 1, 2, 1, 2, 1, 2, 7, 1, 2]), np.array([0.0, 5.0, 1.0] * 4))
    (2, array([ 1,  3,  5,  7, 10]))
    """
    stretch = _period(labels)
    if stretch is None:
        return None
    length, start, end = stretch
    gaps = [float(np.median(silence[start + shift : end : length])) for shift in range(length)]
    begin = start + int(np.argmax(gaps))
    if begin + 2 * length > end:
        return None
    pattern = labels[begin : begin + length]
    windows = np.lib.stride_tricks.sliding_window_view(labels, length)
    taken: list[int] = []
    free = 0
    for place in np.flatnonzero((windows == pattern).all(axis=1)).tolist():
        # Within the stretch the steps follow each other; before and behind it they stand wherever they do.
        if place >= free and not place < begin < place + length:
            taken.append(place)
            free = place + length
    return length, np.array(taken, dtype=np.int64)


def _period(labels: I64) -> tuple[int, int, int] | None:
    """The shortest period that most of the labels keep without a break, and the bounds of that stretch."""
    count = len(labels)
    for length in range(1, count // FEWEST_REPEATS + 1):
        breaks = np.flatnonzero(labels[length:] != labels[:-length])
        edges = np.concatenate([[-1], breaks, [count - length]])
        longest = int(np.diff(edges).argmax())
        start, end = int(edges[longest]) + 1, int(edges[longest + 1]) + length
        if end - start >= max(MOST_OF_THEM * count, FEWEST_REPEATS * length):
            return length, start, end
    return None


FOUND_BY = "the repetition of the collectives"  #: what stands for step markers
_NAMED = 4  #: ranks of which each is named that stopped before the others

_LIMITS = (
    "A flight recorder holds when the host issued a rank's last collectives: 2,000, unless TORCH_FR_BUFFER_SIZE is "
    "set. Only timers or a trace show why a rank is late.",
    "Dumps name neither hosts nor devices. The report assumes that all clocks agree, and that ranks which issue no "
    "collective for a device compute on the CPU.",
)
_NO_PERIOD = (
    "No steps are known and no rank is judged: the collectives do not repeat in a clear period over "
    f"{format_ratio(MOST_OF_THEM)} of what the ranks share."
)
_ONLY = "only dumps of flight recorders were given"


def dumped_ranks(dumps: Sequence[FlightDump], numbers: Sequence[int]) -> tuple[list[RankFacts], tuple[str, ...]]:
    """The ranks by their numbers, with steps where their collectives repeat, and what is to be said of them."""
    ranks = sorted(set(numbers))
    own = {rank: [dump for dump, number in zip(dumps, numbers, strict=True) if number == rank] for rank in ranks}
    flights = {rank: tuple(dump.flight for dump in own[rank]) for rank in ranks}
    logs = {rank: flight_log(flights[rank], None, EMPTY, EMPTY.start) for rank in ranks}
    known = {rank: log for rank, log in logs.items() if log is not None}
    newest = max((int(log.created[0]) for log in known.values()), default=0)
    apart_ns = newest - min((int(log.created[-1]) for log in known.values()), default=0)
    # Nobody can have waited in two dumps of times so far apart.
    found = find_repetition(list(known.values())) if known and apart_ns < APART_NS else None
    starts = dict(zip(known, found.starts, strict=True)) if found is not None else {}
    named = {rank: " and ".join(dump.origin for dump in own[rank]) for rank in ranks}
    entries = [_rank(rank, named[rank], flights[rank], starts.get(rank)) for rank in ranks]
    notes = [f"{dump.origin}: {note}" for dump in dumps for note in dump.notes]
    if apart_ns >= APART_NS:
        said = (
            f"The dumps do not overlap: one ends {format_long_ns(apart_ns)} before another begins. They show different "
            "collectives or different runs, so steps were not looked for."
        )
        return entries, (*notes, said)
    if found is not None:
        calls = "1 collective" if found.calls == 1 else f"{format_count(found.calls)} collectives"
        notes.append(
            f"A step is what repeats in the process group {found.group[1] or found.group[0] or '?'}: {calls}. It may "
            "be several iterations of the loop, or part of one."
        )
    elif known:
        notes.append(_NO_PERIOD)
    return entries, (*notes, *_behind(known))


def _rank(rank: int, origin: str, flights: tuple[Flight, ...], starts: I64 | None) -> RankFacts:
    """A rank whose steps reach from one start to the next; its clock is the time of day."""
    bounds = [] if starts is None else starts.tolist()
    steps, pack = enumerate(pairwise(bounds)), partial(EVENT.pack, EventKind.STEP, EventFlag.INFERRED, 0)
    events = b"".join(pack(start, end - start, number) for number, (start, end) in steps)
    record = RankRecord(
        rank=rank,
        path=Path(origin),
        meta=None,
        events=events,
        names={},
        samples=(),
        windows=(),
        end=None,
        notes=(),
        clock=Clock((0,), (0,)),
        flights=flights,
    )
    facts = rank_facts(origin, None, record)
    return revise(facts, parts=(), steps=revise(facts.steps, found_by=FOUND_BY if bounds else "nothing"))


def _behind(logs: dict[int, FlightLog]) -> list[str]:
    """Which ranks issued fewer collectives of a group than others, as in a job that hangs."""
    notes = []
    for group in sorted({group for log in logs.values() for group in log.groups}):
        rows = {rank: log.of(group) for rank, log in logs.items()}
        last = {rank: int(logs[rank].sequence[own].max()) for rank, own in rows.items() if len(own)}
        most = max(last.values(), default=0)
        behind = [rank for rank, number in last.items() if number < most]
        if not behind:
            continue
        told = ", ".join(f"rank {rank} at {last[rank]:,}" for rank in behind[:_NAMED])
        more = f" and {len(behind) - _NAMED} more" if len(behind) > _NAMED else ""
        notes.append(
            f"In the process group {group[1] or group[0] or '?'} some ranks had issued collective {most:,}, but "
            f"{told}{more}. If all dumps are from one moment, the others wait for {named_ranks(behind)}."
        )
    return notes


def with_dumps(facts: Facts, ranks: Sequence[RankFacts]) -> Facts:
    """The facts of ranks that dumps alone tell of, with what such dumps cannot tell."""
    late = facts.communication.late if facts.communication else ()
    flights = [flight for rank in ranks if rank.record for flight in rank.record.flights]
    timed = any(entry.duration_ns is not None for flight in flights for entry in flight.entries)
    waited_ns = min((one.waited_ns for one in late if one.waited_ns is not None), default=CLOCK_ERROR_NS)
    doubts = facts.doubts
    if not timed and waited_ns < CLOCK_ERROR_NS:
        words = (
            f"A wait of {format_ns(waited_ns)} proves a late rank only if all ranks are on one host: the clocks of "
            f"several hosts may be {format_ns(CLOCK_ERROR_NS)} apart."
        )
        doubts = (*doubts, Doubt("clocks", words))
    # No timer ran, and the steps are inferred.
    signals = tuple(
        Signal(name=signal.name, state="partial", reason=f"from {FOUND_BY}")
        if signal.state == "measured"
        else revise(signal, reason=_ONLY)
        for signal in facts.trust.signals
    )
    notes = (*_LIMITS, *facts.trust.notes, *(one.words for one in doubts if one.words not in facts.trust.notes))
    trust = revise(facts.trust, mode="dumps", signals=signals, notes=notes)
    return revise(facts, by_dumps=True, doubts=doubts, trust=trust)
