"""The record of what logs say beside the steps."""

import msgspec

from profilerkit.model.run import Series
from profilerkit.model.snapshot import MemorySnapshot


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
