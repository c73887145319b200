"""The numbers of a comparison as rows of evidence, with anchors by their meaning."""

from collections.abc import Callable, Iterator

from profilerkit.model.diff import Diff, Range, Side, StepChange
from profilerkit.model.finding import Source
from profilerkit.report.inert import inert
from profilerkit.report.records import EvidenceRow
from profilerkit.report.wording import plural
from profilerkit.units import format_bytes, format_change, format_decimal, format_ns, format_ratio

# How sure the intervals of a comparison are.
_LEVEL = "interval of 99 %"


def stated_rows(diff: Diff) -> tuple[EvidenceRow, ...]:
    """What the headline, the tiles and the notes of a comparison tell; what is not known is left out."""
    sides = (*_side("before", diff.before), *_side("after", diff.after))
    return (*sides, *(_change(diff.step, diff) if diff.step else ()))


def _side(when: str, side: Side) -> Iterator[EvidenceRow]:
    basis = f"n {plural(side.steady, 'steady step')}, {plural(side.recordings, 'recording')}"
    known: list[tuple[str, str, float | None, Callable[[float], str], Source]] = [
        ("step", "Mean step", side.mean_ns, format_ns, "measured"),
        ("median", "Median step", side.median_ns, format_ns, "measured"),
        ("p90", "Step, 90th percentile", side.p90_ns, format_ns, "measured"),
        ("rate", "Samples per second", side.samples_per_s, lambda rate: format_decimal(rate, "samples/s"), "derived"),
        ("memory", "Peak memory", side.peak_memory_bytes, format_bytes, "measured"),
        ("queued", "Time in which other programs had its processor", side.queued_ratio, format_ratio, "derived"),
        ("steady", "Steady steps", side.steady, "{:,.0f}".format, "measured"),
    ]
    for name, label, value, told, source in known:
        if value is not None:
            origin = inert(side.name) or when
            yield EvidenceRow(f"{name}-{when}", f"{label}, {when}", told(value), "", basis, source, origin)


def _change(step: StepChange, diff: Diff) -> Iterator[EvidenceRow]:
    basis = f"n {diff.before.steady:,} and {diff.after.steady:,} steady steps"
    source: Source = "estimated" if step.is_taken_out else "derived"
    if step.is_taken_out:
        own, quiet = "Mean step without what other programs took", "Mean step without that and what cold caches cost"
        times: list[tuple[str, str, float, Source]] = [
            ("own-before", f"{own}, before", step.own_before_ns, "derived"),
            ("own-after", f"{own}, after", step.own_after_ns, "derived"),
            ("quiet-before", f"{quiet}, before", step.quiet_before_ns, "estimated"),
            ("quiet-after", f"{quiet}, after", step.quiet_after_ns, "estimated"),
        ]
        for anchor, label, time_ns, of in times:
            yield EvidenceRow(anchor, label, format_ns(time_ns), "", basis, of, "timers, kernel")
    yield _ratio("change", "Change of the step, judged", step.judged, basis, source)
    yield _ratio("change-mean", "Change of the mean step, these two runs alone", step.mean, basis, "derived")
    if step.timed is not None:
        yield _ratio("change-timed", "Change of the step as it was timed", step.timed, basis, "derived")
    if step.typical is not None:
        yield _ratio(
            "change-typical", "Change of the typical (median) step as it was timed", step.typical, basis, "derived"
        )
    between = format_ratio(step.between_runs_ratio)
    origin = f"{between} between runs of one program"
    for anchor, what, ratio in (
        ("visible", "growth", step.visible_ratio),
        ("visible-fall", "fall", step.smallest_fall_ratio),
    ):
        label = f"Smallest {what} that could be told"
        yield EvidenceRow(anchor, label, format_ratio(ratio), "", basis, "estimated", origin)


def _ratio(anchor: str, label: str, change: Range, basis: str, source: Source) -> EvidenceRow:
    interval = f"{format_change(change.low)} to {format_change(change.high)}"
    origin = f"bootstrap, {_LEVEL}"
    return EvidenceRow(anchor, label, format_change(change.expected), interval, basis, source, origin)
