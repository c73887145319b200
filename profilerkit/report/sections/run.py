"""This run: what was run and read, its loader, versions and settings."""

from profilerkit.model.report import Report
from profilerkit.report.blocks import Block, Fact, Facts, Heading, Section
from profilerkit.report.communication import parallel_facts
from profilerkit.report.inert import inert
from profilerkit.report.wording import plural
from profilerkit.units import format_count

_FACT_LIMIT = 60
_KINDS = {"run": "run directory", "trace": "trace files", "logs": "logs", "dumps": "flight recorder dumps"}
_HOW_TO_KEEP = "of users, hosts, directories and programs; profilerkit analyze --no-redact on the recording keeps them"


def section(report: Report) -> Section | None:
    """Everything known of the run itself."""
    blocks: list[Block] = [Facts((*_run_facts(report), *parallel_facts(report)))]
    for title, facts in (
        ("Loader", _loader_facts(report)),
        ("Versions", _mapping_facts(report.run.versions)),
        ("Settings", _mapping_facts(report.run.settings)),
    ):
        if facts:
            blocks += [Heading(title), Facts(facts)]
    return Section("run", "This run", "files, versions and settings", tuple(blocks), prints=False)


def _run_facts(report: Report) -> tuple[Fact, ...]:
    """What was run and read; facts that are not known are left out."""
    run = report.run
    read = [format_count(rank) for rank in run.ranks]
    shown = "" if not read else f"rank{'' if len(read) == 1 else 's'} {', '.join(read[:16])}"
    shown += f" and {len(read) - 16} more" if len(read) > 16 else ""
    files = ", ".join(inert(name, 80) for name in run.files[:8])
    files += f" and {len(run.files) - 8} more" if len(run.files) > 8 else ""
    facts = [
        Fact("Kind", _KINDS[run.kind]),
        Fact("Files", files),
        Fact("Command", inert(run.command or "", 400)),
        Fact("Ended", inert(run.ended or "", 200)),
        Fact("Devices", ", ".join(inert(device, 60) for device in run.devices[:8])),
        Fact("World size", "" if run.world_size is None else plural(run.world_size, "rank")),
        Fact("Ranks read", shown),
        Fact("Ranks not read", format_count(run.missing_ranks) if run.missing_ranks else ""),
        Fact("Batch size", "" if run.batch_size is None else format_count(run.batch_size)),
        Fact("Names, paths and messages", "left out" if run.redacted else "", _HOW_TO_KEEP),
        Fact("Report", f"profilerkit {inert(run.profilerkit_version, 40)}, {inert(run.created, 40)}"),
    ]
    return tuple(fact for fact in facts if fact.value)


def _loader_facts(report: Report) -> tuple[Fact, ...]:
    loader = report.run.loader
    if loader is None:
        return ()
    pairs: list[tuple[str, object]] = [
        ("kind", inert(loader.kind)),
        ("num_workers", loader.num_workers),
        ("batch_size", loader.batch_size),
        ("pin_memory", loader.pin_memory),
        ("prefetch_factor", loader.prefetch_factor),
        ("persistent_workers", loader.persistent_workers),
        ("dataset length", None if loader.dataset_len is None else format_count(loader.dataset_len)),
        ("dataset", "iterable" if loader.is_iterable else None),
    ]
    return tuple(Fact(name, str(value)) for name, value in pairs if value is not None)


def _mapping_facts(mapping: dict[str, str]) -> tuple[Fact, ...]:
    """A string mapping in order of its keys; a setting that is ``None`` is not set."""
    keys = sorted(mapping)[:_FACT_LIMIT]
    return tuple(Fact(inert(key, 60), "not set" if mapping[key] == "None" else inert(mapping[key])) for key in keys)
