"""What users call: paths in, a Report out. Wires the layers and decides nothing."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from profilerkit.analysis.facts import Facts
from profilerkit.analysis.rank_facts import RankFacts, rank_facts
from profilerkit.analysis.run_facts import run_facts
from profilerkit.analysis.trace_facts import trace_facts
from profilerkit.diagnosis import diagnose
from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.model.change import revise
from profilerkit.model.report import Report
from profilerkit.model.run import Run
from profilerkit.rules import RULES
from profilerkit.rules.runner import run_rules
from profilerkit.rundir.reader import RankRecord, RunRecord, is_run_directory, read_run
from profilerkit.trace.readers import read_trace

#: File names taken for traces when a directory is given.
TRACE_SUFFIXES = (".json", ".json.gz", ".json.tmp")


def analyze(
    *paths: str | Path,
    rank: int | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    device: str | None = None,
) -> Report:
    """Analyse a trace, a run directory, a directory of traces, or several traces of one job.

    Args:
        paths: what to read; several paths are ranks of one job.
        rank: judge this rank only.
        select: rule code prefixes to run; empty means all.
        ignore: rule code prefixes to leave out.
        device: device name for the peaks, where the trace does not name it.

    Raises:
        UsageError: no path, or a rank that was not recorded.
        UnreadableInputError: nothing readable was found.
    """
    from profilerkit import __version__

    if not paths:
        raise UsageError("no path was given", hint="name a trace file or a run directory")
    places = [Path(path) for path in paths]
    record = read_run(places[0]) if len(places) == 1 and is_run_directory(places[0]) else None
    ranks = _ranks_of_run(record) if record else _ranks_of_traces(places)
    recorded = len(ranks)
    if rank is not None:
        ranks = _only(ranks, rank)
    world_size = record.manifest.world_size if record and record.manifest else None
    notes = record.notes if record else ()
    facts = run_facts(ranks, device=device, world_size=world_size, recorded=recorded, notes=notes)
    outcomes = run_rules(facts, RULES, select=select, ignore=ignore)
    return Report(
        verdict=diagnose(facts, outcomes),
        steps=facts.steps,
        breakdown=facts.parts,
        ranks=facts.ranks,
        outcomes=outcomes,
        kernels=facts.kernels,
        collectives=facts.comm.table if facts.comm else (),
        memory=facts.memory,
        trust=facts.trust,
        run=_describe(places, record, facts, ranks, __version__),
    )


def load(path: str | Path) -> Report:
    """Read a report that was saved as JSON.

    Raises:
        UnreadableInputError: the file is missing, or is no report of this schema version.
    """
    from profilerkit.report.json import load as decode

    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UnreadableInputError(
            f"cannot read {path}", cause=error.strerror or str(error), hint="name a report saved as JSON"
        ) from error
    return decode(text)


def _ranks_of_run(record: RunRecord) -> list[RankFacts]:
    ranks = [_rank_of_run(entry) for entry in record.ranks]
    usable = [entry for entry in ranks if entry.log is not None or entry.trace is not None]
    return usable or ranks[:1]


def _rank_of_run(entry: RankRecord) -> RankFacts:
    """The rank with its first readable trace; a damaged one costs itself, not the timers, and is said in the notes."""
    notes: list[str] = []
    for status, path in entry.windows:
        if not status.ok or path is None:
            continue
        try:
            columns = read_trace(path)
        except UnreadableInputError as error:
            notes.append(f"{path.parent.name}/{path.name} cannot be read: {error.cause or error.what}")
            continue
        trace = trace_facts(columns, (status.first_step, status.last_step))
        return rank_facts(entry.path.name, trace, revise(entry, notes=(*entry.notes, *notes)))
    return rank_facts(entry.path.name, None, revise(entry, notes=(*entry.notes, *notes)))


def _ranks_of_traces(places: Sequence[Path]) -> list[RankFacts]:
    files: list[Path] = []
    for place in places:
        files += _traces_in(place) if place.is_dir() else [place]
    ranks = [rank_facts(path.name, trace_facts(read_trace(path)), None) for path in files]
    return sorted(ranks, key=lambda entry: (entry.rank is None, entry.rank or 0, entry.origin))


def _traces_in(directory: Path) -> list[Path]:
    files = sorted(
        path
        for path in directory.iterdir()
        if path.is_file() and path.name.endswith(TRACE_SUFFIXES) and not path.name.endswith("report.json")
    )
    if not files:
        raise UnreadableInputError(
            f"no trace in {directory}",
            cause=f"no file there ends in {', '.join(TRACE_SUFFIXES)}, and it is no run directory",
            hint="name the trace files themselves",
        )
    return files


def _only(ranks: Sequence[RankFacts], rank: int) -> list[RankFacts]:
    chosen = [entry for entry in ranks if entry.rank == rank]
    if not chosen:
        known = ", ".join(str(entry.rank) for entry in ranks if entry.rank is not None) or "none is named"
        raise UsageError(
            f"rank {rank} was not recorded", cause=f"recorded ranks: {known}", hint="choose one of them, or none"
        )
    return chosen


def _describe(
    places: Sequence[Path], record: RunRecord | None, facts: Facts, ranks: Sequence[RankFacts], version: str
) -> Run:
    manifest = record.manifest if record else None
    ends = [entry.end for entry in record.ranks] if record else []
    traced = [entry.trace.columns.meta for entry in ranks if entry.trace]
    return Run(
        name=_name(places),
        kind="run" if record else "trace",
        files=tuple(entry.origin for entry in ranks),
        profilerkit_version=version,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        world_size=facts.world_size,
        ranks=tuple(entry.rank for entry in ranks if entry.rank is not None),
        missing_ranks=facts.missing_ranks,
        ended=_ended(ends),
        command=" ".join((Path(manifest.argv[0]).name, *manifest.argv[1:])) if manifest and manifest.argv else None,
        devices=tuple(dict.fromkeys(entry.device for entry in facts.ranks if entry.device)),
        loader=facts.loader,
        batch_size=facts.loader.batch_size if facts.loader else None,
        versions=dict(manifest.versions) if manifest else {k: v for meta in traced for k, v in meta.versions.items()},
        settings={**manifest.settings, **manifest.environment} if manifest else {},
        samples=facts.samples,
    )


def _name(places: Sequence[Path]) -> str:
    """What a person calls the input: the file or directory, or for several files the directory they share."""
    first = places[0].resolve()
    together = len(places) > 1 and len({place.resolve().parent for place in places}) == 1
    return first.parent.name if together else first.name


def _ended(ends: Sequence[object]) -> str | None:
    """How the first rank with something to say ended; a missing end means the process was killed."""
    if not ends:
        return None
    for end in ends:
        if end is None:
            return "killed, or still running"
        exception = getattr(end, "exception", None)
        if exception:
            return str(exception)
    return str(getattr(ends[0], "reason", "finished"))
