"""Where the wall clock of a whole run went, from the start of its process to its end."""

from typing import Literal

import msgspec

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
    "probes",
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
    "probes": ("probes", "Steps that probes put in"),
    "end": ("end", "After the last step"),
    "unexplained": ("unexplained", "In no step, phase or record"),
}


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One class of a run's time. The entries of a ledger sum to its wall clock exactly.

    Attributes:
        entry: a key of ``ENTRIES``.
        stage: its stage.
        time_ns: time of the training thread, int64 ns. Beside a device's clock, only that in which the device may have
            stood still; the rest is ``step.device``.
        share: of the wall clock, 0 to 1.
        source: how it came about.
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
        rank: whose.
        wall_ns: from the start of the process, or of the recording, to the end of the recording.
        from_process_start: it begins with the process; otherwise when that was is not known, or it did other work
            before: the wall clock is that of the recording.
        to_last_record: it ends with the last record, because no end was written: the process was killed, or still runs.
        loader_seen: a fetch of the training's was recorded; otherwise waiting for data was not measured.
        steps: steps that ended.
        unexplained_ns: time in no step, phase or record.
        entries: those that took time, in the order of ``ENTRIES``.
        ranks: all ranks, where there are several.
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
