"""From a number to the raw events behind it."""

from collections.abc import Callable
from pathlib import Path

from profilerkit.analysis.behind.recorded import sampled_events, step_events, timed_events, timed_parts
from profilerkit.analysis.behind.traced import events_between, events_of_parts
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.model.finding import STEP_LENGTHS, Evidence
from profilerkit.model.raw import RawEvents
from profilerkit.model.step import PARTS
from profilerkit.rundir.layout import EVENTS
from profilerkit.trace.columns import TraceColumns, TraceMeta


def raw_events(evidence: Evidence, rank: RankFacts, read: Callable[[TraceMeta], TraceColumns]) -> tuple[RawEvents, ...]:
    """What the recording of a rank holds behind a number, a table for each file; empty where that cannot be told.

    Args:
        evidence: the number.
        rank: whose number it is.
        read: the columns of a trace by its files; facts keep none of the events.
    """
    if not files_of(rank):
        return ()  # there are logs alone
    parts = tuple(name for name in evidence.behind if name in PARTS)
    timed = timed_parts(rank)
    found = [timed_events([name for name in parts if name in timed], rank, files_of(rank)[0])]
    found += [sampled_events(name, rank) for name in evidence.behind if name not in PARTS and name != STEP_LENGTHS]
    if STEP_LENGTHS in evidence.behind:
        found.append(step_events(rank, files_of(rank)[0]))
    trace, traced = rank.trace, [name for name in parts if name not in timed]
    if trace is not None and traced:
        found.append(events_of_parts(traced, trace, read(trace.meta), files_of(rank)[-1]))
    elif trace is not None and not evidence.behind and evidence.range_ns is not None:
        found.append(events_between(evidence.range_ns, trace, read(trace.meta), files_of(rank)[-1]))
    return tuple(table for table in found if table is not None and table.rows)


def files_of(rank: RankFacts) -> tuple[str, ...]:
    """The files of a rank, named from its run on: the timers' before the trace."""
    named = [] if rank.record is None else [f"{rank.record.path.name}/{EVENTS}"]
    if rank.trace is not None:
        path = Path(rank.trace.meta.path)
        run = rank.record.path.parent if rank.record else path.parent
        named.append(path.relative_to(run).as_posix() if path.is_relative_to(run) else path.name)
    return tuple(named)
