"""The memory section: numbers, the peak of every step, and what was alive at the peak."""

from collections.abc import Iterator, Sequence

import msgspec

from profilerkit.model.memory import Memory, MemoryGrowth, MemoryRow, MemorySnapshot, OutOfMemory, Tracked
from profilerkit.model.report import Report
from profilerkit.model.step import as_judged
from profilerkit.report import blocks
from profilerkit.report.blocks import Fact
from profilerkit.report.chart import LEAST_COLUMNS, rectangle, step_axis
from profilerkit.report.inert import inert
from profilerkit.report.wording import plural, share_text
from profilerkit.units import format_about, format_bytes, format_count, format_long_ns, format_ratio

_MOST_COLUMNS = 200
_TABLE_ROWS = 20
#: The capacity is drawn where the memory fills at least this ratio of it; above a lower one it would flatten the steps.
_DRAWN_RATIO = 0.2
#: Peaks that differ by less than this ratio are even.
_EVEN_RATIO = 0.02
_BY_HISTORY = "derived from the history of a snapshot"

_TRACKED: dict[Tracked, str] = {
    "allocated": "allocated memory",
    "device": "memory used on the device by all processes, sampled",
    "process": "resident memory of the process, sampled",
    "worker": "memory of one worker, sampled",
}


class Columns(msgspec.Struct, frozen=True):
    """The peak of each step, of many steps that of the highest of ``group`` neighbours; the scale and the capacity."""

    rows: tuple[MemoryRow, ...]
    group: int
    top_bytes: int
    capacity_bytes: int | None

    @property
    def capacity_drawn(self) -> bool:
        """Whether the capacity lies within the scale."""
        return self.capacity_bytes is not None and self.capacity_bytes <= self.top_bytes


def _capacity(memory: Memory) -> int | None:
    """Of the memory that the rows are about."""
    on_host = memory.rows_of == "process" or memory.place == "host"
    return memory.host_capacity_bytes if on_host else memory.capacity_bytes


def columns_of(memory: Memory) -> Columns | None:
    """The steps' peaks, ready to draw; ``None`` below two steps."""
    rows = memory.rows
    if len(rows) < 2:
        return None
    size = -(-len(rows) // _MOST_COLUMNS)
    groups = (rows[start : start + size] for start in range(0, len(rows), size))
    highest = tuple(max(group, key=_height) for group in groups)
    most, capacity = max(map(_height, highest)), _capacity(memory)
    near = capacity is not None and most >= _DRAWN_RATIO * capacity
    return Columns(highest, size, max(most, capacity if near and capacity else 0, 1), capacity)


def _height(row: MemoryRow) -> int:
    return max(row.peak_bytes, row.reserved_bytes or 0)


def used_ratio(memory: Memory) -> float | None:
    """Peak memory / capacity of the device, 0 to 1; ``None`` when either is unknown."""
    peak = _peak(memory)
    return min(1.0, peak / memory.capacity_bytes) if peak is not None and memory.capacity_bytes else None


def _peak(memory: Memory) -> int | None:
    own = memory.peak_reserved_bytes or memory.peak_allocated_bytes if memory.place == "device" else None
    return own if own is not None else memory.peak_device_used_bytes


def _facts(memory: Memory, snapshots: Sequence[MemorySnapshot], found_by: str) -> Iterator[Fact]:
    host = memory.place == "host"
    by_history = any(one.peak_bytes is not None and one.peak_bytes == memory.peak_allocated_bytes for one in snapshots)
    if memory.peak_allocated_bytes is not None:
        note = "measured, on the host, since the recording began" if host else "measured"
        note = _BY_HISTORY if by_history else note
        yield Fact("Peak allocated", format_bytes(memory.peak_allocated_bytes), note)
    if memory.peak_reserved_bytes is not None:
        yield Fact("Peak reserved", format_bytes(memory.peak_reserved_bytes), _BY_HISTORY if by_history else "measured")
    if len(snapshots) == 1 and snapshots[0].start_in_use_bytes is not None and snapshots[0].length_ns:
        ends = f"{format_bytes(snapshots[0].start_in_use_bytes)} → {format_bytes(snapshots[0].in_use_bytes)}"
        over = f"measured, from the start of the history to its end, {format_long_ns(snapshots[0].length_ns)} later"
        yield Fact("In use", ends, over)
    if memory.peak_device_used_bytes is not None:
        yield Fact("Peak use of the device", format_bytes(memory.peak_device_used_bytes), "sampled, all processes")
    if memory.capacity_bytes is not None:
        yield Fact("Capacity", format_bytes(memory.capacity_bytes), "measured")
    peak = _peak(memory)
    if peak is not None and memory.capacity_bytes:
        more = peak > memory.capacity_bytes
        note = "derived, more than the capacity is in use" if more else "derived"
        yield Fact("Headroom", "none" if more else format_bytes(memory.capacity_bytes - peak), note)
    if memory.peak_process_bytes is not None:
        of = f" of {format_bytes(memory.host_capacity_bytes)}" if memory.host_capacity_bytes else ""
        note = f"sampled{of} on the host{_kept(memory)}"
        yield Fact("Peak of the process", format_bytes(memory.peak_process_bytes), note)
    if memory.traced_process_bytes is not None:
        note = "sampled, how far the process rose in trace windows"
        yield Fact("Memory for recording", f"up to {format_bytes(memory.traced_process_bytes)}", note)
    if memory.fragmentation_ratio is not None:
        yield Fact("Fragmentation", format_ratio(memory.fragmentation_ratio), "derived, reserved and idle at the peak")
    if memory.allocator_calls_per_step is not None:
        calls = format_count(round(memory.allocator_calls_per_step, 1))
        frees = memory.allocator_frees_per_step
        note = f"measured, {format_count(round(frees, 1))} of them give memory back" if frees else "measured"
        yield Fact("Device allocator calls", as_judged(f"{calls} per step", found_by), note)
    if memory.allocator_retries:
        note = "derived, memory was given back to make room"
        yield Fact("Allocations tried again", format_count(memory.allocator_retries), note)
    for row in memory.growth:
        yield _growth(row)


def _kept(memory: Memory) -> str:
    """How much of the process's memory trace windows left behind; empty where that is little or not known."""
    kept = memory.kept_process_bytes
    return f", up to {format_bytes(kept)} of it kept from recording the trace" if kept is not None else ""


def _growth(row: MemoryGrowth) -> Fact:
    label = f"Growth, {'one worker' if row.of == 'worker' else row.of}"
    if not row.grows:
        return Fact(label, "none that lasts", f"derived, {plural(row.n, 'point')}")
    low, high = format_bytes(row.low_bytes_per_step), format_bytes(row.high_bytes_per_step)
    value = f"{format_bytes(row.bytes_per_step)} per step"
    note = f"derived, 99 % interval {low} to {high}"
    if row.steps_to_full is not None and row.ns_to_full is not None:
        steps, time = format_about(row.steps_to_full), format_long_ns(row.ns_to_full)
        note += f"; full in about {steps} steps, {time}, estimated"
    return Fact(label, value, note)


def _alive(memory: Memory) -> blocks.Table | None:
    if not memory.alive or not memory.peak_allocated_bytes:
        return None
    with_modules = any(row.module is not None for row in memory.alive)
    rows = tuple(
        (
            inert(row.op) if row.op is not None else "not known",
            *((inert((row.module or "not known").removeprefix("nn.Module: ")),) if with_modules else ()),
            format_count(row.count),
            format_bytes(row.bytes),
            share_text(row.bytes / memory.peak_allocated_bytes),
        )
        for row in memory.alive
    )
    columns = ("Operator", *(("Module",) if with_modules else ()), "Blocks", "Size", "Share")
    caption = "Alive at the allocation peak, by the operator that requested it."
    if memory.alive_before_bytes:
        before = format_bytes(memory.alive_before_bytes)
        caption += f" {before} more are older than the recording, such as parameters and optimizer state."
    return blocks.Table(caption, columns, rows, 2 if with_modules else 1)


def _title(memory: Memory, rows: Sequence[MemoryRow]) -> str:
    grown = next((row for row in memory.growth if row.of == memory.rows_of and row.grows), None)
    if grown is not None and not grown.lasts:
        return f"Memory grew by {format_bytes(grown.bytes_per_step)} a step over {plural(grown.steps, 'step')}"
    if grown is not None:
        return f"Memory grows by {format_bytes(grown.bytes_per_step)} in every step"
    highest, lowest = max(rows, key=_height), min(rows, key=_height)
    capacity = _capacity(memory)
    of = f" of {format_bytes(capacity)}" if capacity else ""
    if memory.rows_of == "process" and (kept := _kept(memory)):
        return f"Steps peak at {format_bytes(_height(highest))}{of}{kept}"
    if _height(highest) - _height(lowest) <= _EVEN_RATIO * _height(highest):
        return f"Memory is even: steps peak at {format_bytes(_height(highest))}{of}"
    return (
        f"Step {highest.index} needs the most memory: {format_bytes(_height(highest))}{of}; "
        f"the lowest step needs {format_bytes(_height(lowest))}"
    )


def _caption(memory: Memory, columns: Columns) -> Iterator[str]:
    yield f"The peak of each step: {_TRACKED[memory.rows_of or 'allocated']}."
    if any(row.reserved_bytes is not None for row in columns.rows):
        yield "Pale: reserved beyond it."
    if columns.capacity_bytes is not None and not columns.capacity_drawn:
        yield f"The capacity, {format_bytes(columns.capacity_bytes)}, is far above the scale."
    if columns.group > 1:
        yield f"Each column is the highest of {columns.group} neighbouring steps."
    if columns.capacity_drawn:
        yield "Dashed: the capacity."


def _table(columns: Columns) -> blocks.Table:
    every = -(-len(columns.rows) // _TABLE_ROWS)
    shown = columns.rows[::every]
    with_reserved = any(row.reserved_bytes is not None for row in shown)
    rows = tuple(
        (
            format_count(row.index),
            format_bytes(row.peak_bytes),
            *((format_bytes(row.reserved_bytes) if row.reserved_bytes is not None else "",) if with_reserved else ()),
        )
        for row in shown
    )
    caption = "Every column." if every == 1 else f"One of every {every} columns. The JSON has all steps."
    return blocks.Table(caption, ("Step", "Peak", *(("Reserved",) if with_reserved else ())), rows, 1)


def section(report: Report) -> blocks.Section | None:
    """Memory, and what a rank that ran out of it held; ``None`` where nothing is known."""
    memory = report.memory
    facts, columns = tuple(_facts(memory, report.snapshots, report.steps.found_by)), columns_of(memory)
    oom = oom_blocks(report)
    made: list[blocks.Block] = [blocks.Heading("Out of memory"), *oom] if oom else []
    used = used_ratio(memory)
    if used is not None:
        full = blocks.Segment("memory", "Peak", used, blocks.Value(_peak(memory), "bytes"))
        rest = blocks.Segment(
            "other", "Headroom", 1.0 - used, blocks.Value((memory.capacity_bytes or 0) - (_peak(memory) or 0), "bytes")
        )
        made.append(blocks.Bar("Peak memory as a share of capacity", (full, rest) if used < 1.0 else (full,)))
    if facts:
        made.append(blocks.Facts(facts))
    if columns is not None:
        made.append(_chart(memory, columns))
    if alive := _alive(memory):
        made += [blocks.Heading("Alive at the peak"), alive]
    if not made:
        return None
    peak = report.memory.peak
    of = f" of {format_bytes(peak.capacity_bytes)}" if peak and peak.capacity_bytes else ""
    summary = f"peak {format_bytes(peak.bytes)}{of}" if peak else "what is known"
    return blocks.Section("memory", "Memory", summary, tuple(made), prints=bool(oom))


def _chart(memory: Memory, columns: Columns) -> blocks.Chart:
    wide = 100.0 / max(len(columns.rows), LEAST_COLUMNS)
    paths = {"memory": "", "memory pale": ""}
    for number, row in enumerate(columns.rows):
        left, right = number * wide, (number + 0.8) * wide
        top = 100.0 * (1 - row.peak_bytes / columns.top_bytes)
        paths["memory"] += rectangle(left, top, right, 100.0)
        if row.reserved_bytes is not None and row.reserved_bytes > row.peak_bytes:
            paths["memory pale"] += rectangle(left, 100.0 * (1 - row.reserved_bytes / columns.top_bytes), right, top)
    shapes = [blocks.Shape(colour, "area", path) for colour, path in paths.items() if path]
    if columns.capacity_drawn:
        height = 100.0 - 100.0 * (columns.capacity_bytes or 0) / columns.top_bytes
        shapes.append(blocks.Shape("mark", "dash", f"M0 {height:.4g}H100", "Capacity"))
    return blocks.Chart(
        anchor="memory-steps",
        title=_title(memory, memory.rows),
        caption=" ".join(_caption(memory, columns)),
        height_px=170,
        shapes=tuple(shapes),
        x=step_axis([row.index for row in columns.rows]),
        y=blocks.Axis("Memory", (blocks.Tick(0.0, "0"), blocks.Tick(100.0, format_bytes(columns.top_bytes)))),
        legend=(),
        labels=(),
        table=_table(columns),
    )


_NAMES = {"other": "batch, activations and temporaries", "unseen": "outside of all tensors that Python holds"}
_LIMITS = {"control group": "the control group", "address space": "the address space", "host": "the host"}
_FRAMES = 4  #: lines of Python told of the request that failed


def oom_headline(oom: OutOfMemory, report: Report) -> str:
    """Return what was asked for, when, and what there was."""
    whose = "" if oom.rank is None or len(report.run.ranks) < 2 else f"Rank {oom.rank}: "
    after = f" after {plural(oom.step, 'step')}" if oom.step else ""
    asked = "" if oom.requested_bytes is None else f": {format_bytes(oom.requested_bytes)} were asked for"
    free = "" if oom.free_bytes is None else f" with {format_bytes(oom.free_bytes)} free"
    of = f" of {format_bytes(oom.total_bytes)}" if free and oom.total_bytes is not None else ""
    return f"{whose}{'out' if whose else 'Out'} of memory on {_place(oom)}{after}{asked}{free}{of}"


def oom_held(oom: OutOfMemory) -> str:
    """Return what held the most; empty where nothing is known of it."""
    return f"Most of it: {_name(oom.live[0].kind)}, {format_bytes(oom.live[0].bytes)}." if oom.live else ""


def oom_advice(oom: OutOfMemory) -> str:
    """Return the batch that may fit, or in words what to make smaller."""
    if oom.fitting_batch_size is None or oom.batch_size is None:
        return "Use a smaller batch, or free what holds the most"
    most, batch = format_count(oom.fitting_batch_size), format_count(oom.batch_size)
    return f"Batch size {batch} → {most} or smaller (estimated)"


def _place(oom: OutOfMemory) -> str:
    return "the host" if oom.device == "host" else inert(oom.device, 40)


def _name(kind: str) -> str:
    return _NAMES.get(kind, kind)


def oom_blocks(report: Report) -> tuple[blocks.Block, ...]:
    """Facts, live memory by kind, and the largest tensors; empty without a dossier."""
    oom = report.oom
    if oom is None:
        return ()
    made: list[blocks.Block] = [blocks.Facts(tuple(fact for fact in _out_of_memory_facts(oom) if fact.value))]
    for title, table in (("What was live", _kinds(oom)), ("The largest tensors", _largest(oom))):
        made += [blocks.Heading(title), table] if table else []
    return tuple(made)


def _out_of_memory_facts(oom: OutOfMemory) -> tuple[Fact, ...]:
    def size(value: int | None) -> str:
        return "" if value is None else format_bytes(value)

    idle = (
        None if oom.reserved_bytes is None or oom.allocated_bytes is None else oom.reserved_bytes - oom.allocated_bytes
    )
    limit = f"the tightest limit is that of {_LIMITS[oom.limit]}" if oom.limit in _LIMITS else ""
    fits = "" if oom.fitting_batch_size is None else f"at most {format_count(oom.fitting_batch_size)}"
    held = "in tensors" if oom.reserved_bytes is not None else "by the process"
    return (
        Fact("Error", inert(oom.message, 300)),
        Fact("Where", _place(oom), "" if oom.rank is None else f"rank {oom.rank}"),
        Fact("Steps before", "" if oom.step is None else format_count(oom.step)),
        Fact("Asked for", size(oom.requested_bytes), "the request that failed"),
        Fact("Asked for at", " < ".join(inert(frame, 160) for frame in oom.frames[:_FRAMES]), "innermost line first"),
        Fact("Free", size(oom.free_bytes), limit),
        Fact("Total", size(oom.total_bytes)),
        Fact("Held", size(oom.allocated_bytes), held),
        Fact("Reserved and idle", size(idle), "by torch's allocator: cached, or in pieces too small"),
        Fact("Batch size", "" if oom.batch_size is None else format_count(oom.batch_size)),
        Fact("Batch that may fit", fits, "estimated: everything except parameters, gradients, optimizer state and "
             "buffers shrinks with the batch. What the rest of the step takes for a while is not counted"),
        Fact("Incomplete", "" if oom.complete else "there may be more tensors"),
    )  # fmt: skip


def _kinds(oom: OutOfMemory) -> blocks.Table | None:
    if not oom.live:
        return None
    rows = tuple(
        (
            _name(kind.kind),
            "derived" if kind.count is None else "measured",
            format_bytes(kind.bytes),
            "not counted" if kind.count is None else format_count(kind.count),
        )
        for kind in oom.live
    )
    return blocks.Table("", ("Live", "Source", "Size", "Storages"), rows, 2)


def _largest(oom: OutOfMemory) -> blocks.Table | None:
    if not oom.largest:
        return None
    rows = tuple(
        (_name(one.kind), f"{inert(one.dtype, 20)} {list(one.shape[:8])}", format_bytes(one.bytes))
        for one in oom.largest
    )
    return blocks.Table("", ("Kind", "Tensor", "Storage"), rows, 2)


SECTIONS = {90: section}
