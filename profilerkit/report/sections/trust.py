"""What was run and recorded, and how far to trust it."""

from collections.abc import Iterator

from profilerkit.model.finding import Outcome, Status, in_order
from profilerkit.model.report import Report
from profilerkit.report.blocks import Block, Fact, Facts, Heading, Section, Table, Text
from profilerkit.report.communication import parallel_facts
from profilerkit.report.inert import SENTENCE_LIMIT, inert
from profilerkit.report.sections.fixes import replay_facts
from profilerkit.report.wording import STATE_WORDS, STATUS_LABELS, listed, plural, saving_range
from profilerkit.units import format_count, format_ns, format_ratio

_MODES = {
    "gpu": "Device events were read.",
    "cpu": "No device events: the main thread is treated as the device.",
    "steps": "Only step timers exist.",
    "logs": "Only logs were read, which have no steps.",
    "dumps": "Only dumps of flight recorders were read.",
}
#: Rules that did not fire, by how they ended; those that could not run first.
_ENDED: tuple[Status, ...] = ("missing_data", "error", "suppressed", "passed", "not_applicable", "off")


def section(report: Report) -> Section | None:
    """What the numbers rest on."""
    trust, steps = report.trust, report.steps
    blocks: list[Block] = [Text.of(inert(note, SENTENCE_LIMIT), style="note") for note in trust.notes]
    if report.verdict.consequence:
        blocks.insert(0, Text.of(inert(report.verdict.consequence, SENTENCE_LIMIT)))
    blocks.append(Facts((*_trust_facts(report), *replay_facts(report))))
    signals = report.trust.signals
    if measured := listed([inert(s.name) for s in signals if s.state == "measured" and not s.reason and not s.hint]):
        blocks.append(Text.of(f"Measured: {measured}."))
    if weak := _signals(report):
        blocks += [Heading("What is missing, and how to record it"), weak]
    blocks += [Heading("Rules that found nothing"), _rules(report)] if _rules(report).rows else []
    blind = sum(outcome.status in ("missing_data", "error") for outcome in report.outcomes)
    used = f"{format_count(steps.steady)} of {plural(steps.count, 'step')} used" if steps.count else "no steps"
    summary = f"confidence {report.verdict.confidence} · {used}" + (f" · {blind} checks lack data" if blind else "")
    return Section("trust", "How sure", summary, tuple(blocks), prints=False)


def failed(report: Report) -> Section | None:
    """Rules that raised: a section of its own, as Markdown and terminal show the first of all rules only."""
    found = [outcome for outcome in report.outcomes if outcome.status == "error"]
    rows = tuple((inert(one.rule, 24), inert(one.reason or "", SENTENCE_LIMIT)) for one in found)
    return (
        Section("failed", "Rules that failed", str(len(rows)), (Table("", ("Rule", "Why"), rows, 2),)) if rows else None
    )


def _rules(report: Report) -> Table:
    rows = tuple(
        (
            inert(outcome.rule, 24),
            inert(outcome.summary or outcome.name, 200),
            STATUS_LABELS[status],
            " ".join(piece for piece in (inert(outcome.reason or "", SENTENCE_LIMIT), _hint(outcome)) if piece),
        )
        for status in _ENDED
        for outcome in sorted(report.outcomes, key=lambda outcome: outcome.rule)
        if outcome.status == status
    )
    return Table("", ("Rule", "Looks for", "Result", "Why"), rows, 4, title="Rules", searchable=True)


def _hint(outcome: Outcome) -> str:
    found = (f"{one.title}{f', saves {saving_range(one.saving)}' if one.saving else ''}" for one in outcome.suppressed)
    return inert(outcome.hint or (f"Found: {'; '.join(found)}." if outcome.suppressed else ""), SENTENCE_LIMIT)


def _step_facts(report: Report) -> Iterator[Fact]:
    steps, times, warmup = report.steps, report.steps.time_ns, report.steps.warmup
    left = [f"{format_count(n)} {STATE_WORDS.get(why, inert(why, 40))}" for why, n in steps.dropped.items() if n]
    note = f"left out: {', '.join(left[:8])}" if left else "none left out"
    yield Fact("Steps judged", f"{format_count(steps.steady)} of {format_count(steps.count)}", note)
    if warmup is not None:
        longer = f"{format_ns(warmup.excess_ns)} longer than steady ones"
        longer = longer if warmup.excess_ns else "no longer than the others"
        note = f"{longer}: {inert(warmup.cause)}" if warmup.cause else longer
        yield Fact("Warm-up", f"{plural(warmup.steps, 'step')}, {format_ns(warmup.time_ns)}", note)
    if times is not None and times.cv_ratio is not None:
        tail = f"99th percentile {format_ns(times.p99)}" if times.p99 is not None else "standard deviation / mean"
        yield Fact("Steps vary by", format_ratio(times.cv_ratio), tail)
    yield Fact("Steps marked by", inert(steps.found_by) or "nothing", "inferred" if steps.inferred else "given")
    if steps.ahead_ns is not None:
        later = f"a step ends {format_ns(steps.ahead_ns)} later than on the host"
        yield Fact("Steps timed by", "the device's clock", later)


def _trust_facts(report: Report) -> Iterator[Fact]:
    trust, cost = report.trust, report.trust.cost
    yield Fact("Recording", _MODES[trust.mode])
    if trust.mode == "logs":
        return
    yield from _step_facts(report)
    if trust.inflation_ratio is None:
        yield Fact("Profiler inflation", "not measured", "needs step times from outside the traced window")
    else:
        yield Fact("Profiler inflation", f"{trust.inflation_ratio:.2f}×", "traced / untraced step time")
    own = f", {format_ns(cost.per_step_ns)} per step" if cost and cost.per_step_ns is not None else ""
    if trust.overhead_ratio is None:
        yield Fact("Capture overhead", "not measured")
    else:
        yield Fact("Capture overhead", format_ratio(trust.overhead_ratio), f"estimated, of the step time{own}")
    ends = (("start", cost.start_ns), ("end", cost.close_ns)) if cost else ()
    if around := ", ".join(f"{format_ns(value_ns)} to {what}" for what, value_ns in ends if value_ns is not None):
        yield Fact("Start and end of capture", around, "outside the loop")
    if cost and cost.windows_ns is not None:
        yield Fact("Pauses for trace windows", format_ns(cost.windows_ns), "in total; these steps are not judged")
    damage = [f"{format_count(trust.repaired)} repaired" if trust.repaired else ""]
    damage.append(f"{format_count(trust.dropped)} could not be read" if trust.dropped else "")
    damage.append("the end of a file is missing" if trust.truncated else "")
    note = listed([piece for piece in damage if piece]) or "none damaged"
    yield Fact("Events read", format_count(trust.events), note)
    calibrations = sorted({inert(f.saving.calibration) for _, f in in_order(report.outcomes) if f.saving})
    if calibrations:
        yield Fact("Saving ranges", "; ".join(calibrations))


def _signals(report: Report) -> Table | None:
    """Signals that are missing or weak, missing ones first: they are what the reader can act on."""
    weak = [signal for signal in report.trust.signals if signal.state != "measured" or signal.reason or signal.hint]
    order = {"missing": 0, "partial": 1, "measured": 2}
    rows = tuple(
        (inert(s.name), s.state, inert(s.reason, SENTENCE_LIMIT), inert(s.hint, SENTENCE_LIMIT))
        for s in sorted(weak, key=lambda signal: order[signal.state])
    )
    return Table("", ("Signal", "State", "Why", "How to record it"), rows, 4, title="Signals") if rows else None


_FACT_LIMIT = 60
_KINDS = {"run": "run directory", "trace": "trace files", "logs": "logs", "dumps": "flight recorder dumps"}
_HOW_TO_KEEP = "of users, hosts, directories and programs; profilerkit analyze --no-redact on the recording keeps them"


def this_run(report: Report) -> Section | None:
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


SECTIONS = {135: failed, 140: section, 150: this_run}
