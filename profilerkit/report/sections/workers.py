"""The section about the loader's worker processes: where the time of a batch goes, and how much is ready."""

from collections.abc import Iterator

from profilerkit.model.report import Report
from profilerkit.model.run import WORKER_PARTS, Workers
from profilerkit.report.blocks import Block, Fact, Facts, Section, Table
from profilerkit.report.wording import plural, share_text
from profilerkit.units import format_bytes, format_count, format_ns, format_ratio, format_value

_STAGES = {"samples": "Getting the samples", "collate": "Joining them to a batch", "handover": "Handing it over"}
_AWAITED = {
    "not begun": "not begun",
    "samples": "getting its samples",
    "collate": "being joined",
    "handover": "being handed over",
    "arriving": "arriving",
}
_NOTED_SHARE = 0.005  #: a smaller share of the wait is not listed


def section(report: Report) -> Section | None:
    """The workers' time; ``None`` without workers."""
    workers = report.workers
    if workers is None:
        return None
    blocks: tuple[Block, ...] = (_parts(workers), Facts(tuple(_facts(workers))), _stages(workers))
    busy = "" if workers.busy_ratio is None else f", busy {format_ratio(workers.busy_ratio)} of the time"
    summary = f"{plural(workers.count, 'worker')}{busy}"
    return Section("workers", "Inside the loader's workers", summary, blocks, short="Workers", prints=False)


def _facts(workers: Workers) -> Iterator[Fact]:
    of = f"mean of {format_count(workers.batches)}, made by {plural(workers.count, 'worker')}"
    yield Fact("Work on one batch", format_ns(workers.producer_ns), f"measured, {of}")
    if workers.p99_ns is not None:
        yield Fact("Its 99th percentile", format_ns(workers.p99_ns), "measured")
    if workers.busy_ratio is not None:
        idle = format_ratio(1.0 - workers.busy_ratio)
        yield Fact("Workers busy", format_ratio(workers.busy_ratio), f"measured, idle {idle}")
    if workers.cpu_cores is not None:
        yield Fact("Cores they keep busy", format_count(round(workers.cpu_cores, 2)), "measured")
    if workers.queue_empty_ratio is not None and workers.queue_ready is not None:
        low, high = workers.queue_p10, workers.queue_p90
        spread = f", 80 % of the fetches {low:g} to {high:g}" if low is not None and high is not None else ""
        yield Fact("Batches ready at a fetch", format_count(round(workers.queue_ready, 1)), f"measured{spread}")
        yield Fact("Fetches that found none ready", format_ratio(workers.queue_empty_ratio), "measured")
    real = {name: share for name, share in workers.waited_ratio.items() if name in _AWAITED and share >= _NOTED_SHARE}
    awaited = sorted(real.items(), key=lambda pair: -pair[1])
    if awaited:
        text = ", ".join(f"{_AWAITED[name]} {format_ratio(share)}" for name, share in awaited)
        yield Fact("While the step waits, its batch is", text, "measured")
    if workers.delivery_ns is not None:
        yield Fact("From ready to received", format_ns(workers.delivery_ns), "measured, median of awaited batches")
    yield from _sizes(workers)


def _sizes(workers: Workers) -> Iterator[Fact]:
    if workers.batch_bytes is not None:
        yield Fact("Size of a batch", format_bytes(workers.batch_bytes), "measured, its tensors and arrays")
    if workers.read_bytes is not None:
        stored = f", {format_bytes(workers.storage_bytes)} of it from storage" if workers.storage_bytes else ""
        rate = workers.read_bytes_per_s
        note = f"measured, {format_value(rate, 'bytes')} per second{stored}" if rate else f"measured{stored}"
        yield Fact("Read for a batch", format_bytes(workers.read_bytes), note)
    if workers.memory_bytes is not None:
        yield Fact("Memory of the largest worker", format_bytes(workers.memory_bytes), "estimated, beyond its start")
    if workers.locked_ratio is not None:
        yield Fact("Blocked workers seen at a lock", format_ratio(workers.locked_ratio), "sampled")


def _parts(workers: Workers) -> Table:
    rows = tuple(
        (WORKER_PARTS[part.part], format_ns(part.time_ns), share_text(part.share), part.source)
        for part in workers.parts
    )
    return Table("Work on one batch, mean; the parts sum to it.", ("Part", "Time", "Share", "Source"), rows, 1)


def _stages(workers: Workers) -> Table:
    rows = tuple(
        (
            _STAGES[stage.stage],
            format_ns(stage.time_ns),
            format_ns(stage.cpu_ns),
            "not measured" if stage.run_queue_ns is None else format_ns(stage.run_queue_ns),
            format_ns(stage.blocked_ns),
        )
        for stage in workers.stages
    )
    caption = "The same by stage. A hand-over is blocked while the queue has no room, which is no work."
    return Table(caption, ("Stage", "Time", "CPU", "Waiting for a core", "Blocked"), rows, 1)


SECTIONS = {100: section}
