"""Steps without marks: by the device's completions, or by the program's own ranges."""

import re

import numpy as np

from profilerkit.analysis.device.kernels import device_rows, launching_rows
from profilerkit.analysis.host.gaps import LONGEST_LAUNCH_NS
from profilerkit.analysis.host.names import main_thread
from profilerkit.analysis.steps.phases import backward_nodes, optimizer_rows
from profilerkit.trace.classify import Ranges, StepRanges, each_holds, step_ranges
from profilerkit.trace.columns import I64, Bools, Category, TraceColumns, saying

#: The host's marks are no clock where the device's lag behind them changes by more than this share of the judged steps:
#: a step cut at them would be that far off. The replay is held to the same 5 %; of 52 recordings of others, those with
#: a wrong step have 6 % to 6,000 %, synchronous ones below 2 %.
AHEAD_RATIO = 0.05
LITTLE_RATIO = 0.05  #: work of at most this ratio of all may be done before what the device did earlier ends (a choice)

_NEVER: int = np.iinfo(np.int64).min


def issued_at(columns: TraceColumns, launches: I64, marks: tuple[I64, I64] | None = None) -> I64:
    """``(n_events,)`` int64 ns, when the host issued each event: device work by its launch, other events as they start.

    Device work without a launch was issued after what ran before it on its stream, or before it on any stream where its
    own shows no launch, and in the step whose mark on the device begins before it. With none of these it was issued
    before the recording began: the least number. What starts when all work that shows its launch or step is over counts
    as issued when it starts. ``marks`` are rows of the steps' marks on the device, and when the host began these steps.
    """
    at = columns.ts_ns.copy()
    rows = np.flatnonzero(device_rows(columns))
    shown = rows[launches[rows] >= 0]
    at[shown] = columns.ts_ns[launches[shown]]
    over = columns.end_ns[np.r_[shown, marks[0]] if marks else shown].max(initial=_NEVER)
    rows = rows[columns.ts_ns[rows] < over]
    linked = launches[rows] >= 0
    if linked.all():
        return at
    pairs = np.stack([columns.device[rows], columns.stream[rows]])
    _, stream = np.unique(pairs, axis=1, return_inverse=True)
    order = np.lexsort((columns.ts_ns[rows], stream.ravel()))
    rows, linked, stream = rows[order], linked[order], stream.ravel()[order]
    last = np.maximum.accumulate(np.where(linked, np.arange(len(rows)), -1))
    same = (last >= 0) & (stream[last] == stream)
    issued = np.where(same, at[rows[last]], _NEVER)
    alone = ~np.isin(stream, stream[linked])
    issued[alone] = _newest(columns.ts_ns[rows[linked]], at[rows[linked]], columns.ts_ns[rows[alone]])
    if marks is not None:
        issued = np.maximum(issued, _newest(columns.ts_ns[marks[0]], marks[1], columns.ts_ns[rows]))
    at[rows[~linked]] = issued[~linked]
    return at


def _newest(begun: I64, issued: I64, instants: I64) -> I64:
    """``(n,)`` the latest issue among what had begun by each instant; the least number for none."""
    order = np.argsort(begun, kind="stable")
    latest = np.r_[_NEVER, np.maximum.accumulate(issued[order])]
    newest: I64 = latest[np.searchsorted(begun[order], instants, side="right")]
    return newest


def undone_from(columns: TraceColumns, launches: I64) -> int:
    """When the host began to launch work that the trace does not hold any more, ns; the largest number for never."""
    calls = np.sort(columns.ts_ns[launching_rows(columns)])
    linked = launches[launches >= 0]
    beyond = calls[calls > columns.ts_ns[linked].max()] if len(linked) else calls[:0]
    return int(beyond[0]) if len(beyond) else np.iinfo(np.int64).max


def earlier_work_ends(columns: TraceColumns, launches: I64 | None) -> int:
    """When the device is done with work that was not recorded, for which all that was, but a little, waits; else 0."""
    if launches is None:
        return 0
    rows = np.flatnonzero(device_rows(columns) & (columns.dur_ns > 0))
    rows = rows[np.argsort(columns.ts_ns[rows], kind="stable")]
    start, call = columns.ts_ns[rows], launches[rows]
    done = np.r_[0, np.maximum.accumulate(columns.end_ns[rows])[:-1]]
    before = np.cumsum(columns.dur_ns[rows]) - columns.dur_ns[rows]
    queued = (call >= 0) & (start - np.maximum(columns.end_ns[np.maximum(call, 0)], done) > LONGEST_LAUNCH_NS)
    late = start[queued & (before <= LITTLE_RATIO * columns.dur_ns[rows].sum())]
    return int(late.max()) if len(late) else 0


def device_steps(
    columns: TraceColumns,
    issued: I64,
    start: I64,
    end: I64,
    judged: Bools,
    last_end: int | None,
    least_ratio: float = AHEAD_RATIO,
) -> tuple[I64, I64, int] | None:
    """Starts and ends by the device's completions, and its largest lag behind the marks; ``None`` where that stays.

    A step ends when the device has done what was issued in it, and not before the host's own mark: a device that waits
    for its host is no further. Work on streams without kernels, as copies of a checkpoint, ends no step. ``last_end``
    is where the last step ended by the host, however long the device went on; ``None`` where that is not known. The lag
    has to change by ``least_ratio`` of the ``judged`` steps.
    """
    rows = np.flatnonzero(device_rows(columns) & (columns.dur_ns > 0))
    rows = rows[np.isin(columns.stream[rows], np.unique(columns.stream[columns.category == Category.KERNEL]))]
    if not len(rows) or not judged.any():
        return None
    rows = rows[np.argsort(issued[rows], kind="stable")]
    done = np.r_[_NEVER, np.maximum.accumulate(columns.end_ns[rows])]
    before, after = (done[np.searchsorted(issued[rows], edge, side="left")] for edge in (start, end))
    reached = np.r_[start, end[:-1], end[-1] if last_end is None else last_end]
    done_by = np.r_[before, after]
    known = done_by > _NEVER
    known[-1] &= last_end is not None
    lag = np.where(known, np.maximum(done_by - reached, 0), 0)
    of_judged = lag[known & np.r_[judged, judged]]
    # Of a single step only growth counts: where the device catches up it waits for the host, which is the clock.
    changed = np.ptp(of_judged) if judged.sum() > 1 and len(of_judged) else np.diff(of_judged).sum()
    if changed <= least_ratio * int((np.r_[end[:-1], reached[-1]] - start)[judged].sum()):
        return None
    begin = np.maximum(start, before)
    if before[0] == _NEVER:
        within = (issued[rows] >= start[0]) & (issued[rows] < end[0])
        first = int(columns.ts_ns[rows[within]].min()) if within.any() else int(start[0])
        # Nobody saw when the device had done what was before. It was no further back than it is as the step ends: the
        # host's time until the first record beyond that is the step's own.
        begin[0] = min(first, int(start[0] + lag[len(start)]))
    return begin, np.maximum(end, after), int(lag.max())


#: Ranges of torch and its libraries, as they write them.
_LIBRARY = re.compile(
    r"^(?:ProfilerStep#|Optimizer\.|enumerate\(|profilerkit|PyTorch Profiler|nccl:|gloo:|c10d::|autograd::|aten::"
    r"|DistributedDataParallel|FSDP|FullySharded|Torch-Compiled|## Call |TorchDynamo|CompiledFunction|cuda|hip)"
)


def repeated_ranges(columns: TraceColumns) -> tuple[StepRanges, I64, I64] | None:
    """The repeated ranges that mark steps, with their starts and ends; ``None`` where none do.

    Ranges in turn within another that comes once may be the layers of one call: they count only where each turn runs
    a backward pass.
    """
    rows = _own(columns)
    start, end = columns.ts_ns[rows], columns.end_ns[rows]
    name, thread = columns.name[rows].astype(np.int64), columns.thread[rows].astype(np.int64)
    ranges = Ranges(columns.strings, name, start, end, thread, own=np.ones(len(rows), dtype=np.bool_))
    passes = np.sort(columns.ts_ns[backward_nodes(columns)])
    # What issues work: launches, or without a device operators.
    on_device = device_rows(columns).any()
    issuing = launching_rows(columns) if on_device else np.flatnonzero(columns.category == Category.CPU_OP)
    found = step_ranges(ranges, np.sort(columns.ts_ns[issuing]), passes) if len(rows) else None
    if found is None or len(found.rows) < 2:
        return None
    at, until = start[found.rows], end[found.rows]
    if ((start < at.min()) & (end >= until.max())).any() and not each_holds(passes, at):
        return None
    return found, at, until


def single_range(columns: TraceColumns) -> int | None:
    """The row of the innermost range with all of forward, backward and the optimizer step; ``None`` without one."""
    rows = _own(columns)
    optimizer = optimizer_rows(columns)
    backward = columns.ts_ns[backward_nodes(columns)]
    operators = columns.ts_ns[(columns.category == Category.CPU_OP) & (columns.thread == main_thread(columns))]
    if not len(optimizer) or not len(backward) or not len(operators):
        return None
    start, end = columns.ts_ns[rows], columns.end_ns[rows]
    holds = (start <= backward.min()) & (end >= columns.end_ns[optimizer].max())
    holds &= np.searchsorted(np.sort(operators), start) < np.searchsorted(np.sort(operators), backward.min())
    rows = rows[holds]
    return int(rows[columns.dur_ns[rows].argmin()]) if len(rows) else None


def _own(columns: TraceColumns) -> I64:
    """Ranges of the main thread that the program named itself, by their start."""
    own = ~saying(columns, _LIBRARY.match, Category.ANNOTATION)
    mine = (columns.category == Category.ANNOTATION) & own[columns.name] & (columns.thread == main_thread(columns))
    rows: I64 = np.flatnonzero(mine)
    return rows[np.argsort(columns.ts_ns[rows], kind="stable")]
