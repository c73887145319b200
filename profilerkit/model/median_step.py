"""One step as a timeline: what each lane of device and host did, and why the device was idle."""

from typing import Literal

import msgspec

from profilerkit.model.step import Family

#: Pieces of equal length that a lane is cut into; on the widest page one is three pixels wide (a choice).
CELLS = 300

LaneKind = Literal["step", "stream", "loader", "thread"]


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """What a lane did of one family.

    Attributes:
        family: of the parts.
        time_ns: in the whole step, exact.
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
        step: its number.
        rank: whose step it is; ``None`` when the file does not say.
        of: how many traced steady steps there are.
        mode: ``gpu``, or ``cpu`` when the main thread is treated as the device; idle then is what is no computation.
        time_ns: start to next start.
        idle_ns: no kernel, copy or collective ran on any stream.
        causes: part to ns of the idle time, exact: the partition of this step.
        gaps: the longest, longest first.
        gap_count: all of them.
        lanes: the partition first, then the busiest streams, the loader, and the busiest host threads.
        streams_left_out: further streams with work in this step.
        threads_left_out: further host threads with work in this step.
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
