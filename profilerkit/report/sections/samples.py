"""What was sampled once per second, as tables: the device, the processors, memory, what is moved."""

from profilerkit.model.report import Report
from profilerkit.model.run import Series
from profilerkit.report.blocks import Block, Heading, Section, Table
from profilerkit.report.inert import inert
from profilerkit.report.wording import plural
from profilerkit.units import format_count, format_value

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
#: Of a table with names nobody knows: a report may come from anywhere.
_MOST_ROWS = 60


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
    """How fast it grew or shrank over the run; empty where that was not asked."""
    if series.slope_per_s is None:
        return ""
    sign = "+" if series.slope_per_s > 0 else ""
    return f"{sign}{format_value(series.slope_per_s, inert(series.unit, 20))}/s"
