"""Whether several recordings can be the ranks of one job, by what each says of itself."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.analysis.unequal_ranks import apart
from profilerkit.units import format_long_ns

#: Captures this far apart are of several runs where nothing says that they are of one (a choice: a job's ranks are
#: traced together).
HOURS_APART_NS = 3_600_000_000_000
#: A file so named is of a rank, though nothing in it says so.
_NAMED_AS_RANK = re.compile(r"rank[_\-.]?\d", re.IGNORECASE)
#: Recordings named one by one.
_MOST_NAMED = 3

_Named = tuple[str, RankFacts, TraceFacts]


def contradiction(ranks: Sequence[RankFacts]) -> str | None:
    """Why traces that were given together are no ranks of one job, in words; ``None`` where they may be.

    What one of them does not say contradicts nothing, unless none of them says anything of a job.
    """
    names = _names(ranks)
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
    if found is not None and found.ns >= HOURS_APART_NS:
        first, last = given[found.first][0], given[found.last][0]
        gap = format_long_ns(found.ns)
        yield f"{first} ends {gap} before {last} begins, and nothing shows that they are one job"
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


def _names(ranks: Sequence[RankFacts]) -> list[str]:
    """What each recording is called: its file, with the directory where several files have one name."""
    paths = [Path(rank.trace.meta.path if rank.trace else rank.origin) for rank in ranks]
    if len({rank.origin for rank in ranks}) == len(set(paths)):
        return [rank.origin for rank in ranks]
    return ["/".join(path.parts[-2:]) for path in paths]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    if more > 0:
        return f"{', '.join(names[:_MOST_NAMED])} and {more} more"
    return f"{', '.join(names[:-1])} and {names[-1]}"
