"""What some ranks of a job have and others have not, in sentences for the report: traces and steps."""

from collections.abc import Sequence

import msgspec

from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.ranks.matching import EPOCH_NS
from profilerkit.rundir.reader import RankRecord, named_ranks
from profilerkit.units import format_long_ns

#: Ranks of one job may be one step apart when something ends it.
_STEPS_APART = 1
#: Captures this far apart are of different collectives: hosts' clocks differ by less where they are set at all, and
#: nobody waits so long (NCCL's own timeout is 10 minutes, but what waits that long ends the run).
APART_NS = 120 * 1_000_000_000


def why_no_trace(record: RankRecord | None) -> str:
    """Why a rank has no trace, as far as it says so."""
    of_typical_steps = [status for status, _ in record.windows if status.kind == "scheduled"] if record else []
    for status in of_typical_steps:
        if not status.ok:
            return status.reason
    if record and record.windows and not of_typical_steps:
        return "only slow steps were traced"
    deep = record.meta.features.get("deep") if record and record.meta else None
    if deep is not None and not deep.on:
        return deep.reason
    return "no trace window was opened" if deep is None else "its directory has none"


def without_trace(ranks: Sequence[RankFacts]) -> list[str]:
    """Which ranks have no trace and why, where others have one: what they made the others wait for is not seen."""
    if not any(rank.trace for rank in ranks):
        return []
    of: dict[str, list[int]] = {}
    for rank in ranks:
        if rank.trace is None and rank.rank is not None:
            of.setdefault(why_no_trace(rank.record), []).append(rank.rank)
    return [
        f"{named_ranks(found)} {'has' if len(found) == 1 else 'have'} no trace: {why}." for why, found in of.items()
    ]


def uneven_steps(ranks: Sequence[RankFacts]) -> list[str]:
    """That ranks recorded different numbers of steps, by their timers or, where all have only traces, by these."""
    timed = [rank for rank in ranks if rank.log is not None]
    counted = sorted(timed or ranks, key=lambda rank: rank.steps.count)
    if len(counted) < 2 or counted[-1].steps.count - counted[0].steps.count <= _STEPS_APART:
        return []
    ends = (counted[0], counted[-1])
    told = " and ".join(
        f"{'at least ' * _lost_its_end(rank)}{rank.steps.count:,} by {rank_name(rank)}" for rank in ends
    )
    lost = "; a killed rank loses its last records" if any(map(_lost_its_end, ends)) else ""
    return [f"The ranks recorded different numbers of steps: {told}{lost}."]


def _lost_its_end(rank: RankFacts) -> bool:
    """Whether the rank's timers stop without a word: what it had not written yet is not counted."""
    return rank.log is not None and rank.record is not None and rank.record.end is None


def captures_apart(ranks: Sequence[RankFacts]) -> list[str]:
    """That two traces are of times too far apart for anybody to have waited in both; nothing if a clock is unknown."""
    traced = [rank for rank in ranks if rank.trace is not None and len(rank.trace.steps.start)]
    spans = [_captured(rank) for rank in traced]
    found = _apart(spans)
    if found is None or found.ns < APART_NS or None in spans:
        return []
    first, last = rank_name(traced[found.first]), rank_name(traced[found.last])
    return [
        f"The captures do not overlap: {first} ends {format_long_ns(found.ns)} before {last} begins. "
        "They show different steps or different runs, so no collectives were matched."
    ]


class Apart(msgspec.Struct, frozen=True):
    """Two captures by their positions: the ``first`` ends ``ns`` before the ``last`` begins."""

    ns: int
    first: int
    last: int


def apart(ranks: Sequence[RankFacts]) -> Apart | None:
    """The two captures that lie farthest apart; ``None`` where all overlap, or fewer than two tell the time of day."""
    return _apart([_captured(rank) for rank in ranks])


def _apart(captured: Sequence[tuple[int, int] | None]) -> Apart | None:
    spans = [(span, at) for at, span in enumerate(captured) if span is not None]
    if not spans:
        return None
    (_, end), first = min(spans, key=lambda entry: entry[0][1])
    (start, _), last = max(spans)
    return Apart(start - end, first, last) if start > end else None


def _captured(rank: RankFacts) -> tuple[int, int] | None:
    """From the first step of a trace to the end of its last, ns since the epoch; ``None`` on any other clock."""
    if rank.trace is None or not len(rank.trace.steps.start):
        return None
    base, steps = rank.trace.meta.base_time_ns or 0, rank.trace.steps
    start, end = base + int(steps.start.min()), base + int(steps.end.max())
    return (start, end) if start >= EPOCH_NS else None


def rank_name(rank: RankFacts) -> str:
    """A rank by its number, else by where it was read."""
    return rank.origin if rank.rank is None else f"rank {rank.rank}"
