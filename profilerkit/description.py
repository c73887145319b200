"""What a report says of the run itself: names, versions, settings, devices."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from profilerkit.analysis.facts import Facts
from profilerkit.formats.inputs import Recording
from profilerkit.model.run import Run
from profilerkit.rundir.ending import Ending
from profilerkit.rundir.reader import RunRecord


def describe(places: Sequence[Path], recording: Recording, ending: Ending | None, facts: Facts, version: str) -> Run:
    """The run that ``places`` are, as it was recorded; ``version`` is of profilerkit."""
    record, ranks, logs = recording.run, recording.ranks, facts.logs
    alone = logs is not None and logs.alone
    manifest = record.manifest if record else None
    traced = [entry.trace.meta for entry in ranks if entry.trace]
    return Run(
        name=_name(places),
        kind="run" if record else "logs" if alone else "dumps" if facts.by_dumps else "trace",
        files=(*(() if alone else (entry.origin for entry in ranks)), *(log.origin for log in recording.logs)),
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
        processors=_processors(record),
        usable_cores=facts.usable_cores,
        host_ranks=facts.host_ranks,
    )


def _processors(record: RunRecord | None) -> tuple[str, ...]:
    metas = [rank.meta for rank in record.ranks if rank.meta] if record else []
    return tuple(dict.fromkeys(meta.processor for meta in metas if meta.processor))


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
