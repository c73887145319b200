"""From the paths a person names to what is there, and what a report says of the run they are."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.rank_facts import RankFacts, rank_facts
from profilerkit.analysis.ranks.alike import contradiction
from profilerkit.analysis.trust import record_notes
from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.formats.directories import holds_traces, named_as_traces, older_notes, refuse_other_tools, traces_in
from profilerkit.formats.jobs import Reading, TraceJob, TraceResult, read_all
from profilerkit.formats.registry import Reader, files_of, read_files
from profilerkit.formats.windows import (
    Read,
    are_given,
    fitting,
    slow_job,
    typical_windows,
    window_note,
    window_notes,
    windows_of_processes,
)
from profilerkit.model import revise
from profilerkit.model.run import Run
from profilerkit.rundir.ending import Ending
from profilerkit.rundir.layout import MANIFEST
from profilerkit.rundir.reader import RankRecord, RunRecord, is_run_directory, named_ranks, read_run
from profilerkit.trace.logs import Log

# More files than this are counted instead of named.
_NAMED = 3
#: The rank in a name such as ``nccl_trace_rank_0`` or ``dump-rank3.json``, else the last number of it.
_RANK, _LAST_NUMBER = re.compile(r"rank[_\-.]?(\d{1,6})(?!\d)", re.IGNORECASE), re.compile(r"(?<!\d)(\d{1,6})\D*$")

Files = list[tuple[Path, Reader]]


class Recording(msgspec.Struct, frozen=True):
    """What was read.

    Attributes:
        ranks: at least one, by rank number; of logs alone one that nothing was recorded of.
        run: the run directory; ``None`` for traces.
        notes: what a reader of the report has to know about the input, in plain sentences.
        logs: what was read beside them, or instead.
        of: how many ranks were read, where ``ranks`` are only some of them; 0 where they are all.
        world_size: ranks of the whole job where no run directory says it; ``None`` leaves it to the traces.
        by_dumps: the ranks are those of flight recorder dumps, and nothing else was read of them.
        left_out: files of a directory that cannot be read, each with the reason, and how many more there are.
    """

    ranks: list[RankFacts]
    run: RunRecord | None
    notes: tuple[str, ...]
    logs: tuple[Log, ...] = ()
    of: int = 0
    world_size: int | None = None
    by_dumps: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def distinct(self) -> int:
        """How many different ranks there are; files that do not name theirs count one each."""
        if self.of:
            return self.of
        known = {entry.rank for entry in self.ranks if entry.rank is not None}
        return len(known) + sum(entry.rank is None for entry in self.ranks)


def read_inputs(paths: Sequence[Path], reading: Reading) -> Recording:
    """Everything that can be read of the paths.

    Raises:
        UsageError: no path, the same file twice, a run directory together with anything but logs, dumps of flight
            recorders together with anything, or traces that are not the ranks of one job.
        UnreadableInputError: a path is missing, a file that was named is no readable trace or log, or there is none.
    """
    if not paths:
        raise UsageError("no path was given", hint="name a trace file or a run directory")
    require_existing(paths)
    others = [path for path in paths if not is_run_directory(path)]
    dumps = {path: files for path, files in files_of(others, "dump").items() if not _has_others(path, files)}
    if dumps:
        return _of_dumps(paths, dumps, strict=reading.strict)
    found = files_of(others, "log")
    _check_distinct(path if file == path else file for path in paths for file, _ in found.get(path, ()))
    logs, left_out = read_files(found, strict=reading.strict)
    rest = [path for path in paths if path not in found or (path.is_dir() and holds_traces(path))]
    if rest:
        recording = _read_recordings(rest, reading)
    elif logs:
        recording = Recording([rank_facts(logs[0].origin, None, None)], None, ())
    else:
        raise left_out[0][1]
    return _without(revise(recording, logs=tuple(logs)), left_out, "log")


def _has_others(path: Path, dumps: Files) -> bool:
    return path.is_dir() and bool(set(named_as_traces(path)) - {file for file, _ in dumps})


def _of_dumps(paths: Sequence[Path], found: dict[Path, Files], *, strict: bool) -> Recording:
    """The ranks of flight recorder dumps.

    Raises:
        UsageError: something else was named beside them.
        UnreadableInputError: a dump that was named, or each of a directory, cannot be read.
    """
    from profilerkit.analysis.ranks.dumps import dumped_ranks

    _check_distinct(path if file == path else file for path in paths for file, _ in found.get(path, ()))
    other = next((path for path in paths if path not in found), None)
    if other is not None:
        raise UsageError(
            "flight recorder dumps cannot be combined with other inputs",
            cause=f"{other} is not a dump",
            hint="name the dumps of all ranks, or the directory that holds them",
        )
    dumps, left_out = read_files(found, strict=strict)
    if not dumps:
        raise left_out[0][1]
    numbers, said = _ranks_named([dump.origin for dump in dumps])
    ranks, notes = dumped_ranks(dumps, numbers)
    sizes = [dump.world_size for dump in dumps if dump.world_size is not None]
    recording = Recording(ranks, None, (*said, *notes), world_size=max(sizes, default=None), by_dumps=True)
    return _without(recording, left_out, "dump")


def _ranks_named(names: Sequence[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The rank of each dump by its name, where every name tells one; else by their order, which is said.

    A last number that several names share is not taken for a rank: it may be a date, or the step.

    >>> _ranks_named(["nccl_trace_rank_1", "nccl_trace_rank_0"])[0], _ranks_named(["b.json", "a.json"])[0]
    ((1, 0), (0, 1))
    """
    marked = [_RANK.search(name) for name in names]
    if all(marked):
        return tuple(int(match[1]) for match in marked if match), ()
    numbered = [_LAST_NUMBER.search(name) for name in names]
    numbers = tuple(int(match[1]) for match in numbered if match)
    if len(set(numbers)) == len(names):
        return numbers, ()
    order = ", ".join(f"{name} as rank {place}" for place, name in enumerate(names[:4]))
    more = ", and so on" if len(names) > 4 else ""
    return tuple(range(len(names))), (
        f"The names of the dumps do not tell the ranks, which were numbered in the order given: {order}{more}.",
    )


def _read_recordings(paths: Sequence[Path], reading: Reading) -> Recording:
    runs = [path for path in paths if is_run_directory(path)]
    if not runs:
        return _read_traces(paths, reading)
    if len(paths) > 1:
        other = next(path for path in paths if path is not runs[0])
        raise UsageError(
            "a run directory can only be combined with logs",
            cause=f"{runs[0]} is a run directory, and {other} was named too",
            hint="analyze each of them by itself, or compare two runs: profilerkit diff BEFORE AFTER",
        )
    return _read_run(read_run(runs[0]), reading)


def require_existing(paths: Iterable[Path]) -> None:
    """Raise ``UnreadableInputError`` for the first path that is not there."""
    for path in paths:
        if not path.exists():
            raise UnreadableInputError(
                f"{path} does not exist",
                cause="there is no such file or directory",
                hint="check the spelling of the path",
            )


def is_saved_report(path: Path) -> bool:
    """Whether the file is a report of ours rather than a trace, by its first keys."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(64)
    return re.match(rb'\s*\{\s*"(breakdown|schema_version|verdict)"\s*:', head) is not None


def read_records(run: RunRecord) -> Recording:
    """Return what the records of a run say by themselves. Raises ``UnreadableInputError`` without any rank's."""
    bare = [revise(entry, windows=tuple((status, None) for status, _ in entry.windows)) for entry in run.ranks]
    return _read_run(revise(run, ranks=tuple(bare)), Reading())


def _read_run(run: RunRecord, reading: Reading) -> Recording:
    if not run.ranks:
        raise UnreadableInputError(
            f"{run.path} holds no recording",
            cause=f"it has {MANIFEST} but the files of no rank" + "".join(f"; {note}" for note in run.notes[:_NAMED]),
            hint="record again; if the files were copied, copy the rank_* directories too",
        )
    jobs = []
    for entry, windows in zip(run.ranks, typical_windows(run.ranks), strict=True):
        files = tuple((path, (status.first_step, status.last_step)) for status, path in windows)
        jobs.append(TraceJob(files, reading, steps_are_given=are_given(entry.meta), slow=slow_job(entry)))
    results = list(read_all(jobs))
    ranks = [_rank_of_run(entry, result, reading) for entry, result in zip(run.ranks, results, strict=True)]
    usable = [entry for entry in ranks if entry.log is not None or entry.trace is not None]
    empty = [entry.record for entry in ranks if entry not in usable and entry.record is not None]
    said = (*run.notes, *window_notes(run.ranks, jobs, results))
    if not usable:
        return Recording(ranks, run, said)
    notes = [f"{named_ranks([record.rank for record in empty])} recorded no step."] if empty else []
    return Recording(usable, run, (*said, *notes, *record_notes(empty)))


def _rank_of_run(entry: RankRecord, result: TraceResult, reading: Reading) -> RankFacts:
    """The rank with its first readable trace; a damaged one costs itself, not the timers, and is said in the notes.

    With ``reading.strict`` it is an error.
    """
    if reading.strict and result.errors:
        raise result.errors[0][1]
    errors = (*result.errors, *((result.slow_error,) if result.slow_error else ()))
    notes = [f"{path.parent.name}/{path.name} cannot be read: {error.cause or error.what}" for path, error in errors]
    return rank_facts(entry.path.name, result.facts, revise(entry, notes=(*entry.notes, *notes)))


def _read_traces(paths: Sequence[Path], reading: Reading) -> Recording:
    """Files that were named must be traces; of a directory the others are left out, and that is said."""
    named = [path for path in paths if not path.is_dir()]
    found = [file for path in paths if path.is_dir() for file in traces_in(path)]
    _check_distinct([*named, *found])
    read: list[Read] = []
    left_out: list[tuple[Path, UnreadableInputError]] = []
    results = read_all([TraceJob(((path, None),), reading) for path in (*named, *found)])
    for number, (path, result) in enumerate(zip((*named, *found), results, strict=True)):
        if result.errors and (reading.strict or number < len(named)):
            refuse_other_tools(path)
            raise result.errors[0][1]
        if result.facts is not None:
            parts = (result.facts, *result.beside)
            if len(parts) > 1 and len(named) + len(found) > 1:  # each file numbers its own from 0
                parts = tuple(revise(facts, meta=revise(facts.meta, rank=None, world_size=None)) for facts in parts)
            read += [(path, facts) for facts in parts]
        left_out += result.errors
    if not read:
        first, why = left_out[0]
        tried = f"{len(left_out)} files were tried; " if len(left_out) > 1 else ""
        raise UnreadableInputError(
            f"no trace in {first.parent} can be read",
            cause=f"{tried}{first.name}: {why.cause or why.what}",
            hint="name the trace files themselves",
        ) from why
    ranks, together = _ranks_of(read, reading)
    ranks.sort(key=lambda entry: (entry.rank is None, entry.rank or 0, entry.origin))
    require_one_job(ranks)
    older = older_notes(path for path in paths if path.is_dir())
    return _without(Recording(ranks, None, (*older, *together)), left_out, "trace")


def _ranks_of(read: Sequence[Read], reading: Reading) -> tuple[list[RankFacts], list[str]]:
    """The rank of each process: files that are windows of one process are read once more, together."""
    groups = windows_of_processes(read)
    used = [fitting(group) for group in groups]
    jobs = [TraceJob(tuple((path, None) for path, _ in group), reading, are_windows=True) for group in used]
    grouped = {id(facts) for group in groups for _, facts in group}
    ranks = [rank_facts(path.name, facts, None) for path, facts in read if id(facts) not in grouped]
    for group, result in zip(used, read_all(jobs) if jobs else (), strict=True):
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        ranks.append(rank_facts(f"{group[0][0].name}{more}", result.facts, None))
    return ranks, [window_note(*both) for both in zip(groups, used, strict=True)]


def _check_distinct(files: Iterable[Path]) -> None:
    seen: dict[Path, Path] = {}
    for path in files:
        first = seen.setdefault(path.resolve(), path)
        if first is not path:
            raise UsageError(
                f"{path} was given twice",
                cause="by itself or within a directory" if path == first else f"it is the same file as {first}",
                hint="name each trace once, or only the directory",
            )


def _without(recording: Recording, left_out: Sequence[tuple[Path, UnreadableInputError]], kind: str) -> Recording:
    """Return the recording with the files that cannot be read: the first are named, the others counted."""
    named = [(path.name, error.cause or error.what) for path, error in left_out[:_NAMED]]
    notes = [f"{name} is not a {kind} that can be read and was left out: {why}." for name, why in named]
    said = [f"{name} ({why})" for name, why in named]
    if (more := len(left_out) - _NAMED) > 0:
        said.append(f"{more} more file{'s' if more > 1 else ''}")
        notes.append(f"{said[-1]} there cannot be read as {kind}s and {'were' if more > 1 else 'was'} left out.")
    return revise(recording, notes=(*recording.notes, *notes), left_out=(*recording.left_out, *said))


def require_one_job(ranks: Sequence[RankFacts]) -> None:
    """Raise ``UsageError`` for traces of several runs: compared as ranks they would say nothing that is true."""
    why = contradiction(ranks)
    if why is not None:
        raise UsageError(
            "these recordings are not the ranks of one job",
            cause=why,
            hint="analyze each by itself, or compare two runs: profilerkit diff BEFORE AFTER",
        )


def describe(places: Sequence[Path], recording: Recording, ending: Ending | None, facts: Facts, version: str) -> Run:
    """The run that ``places`` are, as it was recorded; ``version`` is of profilerkit."""
    record, ranks, logs = recording.run, recording.ranks, facts.logs
    alone = logs is not None and logs.alone
    manifest = record.manifest if record else None
    metas = [rank.meta for rank in record.ranks if rank.meta] if record else []
    traced = [entry.trace.meta for entry in ranks if entry.trace]
    first = places[0].resolve()
    together = len(places) > 1 and len({place.resolve().parent for place in places}) == 1
    return Run(
        name=first.parent.name if together else first.name,
        kind="run" if record else "logs" if alone else "dumps" if facts.by_dumps else "trace",
        files=(*(() if alone else (entry.origin for entry in ranks)), *(log.origin for log in recording.logs)),
        left_out=recording.left_out,
        profilerkit_version=version,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        world_size=facts.world_size,
        ranks=tuple(entry.rank for entry in ranks if entry.rank is not None),
        missing_ranks=facts.missing_ranks,
        ended=ending.word if ending else None,
        ending=ending.kind if ending else None,
        failure=facts.failure,
        messages=ending.messages if ending else (),
        command=" ".join((Path(manifest.argv[0]).name, *manifest.argv[1:])) if manifest and manifest.argv else None,
        devices=tuple(dict.fromkeys(entry.device for entry in facts.ranks if entry.device)),
        loader=facts.loader,
        batch_size=facts.loader.batch_size if facts.loader else None,
        batches_per_step=facts.input.fetches / facts.steps.steady
        if facts.input and facts.input.gap is None and facts.steps.steady
        else None,
        versions=_versions(record)
        if record and manifest
        else {k: v for meta in traced for k, v in meta.versions.items()},
        settings={**manifest.settings, **manifest.environment} if manifest else {},
        samples=(*facts.samples, *(logs.series if logs else ())),
        processors=tuple(dict.fromkeys(meta.processor for meta in metas if meta.processor)),
        usable_cores=facts.usable_cores,
        host_ranks=facts.host_ranks,
    )


def _versions(record: RunRecord) -> dict[str, str]:
    """Of what ran, as rank 0 saw it, and of the driver of the device that was sampled."""
    gpus = [rank.meta.gpu for rank in record.ranks if rank.meta and rank.meta.gpu]
    drivers = [gpu.driver_version for gpu in gpus if gpu.driver_version]
    found = dict(record.manifest.versions) if record.manifest else {}
    return found | ({"driver": drivers[0]} if drivers else {})
