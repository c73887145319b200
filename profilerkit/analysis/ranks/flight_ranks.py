"""Which rank the others wait for by the flight recorders of all ranks, where no trace tells waiting from transfer."""

from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.analysis.intervals import EMPTY, Spans
from profilerkit.analysis.rank_facts import LOGGED, RankFacts
from profilerkit.analysis.ranks.cause import cause_by_parts
from profilerkit.analysis.ranks.flight import (
    FlightLog,
    FlightMatch,
    flight_log,
    issues_for_device,
    longest_per_step,
    match_flights,
    recorded_collectives,
)
from profilerkit.analysis.ranks.late import Lateness, jitter_ratio, late_ranks
from profilerkit.analysis.ranks.waiting import Ledger, ledger_of
from profilerkit.model.change import revise
from profilerkit.model.communication import Communication, FlightRecorder, LateRank
from profilerkit.rundir.ending import CLOCK_ERROR_NS
from profilerkit.rundir.reader import named_ranks
from profilerkit.units import format_ns

_UNTIMED = (
    "The flight recorders show when hosts issued collectives, not when devices ran them. Set "
    "TORCH_NCCL_ENABLE_TIMING=1, or trace every rank, to time them."
)

_OUTSIDE = "None of the collectives in the flight recorders was issued in a judged step."


class FlightRanks(msgspec.Struct, frozen=True):
    """The ranks by their flight recorders.

    Attributes:
        logs: per rank what its recorder held in the judged steps and beside them.
        match: the same collective on all ranks.
        problems: why their times tell nobody, in whole sentences.
        communication: what they say together.
        ledger: who waited for whom; ``None`` where times tell nothing.
        late: positions of the ranks the others wait for.
        waiting_share: of a step, waited by the median other rank; ``None`` when nobody is late.
        jitter_share: what of it would be left without the late rank; ``None`` likewise.
    """

    logs: tuple[FlightLog | None, ...]
    match: FlightMatch
    problems: tuple[str, ...] = ()
    communication: Communication | None = None
    ledger: Ledger | None = None
    late: tuple[int, ...] = ()
    waiting_share: float | None = None
    jitter_share: float | None = None


def flight_ranks(ranks: Sequence[RankFacts], world_size: int | None, *, least_share: float) -> FlightRanks | None:
    """What the recorders say; ``None`` where fewer than two ranks have one.

    Args:
        ranks: of one job.
        world_size: ranks of the whole job; ``None`` if unknown.
        least_share: of a step, that the median other rank must wait before a rank is called late.
    """
    logs = tuple(_log(rank) for rank in ranks)
    if sum(log is not None for log in logs) < 2:
        return None
    metas = [rank.record.meta if rank.record else None for rank in ranks]
    on_device = [
        bool(meta and meta.device_name) or bool(log and issues_for_device(log))
        for meta, log in zip(metas, logs, strict=True)
    ]
    match = match_flights(logs, on_device, world_size)
    without = [rank.rank for rank, log in zip(ranks, logs, strict=True) if log is None and rank.rank is not None]
    unread = (f"{named_ranks(without)} has no flight recording; the others may wait for it.",) if without else ()
    found = FlightRanks(logs, match, (*unread, *((_UNTIMED,) if match.untimed else ())))
    if not match.arrivals:
        return found
    reduced = [longest_per_step(entry) for entry in match.arrivals]
    every, ledger = ledger_of(match.arrivals, len(ranks)), ledger_of(reduced, len(ranks))
    ledger = revise(ledger, last=every.last, of=every.of)
    lengths = [rank.steps.time_ns.mean for rank in ranks if rank.steps.time_ns]
    step_ns = float(np.median(lengths)) if lengths else 0.0
    late = late_ranks(ledger, step_ns)
    steps = ledger.own.shape[1]
    if not steps:
        return revise(found, problems=(*found.problems, _OUTSIDE))
    waited_ns = _median_waited_ns(ledger, late.ranks, steps)
    waiting = min(waited_ns / step_ns, 1.0) if step_ns else 0.0
    apart = _clocks_apart(match, late, [meta.host for meta in metas if meta], waited_ns)
    positions = () if apart or waiting < least_share else late.ranks
    jitter = waiting * jitter_ratio(positions[0], reduced) if positions else None
    return revise(
        found,
        communication=_communication(
            ranks, match, ledger, late, positions, steps, blurred=bool(apart), problems=(*apart, *found.problems)
        ),
        ledger=ledger,
        late=positions,
        waiting_share=waiting if positions else None,
        jitter_share=jitter,
    )


def _log(rank: RankFacts) -> FlightLog | None:
    if rank.record is None or not rank.record.flights:
        return None
    log = rank.log
    if log is None:
        return flight_log(rank.record.flights, None, EMPTY, np.empty(0, dtype=np.int64))
    steady = log.steady
    start = log.start[steady]
    return flight_log(rank.record.flights, rank.record.clock, Spans(start, log.stop[steady]), log.index[steady])


def _median_waited_ns(ledger: Ledger, late: Sequence[int], steps: int) -> float:
    """Waiting per step of the median rank beside the late ones."""
    others = [ledger.waited[rank] for rank in range(len(ledger.of)) if rank not in late and ledger.of[rank]]
    return float(np.median(others)) / steps if others and steps else 0.0


def _clocks_apart(match: FlightMatch, late: Lateness, hosts: Sequence[str], waited_ns: float) -> tuple[str, ...]:
    """Why nobody can be called late though one rank comes last."""
    if not late.ranks or not match.by_clock or len(set(hosts)) < 2 or waited_ns >= CLOCK_ERROR_NS:
        return ()
    return (
        f"One rank issues its collectives {format_ns(waited_ns)} after the others, but the ranks are on "
        f"{len(set(hosts))} hosts, whose clocks may be {format_ns(CLOCK_ERROR_NS)} apart. Trace every rank to be sure.",
    )


def _communication(
    ranks: Sequence[RankFacts],
    match: FlightMatch,
    ledger: Ledger,
    late: Lateness,
    positions: Sequence[int],
    steps: int,
    *,
    blurred: bool,
    problems: tuple[str, ...],
) -> Communication:
    return Communication(
        matched=match.matched,
        of=match.of,
        by="sequence",
        steps=steps,
        steps_needed=late.needed,
        waited_ns=ledger.total_ns,
        late=tuple(_late_rank(ranks, position, ledger, steps, few=not late.sure) for position in positions),
        blurred=blurred,
        problems=problems,
        matched_in="flight recorders",
    )


def _late_rank(ranks: Sequence[RankFacts], position: int, ledger: Ledger, steps: int, *, few: bool) -> LateRank:
    """A late rank, with its cause where the breakdowns of all ranks show one: without traces, their timers."""
    rank = ranks[position]
    others = [entry.parts for index, entry in enumerate(ranks) if index != position]
    waited_ns = _median_waited_ns(ledger, [position], steps)
    by_timers = () if all(entry.trace for entry in ranks) else ("input.", *LOGGED)
    cause = cause_by_parts(rank.parts, others, waited_ns, among=by_timers)
    return LateRank(
        rank=rank.rank,
        origin=rank.origin,
        share=float(ledger.caused[position]) / max(ledger.total_ns, 1),
        last=int(ledger.last[position]),
        of=int(ledger.of[position]),
        cause=cause.part,
        cause_ns=round(cause.explained_ns) if cause.part else None,
        waited_ns=round(waited_ns),
        # Without a timer nothing was measured that could explain it.
        coverage=cause.coverage if rank.parts else None,
        few_steps=few,
    )


def flight_recorder(found: FlightRanks | None, ranks: Sequence[RankFacts], position: int) -> FlightRecorder | None:
    """What the recorder of one rank held; ``None`` where it held nothing."""
    log = found.logs[position] if found is not None else _log(ranks[position])
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
        collectives=recorded_collectives(position, log, found.match.arrivals if found is not None else ()),
    )
