"""Memory of one rank: by the instants of a trace what was alive and who asked for it, over the whole run as sampled."""

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from profilerkit.analysis.device.kernels import named
from profilerkit.analysis.enclosing import innermost_at
from profilerkit.analysis.events import EVENT_DTYPE
from profilerkit.analysis.host.names import HostNames
from profilerkit.analysis.intervals import covered
from profilerkit.analysis.memory.use import counted_pages
from profilerkit.analysis.partition import TraceView
from profilerkit.analysis.stats import Numbers, median, theil_sen
from profilerkit.analysis.steps.find import TraceSteps, in_step
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.steps.series import shown_rows
from profilerkit.model import revise
from profilerkit.model.memory import FEWEST_TO_EXTEND, AliveAtPeak, Memory, MemoryGrowth, MemoryRow, Tracked
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.sampled import Sample
from profilerkit.trace.columns import I64, Bools, Category, MemoryInstants, TraceColumns

#: Operators that only allocate: the one around them says what for.
_ALLOCATES = re.compile(r"^aten::(?:new_)?empty(?:_strided|_like|_permuted)?$|^aten::resize_$")
_MODULE = re.compile(r"^nn\.Module: ")
MOST_OWNERS = 20  #: entries told; the rest is in the sum of allocated memory


def alive_at(columns: TraceColumns, rows: I64, allocated: int) -> tuple[tuple[AliveAtPeak, ...], int | None]:
    """The blocks alive after the last of ``rows``, by operator and module, and the bytes older than the recording.

    Of every address the latest instant decides: alive if it allocates. Without addresses nothing is known of either.
    """
    instants = columns.memory
    rows = rows[instants.address[rows] >= 0]
    if not len(rows):
        return (), None
    order = np.argsort(instants.address[rows], kind="stable")
    address = instants.address[rows[order]]
    rows = rows[order[np.r_[address[1:] != address[:-1], True]]]
    rows = rows[instants.bytes[rows] > 0]
    before = max(allocated - int(instants.bytes[rows].sum()), 0)
    return _by_owner(columns, rows), before


def _by_owner(columns: TraceColumns, rows: I64) -> tuple[AliveAtPeak, ...]:
    """Blocks put together by operator and module, largest first."""
    thread, ts_ns = columns.memory.thread[rows], columns.memory.ts_ns[rows]
    operators, allocates = columns.category == Category.CPU_OP, named(columns, _ALLOCATES, Category.CPU_OP)
    modules = named(columns, _MODULE, Category.PYTHON)
    op = innermost_at(columns, np.flatnonzero(operators & ~allocates), thread, ts_ns)
    bare = op < 0
    op[bare] = innermost_at(columns, np.flatnonzero(allocates), thread[bare], ts_ns[bare])
    module = innermost_at(columns, np.flatnonzero(modules), thread, ts_ns)
    pairs = np.stack([np.where(found >= 0, columns.name[found], -1) for found in (op, module)], axis=1)
    owners, index = np.unique(pairs, axis=0, return_inverse=True)
    index = index.ravel()  # numpy 2.0 gives it the shape of the rows
    total = np.zeros(len(owners), dtype=np.int64)
    np.add.at(total, index, columns.memory.bytes[rows])
    texts = [[columns.strings[name] if name >= 0 else None for name in names] for names in owners.tolist()]
    sizes = zip(texts, np.bincount(index).tolist(), total.tolist(), strict=True)
    known = [AliveAtPeak(op=names[0], module=names[1], count=count, bytes=size) for names, count, size in sizes]
    # Of equal ones the order of the names decides, not that of the events in the file.
    known.sort(key=lambda entry: (-entry.bytes, entry.op or "", entry.module or ""))
    return tuple(known[:MOST_OWNERS])


FEWEST_POINTS = 8  #: with fewer points even a strictly rising series is no proof at 1 % on both sides
#: Growth is persistent when the last third gains at least this ratio of what the third before it gained: a cache that
#: fills up gains less and less. 0.5 rejects an exponential approach faster than half of the window.
KEPT_GAIN = 0.5
#: And when the middle third gains at least this ratio of the last: a single jump is an event, not growth.
EARLY_GAIN = 0.25


_HOST = 0  # torch's DeviceType of the host; every other one that writes instants is a device
_GIVES_BACK = re.compile(r"Free|Release|Unmap")


def memory_of(view: TraceView) -> Memory:
    """What the memory did in the steady window; ``None`` where the trace has no instants or they lack totals.

    A device's memory goes before the host's, that of the judged ``device`` before that of others.
    """
    columns, names, steps, device = view.columns, view.names, view.steps, view.device
    device = _told_device(columns.memory, device)
    capacity = next((entry.memory_bytes for entry in columns.meta.devices if entry.id == device), None)
    blank = revise(_calls(columns, names, steps), capacity_bytes=capacity)
    # The instants in order of time, -1 where a total is not known, and the step that each lies in.
    rows = np.flatnonzero(judged_instants(columns.memory, device))
    rows = rows[np.argsort(columns.memory.ts_ns[rows], kind="stable")]
    allocated, all_reserved = columns.memory.allocated[rows], columns.memory.reserved[rows]
    step = in_step(columns.memory.ts_ns[rows], steps.by_host.start, steps.by_host.end)
    inside = (step >= 0) & steps.judged[step] & (allocated > 0)
    if not inside.any():
        return blank
    peak = int(np.flatnonzero(inside)[allocated[inside].argmax()])
    most, reserved = int(allocated[peak]), int(all_reserved[peak])
    alive, before = alive_at(columns, rows[: peak + 1], most)
    found = revise(
        blank,
        place="host" if columns.memory.device_type[rows[0]] == _HOST else "device",
        peak_allocated_bytes=most,
        peak_reserved_bytes=int(all_reserved[inside].max()) if reserved > 0 else None,
        fragmentation_ratio=max(1.0 - most / reserved, 0.0) if reserved > 0 else None,
        alive=alive,
        alive_before_bytes=before,
        rows=_rows(steps.index, step, allocated, all_reserved),
        rows_of="allocated",
    )
    return revise(found, growth=_growth(step, allocated, steps, found))


def _told_device(instants: MemoryInstants, judged: int) -> int:
    """The judged device, unless only others have instants: then the one with most of them."""
    named = instants.device[(instants.device_type != _HOST) & (instants.device >= 0)]
    if not len(named) or (named == judged).any():
        return judged
    devices, counts = np.unique(named, return_counts=True)
    return int(devices[counts.argmax()])


def judged_instants(instants: MemoryInstants, judged: int) -> Bools:
    """``(n_instants,)`` which tell of the memory that ``memory_of`` tells of for the judged device."""
    device = _told_device(instants, judged)
    on_device: Bools = instants.device_type != _HOST
    mine = on_device & ((instants.device == device) | (instants.device < 0))
    return mine if mine.any() else ~on_device


def _extremes(step: I64, values: I64, count: int, *, largest: bool = True) -> I64:
    """Largest or least known value in each step, 0 for none."""
    known = (step >= 0) & (values > 0)
    out = np.zeros(count, dtype=np.int64)
    if not largest:
        out[step[known]] = np.iinfo(np.int64).max
    (np.maximum if largest else np.minimum).at(out, step[known], values[known])
    return out


def _rows(index: I64, step: I64, used: I64, reserved: I64 | None = None) -> tuple[MemoryRow, ...]:
    """The peak of each step in which memory was seen to be used."""
    most = _extremes(step, used, len(index))
    held = _extremes(step, reserved, len(index)) if reserved is not None else np.zeros_like(most)
    seen = np.flatnonzero(most)
    return tuple(
        MemoryRow(index=int(index[row]), peak_bytes=int(most[row]), reserved_bytes=int(held[row]) or None)
        for row in seen[shown_rows(len(seen))]
    )


def _growth(step: I64, allocated: I64, steps: TraceSteps, memory: Memory) -> tuple[MemoryGrowth, ...]:
    """Growth of the least memory of the steady steps: what is alive at their quietest instant stays alive."""
    least = _extremes(step, allocated, len(steps.index), largest=False)
    keep = (least > 0) & steps.judged
    peak = memory.peak_reserved_bytes or memory.peak_allocated_bytes
    known = memory.place == "device" and memory.capacity_bytes is not None and peak is not None
    headroom = max(memory.capacity_bytes - peak, 0) if known and memory.capacity_bytes and peak else None
    mean_ns = float((steps.end - steps.start)[steps.judged].mean())
    grown = told_growth("allocated", steps.index[keep], least[keep], headroom, mean_ns)
    return (grown,) if grown else ()


def told_growth(of: Tracked, step: Numbers, used: I64, headroom: int | None, step_ns: float) -> MemoryGrowth | None:
    """Growth along the steps ``step``, with the time to a full memory where it lasts.

    ``None`` below ``FEWEST_POINTS`` points.

    >>> import numpy as np
    >>> steps = np.arange(12)
    >>> told_growth("allocated", steps, 100 + 5 * steps, None, 1.0).grows
    True
    >>> told_growth("allocated", steps, np.minimum(100 + 50 * steps, 300), None, 1.0).grows
    False
    """
    slope = theil_sen(step, used) if len(step) >= FEWEST_POINTS else None
    if slope is None:
        return None
    cuts = [len(used) * third // 3 for third in range(4)]
    first, middle, last = (median(used[low:high]) for low, high in pairwise(cuts))
    early, late = middle - first, last - middle
    persists = min(early, late) > 0 and late >= KEPT_GAIN * early and early >= EARLY_GAIN * late
    row = MemoryGrowth(
        of=of,
        bytes_per_step=slope.value,
        low_bytes_per_step=slope.low,
        high_bytes_per_step=slope.high,
        n=len(step),
        first_step=int(step[0]),
        last_step=int(step[-1]),
        grows=slope.low > 0 and persists,
        headroom_bytes=headroom,
    )
    if headroom is None or not row.lasts or row.n < FEWEST_TO_EXTEND:
        return row
    left = headroom / slope.value
    return revise(row, steps_to_full=left, ns_to_full=round(left * step_ns))


def _calls(columns: TraceColumns, names: HostNames, steps: TraceSteps) -> Memory:
    """Calls that give memory back, and retries: a call for memory right after one that gave some back, in one operator.

    The caching allocator empties its cache when the driver has no more memory, and asks again.
    """
    window, runtime = steps.by_host.steady, columns.category == Category.RUNTIME
    if not runtime.any():
        return Memory()
    rows = np.flatnonzero(runtime & names.allocator[columns.name])
    rows = rows[covered(window, columns.ts_ns[rows])]
    rows = rows[np.lexsort((columns.ts_ns[rows], columns.thread[rows]))]
    gives_back = named(columns, _GIVES_BACK, Category.RUNTIME)[rows]
    operators = np.flatnonzero(columns.category == Category.CPU_OP)
    within = innermost_at(columns, operators, columns.thread[rows], columns.ts_ns[rows])
    asks_again = gives_back[:-1] & ~gives_back[1:] & (within[:-1] == within[1:]) & (within[1:] >= 0)
    return Memory(
        allocator_frees_per_step=int(gives_back.sum()) / max(len(window), 1), allocator_retries=int(asks_again.sum())
    )


#: Samples are a second apart. Of fewer, growth that lasts cannot be told from memory that fills up (a choice: four in
#: each of the thirds that are compared). The pages of a worker are counted less often, and do not wander.
FEWEST_SAMPLES = 12
_TOLD_RATIO = 0.02  #: a smaller rise in a trace window against the peak is not told: memory wanders as much without one


class _Sampled(msgspec.Struct, frozen=True):
    """One memory at the instants of its samples, how large it is, and how much of it stayed free."""

    of: Tracked
    ts_ns: I64
    bytes: I64
    capacity: int | None
    headroom: int | None


def with_samples(
    memory: Memory, samples: Sequence[Sample], log: StepLog, records: bytes = b"", workers: Collection[int] = ()
) -> Memory:
    """``memory`` of the trace, with what was sampled during the steps of the run; ``records`` tell its trace windows.

    Where the trace has no memory of its own, the sampled one gives the rows of the steps. The buffers of torch's
    profiler lie in the process (0.2 to 0.9 GiB for a window of 10 steps, torch 2.13): what was sampled there in a
    trace window is no need of a step. What windows kept is no growth of the process either: a few of them along a run
    look like a leak. Nor are pages of files, such as those of a mapped array that is read for the first time.
    """
    windows, every, own = _windows(records), _process(samples), _process(samples, with_files=False)
    device, process = _device(samples), _outside(every, windows)
    traced, kept = _rises(every, windows)
    outside = _outside(own, windows)
    used = outside.bytes.copy()
    for (_, end), (_, stays) in zip(windows, _each_rise(own, windows), strict=True):
        used[outside.ts_ns >= end] -= stays
    judged = (device, revise(outside, bytes=used), _worker(samples, process, workers))
    growth = [grown for sampled in judged if (grown := _sampled_growth(sampled, log))]
    rows_of = memory.rows_of or next((found.of for found in (device, process) if len(found.bytes)), None)
    shown = next((found for found in (device, process) if found.of == rows_of), None)
    return revise(
        memory,
        capacity_bytes=memory.capacity_bytes if memory.capacity_bytes is not None else device.capacity,
        peak_device_used_bytes=_peak(device),
        peak_process_bytes=_peak(process),
        traced_process_bytes=traced,
        kept_process_bytes=kept,
        host_capacity_bytes=process.capacity,
        growth=(*memory.growth, *growth),
        rows=_rows(log.index, in_step(shown.ts_ns, log.start, log.stop), shown.bytes) if shown else memory.rows,
        rows_of=rows_of,
    )


def _windows(records: bytes) -> list[tuple[int, int]]:
    events = np.frombuffer(records, dtype=EVENT_DTYPE)
    found = events[events["kind"] == EventKind.WINDOW]
    return sorted(zip(found["start"].tolist(), (found["start"] + found["dur"]).tolist(), strict=True))


def _outside(sampled: _Sampled, windows: Sequence[tuple[int, int]]) -> _Sampled:
    """The samples outside all windows; every sample of a run that was traced from end to end."""
    inside = np.zeros(len(sampled.ts_ns), dtype=bool)
    for start, end in windows:
        inside |= (sampled.ts_ns >= start) & (sampled.ts_ns < end)
    if inside.all():
        return sampled
    return revise(sampled, ts_ns=sampled.ts_ns[~inside], bytes=sampled.bytes[~inside])


def _rises(sampled: _Sampled, windows: Sequence[tuple[int, int]]) -> tuple[int | None, int | None]:
    """The most that recording held at once by the rises in the windows, and what it kept; ``None`` for little.

    >>> seconds, used = np.arange(5) * 10**9, np.array([300, 1200, 1100, 1100, 1150])
    >>> _rises(_Sampled("process", seconds, used, None, None), [(5 * 10**8, 15 * 10**8), (35 * 10**8, 36 * 10**8)])
    (900, 850)
    """
    traced = kept = 0
    for most, stays in _each_rise(sampled, windows):
        traced, kept = max(traced, kept + most), kept + stays
    least = _TOLD_RATIO * (_peak(sampled) or 0)
    return traced if traced > least else None, kept if kept > least else None


def _each_rise(sampled: _Sampled, windows: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Of each window by how many bytes memory rose at most, and how many of them were still there behind it."""
    for start, end in windows:
        before, after = np.searchsorted(sampled.ts_ns, [start, end])
        # The first sample behind a window stands for one in which none was taken.
        within = sampled.bytes[before : after + 1]
        if not before or not len(within):
            yield 0, 0
            continue
        base = int(sampled.bytes[before - 1])
        yield int(within.max()) - base, max(0, int(within[-1]) - base) if after < len(sampled.bytes) else 0


def _peak(sampled: _Sampled) -> int | None:
    return int(sampled.bytes.max()) if len(sampled.bytes) else None


def _device(samples: Sequence[Sample]) -> _Sampled:
    seen = [(sample.t_ns, gpu.memory_used_bytes, gpu.memory_total_bytes) for sample in samples if (gpu := sample.gpu)]
    used = [(t_ns, value) for t_ns, value, _ in seen if value is not None]
    capacity = max((total for *_, total in seen if total is not None), default=None)
    most = max((value for _, value in used), default=0)
    return _sampled("device", used, capacity, max(capacity - most, 0) if capacity is not None else None)


def _process(samples: Sequence[Sample], *, with_files: bool = True) -> _Sampled:
    """The resident memory; without pages of files, as far as they are known, only where they are."""
    seen = [(sample.t_ns, host) for sample in samples if (host := sample.host)]
    resident = [(t_ns, value) for t_ns, host in seen if (value := host.process_rss_bytes) is not None]
    if not with_files and any(host.process_file_bytes is not None for _, host in seen):
        resident = [(t_ns, value) for t_ns, host in seen if (value := host.process_own_bytes) is not None]
    capacity = max((total for _, host in seen if (total := host.memory_total_bytes) is not None), default=None)
    most = max((used for _, host in seen if (used := host.memory_used_bytes) is not None), default=None)
    left = max(capacity - most, 0) if capacity is not None and most is not None else None
    return _sampled("process", resident, capacity, left)


def _worker(samples: Sequence[Sample], process: _Sampled, workers: Collection[int]) -> _Sampled:
    pairs = [(t_ns, pages.anonymous_bytes) for t_ns, pages in counted_pages(samples, workers)]
    count = max((len(sample.host.workers) for sample in samples if sample.host), default=1)
    left = process.headroom // max(count, 1) if process.headroom is not None else None
    return _sampled("worker", pairs, process.capacity, left)


def _sampled(of: Tracked, pairs: list[tuple[int, int]], capacity: int | None, headroom: int | None) -> _Sampled:
    found = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return _Sampled(of, found[:, 0], found[:, 1], capacity, headroom)


def _sampled_growth(sampled: _Sampled, log: StepLog) -> MemoryGrowth | None:
    """Growth over the judged steps, by the step number at each sample."""
    low, high = log.window
    inside = (sampled.ts_ns >= low) & (sampled.ts_ns < high)
    fewest = FEWEST_POINTS if sampled.of == "worker" else FEWEST_SAMPLES
    if inside.sum() < fewest or not log.steady.any():
        return None
    step = np.interp(sampled.ts_ns[inside], log.start, log.index)
    return told_growth(sampled.of, step, sampled.bytes[inside], sampled.headroom, float(log.time[log.steady].mean()))
