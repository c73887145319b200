"""Which trace files are windows of one process, as a schedule that repeats writes them."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from profilerkit.analysis.trace_facts import TraceFacts

#: More events than this are not read together: about 150 bytes each.
MOST_EVENTS = 8_000_000
_NAMED = 6

#: One file, and what it says by itself.
Read = tuple[Path, TraceFacts]


def windows_of_processes(read: Sequence[Read]) -> list[list[Read]]:
    """Return the files of each process that wrote several, in order of time.

    Files are of one process where they name the same process, rank and device, and the marked steps of each are later
    than those of the file before, by their numbers as by the clock. Ranks of a job do the same steps, and a run that
    was begun again begins its steps again.
    """
    groups: dict[tuple[object, ...], list[Read]] = {}
    for path, facts in read:
        if facts.meta.process is not None and not facts.steps.inferred and len(facts.steps.index):
            name = facts.properties.name if facts.properties else None
            groups.setdefault((facts.meta.process, facts.meta.rank, facts.meta.host, name), []).append((path, facts))
    ordered = [sorted(group, key=lambda of: _begin_ns(of[1])) for group in groups.values() if len(group) > 1]
    return [group for group in ordered if all(_follows(before, after) for (_, before), (_, after) in pairwise(group))]


def fitting(group: Sequence[Read]) -> list[Read]:
    """Return the first windows of a process that fit into memory together, at least one."""
    events, out = 0, list(group[:1])
    for (_, before), entry in pairwise(group):
        events += before.n_events
        if events + entry[1].n_events > MOST_EVENTS:
            break
        out.append(entry)
    return out


def window_note(group: Sequence[Read], used: Sequence[Read]) -> str:
    """Return what was read together, and what was left out."""
    spans = [f"{facts.steps.index[0]}–{facts.steps.index[-1]}" for _, facts in used[:_NAMED]]
    more = f" and {len(used) - _NAMED} more" if len(used) > _NAMED else ""
    process = used[0][1].meta.process
    if len(used) == len(group):
        said = f"{len(used)} files are windows of process {process} and were read as one recording"
    else:
        said = f"Only the first {len(used)} of {len(group)} windows of process {process} were read: all are too large"
    return f"{said}: steps {', '.join(spans)}{more}."


def _follows(before: TraceFacts, after: TraceFacts) -> bool:
    rising = int(before.steps.index.max()) < int(after.steps.index.min())
    return rising and _base_ns(before) + int(before.steps.end.max()) <= _begin_ns(after)


def _begin_ns(facts: TraceFacts) -> int:
    return _base_ns(facts) + int(facts.steps.start.min())


def _base_ns(facts: TraceFacts) -> int:
    return facts.meta.base_time_ns or 0
