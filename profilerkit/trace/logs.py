"""What is read of a run beside its traces: the log of a sampler, and snapshots of the allocator."""

from typing import Literal

import msgspec

from profilerkit.rundir.documents import Flight
from profilerkit.rundir.sampled import Sample

#: What the times of a log count from: the epoch, the epoch of a time zone that the log does not name, or nothing.
LogClock = Literal["utc", "no zone", "none"]

#: How an entry of a stack begins that is no line of Python but the backward pass; the name of its node follows.
BACKWARD = "backward"

AllocatorAction = Literal[
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
]


class GpuLog(msgspec.Struct, frozen=True):
    """One device of a sampler's log; ``None`` is what the log does not say.

    Attributes:
        label: how the report calls it: ``GPU 1``; hostile text where the log names devices by text.
        samples: in file order; ``t_ns`` counts as ``SamplerLog.clock`` says, and is 0 where that is ``none``.
    """

    label: str
    index: int | None
    model: str | None
    samples: tuple[Sample, ...]
    uuid: str | None = None


class SamplerLog(msgspec.Struct, frozen=True):
    """What nvidia-smi wrote. ``notes`` say what was left out or assumed, and what the log lacks."""

    origin: str
    gpus: tuple[GpuLog, ...]
    clock: LogClock
    notes: tuple[str, ...] = ()


class Block(msgspec.Struct, frozen=True):
    """One piece of a segment; ``bytes`` is what was asked for where it is in use, else its size."""

    address: int
    bytes: int
    in_use: bool
    frames: tuple[str, ...] = ()


class Segment(msgspec.Struct, frozen=True):
    """Memory that the allocator took from the device in one piece."""

    total_bytes: int
    blocks: tuple[Block, ...]


class AllocatorEvent(msgspec.Struct, frozen=True):
    """One entry of the allocator's history; ``None`` means not recorded.

    ``frames`` are lines of Python and at most one entry of ``BACKWARD``, innermost first; hostile text. ``free_bytes``
    is of the device at an ``oom``.
    """

    action: AllocatorAction
    address: int
    bytes: int
    time_ns: int | None
    frames: tuple[str, ...] = ()
    free_bytes: int | None = None


class DeviceHistory(msgspec.Struct, frozen=True):
    """One device of a snapshot: what it held at the end, and the events before, oldest first."""

    device: int
    segments: tuple[Segment, ...]
    events: tuple[AllocatorEvent, ...]


class SnapshotLog(msgspec.Struct, frozen=True):
    """A CUDA memory snapshot; ``settings`` are those of the allocator."""

    origin: str
    devices: tuple[DeviceHistory, ...]
    settings: str = ""
    notes: tuple[str, ...] = ()


Log = SamplerLog | SnapshotLog


class FlightDump(msgspec.Struct, frozen=True):
    """What one dump held.

    Attributes:
        origin: name of its file.
        flight: its collectives, by time.
        world_size: members of its largest process group; ``None`` where it names none.
        notes: what was left out, in whole sentences.
    """

    origin: str
    flight: Flight
    world_size: int | None
    notes: tuple[str, ...] = ()
