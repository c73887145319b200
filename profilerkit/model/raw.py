"""The raw events behind a number: what a recording holds of it, event by event."""

from typing import Literal

import msgspec


class RawEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One interval, one sample or one step. Its texts come from the recording: hostile.

    Attributes:
        start_ns: when, on the clock that the table names.
        value: its length, or what was sampled, in the unit of the table.
        step: the step that it lies in; ``None`` for what is in none, or is of no step.
        where: the thread or stream; empty where that says nothing.
        name: what ran, was waited for or was sampled; empty where nothing was recorded meanwhile.
    """

    start_ns: int
    value: float
    step: int | None = None
    where: str = ""
    name: str = ""


class RawEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one kind from one file, at most as many as can be read, and how many there are.

    Attributes:
        what: their kind, for a person.
        origin: the file they come from.
        clock: ``trace`` for times as the trace file has them, ``run`` for those since the first one recorded.
        unit: of the values; ``ns`` for lengths.
        order: how the rows were chosen: the longest of all, or all at an even distance.
        count: how many there are.
        rows: those that are shown.
    """

    what: str
    origin: str
    clock: Literal["trace", "run"]
    unit: str
    order: Literal["longest", "even"]
    count: int
    rows: tuple[RawEvent, ...]
