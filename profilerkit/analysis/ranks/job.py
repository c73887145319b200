"""Several ranks as one job: match their collectives, divide waiting from transfer, find whom the others wait for."""

from collections.abc import Sequence

import msgspec
import numpy as np

from profilerkit.analysis.communication.details import divided_work
from profilerkit.analysis.communication.table import EXPOSED, Split, collective_table
from profilerkit.analysis.intervals import EMPTY, Spans, covered, intersect
from profilerkit.analysis.rank_facts import LOGGED, RankFacts, with_trace
from profilerkit.analysis.ranks.alike import captures_apart, comparable, rank_name
from profilerkit.analysis.ranks.flight import FlightMatch, issues_for_device, longest_per_step, match_flights, recorded
from profilerkit.analysis.ranks.late import (
    CAUSED_SHARE,
    FEWEST_STEPS,
    Cause,
    Lateness,
    cause_by_parts,
    cause_of,
    jitter_ratio,
    late_ranks,
    more_work,
    same_work,
)
from profilerkit.analysis.ranks.matching import Matching, RankLog, match_ranks
from profilerkit.analysis.ranks.waiting import (
    Arrivals,
    Ledger,
    arrivals_of,
    latency_floor_ns,
    ledger_of,
    relabelled,
    splits_of,
)
from profilerkit.model import revise
from profilerkit.model.communication import Communication, LateRank
from profilerkit.model.step import WAITS, leaf
from profilerkit.rundir.ending import CLOCK_ERROR_NS
from profilerkit.rundir.reader import named_ranks
from profilerkit.units import format_ns

LATE_SHARE = 0.05  #: share of a step that the median other rank must wait, exposed, before a rank is called late
#: A late rank on a host must be later than the ends of one collective are apart by this factor: the load that blurs the
#: ends delays the starts as well. Of 78 gloo recordings with an injected delay it was 32 and more; load alone made a
#: rank of two others late by 3 and by 7 times as much.
BEYOND_RESIDUAL = 10.0
ACCOUNTED = 0.5  #: share of the waiting that the time of a rank's additional FLOPs, at its own speed, must make up
MOST_NEEDED = 100  #: more steps than this nobody is asked to record


class Job(msgspec.Struct, frozen=True):
    """The ranks after they were compared; ``None`` is what nothing tells."""

    ranks: tuple[RankFacts, ...]  #: with their communication divided where it was matched
    communication: Communication | None
    ledger: Ledger | None = None  #: who waited for whom
    matching: Matching | None = None
    late: tuple[int, ...] = ()  #: positions of the ranks the others wait for, most waiting first
    suspect: int | None = None  #: the rank that causes most of the waiting, if that is much; proven late or not
    waiting_share: float | None = None  #: of a step, waited by the median other rank; ``None`` when nobody is late
    jitter_share: float | None = None  #: what of it would be left without the late rank
    #: Of a step, transfers that the late rank computes through and the median other one, done with its own work, has
    #: exposed.
    shown_share: float | None = None
    flight: FlightMatch | None = None  #: what the flight recorders hold, where they were needed


def compare(ranks: Sequence[RankFacts], world_size: int | None) -> Job:
    """Match the collectives of the ranks that were recorded alike, as far as they can be matched."""
    told = comparable(ranks)
    logs = [rank.trace.collectives if rank.trace and index in told else None for index, rank in enumerate(ranks)]
    if all(log is None for log in logs):
        return _by_flight(ranks, world_size, None)
    if sum(log is not None for log in logs) < 2 or captures_apart(ranks):
        return _by_flight(ranks, world_size, Communication())
    bases = [rank.trace.meta.base_time_ns if rank.trace else None for rank in ranks]
    named = zip(map(rank_name, ranks), logs, bases, strict=True)
    matching = match_ranks([RankLog(name, log, base) for name, log, base in named], world_size)
    if not matching.groups:
        return _by_flight(ranks, world_size, Communication(matched=0, of=matching.of, problems=matching.problems))
    none = (EMPTY, np.empty(0, dtype=np.int64))
    steady = [(trace.window, trace.steps.index[trace.steps.judged]) if (trace := r.trace) else none for r in ranks]
    arrivals = arrivals_of(matching, logs, steady)
    floor_ns = latency_floor_ns(arrivals, logs)
    divided = _all_divided(ranks, splits_of(arrivals, logs), floor_ns)
    joint = tuple(entry for entry in arrivals if not entry.between)
    # The bubbles of a pipeline are waiting, but for no late rank.
    for_all = divided if len(joint) == len(arrivals) else _all_divided(ranks, splits_of(joint, logs), floor_ns)
    arrivals = joint
    seen = _steps_seen(ranks, matching, arrivals, judged=True)
    ledger = ledger_of(arrivals, len(ranks))
    certain = ledger_of([entry for entry in arrivals if entry.certain], len(ranks))
    found = late_ranks(_exposed(certain, for_all), _typical_step_ns(ranks))
    # Who causes most of the waiting may do so by accident.
    worst = int(ledger.caused.argmax())
    suspects = found.ranks or ((worst,) if ledger.caused[worst] >= CAUSED_SHARE * max(ledger.total_ns, 1) else ())
    waiting = _median_waiting(for_all, suspects, matching, arrivals) if suspects else 0.0
    # One long step of few must not thin what the others wait in each.
    late = found.ranks if waiting * max(_mean_to_median(ranks), 1.0) >= LATE_SHARE else ()
    blurred = bool(late) and _is_blurred(divided[late[0]], late[0], matching, waiting)
    late = () if blurred else late
    if waiting >= LATE_SHARE and not (late and found.sure) and _has_more_to_do(divided, suspects, waiting):
        late, blurred, found = suspects, False, revise(found, sure=True)
    return Job(
        ranks=divided,
        communication=revise(
            _communication(divided, matching, arrivals, ledger, revise(found, ranks=late), seen), blurred=blurred
        ),
        ledger=ledger,
        matching=matching,
        late=late,
        suspect=late[0] if late else suspects[0] if waiting >= LATE_SHARE else None,
        waiting_share=waiting if late else None,
        jitter_share=waiting * jitter_ratio(late[0], arrivals) if late else None,
        shown_share=_shown_by_lateness(for_all, late) if late else None,
    )


_UNTIMED = (
    "The flight recorders show when hosts issued collectives, not when devices ran them. Set "
    "TORCH_NCCL_ENABLE_TIMING=1, or trace every rank, to time them."
)
_OUTSIDE = "None of the collectives in the flight recorders was issued in a judged step."


def _by_flight(ranks: Sequence[RankFacts], world_size: int | None, by_traces: Communication | None) -> Job:
    """The ranks by their flight recorders, where the traces say no more than ``by_traces``."""
    logs = tuple(recorded(rank) for rank in ranks)
    if sum(log is not None for log in logs) < 2:
        return Job(tuple(ranks), by_traces)
    metas = [rank.record.meta if rank.record else None for rank in ranks]
    pairs = zip(metas, logs, strict=True)
    on_device = [bool(meta and meta.device_name) or bool(log and issues_for_device(log)) for meta, log in pairs]
    match = match_flights(logs, on_device, world_size)
    without = [rank.rank for rank, log in zip(ranks, logs, strict=True) if log is None and rank.rank is not None]
    problems = [f"{named_ranks(without)} has no flight recording; the others may wait for it."] if without else []
    problems += [_UNTIMED] if match.untimed else []
    reduced = [longest_per_step(entry) for entry in match.arrivals]
    every, ledger = ledger_of(match.arrivals, len(ranks)), ledger_of(reduced, len(ranks))
    ledger = revise(ledger, last=every.last, of=every.of)
    steps, step_ns = ledger.own.shape[1], _typical_step_ns(ranks)
    if not steps:
        problems += [_OUTSIDE] if match.arrivals else []
        if problems:
            by_traces = by_traces or Communication()
            by_traces = revise(by_traces, problems=(*by_traces.problems, *problems))
        return Job(tuple(ranks), by_traces, flight=match)
    found = late_ranks(ledger, step_ns)
    waited_ns = ledger.median_waited_ns(found.ranks)
    waiting = min(waited_ns / step_ns, 1.0) if step_ns else 0.0
    hosts = {meta.host for meta in metas if meta}
    # Nobody can be called late though one rank comes last.
    apart = bool(found.ranks) and match.by_clock and len(hosts) >= 2 and waited_ns < CLOCK_ERROR_NS
    if apart:
        problems[:0] = [
            f"One rank issues its collectives {format_ns(waited_ns)} after the others, but the ranks are on "
            f"{len(hosts)} hosts, whose clocks may be {format_ns(CLOCK_ERROR_NS)} apart. Trace every rank to be sure."
        ]
    late = () if apart or waiting < LATE_SHARE else found.ranks
    return Job(
        tuple(ranks),
        Communication(
            matched=match.matched,
            of=match.of,
            by="sequence",
            steps=steps,
            steps_needed=found.needed,
            waited_ns=ledger.total_ns,
            late=tuple(_late_by_flight(ranks, position, ledger, few=not found.sure) for position in late),
            blurred=apart,
            problems=tuple(problems),
            matched_in="flight recorders",
        ),
        ledger=ledger,
        late=late,
        suspect=late[0] if late else None,
        waiting_share=waiting if late else None,
        jitter_share=waiting * jitter_ratio(late[0], reduced) if late else None,
        flight=match,
    )


def _late_by_flight(ranks: Sequence[RankFacts], position: int, ledger: Ledger, *, few: bool) -> LateRank:
    """A late rank, with its cause where the breakdowns of all ranks show one: without traces, their timers."""
    rank, others = ranks[position], [entry.parts for index, entry in enumerate(ranks) if index != position]
    by_timers = () if all(entry.trace for entry in ranks) else ("input.", *LOGGED)
    cause = cause_by_parts(rank.parts, others, ledger.median_waited_ns([position]), among=by_timers)
    found = _late_record(rank, position, ledger, cause, 1, few=few)
    # Without a timer nothing was measured that could explain it.
    return found if rank.parts else revise(found, coverage=None)


def _exposed(ledger: Ledger, ranks: Sequence[RankFacts]) -> Ledger:
    """The ledger with no more waiting in a step than nothing hid: others wait for the same delay again."""
    own = np.zeros_like(ledger.own)
    for position, rank in enumerate(ranks):
        if rank.trace is not None:
            _, mine, theirs = np.intersect1d(rank.trace.steps.index, ledger.numbers, return_indices=True)
            own[position, theirs] = rank.trace.partition.per_step[mine, leaf("comm.skew")]
    return revise(ledger, own=np.minimum(own, ledger.own))


def _typical_step_ns(ranks: Sequence[RankFacts]) -> float:
    """Mean step of the median rank; 0 where none was timed."""
    lengths = [rank.steps.time_ns.mean for rank in ranks if rank.steps.time_ns]
    return float(np.median(lengths)) if lengths else 0.0


def _mean_to_median(ranks: Sequence[RankFacts]) -> float:
    """How much longer the mean step is than the median one, of the median rank, at most 2; 1 where none was timed."""
    ratios = [rank.steps.time_ns.mean / max(rank.steps.time_ns.median, 1) for rank in ranks if rank.steps.time_ns]
    return min(float(np.median(ratios)), 2.0) if ratios else 1.0


def _all_divided(ranks: Sequence[RankFacts], splits: Sequence[Split | None], floor_ns: int) -> tuple[RankFacts, ...]:
    """The ranks with waiting and transfer told apart; of a summary that kept no segments nothing can be."""
    out = []
    for rank, split in zip(ranks, splits, strict=True):
        trace = rank.trace
        if trace is None or split is None or trace.collectives is None or not len(trace.partition.segments):
            out.append(rank)
            continue
        log, window = trace.collectives, trace.window
        parts = relabelled(trace.partition, Spans(trace.steps.start, trace.steps.end), log, split, floor_ns)
        exposed = intersect(window, parts.segments.only(*EXPOSED))
        table = collective_table(log, covered(window, log.start), exposed, split)
        work = trace.collective_work
        changed = revise(
            trace,
            partition=parts,
            comm=trace.comm and revise(trace.comm, table=table),
            collective_work=work and divided_work(work, log, window, parts, split, trace.meta, floor_ns),
        )
        out.append(with_trace(rank, changed))
    return tuple(out)


def _steps_seen(
    ranks: Sequence[RankFacts], matching: Matching, arrivals: Sequence[Arrivals], *, judged: bool
) -> list[int]:
    """Count per rank the judged steps within its matched collectives; ``judged`` takes those of judged steps alone."""
    counts = []
    for index, rank in enumerate(ranks):
        own = [entry for entry in arrivals if index in entry.members]
        instants = [entry.arrived[entry.step >= 0] if judged else entry.arrived for entry in own]
        at = np.concatenate([np.empty(0, dtype=np.int64), *instants])
        to_common = matching.to_common_ns[index]
        if rank.trace is None or to_common is None or not len(at):
            counts.append(0)
            continue
        window = rank.trace.window
        counts.append(int(((window.end + to_common > at.min()) & (window.start + to_common <= at.max())).sum()))
    return counts


def _median_waiting(
    ranks: Sequence[RankFacts], late: Sequence[int], matching: Matching, arrivals: Sequence[Arrivals]
) -> float:
    """Share of its step that the median of the matched ranks beside the late ones waits, exposed."""
    seen = _steps_seen(ranks, matching, arrivals, judged=False)
    others = [
        min(rank.share("comm.skew") * rank.trace.n_steady / count, 1.0)
        for index, (rank, count) in enumerate(zip(ranks, seen, strict=True))
        if index not in late and rank.trace is not None and count
    ]
    return float(np.median(others)) if others else 0.0


def _shown_by_lateness(ranks: Sequence[RankFacts], late: Sequence[int]) -> float:
    """Share of a step in which the median other rank has transfers exposed that the latest rank computes through.

    Who is late sends its first buckets while it computes the others'; who waited for it has nothing left to compute.
    With the same work a rank that is no longer late hides as much as the late one does; with other work it may not.
    """
    late_trace, traces = ranks[late[0]].trace, [r.trace for i, r in enumerate(ranks) if i not in late and r.trace]
    if late_trace is None or same_work(late_trace, traces) is False:
        return 0.0
    exposed = [rank.share("comm.bw") + rank.share("comm.lat") for rank in ranks]
    others = [value for index, value in enumerate(exposed) if index not in late and ranks[index].trace is not None]
    return max(float(np.median(others)) - exposed[late[0]], 0.0) if others else 0.0


def _has_more_to_do(ranks: Sequence[RankFacts], suspects: Sequence[int], waiting: float) -> bool:
    """Whether what one rank computes more than the others accounts for ``waiting``: work is no accident."""
    rank = ranks[suspects[0]]
    others = [entry.trace for entry in ranks if entry.trace is not None and entry is not rank]
    if len(suspects) != 1 or rank.trace is None or rank.trace.n_steady < FEWEST_STEPS:
        return False
    computes = sum(part.share for part in rank.parts if part.part.startswith("compute."))
    return more_work(rank.trace, others) * computes >= ACCOUNTED * waiting


def _is_blurred(rank: RankFacts, position: int, matching: Matching, waiting: float) -> bool:
    """Whether the ends of one collective lie so far apart on a host that being last by ``waiting`` proves nothing."""
    if rank.trace is None or rank.trace.collectives is None or not rank.trace.collectives.on_host:
        return False
    own, known = matching.residual_ns[position], [value for value in matching.residual_ns if value is not None]
    residual_ns = own if own is not None else float(np.median(known)) if known else 0.0
    step_ns = rank.steps.time_ns.mean if rank.steps.time_ns else 0.0
    return waiting * step_ns < BEYOND_RESIDUAL * residual_ns


def _communication(
    ranks: Sequence[RankFacts],
    matching: Matching,
    arrivals: Sequence[Arrivals],
    ledger: Ledger,
    found: Lateness,
    seen: Sequence[int],
) -> Communication:
    used = {group.by for group in matching.groups}
    time_ns = 0
    for entry in arrivals:
        for rank, rows in zip(entry.members.tolist(), entry.rows[:, entry.step >= 0], strict=True):
            trace = ranks[rank].trace
            time_ns += int((log.end - log.start)[rows].sum()) if trace and (log := trace.collectives) else 0
    waited_ns = sum(int(entry.wait[:, entry.step >= 0].sum()) for entry in arrivals)
    whole = all(entry.whole for entry in arrivals)
    segments = [entry.trace.partition.segments if entry.trace else None for entry in ranks]
    causes = {rank: cause_of(rank, arrivals, segments, matching.to_common_ns) for rank in found.ranks}
    few = not found.sure
    return Communication(
        matched=matching.matched,
        of=matching.of,
        by="both" if len(used) > 1 else "sequence" if "sequence" in used else "order",
        residual_ns=max((value for value in matching.residual_ns if value is not None), default=None),
        most_shift=max(matching.shift, default=0),
        steps=max(seen),
        waited_ns=waited_ns,
        time_ns=time_ns,
        transfer_ns=time_ns - waited_ns if whole else None,
        late=tuple(_late_rank(ranks, at, ledger, cause, max(seen[at], 1), few=few) for at, cause in causes.items()),
        problems=matching.problems,
        steps_needed=found.needed if (found.needed or 0) <= MOST_NEEDED else None,
    )


def _late_rank(
    ranks: Sequence[RankFacts], position: int, ledger: Ledger, cause: Cause, steps: int, *, few: bool
) -> LateRank:
    rank = ranks[position]
    others = [entry.trace for entry in ranks if entry.trace is not None and entry is not rank]
    if cause.part is None and others:
        beside = [entry.parts for entry in ranks if entry.trace is not None and entry is not rank]
        led = cause_by_parts(rank.parts, beside, cause.waited_ns / steps)
        cause = Cause(led.part, led.explained_ns * steps, cause.waited_ns) if led.part else cause
    if cause.part is not None and cause.part.startswith("input."):
        # A trace sees a wait; what it was spent on, the step log or the workers' records tell.
        waits = [part for part in rank.parts if part.part in WAITS]
        cause = revise(cause, part=max(waits, key=lambda part: part.time_ns).part if waits else cause.part)
    computes = rank.trace is not None and cause.part is not None and cause.part.startswith("compute.")
    found = _late_record(rank, position, ledger, cause, steps, few=few)
    return revise(found, same_work=same_work(rank.trace, others)) if rank.trace is not None and computes else found


def _late_record(rank: RankFacts, position: int, ledger: Ledger, cause: Cause, steps: int, *, few: bool) -> LateRank:
    return LateRank(
        rank=rank.rank,
        origin=rank.origin,
        share=float(ledger.caused[position]) / max(ledger.total_ns, 1),
        last=int(ledger.last[position]),
        of=int(ledger.of[position]),
        cause=cause.part,
        cause_ns=round(cause.explained_ns / steps) if cause.part else None,
        waited_ns=round(cause.waited_ns / steps),
        coverage=cause.coverage,
        few_steps=few,
    )


def notes_of(job: Job, world_size: int | None) -> list[str]:
    """What limits the comparison of the ranks, in whole sentences."""
    found = job.communication
    if found is None:
        return []
    together = "waiting for another rank and transfer look the same"
    if len(job.ranks) == 1:
        return [f"Only one of {world_size} ranks was analyzed: {together}."] if (world_size or 1) > 1 else []
    if not found.matched:
        unmatched = f"No collective could be matched across the ranks: {together}."
        return [*captures_apart(job.ranks), *found.problems, unmatched]
    matching = job.matching
    partial = matching is not None and any(not group.whole for group in matching.groups)
    missing = ["Not all members of the process groups were read: the last to arrive may be missing."] if partial else []
    return [*missing, *found.problems]
