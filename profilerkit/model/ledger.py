"""Where the wall clock of a run went, and what lost time amounts to on all ranks, in hours and in money."""

from typing import Literal

import msgspec

from profilerkit.model.finding import Method

#: Best first. Inferred is what the order of fetches and backward passes tells, where nobody named it.
LedgerSource = Literal["measured", "derived", "inferred"]
Stage = Literal[
    "start-up",
    "warm-up",
    "steps",
    "between",
    "evaluation",
    "checkpoint",
    "logging",
    "phases",
    "profiler",
    "end",
    "unexplained",
]

#: Every entry that a wall clock is partitioned into, its stage, and the words a report uses for it.
ENTRIES: dict[str, tuple[Stage, str]] = {
    "start.python": ("start-up", "Starting Python"),
    "start.import": ("start-up", "Imports"),
    "start.device": ("start-up", "Initialising the device"),
    "start.data": ("start-up", "Up to the first DataLoader: its data set"),
    "start.model": ("start-up", "Building the model"),
    "start.before": ("start-up", "Before the recording"),
    "start.inside": ("start-up", "Before the first step"),
    "start.batch": ("start-up", "First batch"),
    "warm.compile": ("warm-up", "Compiling"),
    "warm.steps": ("warm-up", "First steps, beyond what steady ones take"),
    "step.input": ("steps", "Input wait"),
    "step.forward": ("steps", "Forward, up to the backward pass"),
    "step.unfed": ("steps", "Getting the batch and forward"),
    "step.backward": ("steps", "Backward pass"),
    "step.optimizer": ("steps", "Optimizer"),
    "step.copy": ("steps", "Calls that copy to the device"),
    "step.sync": ("steps", "Calls that wait for the device"),
    "step.comm": ("steps", "Collective calls"),
    "step.gc": ("steps", "Garbage collection"),
    "step.rest": ("steps", "The rest of the steps"),
    "step.device": ("steps", "Queued work on the device"),
    "between.epoch": ("between", "First and last fetch of each epoch"),
    "between.uncounted": ("between", "Training in no counted step"),
    "evaluation": ("evaluation", "Evaluation"),
    "checkpoint": ("checkpoint", "Checkpoints"),
    "logging": ("logging", "Logging"),
    "phases": ("phases", "Other named phases"),
    "profiler.start": ("profiler", "Importing profilerkit"),
    "profiler": ("profiler", "Beyond what their steps take"),
    "end": ("end", "After the last step"),
    "unexplained": ("unexplained", "In no step, phase or record"),
}


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One class of a run's time. The entries of a ledger sum to its wall clock exactly.

    Attributes:
        time_ns: time of the training thread, int64 ns. Beside a device's clock, only that in which the device may have
            stood still; the rest is ``step.device``.
        share: of the wall clock, 0 to 1.
        count: how often it occurred, where that can be told: evaluations, checkpoints, phases, compilations.
        largest: the packages that imports took longest for, and how long without what they import of others, ns.
    """

    entry: str
    stage: Stage
    time_ns: int
    share: float
    source: LedgerSource
    count: int | None = None
    largest: tuple[tuple[str, int], ...] = ()


class RankWall(msgspec.Struct, frozen=True, kw_only=True):
    """The wall clock of one rank by stage, ns; stages that took no time are left out."""

    rank: int
    wall_ns: int
    stages: dict[Stage, int]


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The wall clock of the told rank.

    Attributes:
        wall_ns: from the start of the process, or of the recording, to the end of the recording.
        from_process_start: it begins with the process; otherwise when that was is not known, or it did other work
            before: the wall clock is that of the recording.
        to_last_record: it ends with the last record, because no end was written: the process was killed, or still runs.
        loader_seen: a fetch of the training's was recorded; otherwise waiting for data was not measured.
    """

    rank: int
    wall_ns: int
    from_process_start: bool
    to_last_record: bool
    loader_seen: bool
    steps: int
    unexplained_ns: int
    entries: tuple[LedgerEntry, ...]
    ranks: tuple[RankWall, ...] = ()


_START_UP: Stage = "start-up"

CostSource = Literal["measured", "derived", "inferred", "estimated"]


class LostTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time in which nothing new of the training was computed, for one cause. Causes do not overlap.

    Attributes:
        cause: a key of ``PARTS`` for time inside the steps, of ``ENTRIES`` for time outside.
        share: of all hours, 0 to 1.
        source: estimated where it was recorded on other ranks than all, or told from their names.
    """

    cause: str
    inside: bool
    hours: float
    share: float
    source: CostSource
    cost: float | None = None


class FixValue(msgspec.Struct, frozen=True, kw_only=True):
    """What the saving of a finding amounts to. Those of two findings overlap and must not be added.

    Attributes:
        low: hours that it should give back at least; this and the next two are of all ranks together.
    """

    rule: str
    title: str
    method: Method
    low: float
    expected: float
    high: float
    cost: float | None = None


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The hours of a run by what they were lost to.

    Attributes:
        unit: ``GPU`` where a device was seen, else ``rank``: nobody knows of a GPU that waited.
        scope: the whole recorded run, or as many steps as make a number worth reading where only some were recorded.
        ranks: whose hours are counted: of the job where its size is known, else those that were read.
        ranks_read: how many of them were recorded; what the others lost is taken to be the same.
        price: of one hour of one GPU; ``None`` without, and where the unit is ``rank``.
    """

    unit: Literal["GPU", "rank"]
    scope: Literal["run", "1000 steps"]
    ranks: int
    ranks_read: int
    hours: float
    price: float | None = None
    lost: tuple[LostTime, ...] = ()
    fixes: tuple[FixValue, ...] = ()

    @property
    def start_up(self) -> tuple[LostTime, ...]:
        """What of ``lost`` went before the first step, as imports do: a run pays it once, however long it trains."""
        return tuple(row for row in self.lost if _is_start_up(row))

    @property
    def lost_in_training(self) -> tuple[LostTime, ...]:
        """Return the rest of ``lost``: what went while the run trained, and after it."""
        return tuple(row for row in self.lost if not _is_start_up(row))


def _is_start_up(row: LostTime) -> bool:
    return not row.inside and row.cause in ENTRIES and ENTRIES[row.cause][0] == _START_UP
