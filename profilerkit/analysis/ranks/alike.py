"""Whether recordings are ranks of one job, what some ranks have and others have not, and who shares their host."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.ranks.matching import EPOCH_NS
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.model.run import Series
from profilerkit.rundir.reader import RankRecord, named_ranks
from profilerkit.units import format_long_ns

SIBLING_CORES = "host.sibling_cores"  #: signal: cores that the run's other ranks on this host and their workers use

_STEPS_APART = 1  #: ranks of one job may be one step apart when something ends it
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
    return [f"{named_ranks(own)} {'has' if len(own) == 1 else 'have'} no trace: {why}." for why, own in of.items()]


def uneven_steps(ranks: Sequence[RankFacts]) -> list[str]:
    """That ranks recorded different numbers of steps, by their timers or, where all have only traces, by these."""
    timed = [rank for rank in ranks if rank.log is not None]
    counted = sorted(timed or ranks, key=lambda rank: rank.steps.count)
    if len(counted) < 2 or counted[-1].steps.count - counted[0].steps.count <= _STEPS_APART:
        return []
    # What a rank had not written yet when its timers stopped without a word is not counted.
    ends = (counted[0], counted[-1])
    lost = [one.log is not None and one.record is not None and one.record.end is None for one in ends]
    named = zip(ends, lost, strict=True)
    told = " and ".join(f"{'at least ' * is_lost}{one.steps.count:,} by {rank_name(one)}" for one, is_lost in named)
    why = "; a killed rank loses its last records" if any(lost) else ""
    return [f"The ranks recorded different numbers of steps: {told}{why}."]


def captures_apart(ranks: Sequence[RankFacts]) -> list[str]:
    """That two traces are of times too far apart for anybody to have waited in both; nothing if a clock is unknown."""
    traced = [rank for rank in ranks if rank.trace is not None and len(rank.trace.steps.start)]
    found = apart(traced)
    if found is None or found[0] < APART_NS or any(captured(rank) is None for rank in traced):
        return []
    first, last = (rank_name(traced[at]) for at in found[1:])
    return [
        f"The captures do not overlap: {first} ends {format_long_ns(found[0])} before {last} begins. "
        "They show different steps or different runs, so no collectives were matched."
    ]


def apart(ranks: Sequence[RankFacts]) -> tuple[int, int, int] | None:
    """How far two captures lie apart at most, ns, and their positions; ``None`` where all of known time overlap."""
    spans = [(span, at) for at, rank in enumerate(ranks) if (span := captured(rank)) is not None]
    if not spans:
        return None
    (_, end), first = min(spans, key=lambda entry: entry[0][1])
    (start, _), last = max(spans)
    return (start - end, first, last) if start > end else None


def captured(rank: RankFacts) -> tuple[int, int] | None:
    """From the first step of a trace to the end of its last, ns since the epoch; ``None`` on any other clock."""
    if rank.trace is None or not len(rank.trace.steps.start):
        return None
    base, steps = rank.trace.meta.base_time_ns or 0, rank.trace.steps
    start, end = base + int(steps.start.min()), base + int(steps.end.max())
    return (start, end) if start >= EPOCH_NS else None


def rank_name(rank: RankFacts) -> str:
    """A rank by its number, else by where it was read."""
    return rank.origin if rank.rank is None else f"rank {rank.rank}"


def sibling_cores(ranks: Sequence[RankFacts], chosen: RankFacts, world_size: int | None) -> tuple[Series, ...]:
    """Cores that the siblings of ``chosen`` and their workers used, derived: the sum of their means.

    Empty where a rank was not read or a sibling was not sampled; 0 where all are on other hosts.
    """
    recorded = sum(rank.record is not None and rank.record.meta is not None for rank in ranks)
    used = [_used(rank) for rank in together(ranks, chosen) if rank is not chosen]
    told = [cores for cores in used if cores is not None]
    if world_size in (None, 1) or recorded < world_size or len(told) < len(used):
        return ()
    mean, n = sum(cores for cores, _ in told), min((n for _, n in told), default=0)
    # The ranks were not sampled at the same moments: only their means can be added.
    rank = chosen.rank
    return (Series(name=SIBLING_CORES, unit="cores", n=n, mean=mean, p10=mean, p90=mean, maximum=mean, rank=rank),)


def together(ranks: Sequence[RankFacts], chosen: RankFacts) -> list[RankFacts]:
    """Recorded ranks on the host of ``chosen``, itself among them; none where its host is not known."""
    host = chosen.record.meta.host if chosen.record and chosen.record.meta else None
    if host is None:
        return []
    return [rank for rank in ranks if rank.record and rank.record.meta and rank.record.meta.host == host]


def _used(rank: RankFacts) -> tuple[float, int] | None:
    """Cores of a rank and its workers, and from how many samples; ``None`` where either was not sampled."""
    found = {series.name: series for series in rank.samples}
    process, workers = found.get("host.process_cores"), found.get("host.worker_cores")
    if process is None or (workers is None and "host.workers" in found):
        return None
    return process.mean + (workers.mean if workers else 0.0), process.n


#: Captures this far apart are of several runs where nothing says that they are of one (a choice: a job's ranks are
#: traced together).
HOURS_APART_NS = 3_600_000_000_000
#: A file so named is of a rank, though nothing in it says so.
_NAMED_AS_RANK = re.compile(r"rank[_\-.]?\d", re.IGNORECASE)
_MOST_NAMED = 3  #: recordings named one by one

_Named = tuple[str, RankFacts, TraceFacts]


def contradiction(ranks: Sequence[RankFacts]) -> str | None:
    """Why traces that were given together are no ranks of one job, in words; ``None`` where they may be."""
    names, paths = [rank.origin for rank in ranks], [Path(r.trace.meta.path if r.trace else r.origin) for r in ranks]
    if len(set(names)) != len(set(paths)):  # several files have one name
        names = ["/".join(path.parts[-2:]) for path in paths]
    traced = [(name, rank, rank.trace) for name, rank in zip(names, ranks, strict=True) if rank.trace is not None]
    return next(_contradictions(traced), None) if len(traced) > 1 else None


def _contradictions(given: Sequence[_Named]) -> Iterator[str]:
    yield from _differ("of a job of {} ranks", [(name, trace.meta.world_size) for name, _, trace in given])
    by_number: dict[int, list[str]] = {}
    for name, rank, _ in given:
        if rank.rank is not None:
            by_number.setdefault(rank.rank, []).append(name)
    for number, same in by_number.items():
        if len(same) > 1:
            all_of = "both" if len(same) == 2 else "all"
            yield f"{_listed(same)} are {all_of} of rank {number}: from several runs, or from one at several times"
    if all(rank.rank is not None for _, rank, _ in given):
        return
    # Ranks that say which they are may have different devices, and be traced at different times.
    yield from _differ("a profile of {}", [(name, trace.meta.framework or "PyTorch") for name, _, trace in given])
    yield from _differ("of {}", [(name, trace.properties and trace.properties.name) for name, _, trace in given])
    found = apart([rank for _, rank, _ in given])
    if found is not None and found[0] >= HOURS_APART_NS:
        first, last = (given[at][0] for at in found[1:])
        yield f"{first} ends {format_long_ns(found[0])} before {last} begins, and nothing shows that they are one job"
    if not any(_is_of_a_job(rank, trace) for _, rank, trace in given):
        yield f"none of {_listed(list(dict.fromkeys(name for name, _, _ in given)))} names a rank or shows a collective"


def _is_of_a_job(rank: RankFacts, trace: TraceFacts) -> bool:
    """Whether anything says that the trace is one of several. JAX writes one for each host beside the others."""
    told = rank.rank is not None or (trace.meta.world_size or 1) > 1 or bool(trace.meta.groups)
    seen = trace.collectives is not None or trace.meta.framework is not None
    return told or seen or _NAMED_AS_RANK.search(rank.origin) is not None


def _differ(said: str, known: Sequence[tuple[str, object]]) -> Iterator[str]:
    """That two recordings say different things of what a whole job has in common."""
    told = [(name, value) for name, value in known if value is not None]
    for name, value in told[1:]:
        first, other = told[0]
        if value != other:
            yield f"{first} is {said.format(other)}, {name} {said.format(value)}"
            return


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    if more > 0:
        return f"{', '.join(names[:_MOST_NAMED])} and {more} more"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def comparable(ranks: Sequence[RankFacts]) -> list[int]:
    """Positions of the ranks that were recorded alike: those with device events, else with a trace, else all."""
    modes = [rank.mode for rank in ranks]
    alike = next(mode for mode in ("gpu", "cpu", "steps") if mode in modes)
    return [index for index, mode in enumerate(modes) if mode == alike]
