"""The record of what logs say beside the steps."""

from dataclasses import dataclass

from profilerkit.model.run import Series
from profilerkit.model.snapshot import MemorySnapshot


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What was read of logs.

    Attributes:
        alone: nothing but logs was given, so that there are no steps.
        devices: how many devices each sampler's log is of.
        series: every signal of each of these, over its whole log.
        snapshots: one of each device of each memory snapshot.
    """

    alone: bool
    devices: tuple[int, ...] = ()
    series: tuple[Series, ...] = ()
    snapshots: tuple[MemorySnapshot, ...] = ()

    def of_devices(self, name: str) -> tuple[Series, ...]:
        """One signal of each device that has it."""
        return tuple(series for series in self.series if series.name == name)
