"""One side of a comparison in short, and what makes two sides incomparable."""

from collections.abc import Iterator
from statistics import geometric_mean

from profilerkit.compare.host import judged_rank
from profilerkit.compare.steps import FEWEST_STEPS, Timed, is_thinned, steady_times
from profilerkit.model.diff import Side
from profilerkit.model.report import Report


def side_of(report: Report, *timed: Timed | None) -> Side:
    """The run in short, with what is known of the step times of all its recordings.

    A batch size and batches per step are needed for its throughput.
    """
    waits = [entry.queued_ratio for entry in timed if entry is not None and entry.queued_ratio is not None]
    told = [entry for entry in timed if entry is not None]
    times, peak = report.step_times, report.memory.peak
    mean_ns: float | None = times.mean if times else None
    median_ns: float | None = times.median if times else None
    if len(told) > 1:
        mean_ns = geometric_mean(entry.timed.centre_ns for entry in told)
        median_ns = geometric_mean(entry.typical.centre_ns for entry in told)
    return Side(
        name=report.run.name,
        created=report.run.created,
        bound=report.verdict.bound,
        detail=report.verdict.detail,
        headline=report.verdict.headline,
        mode=report.trust.mode,
        steady=report.steps.steady,
        mean_ns=mean_ns,
        median_ns=median_ns,
        p90_ns=times.p90 if times else None,
        queued_ratio=sum(waits) / len(waits) if waits and len(waits) == len(timed) else None,
        samples_per_s=_throughput(report, mean_ns),
        peak_memory_bytes=peak.bytes if peak else None,
        peak_memory_of=peak.of if peak else None,
        recordings=max(len(timed), 1),
        ranks=report.job_steps.ranks if report.job_steps else 1,
        rank=judged_rank(report),
    )


def samples_per_step(report: Report) -> float | None:
    """Samples that one rank trains on in a step; ``None`` when the batch size is not known."""
    if report.run.batch_size is None:
        return None
    batches = report.run.batches_per_step
    return report.run.batch_size * (1.0 if batches is None else batches)


def _throughput(report: Report, mean_ns: float | None) -> float | None:
    samples = samples_per_step(report)
    return samples * (report.run.world_size or 1) / (mean_ns / 1e9) if mean_ns and samples is not None else None


def obstacles(before: Report, after: Report) -> tuple[str, ...]:
    """Why the step times of two runs say nothing about each other, in words; empty when they can be compared.

    Only what both sides tell can differ.
    """
    return tuple(_obstacles(before, after))


def few_steps(before: Report, after: Report) -> Iterator[str]:
    """Which side has too few step times to tell how much they vary, in words."""
    for name, report in (("before", before), ("after", after)):
        steps = report.steps.steady
        if is_thinned(report):
            yield f"the report {name} lists {len(report.steps.rows)} of {report.steps.count} steps: analyze it again"
        elif steps < FEWEST_STEPS:
            yield f"too few steady steps {name}: {steps}, and {FEWEST_STEPS} are needed"
        elif not any(time_ns for time_ns, _ in steady_times(report)[1]):
            yield f"no step times {name}"


def _obstacles(before: Report, after: Report) -> Iterator[str]:
    yield from few_steps(before, after)
    pairs = [
        ("hardware", before.run.devices, after.run.devices),
        ("hardware", before.run.processors, after.run.processors),
        ("usable cores", before.run.usable_cores, after.run.usable_cores),
        ("world size", before.run.world_size, after.run.world_size),
        ("batch size", before.run.batch_size, after.run.batch_size),
    ]
    on_devices = bool(before.run.devices and after.run.devices)
    for what, first, second in pairs:
        # With an accelerator on both sides the host's processor is a difference, not another machine to judge by.
        if on_devices and (first is before.run.processors or what == "usable cores"):
            continue
        if first and second and first != second:
            yield f"{what} {_said(first)} → {_said(second)}"
    if _whole(before) != _whole(after) and None not in (_whole(before), _whole(after)):
        yield f"batches per step {_whole(before)} → {_whole(after)}"
    if {before.run.kind, after.run.kind} == {"run", "trace"}:
        traced = "before" if before.run.kind == "trace" else "after"
        yield f"only the run {traced} was timed under torch's profiler"
    modes = {before.trust.mode, after.trust.mode}
    if {"gpu", "cpu"} <= modes:
        yield f"the step was judged on the {before.trust.mode.upper()}, then on the {after.trust.mode.upper()}"
    # The steps of a job are those of all its ranks, whichever is judged.
    is_single = before.job_steps is None or after.job_steps is None
    if is_single and judged_rank(before) != judged_rank(after) and before.run.kind == "trace":
        yield f"rank {judged_rank(before)} before, rank {judged_rank(after)} after"


def _whole(report: Report) -> int | None:
    """Batches of a step; rounded, because a window's first step may lack its fetch."""
    batches = report.run.batches_per_step
    return None if batches is None else max(round(batches), 1)


def _said(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
