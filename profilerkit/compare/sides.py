"""One side of a comparison in short, and what is not the same about two: what differs, what makes them incomparable."""

from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import geometric_mean
from typing import get_args

from profilerkit.compare.steps import FEWEST_STEPS, Timed, is_thinned, judged_rank, steady_times
from profilerkit.model.diff import Difference, Group, Side
from profilerkit.model.report import Report
from profilerkit.model.step import PARTS, Family, family_of
from profilerkit.model.verdict import BOUND_FAMILY


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


def _throughput(report: Report, mean_ns: float | None) -> float | None:
    run = report.run
    if not mean_ns or run.batch_size is None:
        return None
    samples = run.batch_size * (1.0 if run.batches_per_step is None else run.batches_per_step)
    return samples * (run.world_size or 1) / (mean_ns / 1e9)


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


def obstacles(before: Report, after: Report) -> Iterator[str]:
    """Why the step times of two runs say nothing about each other, in words: only what both sides tell can differ."""
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


#: Settings of the recording that say nothing about the program that was recorded.
_NOT_COMPARED = {"quiet", "analyze", "enabled"}


def differences(before: Report, after: Report) -> tuple[Difference, ...]:
    """All of them, hardware first. What only one side tells counts: a setting may have been set or removed."""
    found: list[Difference] = []
    for (group, first), (_, second) in zip(_told(before), _told(after), strict=True):
        for name in dict.fromkeys((*first, *second)):
            old, new = first.get(name), second.get(name)
            if old != new:
                found.append(Difference(group=group, name=name, before=old, after=new))
    return tuple(found)


def _told(report: Report) -> Iterator[tuple[Group, Mapping[str, str]]]:
    run = report.run
    yield (
        "hardware",
        _known(
            {
                "device": ", ".join(run.devices) or None,
                "processor": ", ".join(run.processors) or None,
                "usable cores": None if run.usable_cores is None else f"{run.usable_cores:g}",
            }
        ),
    )
    batches = run.batches_per_step
    yield (
        "work",
        _known(
            {
                "world size": _text(run.world_size),
                "batch size": _text(run.batch_size),
                "batches per step": None if batches is None else f"{batches:.0f}",
                "precision": _precision(report),
                "command": run.command,
            }
        ),
    )
    yield "loader", loader_settings(report)
    yield "settings", {name: value for name, value in run.settings.items() if name not in _NOT_COMPARED}
    yield "software", run.versions


def _precision(report: Report) -> str | None:
    """The type that most FLOPs are computed in, else the one of most math time, as far as known."""
    if report.compute and report.compute.precision:
        return report.compute.precision
    time_ns: Counter[str] = Counter()
    for kernel in report.kernels:
        if kernel.kind == "math" and kernel.precision:
            time_ns[kernel.precision] += kernel.total_ns
    return time_ns.most_common(1)[0][0] if time_ns else None


def loader_settings(report: Report) -> dict[str, str]:
    """Settings of the training loader by name, as text; without a known loader there are none."""
    loader = report.run.loader
    if loader is None:
        return {}
    return _known({name: _text(getattr(loader, name)) for name in loader.__struct_fields__ if name != "batch_size"})


def _known(pairs: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in pairs.items() if value is not None}


def _text(value: object) -> str | None:
    return None if value is None else str(value)


#: Parts that the timers of a run without a trace see: one that is absent there took no time.
_TIMED = ("input.fetch", "input.prep", "input.wait")
_FAMILIES: tuple[Family, ...] = get_args(Family)
#: Families that such a run divides no further, or that are what is left of the step.
_WHOLE: tuple[Family, ...] = ("input", "other")


def is_traced(report: Report) -> bool:
    """Whether a trace told how the step divides; else only timers did."""
    return report.trust.mode not in ("steps", "dumps")


def share_of(report: Report, name: str) -> float | None:
    """The share of a part, or of all parts of a family; ``None`` where this recording does not measure it."""
    if not report.breakdown:
        return None
    unseen = _unseen(report)
    if name in _FAMILIES:
        return None if name in unseen else sum(part.share for part in report.breakdown if part.family == name)
    told = next((part.share for part in report.breakdown if part.part == name), None)
    # Of a part that only a newer version knows, a report without it does not say that it took no time.
    is_seen = name in PARTS and family_of(name) not in unseen and (is_traced(report) or name in _TIMED)
    return 0.0 if told is None and is_seen else told


def _unseen(report: Report) -> set[Family]:
    """Families whose time is not measured, or of which only some parts are."""
    unseen = {BOUND_FAMILY[row.bound] for row in report.verdict.ruled_out if row.state == "not measured"}
    return unseen if is_traced(report) else unseen | {family for family, _ in PARTS.values() if family not in _WHOLE}
