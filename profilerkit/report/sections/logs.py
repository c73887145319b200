"""What logs beside the steps say, as tables: the devices of a sampler's log, and memory snapshots."""

from collections.abc import Sequence

from profilerkit.model.memory import LiveKind, MemorySnapshot
from profilerkit.model.report import Report
from profilerkit.model.run import Series
from profilerkit.report.blocks import Block, Heading, Section, Table
from profilerkit.report.charts.samples import logged_strips
from profilerkit.report.inert import inert, short_paths
from profilerkit.report.wording import plural, share_text
from profilerkit.units import format_bytes, format_count, format_ratio, format_value

#: Signal, its column, and whether the most of it is told instead of the mean.
_SIGNALS = (
    ("gpu.utilization", "Busy", False),
    ("gpu.memory_used", "Most memory", True),
    ("gpu.power", "Power", False),
    ("gpu.power_of_limit", "Share of limit", False),
    ("gpu.power_throttle", "Throttled for power", False),
    ("gpu.hw_thermal_throttle", "Throttled for heat", False),
    ("gpu.temperature", "Temperature", False),
    ("gpu.sm_clock", "Clock", False),
)
_MOST_DEVICES, _MOST_SNAPSHOTS, _MOST_LIVE = 64, 32, 4
#: What a block is, by the lines that asked for it.
KINDS: dict[LiveKind, str] = {
    "parameters": "weights",
    "buffers": "buffers",
    "gradients": "gradients",
    "optimizer state": "optimizer",
    "activations": "activations",
    "other": "other",
    "unseen": "not known",
}
_DEVICES = "Means over the whole log, including idle times; for memory the maximum."
_SNAPSHOTS = (
    "Sizes as requested. Reserved and idle are measured at the peak, or at the snapshot if there is no history. "
    "Split: free memory between blocks in use at the snapshot, as a share of reserved memory."
)


def section(report: Report) -> Section | None:
    """Devices over time and memory snapshots; ``None`` for a report without logs."""
    devices, snapshots, chart = _devices(report), _snapshots(report.snapshots), logged_strips(report)
    blocks: list[Block] = [chart] if chart else []
    for title, table in (("GPUs in the logs", devices), ("Memory snapshots", snapshots)):
        blocks += [Heading(title), table] if table else []
    live = [one for one in report.snapshots[:_MOST_SNAPSHOTS] if one.live][:_MOST_LIVE]
    for one in live:
        blocks += [Heading(f"In use at the peak of {_name(one, report.snapshots)}"), _live(one)]
    if not blocks:
        return None
    summary = plural(len(report.snapshots), "snapshot") if snapshots else "the devices over time"
    return Section("logs", "Logs", summary, tuple(blocks))


def _devices(report: Report) -> Table | None:
    by_device: dict[str, dict[str, Series]] = {}
    for series in report.run.samples:
        if series.device is not None:
            by_device.setdefault(series.device, {})[series.name] = series
    if not by_device:
        return None
    known = [entry for entry in _SIGNALS if any(entry[0] in signals for signals in by_device.values())]
    rows = [
        (
            inert(device, 60),
            format_count(max(series.n for series in signals.values())),
            *(_cell(signals.get(name), most=most) for name, _, most in known),
        )
        for device, signals in by_device.items()
    ]
    columns = ("GPU", "Samples", *(column for _, column, _ in known))
    more = f"{len(rows) - _MOST_DEVICES} more in the JSON." if len(rows) > _MOST_DEVICES else ""
    return Table(_DEVICES, columns, tuple(rows[:_MOST_DEVICES]), 1, more)


def _cell(series: Series | None, *, most: bool) -> str:
    if series is None:
        return "not measured"
    return format_value(series.maximum if most else series.mean, inert(series.unit, 20))


def _snapshots(snapshots: Sequence[MemorySnapshot]) -> Table | None:
    if not snapshots:
        return None
    rows = tuple(
        (
            _name(one, snapshots),
            _peak(one),
            format_bytes(one.reserved_bytes if one.reserved_at_peak_bytes is None else one.reserved_at_peak_bytes),
            "not known" if one.idle_ratio is None else format_ratio(one.idle_ratio),
            format_bytes(one.in_use_bytes),
            "not known" if one.split_ratio is None else format_ratio(one.split_ratio),
            format_count(one.events),
        )
        for one in snapshots[:_MOST_SNAPSHOTS]
    )
    columns = ("Snapshot", "Peak", "Reserved", "Idle", "At the end", "Split", "Events")
    more = f"{len(snapshots) - len(rows)} more in the JSON." if len(snapshots) > len(rows) else ""
    return Table(_SNAPSHOTS, columns, rows, 1, more)


def _name(one: MemorySnapshot, among: Sequence[MemorySnapshot]) -> str:
    """The file, with the device where the file has several."""
    several = sum(other.origin == one.origin for other in among) > 1
    return f"{inert(one.origin, 40)}{f' cuda:{one.device}' if several else ''}"


def _peak(one: MemorySnapshot) -> str:
    if one.peak_bytes is None:
        return "not measured"
    return f"{'≥ ' if one.is_lower_bound else ''}{format_bytes(one.peak_bytes)}"


def _live(one: MemorySnapshot) -> Table:
    """Who asked for what was in use at the peak, without a history at the snapshot."""
    total = one.in_use_bytes if one.peak_bytes is None else one.peak_bytes
    rows = tuple(
        (
            "Not recorded, older than the history, or other lines"
            if row.line is None
            else inert(short_paths(row.line), 160),
            KINDS[row.kind],
            format_count(row.count) if row.count else "not known",
            format_bytes(row.bytes),
            share_text(row.bytes / total) if total else "not known",
        )
        for row in sorted(one.live, key=lambda row: -row.bytes)
    )
    shares = [f"{KINDS[entry.kind]} {share_text(entry.bytes / total)}" for entry in one.kinds] if total else []
    kinds = f" By kind, derived from the lines: {', '.join(shares)}." if shares else ""
    when = "at the snapshot, which has no history" if one.peak_bytes is None else "at the peak"
    return Table(
        f"Blocks in use {when}, by the line that requested them.{kinds}",
        ("Line", "Kind", "Blocks", "Size", "Share"),
        rows,
        2,
    )
