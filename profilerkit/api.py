"""What users call: paths in, a Report out. Wires the layers and decides nothing."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from profilerkit.analysis.communication.registry import with_patterns
from profilerkit.analysis.facts import Facts
from profilerkit.analysis.ledger.run import run_ledger
from profilerkit.analysis.rank_facts import RankFacts
from profilerkit.analysis.run_facts import run_facts
from profilerkit.config import rule_prefixes
from profilerkit.diagnosis import diagnose
from profilerkit.errors import UnreadableInputError, UsageError
from profilerkit.inputs import read_inputs
from profilerkit.model.change import revise
from profilerkit.model.finding import Outcome
from profilerkit.model.report import Report
from profilerkit.model.run import Run
from profilerkit.plugins import installed_rules
from profilerkit.reading.traces import Reading
from profilerkit.rules import RULES
from profilerkit.rules.runner import run_rules
from profilerkit.rundir.ending import Ending, dossier_of, ending_of
from profilerkit.rundir.reader import RunRecord


def analyze(
    *paths: str | Path,
    rank: int | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    device: str | None = None,
    strict: bool = False,
    communication_kernels: Sequence[str] = (),
) -> Report:
    """Analyse a trace, a run directory, a directory of traces, or several traces of one job.

    Args:
        paths: what to read; several paths are ranks of one job. Of a directory, files that are no readable traces
            are left out, and the report says so.
        rank: tell this rank in detail; all ranks are compared, and where the others wait for one the verdict is about
            that.
        select: rule codes or their beginnings to run, in any case; empty means all.
        ignore: rule codes or their beginnings to leave out; wins over ``select``.
        device: device name for the peaks, where the trace does not name it.
        strict: the first damage of a trace is an error, instead of being read around and counted.
        communication_kernels: regular expressions of kernel names that are communication beside the known ones;
            ``all_reduce=expression`` also says which collective.

    Raises:
        UsageError: no path, the same file twice, a run directory together with another path, a rank that was not
            recorded, a rule that does not exist, or a pattern that is no regular expression.
        UnreadableInputError: a path is missing, nothing readable was found, or a trace is damaged and ``strict`` is
            set.
    """
    from profilerkit import __version__

    others, plugin_notes = installed_rules()
    rules = (*RULES, *others)
    codes = [rule.code for rule in rules]
    select, ignore = rule_prefixes(select, codes), rule_prefixes(ignore, codes)
    places = [Path(path) for path in paths]
    reading = Reading(strict=strict, device=device, registry=with_patterns(communication_kernels))
    recording = read_inputs(places, reading)
    record = recording.run
    ranks = recording.ranks
    told = None if rank is None else _position(ranks, rank)
    ending = ending_of(record) if record else None
    facts = run_facts(
        ranks,
        device=device,
        world_size=record.manifest.world_size if record and record.manifest else None,
        recorded=recording.distinct,
        told=told,
        notes=(*recording.notes, *plugin_notes),
        ending=ending,
    )
    outcomes = run_rules(facts, rules, select=select, ignore=ignore)
    detail = facts if told in (None, facts.judged_rank) else _alone(facts, ranks[told], told, device)
    run = _describe(places, record, ending, facts, ranks, __version__)
    return revise(
        _report(facts, detail, outcomes, run),
        ledger=run_ledger(ranks, facts.judged_rank if told is None else told),
        oom=dossier_of(record) if record else None,
    )


def _alone(facts: Facts, entry: RankFacts, position: int, device: str | None) -> Facts:
    """The facts of one rank of a job, which divided its waiting from transfer."""
    alone = run_facts([entry], device=device, world_size=facts.world_size)
    return replace(alone, parts=facts.ranks[position].breakdown)


def _report(facts: Facts, detail: Facts, outcomes: tuple[Outcome, ...], run: Run) -> Report:
    """The verdict on the job, with one of its ranks in detail."""
    return Report(
        verdict=diagnose(facts, outcomes),
        steps=detail.steps,
        breakdown=detail.parts,
        ranks=facts.ranks,
        outcomes=outcomes,
        kernels=detail.kernels,
        compute=detail.compute,
        copies=detail.host_copies,
        collectives=detail.comm.table if detail.comm else (),
        memory=detail.memory,
        trust=facts.trust,
        run=run,
        communication=facts.communication,
        workers=facts.workers,
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


def _position(ranks: Sequence[RankFacts], rank: int) -> int:
    position = next((index for index, entry in enumerate(ranks) if entry.rank == rank), None)
    if position is None:
        known = ", ".join(str(entry.rank) for entry in ranks if entry.rank is not None) or "none is named"
        raise UsageError(
            f"rank {rank} was not recorded", cause=f"recorded ranks: {known}", hint="choose one of them, or none"
        )
    return position


def _describe(
    places: Sequence[Path],
    record: RunRecord | None,
    ending: Ending | None,
    facts: Facts,
    ranks: Sequence[RankFacts],
    version: str,
) -> Run:
    manifest = record.manifest if record else None
    traced = [entry.trace.meta for entry in ranks if entry.trace]
    return Run(
        name=_name(places),
        kind="run" if record else "trace",
        files=tuple(entry.origin for entry in ranks),
        profilerkit_version=version,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        world_size=facts.world_size,
        ranks=tuple(entry.rank for entry in ranks if entry.rank is not None),
        missing_ranks=facts.missing_ranks,
        ended=ending.word if ending else None,
        failure=facts.failure,
        command=" ".join((Path(manifest.argv[0]).name, *manifest.argv[1:])) if manifest and manifest.argv else None,
        devices=tuple(dict.fromkeys(entry.device for entry in facts.ranks if entry.device)),
        loader=facts.loader,
        batch_size=facts.loader.batch_size if facts.loader else None,
        batches_per_step=facts.input.fetches / facts.steps.steady if facts.input and facts.steps.steady else None,
        versions=_versions(record)
        if record and manifest
        else {k: v for meta in traced for k, v in meta.versions.items()},
        settings={**manifest.settings, **manifest.environment} if manifest else {},
        samples=facts.samples,
    )


def _versions(record: RunRecord) -> dict[str, str]:
    """Of what ran, as rank 0 saw it, and of the driver of the device that was sampled."""
    gpus = [rank.meta.gpu for rank in record.ranks if rank.meta and rank.meta.gpu]
    drivers = [gpu.driver_version for gpu in gpus if gpu.driver_version]
    found = dict(record.manifest.versions) if record.manifest else {}
    return found | ({"driver": drivers[0]} if drivers else {})


def _name(places: Sequence[Path]) -> str:
    """What a person calls the input: the file or directory, or for several files the directory they share."""
    first = places[0].resolve()
    together = len(places) > 1 and len({place.resolve().parent for place in places}) == 1
    return first.parent.name if together else first.name
