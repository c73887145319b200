"""The events of one step as pieces on tracks, for a timeline that zooms; it is no part of the report's JSON."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from profilerkit.model.step import Family

TrackKind = Literal["cause", "stream", "copies", "communication", "thread", "python"]


class EventTrack(msgspec.Struct, frozen=True, kw_only=True):
    """Events that belong under one heading.

    Attributes:
        name: ``Stream 7``, ``Main thread``. Hostile text.
        kind: ``cause`` names the part of each idle time; ``stream`` has kernels, ``copies`` and ``communication`` what
            else ran on a stream; ``thread`` has operators, ranges and runtime calls, ``python`` Python functions.
        rows: how many rows hold them without an overlap.
    """

    name: str
    kind: TrackKind
    rows: int


class StepEvents(msgspec.Struct, frozen=True, kw_only=True):
    """The longest events of one step; the arrays have one entry each, sorted by row and start.

    Attributes:
        step: its number.
        time_ns: start to next start.
        is_median: whether it is the step closest to the median, else it is the slowest.
        mode: ``gpu``, or ``cpu`` when the main thread represents the device.
        tracks: from top to bottom.
        names: each text once. Hostile; of a ``cause`` it is a part of the step.
        families: what ``family`` counts in.
        start_ns: since the start of the step; negative for what began before it.
        dur_ns: whole durations, also of what ends after the step.
        name: positions in ``names``.
        row: of the tracks, counted through from the top.
        family: positions in ``families``.
        left_out: shorter events of the step.
    """

    step: int
    time_ns: int
    is_median: bool
    mode: Literal["gpu", "cpu"]
    tracks: tuple[EventTrack, ...]
    names: tuple[str, ...]
    families: tuple[Family, ...]
    start_ns: Sequence[int]
    dur_ns: Sequence[int]
    name: Sequence[int]
    row: Sequence[int]
    family: Sequence[int]
    left_out: int
