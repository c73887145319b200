"""Events: of the median step by lane, of a step to zoom into, and those behind a number."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from profilerkit.model.step import Family

CELLS = 300  #: pieces of equal length that a lane is cut into; on the widest page one is three pixels wide (a choice)

LaneKind = Literal["step", "stream", "loader", "thread"]


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """What a lane did of one family.

    Attributes:
        levels: one byte for each of ``CELLS`` pieces of the step: how much of the piece it took, 0 none to 255 all, at
            least 1 where there is any. Base 64 in JSON.
    """

    family: Family
    time_ns: int
    levels: bytes


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the timeline.

    Attributes:
        name: ``Step``, ``Stream 7``, ``Loader``, ``Main thread``, ``Backward``, ``Thread 4711``. Hostile text.
        kind: ``step`` is the partition itself, every instant in the family of its part; ``stream`` what ran on one
            stream of the device; ``loader`` when the main thread got its batch; ``thread`` the operators and runtime
            calls of a host thread, of family ``other`` where they wait for the device.
        tracks: families that it has; time that is in none was spent on nothing that the trace shows.
    """

    name: str
    kind: LaneKind
    tracks: tuple[Track, ...]


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Time without a break in which the device was idle; ns since the start of the step.

    ``part`` is the part that most of it was attributed to, ``part_ns`` how much.
    """

    start_ns: int
    end_ns: int
    part: str
    part_ns: int


class MedianStep(msgspec.Struct, frozen=True, kw_only=True):
    """The traced steady step whose time is closest to their median.

    Attributes:
        mode: ``gpu``, or ``cpu`` when the main thread is treated as the device; idle then is what is no computation.
        time_ns: start to next start.
        idle_ns: no kernel, copy or collective ran on any stream.
        causes: part to ns of the idle time, exact: the partition of this step.
        lanes: the partition first, then the busiest streams, the loader, and the busiest host threads.
    """

    step: int
    rank: int | None
    of: int
    mode: Literal["gpu", "cpu"]
    time_ns: int
    idle_ns: int
    causes: dict[str, int]
    gaps: tuple[Gap, ...]
    gap_count: int
    lanes: tuple[Lane, ...]
    streams_left_out: int = 0
    threads_left_out: int = 0


TrackKind = Literal["cause", "stream", "copies", "communication", "thread", "python"]


class EventTrack(msgspec.Struct, frozen=True, kw_only=True):
    """Events that belong under one heading."""

    name: str  #: ``Stream 7``, ``Main thread``. Hostile text.
    #: ``cause`` names the part of each idle time; ``stream`` has kernels, ``copies`` and ``communication`` what else
    #: ran on a stream; ``thread`` has operators, ranges and runtime calls, ``python`` Python functions.
    kind: TrackKind
    rows: int


class StepEvents(msgspec.Struct, frozen=True, kw_only=True):
    """The longest events of one step; the arrays have one entry each, sorted by row and start."""

    step: int
    time_ns: int
    is_median: bool  #: whether it is the step closest to the median, else it is the slowest
    mode: Literal["gpu", "cpu"]  #: ``gpu``, or ``cpu`` when the main thread represents the device
    tracks: tuple[EventTrack, ...]
    names: tuple[str, ...]  #: each text once. Hostile; of a ``cause`` it is a part of the step.
    families: tuple[Family, ...]  #: what ``family`` counts in
    start_ns: Sequence[int]  #: since the start of the step; negative for what began before it
    dur_ns: Sequence[int]  #: whole durations, also of what ends after the step
    name: Sequence[int]
    row: Sequence[int]
    family: Sequence[int]
    left_out: int


class RawEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One interval, one sample or one step. Its texts come from the recording: hostile."""

    start_ns: int  #: when, on the clock that the table names
    value: float  #: its length, or what was sampled, in the unit of the table
    step: int | None = None
    where: str = ""
    name: str = ""


class RawEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one kind from one file, at most as many as can be read, and how many there are."""

    what: str
    origin: str
    #: ``trace`` for times as the trace file has them, ``run`` for those since the first one recorded.
    clock: Literal["trace", "run"]
    unit: str
    order: Literal["longest", "even"]  #: how the rows were chosen: the longest of all, or all at an even distance
    count: int
    rows: tuple[RawEvent, ...]
