"""What was sampled beside the steps: of the run itself, and by logs."""

from collections.abc import Sequence

from profilerkit.model.memory import MemorySnapshot
from profilerkit.model.report import Report
from profilerkit.model.run import Series
from profilerkit.report.blocks import Block, Heading, Section, Table
from profilerkit.report.inert import inert, short_paths
from profilerkit.report.sample_charts import logged_strips
from profilerkit.report.wording import KINDS, plural, share_text
from profilerkit.units import format_bytes, format_count, format_ratio, format_value

#: Group of signals to the words for each of them, in the order of the report.
_GROUPS: dict[str, dict[str, str]] = {
    "Device": {
        "gpu.utilization": "A kernel runs",
        "gpu.sm_active": "Multiprocessors with work",
        "gpu.sm_occupancy": "Warps of the possible ones",
        "gpu.tensor_active": "Tensor cores busy",
        "gpu.fp32_active": "FP32 units busy",
        "gpu.dram_active": "Memory bandwidth used",
        "gpu.memory_utilization": "Memory is read or written",
        "gpu.memory_used": "Memory used",
        "gpu.sm_clock": "Clock of the multiprocessors",
        "gpu.memory_clock": "Clock of the memory",
        "gpu.power": "Power, averaged",
        "gpu.power_instant": "Power at the moment",
        "gpu.power_of_limit": "Power, of its limit",
        "gpu.temperature": "Temperature",
        "gpu.power_throttle": "Clock held down for power",
        "gpu.sw_thermal_throttle": "Clock held down for heat",
        "gpu.hw_thermal_throttle": "Clock halved for heat",
        "gpu.hw_slowdown": "Clock halved by the board",
        "gpu.ecc_corrected": "Memory errors corrected since the driver was loaded",
        "gpu.ecc_uncorrected": "Memory errors not corrected since then",
        "gpu.other_processes": "Other processes",
        "gpu.other_processes_memory": "Memory of other processes",
    },
    "Memory in torch's allocator": {
        "allocator.allocated": "In tensors",
        "allocator.allocated_peak": "In tensors, peak since the start or its reset",
        "allocator.active": "In tensors, or waiting for a stream",
        "allocator.reserved": "Taken from the device",
        "allocator.reserved_peak": "Taken from the device, peak since the start or its reset",
        "allocator.inactive_split": "Free between what is in use",
        "allocator.retries": "Flushes of the cache before another try",
        "allocator.ooms": "Requests that failed",
        "allocator.requested": "Asked for, before it is rounded up",
    },
    "Links of the device": {
        "gpu.pcie_rx": "PCIe, to the device",
        "gpu.pcie_tx": "PCIe, from the device",
        "gpu.pcie_generation": "PCIe generation",
        "gpu.pcie_width": "PCIe lanes",
        "gpu.nvlink_rx": "NVLink, to the device",
        "gpu.nvlink_tx": "NVLink, from the device",
    },
    "Processors": {
        "host.cpu": "All processors busy",
        "host.process_cores": "This process",
        "host.worker_cores": "Its workers together",
        "host.busiest_worker": "Its busiest worker",
        "host.sibling_cores": "The run's other ranks on this host, with workers",
        "host.workers": "Workers",
        "host.thread_queue": "Training thread waits for a core",
        "host.pool_queue": "Operators' threads wait for a core",
        "host.thread_system": "Training thread in the kernel",
        "host.thread_preemptions": "Training thread taken off its core",
        "host.running_tasks": "Threads that run or wait",
        "host.cpu_pressure": "Some task waits for a core",
        "host.cgroup_cores": "Its control group",
        "host.cgroup_cpu_pressure": "Some task of its control group waits",
        "host.cpu_throttled": "Held by a quota",
        "host.iowait": "Idle, waiting for a disk",
        "host.steal": "Taken by other guests",
    },
    "Memory of the host": {
        "host.memory_used": "Machine",
        "host.process_memory": "This process",
        "host.worker_memory": "Its workers together",
        "host.cgroup_memory": "Its control group, with file cache",
        "host.cgroup_memory_limit": "Limit of the control group",
        "host.swap_used": "Swap",
        "host.memory_pressure": "Some task waits for memory",
        "host.cgroup_memory_pressure": "Some task of its control group waits",
        "host.major_faults": "Pages read again from disk",
        "host.thread_faults": "Pages new to the training thread",
        "host.oom_kills": "Processes killed for memory",
    },
    "Disk and network": {
        "host.process_read": "This process reads",
        "host.process_write": "This process writes",
        "host.disk_read": "All disks read",
        "host.disk_write": "All disks write",
        "host.disk_busy": "Busiest disk",
        "host.io_pressure": "Some task waits for a disk",
        "host.net_rx": "Network, received",
        "host.net_tx": "Network, sent",
    },
}
_OTHER = "Other"
_MOST_ROWS = 60  #: of a table with names nobody knows: a report may come from anywhere


def section(report: Report) -> Section | None:
    """Each group of signals that has any; ``None`` without samples."""
    groups = _tables(report)
    blocks = tuple(block for group, table in groups for block in (Heading(group), table))
    count = sum(len(table.rows) for _, table in groups)
    if not blocks:
        return None
    made: tuple[Block, ...] = blocks
    return Section("samples", "Sampled signals", plural(count, "signal"), made, short="Samples", prints=False)


def _tables(report: Report) -> tuple[tuple[str, Table], ...]:
    by_name: dict[str, list[Series]] = {}
    for series in report.run.samples:
        by_name.setdefault(series.name, []).append(series)
    groups: list[tuple[str, list[tuple[str, Series]]]] = []
    for group, words in _GROUPS.items():
        named = [(text, series) for name, text in words.items() for series in by_name.pop(name, [])]
        groups.append((group, named))
    groups.append((_OTHER, [(inert(name), series) for name in sorted(by_name) for series in by_name[name]]))
    return tuple((group, _table(rows)) for group, rows in groups if rows)


def _table(rows: list[tuple[str, Series]]) -> Table:
    of = "GPU" if any(series.device is not None for _, series in rows) else "Rank"
    many = of == "GPU" or len({series.rank for _, series in rows}) > 1
    trends = any(series.slope_per_s is not None for _, series in rows)
    columns = ("Signal", *((of,) if many else ()), "n", "p10", "Mean", "p90", "Maximum")
    shown = rows[:_MOST_ROWS]
    more = f"{len(rows) - len(shown)} more in the JSON." if len(rows) > len(shown) else ""
    return Table(
        "",
        (*columns, "Trend (derived)") if trends else columns,
        tuple(_row(text, series, many=many, trends=trends) for text, series in shown),
        1,
        more,
    )


def _row(text: str, series: Series, *, many: bool, trends: bool) -> tuple[str, ...]:
    unit = inert(series.unit, 20)
    numbers = (format_value(value, unit) for value in (series.p10, series.mean, series.p90, series.maximum))
    of = inert(series.device, 60) if series.device is not None else "all" if series.rank is None else f"{series.rank}"
    rank = (of,) if many else ()
    return (text, *rank, format_count(series.n), *numbers, *((_trend(series),) if trends else ()))


def _trend(series: Series) -> str:
    if series.slope_per_s is None:
        return ""
    sign = "+" if series.slope_per_s > 0 else ""
    return f"{sign}{format_value(series.slope_per_s, inert(series.unit, 20))}/s"


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
_DEVICES = "Means over the whole log, including idle times; for memory the maximum."
_SNAPSHOTS = (
    "Sizes as requested. Reserved and idle are measured at the peak, or at the snapshot if there is no history. "
    "Split: free memory between blocks in use at the snapshot, as a share of reserved memory."
)


def logs(report: Report) -> Section | None:
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
    several = sum(other.origin == one.origin for other in among) > 1
    return f"{inert(one.origin, 40)}{f' cuda:{one.device}' if several else ''}"


def _peak(one: MemorySnapshot) -> str:
    if one.peak_bytes is None:
        return "not measured"
    return f"{'≥ ' if one.is_lower_bound else ''}{format_bytes(one.peak_bytes)}"


def _live(one: MemorySnapshot) -> Table:
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


SECTIONS = {40: logs, 130: section}
