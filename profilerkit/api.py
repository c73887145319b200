"""Connect the layers for users: paths in, a report out. Nothing is decided here."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from profilerkit.analysis.communication.registry import with_patterns
from profilerkit.analysis.facts import Facts
from profilerkit.analysis.job_facts import run_ledger
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.workers.capacity import contended, quiet
from profilerkit.config import Settings, Suppression, rule_prefixes
from profilerkit.diagnosis.cost import with_cost
from profilerkit.diagnosis.savings import waterfall, with_overlaps
from profilerkit.diagnosis.verdict import diagnose
from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.formats import inputs
from profilerkit.formats.directories import named_as_traces
from profilerkit.formats.jobs import Reading, read_pooled
from profilerkit.formats.registry import installed_readers
from profilerkit.formats.remote import fetched
from profilerkit.model import fields_of, revise
from profilerkit.model.events import RawEvents, StepEvents
from profilerkit.model.finding import Evidence, Outcome
from profilerkit.model.report import Report as Record
from profilerkit.model.run import Run
from profilerkit.model.trial import Trial
from profilerkit.plugins import all_rules, without_withheld
from profilerkit.results import Diff, Report, as_diff, as_report
from profilerkit.rules.api import Rule
from profilerkit.rules.runner import in_force, run_rules, with_options
from profilerkit.rundir.ending import dossier_of, ending_of
from profilerkit.rundir.files import RECORDS_BYTES, read_regular
from profilerkit.rundir.layout import REPORT_JSON
from profilerkit.rundir.reader import RunRecord, is_run_directory, named_ranks

logger = logging.getLogger(__name__)


def analyze(
    *paths: str | Path,
    rank: int | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    device: str | None = None,
    strict: bool = False,
    communication_kernels: Sequence[str] = (),
    rules_path: str | Path | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    suppress: Sequence[Suppression] = (),
    gpu_hour_price: float | None = None,
) -> Report:
    """Analyze traces, a run directory or logs, and return the report.

    Args:
        paths: traces, a run directory, a directory of traces, logs, or URLs. Several traces are the ranks of one job.
            Logs of nvidia-smi and CUDA memory snapshots may accompany them. Unreadable files of a directory are
            skipped and named in the report. A URL is fetched through fsspec and removed afterwards.
        rank: show details for this rank; all ranks are still compared.
        select: run only rules whose codes begin with one of these, in any case; empty means all.
        ignore: skip rules whose codes begin with one of these; wins over ``select``.
        device: name of the device for its peaks, if the trace does not name it.
        strict: refuse a damaged trace. Otherwise damage is skipped and counted.
        communication_kernels: more kernel names that are communication, as regular expressions.
            ``all_reduce=expression`` names the collective too.
        rules_path: file or directory with your own rules. Its code is run, so name only what you trust.
        options: options of rules by code, for example ``{"IN001": {"smallest_share": 0.1}}``.
        suppress: findings to leave out of savings and gates, as ``profilerkit.config.Suppression``. They stay visible.
        gpu_hour_price: price of one GPU for one hour, to show what lost time costs.

    Returns:
        The report; ``report.verdict.bound`` and ``report.verdict.headline`` are its answer.

    Raises:
        UsageError: the paths do not fit together, or a rank, rule, option or pattern does not exist.
        UnreadableInputError: a path is missing, nothing is readable, or a trace is damaged under ``strict``.
    """
    settings = Settings(
        select=select,
        ignore=ignore,
        device=device,
        communication_kernels=communication_kernels,
        rules_path=None if rules_path is None else str(rules_path),
        rules=options or {},
        suppress=suppress,
        gpu_hour_price=gpu_hour_price,
    )
    return report_of(paths, settings, rank=rank, strict=strict)


def report_of(
    paths: Sequence[str | Path], settings: Settings, *, rank: int | None = None, strict: bool = False
) -> Report:
    """Analyze as ``analyze`` does, with its settings as one record."""
    rules, reading = _rules(settings), _reading(settings, strict=strict, events=True)
    with fetched(paths) as copies:
        made = _told(inputs.read_inputs(copies.paths, reading), copies.paths, reading, rules, rank)
        return as_report(with_cost(copies.told(made.report), settings.gpu_hour_price), made.step_events)


class Analysis(msgspec.Struct, frozen=True):
    """Hold a report together with its recording, to look up raw events.

    Attributes:
        report: the report, without the cost of lost time.
        judged: the rank that unlabelled numbers describe.
        detailed: the rank whose steps the report shows.
    """

    report: Record
    ranks: tuple[RankFacts, ...]
    judged: RankFacts
    detailed: RankFacts

    @property
    def step_events(self) -> tuple[StepEvents, ...]:
        """Return the events of that rank's median and slowest step; empty unless they were asked for."""
        return self.detailed.trace.step_events if self.detailed.trace else ()

    def raw_events(self, evidence: Evidence) -> tuple[RawEvents, ...]:
        """Return the raw events of a number, a table for each file; empty if it has none of its own."""
        from profilerkit.analysis.raw_events import raw_events

        return raw_events(evidence, self._rank(evidence), read_pooled)

    def files_of(self, evidence: Evidence) -> tuple[str, ...]:
        """Return the files of the rank that a number describes; for logs or dumps alone, all files."""
        from profilerkit.analysis.raw_events import files_of

        of_one = () if self.report.run.kind == "dumps" else files_of(self._rank(evidence))
        return of_one or self.report.run.files

    def _rank(self, evidence: Evidence) -> RankFacts:
        named = [entry for entry in self.ranks if evidence.rank is not None and entry.rank == evidence.rank]
        return named[0] if named else self.judged


def analysis(
    paths: Sequence[str | Path],
    settings: Settings,
    *,
    rank: int | None = None,
    strict: bool = False,
    events: bool = False,
) -> Analysis:
    """Analyze as ``analyze`` does and keep the recording, with ``events`` those of the timeline too."""
    rules, reading = _rules(settings), _reading(settings, strict=strict, events=events)
    places = [Path(path) for path in paths]
    return _told(inputs.read_inputs(places, reading), places, reading, rules, rank)


def so_far(run: RunRecord, settings: Settings) -> Record:
    """Return the report on what a job has recorded so far, from timers and samples alone.

    Raises:
        UnreadableInputError: no rank has recorded anything yet.
    """
    return _told(inputs.read_records(run), [run.path], Reading(device=settings.device), _rules(settings), None).report


def reduce(
    *paths: str | Path,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    device: str | None = None,
    rules_path: str | Path | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    suppress: Sequence[Suppression] = (),
    gpu_hour_price: float | None = None,
) -> Report:
    """Reduce the summaries of any number of ranks to one report.

    All ranks are compared. Details are shown for late ranks and for some typical ranks. The arguments are those of
    ``analyze``; the paths are summaries of ``profilerkit map`` or of a recording, or directories of them.

    Raises:
        UsageError: no path, summaries of several jobs, or a rule or option that does not exist.
        UnreadableInputError: a path is missing, or no summary is readable.
    """
    settings = Settings(
        select=select,
        ignore=ignore,
        device=device,
        rules_path=None if rules_path is None else str(rules_path),
        rules=options or {},
        suppress=suppress,
        gpu_hour_price=gpu_hour_price,
    )
    return reduced_report(paths, settings)


def reduced_report(paths: Sequence[str | Path], settings: Settings) -> Report:
    """Reduce as ``reduce`` does, with its settings as one record."""
    from profilerkit.analysis.ranks.scale import crowd_record
    from profilerkit.summaries.reduction import found_in, read_summaries

    rules = _rules(settings)
    with fetched(paths) as copies:
        reduced = read_summaries(found_in(copies.paths))
        inputs.require_one_job(reduced.ranks)
        crowd, size = reduced.crowd, reduced.world_size
        recording = inputs.Recording(reduced.ranks, None, reduced.notes, of=len(crowd.members), world_size=size)
        report = _told(recording, copies.paths, Reading(device=settings.device), rules, None).report
        known = fields_of(reduced, "unreadable", "left_out", "sampled")
        record = crowd_record(crowd, world_size=size, **known)
        return as_report(copies.told(with_cost(revise(report, crowd=record), settings.gpu_hour_price)))


def _told(
    recording: inputs.Recording, places: Sequence[Path], reading: Reading, rules: "_Rules", rank: int | None
) -> Analysis:
    """The report on a recording without what lost time costs, and the recording."""
    from profilerkit import __version__

    record = recording.run
    ranks = recording.ranks
    told = None if rank is None else _position(ranks, rank)
    ending = ending_of(record) if record else None
    trial, said = _trial_of(record) if record else (None, ())
    logger.info("comparing %d ranks" if len(ranks) > 1 else "putting %d rank together", len(ranks))
    facts = Facts(
        ranks,
        run=record,
        ending=ending,
        device_name=reading.device,
        world_size=record.manifest.world_size if record and record.manifest else recording.world_size,
        recorded=recording.distinct,
        told=told,
        notes=(*recording.notes, *installed_readers()[1], *rules.notes, *said),
    )
    facts = contended(_with_others(facts, recording))
    program = quiet(facts)
    logger.info("running %d rules, replaying what fixes save", len(rules.all))
    ran = run_rules(program, rules.all, select=rules.select, ignore=rules.ignore, suppress=rules.suppress)
    outcomes = with_overlaps(program, ran if trial is None else _with_trial(ran, trial))
    detail = facts
    if told not in (None, facts.judged_rank):  # one rank of a job, which divided its waiting from transfer
        alone = Facts([ranks[told]], device_name=reading.device, world_size=facts.world_size)
        detail = revise(alone, parts=facts.ranks[told].breakdown)
    run = inputs.describe(places, recording, ending, facts, __version__)
    report = revise(
        _report(program, detail, outcomes, run),
        ledger=run_ledger(ranks, facts.judged_rank if told is None else told),
        oom=(dossier_of(record) if record else None) or facts.memory_use.oom,
        snapshots=facts.logs.snapshots if facts.logs else (),
        waterfall=waterfall(program, outcomes),
    )
    return Analysis(report, tuple(ranks), ranks[facts.judged_rank], ranks[facts.judged_rank if told is None else told])


def _trial_of(run: RunRecord) -> tuple[Trial | None, tuple[str, ...]]:
    from profilerkit.diagnosis.tried import trial_of

    return trial_of(run)


def _with_trial(outcomes: Sequence[Outcome], trial: Trial) -> Sequence[Outcome]:
    from profilerkit.diagnosis.tried import with_trial

    return with_trial(outcomes, trial)


def _with_others(facts: Facts, recording: inputs.Recording) -> Facts:
    if recording.logs:
        from profilerkit.analysis.with_logs import with_logs

        facts = with_logs(facts, recording.ranks, recording.logs)
    if recording.by_dumps:
        from profilerkit.analysis.ranks.dumps import with_dumps

        facts = with_dumps(facts, recording.ranks)
    return facts


class _Rules(msgspec.Struct, frozen=True):
    """The rules of this analysis, which of them run and are heard, and what is to be said about them."""

    all: tuple[Rule, ...]
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    suppress: tuple[Suppression, ...]
    notes: tuple[str, ...]


def _rules(settings: Settings) -> _Rules:
    known, said, withheld = all_rules(settings)
    if withheld:
        settings = without_withheld(settings, known)
    rules, tuned = with_options(known, settings.rules)
    heard, ended = in_force(settings.suppress, rules, datetime.now().astimezone().date())
    codes = [rule.code for rule in rules]
    chosen, left = rule_prefixes(settings.select, codes), rule_prefixes(settings.ignore, codes)
    return _Rules(rules, chosen, left, heard, (*said, *tuned, *ended))


def _reading(settings: Settings, *, strict: bool, events: bool = False) -> Reading:
    registry = with_patterns(settings.communication_kernels)
    return Reading(strict=strict, device=settings.device, registry=registry, events=events)


def _report(facts: Facts, detail: Facts, outcomes: tuple[Outcome, ...], run: Run) -> Record:
    return Record(
        verdict=diagnose(facts, outcomes),
        breakdown=detail.parts,
        ranks=() if facts.logs is not None and facts.logs.alone else facts.ranks,  # logs alone are of no rank
        outcomes=outcomes,
        copies=detail.host_copies,
        collectives=detail.comm.table if detail.comm else (),
        run=run,
        **fields_of(detail, "steps", "kernels", "compute", "memory", "workers", "median_step"),
        **fields_of(facts, "rank_steps", "job_steps", "trust", "communication"),
    )


def diff(
    before: str | Path | Record,
    after: str | Path | Record,
    *,
    fail_if: Sequence[str] = (),
    also_before: Sequence[str | Path | Record] = (),
    also_after: Sequence[str | Path | Record] = (),
    settings: Settings | None = None,
) -> Diff:
    """Compare two runs: what changed, whether it is real, and whether predicted savings were reached.

    Args:
        before: a run directory, trace, directory of traces, saved ``report.json``, or ``Report``.
        after: the same kinds.
        also_before: more recordings of the program before. They measure how much runs of one program differ, so that
            smaller changes are found. Record both sides in turns.
        also_after: more recordings of the program after.
        fail_if: limits on changes, judged in ``Diff.gates``: ``step_time:+5%``, ``input:+3pt``, ``findings:high``.
        settings: settings for recordings that are analyzed now; saved reports keep their own.

    Returns:
        The comparison; ``diff.verdict`` and ``diff.headline`` are its answer.

    Raises:
        UsageError: a limit is unreadable.
        UnreadableInputError: a side cannot be read.
    """
    from profilerkit.compare import compare
    from profilerkit.compare.gates import parse_limit

    for text in fail_if:
        parse_limit(text)  # before minutes of analysis
    sides = (before, *also_before, after, *also_after)
    reports = [side if isinstance(side, Record) else read_report(side, settings) for side in sides]
    if any(report.run.redacted for report in reports):  # what was left out does not come back
        from profilerkit.report.redaction import told

        reports = [told(report, redact=not report.run.redacted) for report in reports]
    first, second = reports[: 1 + len(also_before)], reports[1 + len(also_before) :]
    return as_diff(compare(first[0], second[0], fail_if, also_before=first[1:], also_after=second[1:]))


def read_report(path: str | Path, settings: Settings | None = None) -> Report:
    """Return the report of a path: loaded if it was saved, otherwise analyzed with ``settings``.

    A saved report keeps the settings it was made with.
    """
    used = settings or Settings()
    with fetched([path]) as copies:
        inputs.require_existing(copies.paths)
        saved = saved_report(copies.paths[0])
        found = with_cost(analysis(copies.paths, used).report, used.gpu_hour_price) if saved is None else load(saved)
        return as_report(copies.told(found))


def saved_report(place: Path) -> Path | None:
    """Return the saved report at ``place``, or in a directory without a recording; ``None`` if there is none."""
    if inputs.is_saved_report(place):
        return place
    inside = place / REPORT_JSON
    return inside if inside.is_file() and not is_run_directory(place) and not named_as_traces(place) else None


def load(path: str | Path) -> Report:
    """Read a report that was saved as JSON.

    Raises:
        UnreadableInputError: the file is missing, or is not a report of this schema version.
    """
    from profilerkit.report.json import load as decode

    try:
        text = read_regular(Path(path), RECORDS_BYTES, named=True).decode("utf-8", "replace")
    except OSError as error:
        raise UnreadableInputError(
            f"cannot read {path}", cause=error.strerror or str(error), hint="name a report saved as JSON"
        ) from error
    return as_report(decode(text))


def _position(ranks: Sequence[RankFacts], rank: int) -> int:
    position = next((index for index, entry in enumerate(ranks) if entry.rank == rank), None)
    if position is None:
        known = [entry.rank for entry in ranks if entry.rank is not None]
        told = named_ranks(known).lower() if known else ""
        raise UsageError(
            f"rank {rank} was not recorded",
            cause=f"recorded: {told}" if told else "no file names its rank",
            hint=f"name {'one of ' if known[1:] else ''}{told}, or none" if told else "name no rank",
        )
    return position
