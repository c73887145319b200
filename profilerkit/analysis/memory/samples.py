"""Memory as the samplers saw it over the whole run: used on the device, and resident in the process."""

from collections.abc import Collection, Iterator, Sequence

import msgspec
import numpy as np

from profilerkit.analysis.events import EVENT_DTYPE
from profilerkit.analysis.intervals import I64
from profilerkit.analysis.memory.allocator import FEWEST_POINTS, told_growth
from profilerkit.analysis.memory.use import counted_pages
from profilerkit.analysis.steps.find import in_step
from profilerkit.analysis.steps.log import StepLog
from profilerkit.analysis.steps.series import shown_rows
from profilerkit.model.change import revise
from profilerkit.model.memory import Memory, MemoryGrowth, MemoryRow, Tracked
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.sampled import Sample

#: Samples are a second apart. Of fewer, growth that lasts cannot be told from memory that fills up (a choice: four in
#: each of the thirds that are compared). The pages of a worker are counted less often, and do not wander.
FEWEST_SAMPLES = 12
#: A smaller rise in a trace window against the peak is not told: memory wanders as much without one.
_TOLD_RATIO = 0.02


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
    growth = [grown for sampled in judged if (grown := _growth(sampled, log))]
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
        rows=_rows(shown, log) if shown else memory.rows,
        rows_of=rows_of,
    )


def _windows(records: bytes) -> list[tuple[int, int]]:
    """Start and end of every trace window, in order."""
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
    """Memory of a worker, whose headroom it shares with the others."""
    pairs = [(t_ns, pages.anonymous_bytes) for t_ns, pages in counted_pages(samples, workers)]
    count = max((len(sample.host.workers) for sample in samples if sample.host), default=1)
    left = process.headroom // max(count, 1) if process.headroom is not None else None
    return _sampled("worker", pairs, process.capacity, left)


def _sampled(of: Tracked, pairs: list[tuple[int, int]], capacity: int | None, headroom: int | None) -> _Sampled:
    found = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return _Sampled(of, found[:, 0], found[:, 1], capacity, headroom)


def _growth(sampled: _Sampled, log: StepLog) -> MemoryGrowth | None:
    """Growth over the judged steps, by the step number at each sample."""
    low, high = log.window
    inside = (sampled.ts_ns >= low) & (sampled.ts_ns < high)
    fewest = FEWEST_POINTS if sampled.of == "worker" else FEWEST_SAMPLES
    if inside.sum() < fewest or not log.steady.any():
        return None
    step = np.interp(sampled.ts_ns[inside], log.start, log.index)
    return told_growth(sampled.of, step, sampled.bytes[inside], sampled.headroom, float(log.time[log.steady].mean()))


def _rows(sampled: _Sampled, log: StepLog) -> tuple[MemoryRow, ...]:
    """The largest sample of each step that has one."""
    step = in_step(sampled.ts_ns, log.start, log.stop)
    most = np.zeros(len(log.index), dtype=np.int64)
    np.maximum.at(most, step[step >= 0], sampled.bytes[step >= 0])
    seen = np.flatnonzero(most)
    return tuple(MemoryRow(index=int(log.index[row]), peak_bytes=int(most[row])) for row in seen[shown_rows(len(seen))])
