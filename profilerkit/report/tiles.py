"""The four headline numbers: the first four that are known."""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from profilerkit.model.report import Report
from profilerkit.model.step import Family, Rank, as_judged
from profilerkit.model.verdict import BOUND_FAMILY
from profilerkit.report.inert import inert
from profilerkit.report.logs import sampled_devices
from profilerkit.report.records import Fact
from profilerkit.report.wording import (
    FAMILY_LABELS,
    METHOD_WORDS,
    is_steady,
    judged_steps,
    marks_none,
    plural,
    saving_range,
    source_of,
    step_ns,
)
from profilerkit.units import (
    format_bytes,
    format_count,
    format_ns,
    format_ns_range,
    format_ratio,
    format_value,
    is_open,
)

# A mean this far from the median is printed beside it: throughput and shares follow the mean.
_NOTABLE_RATIO = 0.05
# Share of the step from which on it is said that a busy device waits for other ranks, or may where that is not divided.
_NOTABLE_WAIT = 0.05
_NO_WORK = {"comm.skew": "waiting for other ranks", "comm.other": "in collectives, waiting for other ranks included"}


def _step_time(report: Report) -> Fact | None:
    times = report.steps.time_ns
    if times is None:
        return None
    if marks_none(report):
        return Fact("Recording", format_ns(times.median), "nothing marks a step in it")
    note = judged_steps(report)
    if times.p10 is not None and times.p90 is not None:
        note = f"p10–p90 {format_ns_range(times.p10, times.p90)}"
    if abs(times.mean - times.median) > _NOTABLE_RATIO * times.median:
        note = f"mean {format_ns(times.mean)}, {note}"
    ahead_ns = report.steps.ahead_ns or 0
    if ahead_ns > _NOTABLE_RATIO * times.median:
        note = f"of the device; the host runs {format_ns(ahead_ns)} ahead; {note}"
    return Fact("Step time, median", format_ns(times.median), note)


def _throughput(report: Report) -> Fact | None:
    """What steps of this length amount to; ``None`` where they are no steady state."""
    times = report.steps.time_ns
    if times is None or times.mean <= 0 or not is_steady(report) or marks_none(report):
        return None
    rate = 1e9 / times.mean
    batch = report.run.batch_size
    if batch is None:
        return Fact("Throughput", format_value(rate, "per_s").replace("/s", " steps/s"), "derived from step time")
    scope = "one rank, " if (report.run.world_size or 1) > 1 else ""
    # Gradients of several batches may be accumulated in one step.
    batches = max(round(report.run.batches_per_step or 1), 1)
    text = format_value(rate * batch * batches, "per_s").replace("/s", " samples/s")
    several = f", {batches} batches per step" if batches > 1 else ""
    return Fact("Throughput", text, f"{scope}batch size {format_count(batch)}{several}")


def _busy(report: Report) -> Fact | None:
    ratios = [ratio for rank in report.ranks if (ratio := rank.device_busy_ratio) is not None]
    kind = "TPU" if all((rank.device or "").startswith("TPU") for rank in report.ranks) else "GPU"
    if not ratios or report.trust.mode == "cpu":
        return None
    traced = [rank for rank in report.ranks if rank.busy_ratio is not None]
    waits = _waits_while_busy(traced) if traced else ", sampled"
    if len(ratios) == 1:
        judged = "recording" if marks_none(report) else "judged steps"
        return Fact(f"{kind} busy", format_ratio(ratios[0]), f"of the {judged}{waits}")
    return Fact(f"{kind} busy, mean", format_ratio(fmean(ratios)), f"lowest rank {format_ratio(min(ratios))}{waits}")


def _waits_while_busy(ranks: Sequence[Rank]) -> str:
    """What of the busy time is no work: a collective's kernel also runs while it waits for another rank."""
    for name, words in _NO_WORK.items():
        share = fmean(sum(part.share for part in rank.breakdown if part.part == name) for rank in ranks)
        if share >= _NOTABLE_WAIT:
            return f", {format_ratio(share)} {words}"
    return ""


def _after_fix(report: Report) -> Fact | None:
    saving, mean_ns = report.verdict.saving, step_ns(report)
    if saving is None or mean_ns is None:
        return None
    least, left, most = (mean_ns * (1.0 - ratio) for ratio in (saving.high, saving.expected, saving.low))
    is_wide = is_open(saving.low, saving.high, saving.method)
    ends = f"at best {format_ns(least)}" if is_wide else format_ns_range(least, most)
    note = f"expected, {ends}; now {format_ns(mean_ns)}; {source_of(saving, 'ns')}, {METHOD_WORDS[saving.method]}"
    note = as_judged(note, report.steps.found_by)
    label = "Recording" if marks_none(report) else "Mean step"
    return Fact(f"{label} after the fix", format_ns(left), note)


def _peak_memory(report: Report) -> Fact | None:
    peak = report.memory.peak
    if peak is None:
        return None
    capacity = f"of {format_bytes(peak.capacity_bytes)}, " if peak.capacity_bytes else ""
    if peak.capacity_bytes and report.trust.mode == "logs":
        capacity += f"{format_bytes(max(peak.capacity_bytes - peak.bytes, 0))} left, "
    kept = report.memory.kept_process_bytes if peak.of == "of the process" else None
    also = f"; up to {format_bytes(kept)} kept from recording" if kept is not None else ""
    return Fact("Peak memory", format_bytes(peak.bytes), f"{capacity}{peak.of}{also}")


def _largest_family(report: Report) -> Fact | None:
    """The largest share; ``None`` where the verdict is about another family: it goes by savings, not by shares."""
    shares: dict[Family, float] = {}
    for part in report.breakdown:
        shares[part.family] = shares.get(part.family, 0.0) + part.share
    if not shares:
        return None
    largest = max(shares, key=lambda family: shares[family])
    if BOUND_FAMILY.get(report.verdict.bound, largest) != largest:
        return None
    return Fact("Largest share", format_ratio(shares[largest]), FAMILY_LABELS[largest].lower())


def _best_saving(report: Report) -> Fact | None:
    saving = report.verdict.saving
    if saving is None:
        return None
    return Fact("Saving of the best fix", format_ratio(saving.expected), f"expected, {saving_range(saving)}")


def _sampled_use(report: Report) -> Fact | None:
    known = sampled_devices(report, "gpu.utilization")
    if not known or report.trust.mode != "logs":
        return None
    least = min(known, key=lambda series: series.mean)
    note = (
        "of the sampled time"
        if len(known) == 1
        else f"least {format_ratio(least.mean)}, {inert(least.device or '', 40)}"
    )
    return Fact("GPU busy, mean", format_ratio(fmean(series.mean for series in known)), note)


def _sampled_power(report: Report) -> Fact | None:
    known = sampled_devices(report, "gpu.power")
    if not known or report.trust.mode != "logs":
        return None
    most = max(known, key=lambda series: series.mean)
    note = "" if len(known) == 1 else f"most {format_value(most.mean, 'mW')}, {inert(most.device or '', 40)}"
    if limits := sampled_devices(report, "gpu.power_of_limit"):
        held = f"{format_ratio(fmean(series.mean for series in limits))} of the limit"
        note = f"{note}; {held}" if note else held
    return Fact("Power, mean", format_value(fmean(series.mean for series in known), "mW"), note)


def _sampled_heat(report: Report) -> Fact | None:
    known = sampled_devices(report, "gpu.temperature")
    if not known or report.trust.mode != "logs":
        return None
    hot, cool = (pick(known, key=lambda series: series.mean) for pick in (max, min))
    note = "mean" if len(known) == 1 else f"{inert(hot.device or '', 40)}, mean; the coolest {cool.mean:.0f} °C"
    return Fact("Temperature" if len(known) == 1 else "Hottest GPU", f"{hot.mean:.0f} °C", note)


def _idle_memory(report: Report) -> Fact | None:
    if len(report.snapshots) != 1 or report.snapshots[0].idle_ratio is None or report.trust.mode != "logs":
        return None
    when = "when the snapshot was taken" if report.snapshots[0].peak_bytes is None else "at the peak"
    largest = report.snapshots[0].largest_free_bytes
    block = f"; largest free block {format_bytes(largest)} in the end" if largest is not None else ""
    return Fact("Reserved and idle", format_ratio(report.snapshots[0].idle_ratio), f"{when}{block}")


def _steady(report: Report) -> Fact | None:
    if report.trust.mode == "logs" or marks_none(report):
        return None
    label = "Steady steps" if is_steady(report) or not report.steps.steady else "Judged steps"
    return Fact(label, format_count(report.steps.steady), f"of {plural(report.steps.count, 'step')} found")


def _rules(report: Report) -> Fact:
    ran = sum(outcome.status in {"fired", "passed"} for outcome in report.outcomes)
    return Fact("Rules that could run", format_count(ran), f"of {format_count(len(report.outcomes))}")


def _ranks(report: Report) -> Fact | None:
    if report.trust.mode == "logs":
        return None
    world = report.run.world_size
    note = "of " + plural(world, "rank") if world else "of an unknown number"
    return Fact("Ranks read", format_count(len(report.ranks)), note)


def _events(report: Report) -> Fact:
    if report.trust.mode == "logs":
        return Fact("Logs read", format_count(len(report.run.files)), "without any step")
    return Fact("Events read", format_count(report.trust.events), plural(len(report.run.files), "file"))


# In the order in which a reader asks for them; of what has steps the last four are always known.
_TILES: tuple[Callable[[Report], Fact | None], ...] = (
    _step_time,
    _throughput,
    _busy,
    _after_fix,
    _largest_family,
    _best_saving,
    _sampled_use,
    _sampled_heat,
    _sampled_power,
    _peak_memory,
    _idle_memory,
    _steady,
    _rules,
    _ranks,
    _events,
)


def _known(report: Report) -> Iterator[Fact]:
    for tile in _TILES:
        fact = tile(report)
        if fact is not None:
            yield fact


def tiles_of(report: Report) -> tuple[Fact, ...]:
    """The four numbers of the first screen. A number that was not measured gives its place to the next one."""
    return tuple(fact for fact, _ in zip(_known(report), range(4), strict=False))
