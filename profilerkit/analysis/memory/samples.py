"""Memory as the samplers saw it over the whole run: used on the device, and resident in the process."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profilerkit.analysis.intervals import I64
from profilerkit.analysis.memory.allocator import told_growth
from profilerkit.analysis.steps.find import in_step, shown_rows
from profilerkit.analysis.steps.log import StepLog
from profilerkit.model.change import revise
from profilerkit.model.memory import Memory, MemoryGrowth, MemoryRow, Tracked
from profilerkit.rundir.sampled import Sample

#: Samples are a second apart and wander with what the process happens to do: half a minute of them before growth is
#: claimed.
FEWEST_SAMPLES = 30


@dataclass(frozen=True, slots=True)
class _Sampled:
    """One memory at the instants of its samples, how large it is, and how much of it stayed free."""

    of: Tracked
    ts_ns: I64
    bytes: I64
    capacity: int | None
    headroom: int | None


def with_samples(memory: Memory, samples: Sequence[Sample], log: StepLog) -> Memory:
    """``memory`` of the trace, with what was sampled during the steps of the run.

    Where the trace has no memory of its own, the sampled one gives the rows of the steps.
    """
    device, process = _device(samples), _process(samples)
    growth = [grown for sampled in (device, process) if (grown := _growth(sampled, log))]
    rows_of = memory.rows_of or next((found.of for found in (device, process) if len(found.bytes)), None)
    shown = next((found for found in (device, process) if found.of == rows_of), None)
    return revise(
        memory,
        capacity_bytes=memory.capacity_bytes if memory.capacity_bytes is not None else device.capacity,
        peak_device_used_bytes=_peak(device),
        peak_process_bytes=_peak(process),
        host_capacity_bytes=process.capacity,
        growth=(*memory.growth, *growth),
        rows=_rows(shown, log) if shown else memory.rows,
        rows_of=rows_of,
    )


def _peak(sampled: _Sampled) -> int | None:
    return int(sampled.bytes.max()) if len(sampled.bytes) else None


def _device(samples: Sequence[Sample]) -> _Sampled:
    seen = [(sample.t_ns, gpu.memory_used_bytes, gpu.memory_total_bytes) for sample in samples if (gpu := sample.gpu)]
    used = [(t_ns, value) for t_ns, value, _ in seen if value is not None]
    capacity = max((total for *_, total in seen if total is not None), default=None)
    most = max((value for _, value in used), default=0)
    return _sampled("device", used, capacity, max(capacity - most, 0) if capacity is not None else None)


def _process(samples: Sequence[Sample]) -> _Sampled:
    seen = [(sample.t_ns, host) for sample in samples if (host := sample.host)]
    resident = [(t_ns, value) for t_ns, host in seen if (value := host.process_rss_bytes) is not None]
    capacity = max((total for _, host in seen if (total := host.memory_total_bytes) is not None), default=None)
    most = max((used for _, host in seen if (used := host.memory_used_bytes) is not None), default=None)
    left = max(capacity - most, 0) if capacity is not None and most is not None else None
    return _sampled("process", resident, capacity, left)


def _sampled(of: Tracked, pairs: list[tuple[int, int]], capacity: int | None, headroom: int | None) -> _Sampled:
    found = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return _Sampled(of, found[:, 0], found[:, 1], capacity, headroom)


def _growth(sampled: _Sampled, log: StepLog) -> MemoryGrowth | None:
    """Growth over the judged steps, by the step number at each sample."""
    steady = np.flatnonzero(log.steady)
    low, high = log.start[steady[0]], log.start[steady[-1]] + log.time[steady[-1]]
    inside = (sampled.ts_ns >= low) & (sampled.ts_ns < high)
    if inside.sum() < FEWEST_SAMPLES:
        return None
    step = np.interp(sampled.ts_ns[inside], log.start, log.index)
    return told_growth(sampled.of, step, sampled.bytes[inside], sampled.headroom, float(log.time[steady].mean()))


def _rows(sampled: _Sampled, log: StepLog) -> tuple[MemoryRow, ...]:
    """The largest sample of each step that has one."""
    step = in_step(sampled.ts_ns, log.start, log.start + log.time)
    most = np.zeros(len(log.index), dtype=np.int64)
    np.maximum.at(most, step[step >= 0], sampled.bytes[step >= 0])
    seen = np.flatnonzero(most)
    return tuple(MemoryRow(index=int(log.index[row]), peak_bytes=int(most[row])) for row in seen[shown_rows(len(seen))])
