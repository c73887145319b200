"""What logs say beside the steps, and when a sampled device is idle."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from profilerkit.analysis.intervals import I64
from profilerkit.analysis.steps.stalls import regular_distance
from profilerkit.model.memory import MemorySnapshot
from profilerkit.model.run import Series
from profilerkit.rundir.sampled import Sample


class Rests(msgspec.Struct, frozen=True):
    """How a device of a log was at rest between its first and its last sample at work.

    Attributes:
        label: how the report calls the device.
        n: samples in between.
        idle_ratio: 1 - their mean utilisation.
        resting_ratio: share of them in stretches at rest.
        count: such stretches.
        length: median length of a stretch, in samples; 0 without any.
        period: samples from the start of a stretch to that of the next; ``None`` where they do not come at intervals.
        sample_ns: time from one sample to the next, median; ``None`` of a log without times.
        before: samples at rest before the first at work.
        after: samples at rest after the last.
    """

    label: str
    n: int
    idle_ratio: float
    resting_ratio: float
    count: int
    length: int
    period: int | None
    sample_ns: int | None
    before: int = 0
    after: int = 0


class LogFacts(msgspec.Struct, frozen=True):
    """What was read of logs.

    Attributes:
        alone: nothing but logs was given, so that there are no steps.
        devices: how many devices each sampler's log is of.
        series: every signal of each of these, over its whole log.
        snapshots: one of each device of each memory snapshot.
        own: those that are of the judged run; of logs alone all.
        rests: when each device of a sampler's log was idle, where its use was sampled often enough.
    """

    alone: bool
    devices: tuple[int, ...] = ()
    series: tuple[Series, ...] = ()
    snapshots: tuple[MemorySnapshot, ...] = ()
    own: tuple[MemorySnapshot, ...] = ()
    rests: tuple[Rests, ...] = ()

    def of_devices(self, name: str) -> tuple[Series, ...]:
        """One signal of each device that has it."""
        return tuple(series for series in self.series if series.name == name)


#: A device is at rest in samples below this ratio of its use at work, which is the mean of its use weighted by itself:
#: a run that never takes more than a third of a device is at work at a quarter of it (a choice).
AT_REST_RATIO = 0.25
#: By how much of their distance rests may be early or late and still come at intervals: what they wait for varies.
SLACK = 0.15
#: Fewer samples at work are no pattern (a choice).
FEWEST_SAMPLES = 10


def rests(label: str, samples: Sequence[Sample]) -> Rests | None:
    """The pattern of one device; ``None`` of one with fewer than ``FEWEST_SAMPLES`` at work, which nobody used."""
    known = [
        (sample.t_ns, sample.gpu.utilization_ratio)
        for sample in samples
        if sample.gpu is not None and sample.gpu.utilization_ratio is not None
    ]
    use = np.array([value for _, value in known], dtype=np.float64)
    at_work = float(np.square(use).sum() / use.sum()) if use.any() else 1.0
    resting = use < AT_REST_RATIO * at_work
    working = np.flatnonzero(~resting)
    if len(working) < FEWEST_SAMPLES:
        return None
    first, last = int(working[0]), int(working[-1])
    starts, ends = _stretches(resting[first : last + 1])
    between = np.diff(np.array([t_ns for t_ns, _ in known], dtype=np.int64))
    each_ns = int(np.median(between)) if len(between) else 0
    return Rests(
        label=label,
        n=last - first + 1,
        idle_ratio=1.0 - float(use[first : last + 1].mean()),
        resting_ratio=float((ends - starts).sum()) / (last - first + 1),
        count=len(starts),
        length=round(float(np.median(ends - starts))) if len(starts) else 0,
        period=regular_distance(starts, SLACK),
        sample_ns=each_ns if each_ns > 0 else None,
        before=first,
        after=len(use) - 1 - last,
    )


def _stretches(is_rest: npt.NDArray[np.bool_]) -> tuple[I64, I64]:
    """Start and end of each run of samples at rest.

    >>> [ends.tolist() for ends in _stretches(np.array([False, True, True, False, True]))]
    [[1, 4], [3, 5]]
    """
    edges = np.diff(np.r_[0, is_rest.astype(np.int64), 0])
    return np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
