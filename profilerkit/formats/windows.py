"""Choose which of a run's traced windows are read, and which trace files are windows of one process."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from profilerkit.analysis.trace_facts import TraceFacts
from profilerkit.formats.jobs import Reading, SlowJob, TraceJob, TraceResult
from profilerkit.rundir import layout
from profilerkit.rundir.files import GrowingLines, read_document
from profilerkit.rundir.reader import RankRecord
from profilerkit.rundir.sampled import Sample

#: Two hours of them, one a second.
_MOST_SAMPLES = 7_200

Window = tuple[layout.WindowStatus, Path]


def typical_windows(ranks: Sequence[RankRecord]) -> list[list[Window]]:
    """For each rank its usable windows of typical steps, the one to judge first.

    That is the last of those that most ranks have: ranks are compared within the same steps, and the later a window,
    the longer ago are start-up and warm-up. A window opened for slow steps is never judged as typical.
    """
    usable = [[window for window in _usable(rank) if window[0].kind == "scheduled"] for rank in ranks]
    held = Counter(status.first_step for windows in usable for status, _ in windows)
    return [
        sorted(windows, key=lambda window: (held[window[0].first_step], window[0].first_step), reverse=True)
        for windows in usable
    ]


def job_of_trace(
    trace: Path, recorded: tuple[layout.WindowStatus, layout.RankMeta] | None, reading: Reading, replay_events: int
) -> TraceJob:
    """How one trace is read: one that lies in its window of a run directory with what ``window_of`` says of it."""
    if recorded is None:
        return TraceJob(((trace, None),), reading, replay_events=replay_events)
    status, meta = recorded
    whole = (status.first_step, status.last_step)
    return TraceJob(((trace, whole),), reading, steps_are_given=are_given(meta), replay_events=replay_events)


def window_of(trace: Path) -> tuple[layout.WindowStatus, layout.RankMeta] | None:
    """What the run directory says of a trace that lies in it; ``None`` for any other."""
    try:
        status = read_document(trace.with_name(layout.WINDOW_STATUS), layout.WindowStatus)
        meta = read_document(trace.parents[2] / layout.META, layout.RankMeta)
    except (OSError, ValueError, IndexError):
        return None
    return status, meta


def samples_beside(trace: Path) -> tuple[Sample, ...]:
    """The latest samples of the rank that a trace in a run directory is of: two hours at most."""
    return tuple(GrowingLines(trace.parents[2] / layout.SAMPLES, Sample, _MOST_SAMPLES).look())


def are_given(meta: layout.RankMeta | None) -> bool:
    """Whether the step markers stand where the user put them."""
    return meta is None or meta.steps_found_by in (None, layout.BY_STEP_CALLS, layout.BY_WRAPPED_LOADER)


def slow_job(rank: RankRecord) -> SlowJob | None:
    """The trace of the window that was opened for slow steps."""
    for status, path in _usable(rank):
        if status.kind == "anomaly":
            return SlowJob(path, (status.first_step, status.last_step), status.slow_step, status.trigger)
    return None


def window_notes(ranks: Sequence[RankRecord], jobs: Sequence[TraceJob], results: Sequence[TraceResult]) -> list[str]:
    """Which of several windows was judged, and what the slow step showed, in sentences."""
    judged: Counter[int] = Counter()
    for job, result in zip(jobs, results, strict=True):
        if result.facts is not None:
            whole = job.files[len(result.errors)][1]
            judged[whole[0] if whole else 0] += 1
    several = {whole[0] for job in jobs for _, whole in job.files if whole}
    notes = []
    if len(several) > 1 and judged:
        first, _ = judged.most_common(1)[0]
        which = "the last that most ranks have" if len(ranks) > 1 else "the last that can be read"
        traced = f"{len(several)} windows of typical steps were traced"
        notes.append(f"{traced}; judged is that from step {first:,} on, {which}.")
    return notes + _slow_notes(ranks, jobs, results)


def _slow_notes(ranks: Sequence[RankRecord], jobs: Sequence[TraceJob], results: Sequence[TraceResult]) -> list[str]:
    """The slow step of the rank in which most grew that is no waiting for others: the cause is seen there."""
    told = [
        (result.slow.own_ns, rank.rank, result.slow.told(job.slow.trigger))
        for rank, job, result in zip(ranks, jobs, results, strict=True)
        if job.slow is not None and result.slow is not None
    ]
    if not told:
        return []
    _, number, sentence = max(told, key=lambda entry: (entry[0], -entry[1]))
    return [f"Rank {number}: {sentence}" if len(ranks) > 1 else sentence]


def _usable(rank: RankRecord) -> list[Window]:
    return [(status, path) for status, path in rank.windows if status.ok and path is not None]


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
    return rising and (before.meta.base_time_ns or 0) + int(before.steps.end.max()) <= _begin_ns(after)


def _begin_ns(facts: TraceFacts) -> int:
    return (facts.meta.base_time_ns or 0) + int(facts.steps.start.min())
