"""The events of a Kineto trace as typed records, with only the fields the columns need."""

from enum import IntEnum
from functools import cache
from typing import Any

import msgspec
from msgspec import Raw, field

from profilerkit.trace.columns import Wanted

NAN = float("nan")
Id = int | str | None
Time = int | float
NO_TEXT = Raw(b"")


class SpanArgs(msgspec.Struct, gc=False, frozen=True):
    """``args`` of a complete event that most events have; the order of the fields is that of the columns."""

    correlation: Id = -1
    external_id: Id = field(default=-1, name="External id")
    stream: Id = -1
    device: Id = -1
    bytes: int | float | str | None = -1
    collective: str | None = field(default=None, name="Collective name")


class ShapedArgs(SpanArgs, frozen=True, gc=False):
    """``args`` of a complete event with what was passed to an operator, and how large a kernel's grid is."""

    input_dims: Raw = field(default=NO_TEXT, name="Input Dims")
    input_types: Raw = field(default=NO_TEXT, name="Input type")
    concrete_inputs: Raw = field(default=NO_TEXT, name="Concrete Inputs")
    blocks_per_sm: int | float | str | None = field(default=0, name="blocks per SM")


class WideArgs(ShapedArgs, frozen=True, gc=False):
    """``args`` of a complete event with all that any release writes and the columns hold."""

    external_id_2021: Id = field(default=-1, name="external id")
    in_elements: Id = field(default=-1, name="In msg nelems")
    out_elements: Id = field(default=-1, name="Out msg nelems")
    dtype: str | None = None
    group_size: Id = field(default=-1, name="Group size")
    group_name: Id = field(default=None, name="Process Group Name")
    sequence: Id = field(default=-1, name="Seq")
    source: Id = field(default=-1, name="Src Rank")
    target: Id = field(default=-1, name="Dst Rank")
    awaited_stream: Id = field(default=-1, name="wait_on_stream")


class InstantArgs(msgspec.Struct, gc=False, frozen=True):
    """``args`` of an instant; only ``[memory]`` instants carry these."""

    bytes: Id = field(default=None, name="Bytes")
    allocated: Id = field(default=-1, name="Total Allocated")
    reserved: Id = field(default=-1, name="Total Reserved")
    device_type: Id = field(default=-1, name="Device Type")
    device: Id = field(default=-1, name="Device Id")
    address: Id = field(default=-1, name="Addr")


class MetadataArgs(msgspec.Struct, gc=False, frozen=True):
    """``args`` of a metadata event."""

    name: str | None = None


class _Event(msgspec.Struct, gc=False, tag_field="ph"):
    name: str = ""
    pid: Id = None
    tid: Id = None


class Span(_Event, tag="X"):
    """A complete event; without a start it has NaN for one, without a duration it lasts 0.

    The order of the fields is that in which the columns take them.
    """

    cat: str = ""
    ts: Time = NAN
    dur: Time = 0
    args: SpanArgs = SpanArgs()


class FlowStart(_Event, tag="s"):
    """The start of a flow link."""

    cat: str = ""
    ts: Time = NAN
    id: Id = -1


class FlowEnd(FlowStart, tag="f"):
    """The end of a flow link."""


class Instant(_Event, tag="i"):
    """An instant; the ones named ``[memory]`` are allocations and frees."""

    ts: Time = NAN
    args: InstantArgs = InstantArgs()


class Metadata(_Event, tag="M"):
    """The name of a process or thread."""

    args: MetadataArgs = MetadataArgs()


class ShapedSpan(Span, tag="X"):
    """A complete event with the args of operators."""

    args: ShapedArgs = ShapedArgs()


class WideSpan(Span, tag="X"):
    """A complete event with all its args."""

    args: WideArgs = WideArgs()


class ExactSpan(WideSpan, tag="X"):
    """A complete event with all its args, whose start is kept as it is written."""

    ts: Raw = NO_TEXT  # type: ignore[assignment]


class ExactFlowStart(FlowStart, tag="s"):
    """The start of a flow link whose time is kept as it is written."""

    ts: Raw = NO_TEXT  # type: ignore[assignment]


class ExactFlowEnd(FlowEnd, tag="f"):
    """The end of a flow link whose time is kept as it is written."""

    ts: Raw = NO_TEXT  # type: ignore[assignment]


class ExactInstant(Instant, tag="i"):
    """An instant whose time is kept as it is written."""

    ts: Raw = NO_TEXT  # type: ignore[assignment]


class Begin(msgspec.Struct, gc=False, tag_field="ph", tag="B"):
    """The begin of a span that is not a complete event."""


class End(msgspec.Struct, gc=False, tag_field="ph", tag="E"):
    """The end of a span that is not a complete event."""


class FlowStep(msgspec.Struct, gc=False, tag_field="ph", tag="t"):
    """A step of a flow between its ends."""


class Counter(msgspec.Struct, gc=False, tag_field="ph", tag="C"):
    """A counter sample."""


class OldInstant(msgspec.Struct, gc=False, tag_field="ph", tag="I"):
    """An instant in the format's older spelling."""


class AsyncBegin(msgspec.Struct, gc=False, tag_field="ph", tag="b"):
    """The begin of an asynchronous span."""


class AsyncEnd(msgspec.Struct, gc=False, tag_field="ph", tag="e"):
    """The end of an asynchronous span."""


class AsyncInstant(msgspec.Struct, gc=False, tag_field="ph", tag="n"):
    """An instant of an asynchronous span."""


class SkippedFlowEnd(msgspec.Struct, gc=False, tag_field="ph", tag="f"):
    """A flow's end where flows are not wanted."""


class SkippedFlowStart(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """A flow's start where flows are not wanted."""


class SkippedInstant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """An instant where memory is not wanted."""


class Detail(IntEnum):
    """How much of an event is decoded."""

    LEAN = 0
    SHAPED = 1  # and what was passed to operators
    WIDE = 2  # all args: collectives, the ids of 2021
    EXACT = 3  # and starts with every digit: stamps that count from the epoch with decimals


STAMPED = (ExactSpan, ExactFlowStart, ExactFlowEnd, ExactInstant)
UNUSED_PHASES = frozenset("BEtCIben")
Unused = Begin | End | FlowStep | Counter | OldInstant | AsyncBegin | AsyncEnd | AsyncInstant
Skipped = SkippedFlowStart | SkippedFlowEnd | SkippedInstant
Event = Span | FlowStart | FlowEnd | Instant | Metadata | Unused | Skipped
Events = list[Event]

_SPANS = {Detail.LEAN: Span, Detail.SHAPED: ShapedSpan, Detail.WIDE: WideSpan, Detail.EXACT: ExactSpan}


@cache
def decoder(detail: Detail, wanted: Wanted) -> msgspec.json.Decoder[Events]:
    """Return the decoder of a list of events; what is not wanted is checked and skipped."""
    exact = detail is Detail.EXACT
    flows: Any = ExactFlowStart | ExactFlowEnd if exact else FlowStart | FlowEnd
    memory: Any = ExactInstant if exact else Instant
    if Wanted.FLOWS not in wanted:
        flows = SkippedFlowStart | SkippedFlowEnd
    if Wanted.MEMORY not in wanted:
        memory = SkippedInstant
    event: Any = _SPANS[detail] | flows | memory | Metadata | Unused
    return msgspec.json.Decoder(list[event])
