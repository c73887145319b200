"""Numbers that belong to no finding's own evidence, as evidence: steps, shares, memory, rules, and what fixes save."""

from collections.abc import Iterator
from statistics import fmean

from profilerkit.model.change import revise
from profilerkit.model.finding import STEP_LENGTHS, Evidence, Finding, Saving, Source, Throughput
from profilerkit.model.report import Report
from profilerkit.model.verdict import BOUND_FAMILY
from profilerkit.report.breakdown import families_of, judged_rank
from profilerkit.report.inert import inert
from profilerkit.report.wording import (
    FAMILY_LABELS,
    SMALL_SAVING,
    STATUS_VERBS,
    marks_none,
    method_text,
    source_of,
    step_ns,
    weakest,
)


def savings_of(finding: Finding, mean_ns: int | None) -> tuple[Evidence, ...]:
    """What a fix is expected to give: of the step, in time where the step's is known, and in samples per second."""
    found: list[Evidence] = []
    if finding.saving is not None:
        found.append(_gain("Saving, share of the step", finding.saving, "ratio", 1.0, finding.rank))
        if mean_ns is not None:
            found.append(_gain("Saving per step", finding.saving, "ns", mean_ns, finding.rank))
    if finding.predicted is not None:
        found.append(_gain("Saving predicted before the probe", finding.predicted, "ratio", 1.0, finding.rank))
    if (gain := finding.throughput) is not None:
        ends = (gain.low, gain.expected, gain.high)
        found.append(_promised("More samples per second", "ratio", gain, finding.rank, ends))
    return tuple(found)


def stated_of(report: Report) -> tuple[Evidence, ...]:
    """The report's own numbers; those that are not known are left out."""
    return (*_steps(report), *_shares(report), *_verdict(report), *_devices(report), *_counts(report))


def _gain(label: str, saving: Saving, unit: str, scale: float, rank: int | None) -> Evidence:
    ends = (saving.low * scale, saving.expected * scale, saving.high * scale)
    return _promised(label, unit, saving, rank, ends)


def _promised(
    label: str, unit: str, by: Saving | Throughput, rank: int | None, ends: tuple[float, float, float]
) -> Evidence:
    low, value, high = ends
    source, origin = source_of(by, unit), method_text(by)
    return Evidence(label=label, value=value, unit=unit, source=source, origin=origin, rank=rank, low=low, high=high)


def _steps(report: Report) -> Iterator[Evidence]:
    times, run = report.steps.time_ns, report.run
    if times is None:
        return
    origin = f"steps marked by {inert(report.steps.found_by) or 'nothing'}"
    yield _of_steps(report, "Step time, mean", times.mean, "ns", "measured", origin)
    if times.p10 is not None and times.p90 is not None:
        spread = _of_steps(report, "Step time, median, 10th to 90th percentile", times.median, "ns", "measured", origin)
        yield revise(spread, low=float(times.p10), high=float(times.p90))
    else:
        yield _of_steps(report, "Step time, median", times.median, "ns", "measured", origin)
    if times.mean > 0 and not marks_none(report):
        rate, origin = 1e9 / times.mean, "1 / mean step time"
        yield _of_steps(report, "Steps per second", rate, "steps/s", "derived", origin)
        if run.batch_size is not None:
            batches = max(round(run.batches_per_step or 1), 1)
            rate, origin = rate * batches * run.batch_size, "batch size × batches per step / mean step time"
            yield _of_steps(report, "Samples per second", rate, "samples/s", "derived", origin)


def _of_steps(report: Report, label: str, value: float, unit: str, source: Source, origin: str) -> Evidence:
    judged = [row.index for row in report.steps.rows if row.state == "steady"]
    return Evidence(
        label=label,
        value=value,
        unit=unit,
        source=source,
        origin=origin,
        n=report.steps.steady,
        rank=judged_rank(report),
        steps=(judged[0], judged[-1]) if judged else None,
        behind=(STEP_LENGTHS,),
    )


def _shares(report: Report) -> Iterator[Evidence]:
    """Of each family of parts."""
    for family, parts in families_of(report.breakdown).items():
        yield Evidence(
            label=f"{FAMILY_LABELS[family]}, share of the step",
            value=sum(part.share for part in parts),
            unit="ratio",
            source=weakest(part.source for part in parts),
            origin="partition of the judged steps",
            n=report.steps.steady,
            rank=judged_rank(report),
            behind=tuple(part.part for part in parts),
        )


def _verdict(report: Report) -> Iterator[Evidence]:
    saving, mean_ns = report.verdict.saving, step_ns(report)
    if saving is not None:
        yield _gain("Saving of the best fix, share of the step", saving, "ratio", 1.0, report.verdict.rank)
        if mean_ns is not None:
            left = (1 - saving.high, 1 - saving.expected, 1 - saving.low)
            ends = (mean_ns * left[0], mean_ns * left[1], mean_ns * left[2])
            yield _promised("Mean step after the best fix", "ns", saving, report.verdict.rank, ends)
    if report.verdict.bound == "balanced":
        yield Evidence(
            label="A bound is named from this saving on, share of the step", value=SMALL_SAVING, unit="ratio",
            source="derived", origin="definition of the verdict",
        )  # fmt: skip
    if report.trust.inflation_ratio is not None:
        ratio, origin = report.trust.inflation_ratio, "traced / untraced step time"
        yield Evidence(label="Profiler inflation", value=ratio, unit="×", source="derived", origin=origin)
    for row in report.verdict.ruled_out:
        family = BOUND_FAMILY.get(row.bound)
        if row.share == 0 and family is not None:
            origin = "partition of the judged steps, which has none of it"
            label = f"{FAMILY_LABELS[family]}, share of the step"
            yield Evidence(label=label, value=0.0, unit="ratio", source="derived", origin=origin)
        if row.saving is not None:
            label = f"Best saving against {row.bound}, share of the step"
            yield Evidence(
                label=label, value=row.saving, unit="ratio", source="estimated", origin="findings of its rules"
            )


def _devices(report: Report) -> Iterator[Evidence]:
    busy = [rank.busy_ratio for rank in report.ranks if rank.busy_ratio is not None]
    if busy:
        named = (("Device busy, mean of ranks", fmean(busy)), ("Device busy, lowest rank", min(busy)))
        for label, value in named[: min(len(busy), 2)]:
            yield Evidence(
                label=label, value=value, unit="ratio", source="measured", origin="device events", n=len(busy)
            )
    if (peak := report.memory.peak) is not None:
        origin = f"memory {peak.of}" if peak.of.startswith("of") else f"memory, {peak.of}"
        yield Evidence(
            label="Peak memory", value=float(peak.bytes), unit="bytes", source="measured", origin=origin,
            rank=judged_rank(report),
        )  # fmt: skip
        if peak.capacity_bytes is not None:
            capacity = float(peak.capacity_bytes)
            yield Evidence(
                label="Memory capacity", value=capacity, unit="bytes", source="measured", origin="the device or host"
            )


def _counts(report: Report) -> Iterator[Evidence]:
    ended = [outcome.status for outcome in report.outcomes]
    silent = sum(status in {"missing_data", "error"} for status in ended)
    known: list[tuple[str, int | None, str]] = [
        ("Steady steps, judged", report.steps.steady, "steps"),
        ("Steps found", report.steps.count, "steps"),
        ("Batch size", report.run.batch_size, "setting of the loader"),
        ("Ranks read", len(report.ranks) or None, "files"),
        ("Ranks of the job", report.run.world_size, "recording"),
        ("Events read", report.trust.events, "files"),
        ("Events dropped", report.trust.dropped or None, "files"),
        ("Files read", len(report.run.files), "files"),
        ("Rules that could not run", silent, "rules"),
        ("Rules in all", len(ended), "rules"),
        *((f"Rules: {verb}", ended.count(status) or None, "rules") for status, verb in STATUS_VERBS.items()),
        ("Rules: fired", ended.count("fired"), "rules"),
        ("Rules that ran, fired or passed", ended.count("fired") + ended.count("passed"), "rules"),
    ]
    for label, value, origin in known:
        if value is not None:
            yield Evidence(label=label, value=float(value), unit="count", source="measured", origin=origin)
