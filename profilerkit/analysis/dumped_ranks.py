"""Ranks of which nothing is known but what their flight recorders held when they were dumped."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from profilerkit.analysis.communication.flight import FlightLog, flight_log
from profilerkit.analysis.communication.repetition import MOST_OF_THEM, Repetition, find_repetition
from profilerkit.analysis.doubts import Doubt
from profilerkit.analysis.facts import Facts
from profilerkit.analysis.intervals import EMPTY, I64
from profilerkit.analysis.rank_facts import RankFacts, rank_facts
from profilerkit.analysis.unequal_ranks import APART_NS
from profilerkit.model.change import revise
from profilerkit.model.run import Signal, Trust
from profilerkit.rundir.clock import Clock
from profilerkit.rundir.ending import CLOCK_ERROR_NS
from profilerkit.rundir.flight import Flight
from profilerkit.rundir.layout import EVENT, EventFlag, EventKind
from profilerkit.rundir.reader import RankRecord, named_ranks
from profilerkit.trace.readers.flight_recorder import FlightDump
from profilerkit.units import format_count, format_long_ns, format_ns, format_ratio

#: What stands for step markers.
FOUND_BY = "the repetition of the collectives"
#: Ranks of which each is named that stopped before the others.
_NAMED = 4

_LIMITS = (
    "A flight recorder holds when the host issued a rank's last collectives: 2,000, unless TORCH_FR_BUFFER_SIZE is "
    "set. Only timers or a trace show why a rank is late.",
    "Dumps name neither hosts nor devices. The report assumes that all clocks agree, and that ranks which issue no "
    "collective for a device compute on the CPU.",
)
_NO_PERIOD = (
    "No steps are known and no rank is judged: the collectives do not repeat in one clear period over at least "
    f"{format_ratio(MOST_OF_THEM)} of what the ranks share."
)
_ONLY = "only dumps of flight recorders were given"


def dumped_ranks(dumps: Sequence[FlightDump], numbers: Sequence[int]) -> tuple[list[RankFacts], tuple[str, ...]]:
    """The ranks by their numbers, with steps where their collectives repeat, and what is to be said of them.

    Args:
        dumps: at least one; several of one rank are taken together.
        numbers: the rank of each.
    """
    ranks = sorted(set(numbers))
    own = {rank: [dump for dump, number in zip(dumps, numbers, strict=True) if number == rank] for rank in ranks}
    flights = {rank: tuple(dump.flight for dump in own[rank]) for rank in ranks}
    logs = {rank: flight_log(flights[rank], None, EMPTY, np.empty(0, dtype=np.int64)) for rank in ranks}
    known = {rank: log for rank, log in logs.items() if log is not None}
    apart = _apart(list(known.values()))
    found = find_repetition(list(known.values())) if known and not apart else None
    starts = dict(zip(known, found.starts, strict=True)) if found is not None else {}
    entries = [
        _rank(rank, " and ".join(dump.origin for dump in own[rank]), flights[rank], starts.get(rank)) for rank in ranks
    ]
    notes = [f"{dump.origin}: {note}" for dump in dumps for note in dump.notes]
    if apart:
        return entries, (*notes, *apart)
    notes += [_steps_note(found) if found is not None else _NO_PERIOD] if known else []
    return entries, (*notes, *_behind(known))


def _rank(rank: int, origin: str, flights: tuple[Flight, ...], starts: I64 | None) -> RankFacts:
    """A rank whose steps reach from one start to the next; its clock is the time of day."""
    bounds = [] if starts is None else starts.tolist()
    events = b"".join(
        EVENT.pack(EventKind.STEP, EventFlag.INFERRED, 0, start, end - start, number)
        for number, (start, end) in enumerate(pairwise(bounds))
    )
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


def _apart(logs: Sequence[FlightLog]) -> tuple[str, ...]:
    """That two dumps are of times so far apart that nobody can have waited in both."""
    apart_ns = max((int(log.created[0]) for log in logs), default=0) - min(
        (int(log.created[-1]) for log in logs), default=0
    )
    if apart_ns < APART_NS:
        return ()
    return (
        f"The dumps do not overlap: one ends {format_long_ns(apart_ns)} before another begins. They show different "
        "collectives or different runs, so steps were not looked for.",
    )


def _steps_note(found: Repetition) -> str:
    name = found.group[1] or found.group[0] or "?"
    calls = "1 collective" if found.calls == 1 else f"{format_count(found.calls)} collectives"
    return (
        f"A step is what repeats in the process group {name}: {calls}. It may be several iterations of the "
        "loop, or part of one."
    )


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
    doubts = (*facts.doubts, *_clock_doubt(facts, ranks))
    notes = (*_LIMITS, *facts.trust.notes, *(one.words for one in doubts if one.words not in facts.trust.notes))
    return revise(
        facts,
        by_dumps=True,
        doubts=doubts,
        trust=revise(facts.trust, mode="dumps", signals=_signals(facts.trust), notes=notes),
    )


def _clock_doubt(facts: Facts, ranks: Sequence[RankFacts]) -> tuple[Doubt, ...]:
    """That clocks of several hosts could be what looks like lateness, where it rests on them and is no longer."""
    late = facts.communication.late if facts.communication else ()
    flights = [flight for rank in ranks if rank.record for flight in rank.record.flights]
    timed = any(entry.duration_ns is not None for flight in flights for entry in flight.entries)
    waited_ns = min((one.waited_ns for one in late if one.waited_ns is not None), default=CLOCK_ERROR_NS)
    if timed or waited_ns >= CLOCK_ERROR_NS:
        return ()
    words = (
        f"A wait of {format_ns(waited_ns)} proves a late rank only if all ranks are on one host: the clocks of several "
        f"hosts may be {format_ns(CLOCK_ERROR_NS)} apart."
    )
    return (Doubt("clocks", words),)


def _signals(trust: Trust) -> tuple[Signal, ...]:
    """What was measured is so in part: no timer ran, and the steps are inferred."""
    return tuple(
        Signal(name=signal.name, state="partial", reason=f"from {FOUND_BY}")
        if signal.state == "measured"
        else revise(signal, reason=_ONLY)
        for signal in trust.signals
    )
