"""Hold the events of a Kineto trace as typed records, and choose what is read of their arguments."""

import re
from collections.abc import Iterable
from enum import IntEnum
from functools import cache
from sys import intern
from typing import Any, Union

import msgspec
from msgspec import Raw, field

from profilerkit.formats.limits import DISTINCT_TEXTS, TEXT_BYTES
from profilerkit.formats.values import ThreadIds, count_of, id_text, printable_text
from profilerkit.trace.columns import CollectiveArgs, Wanted

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


#: Events of which nothing is read, by their ``ph``: parts of spans that are not complete, steps of flows, counters,
#: instants in an older spelling, parts of asynchronous spans; and flows and instants where they are not wanted.
UNUSED_PHASES = frozenset("BEtCIben")
UNUSED: dict[str, type[msgspec.Struct]] = {
    phase: msgspec.defstruct(f"Unused{phase}", [], gc=False, tag_field="ph", tag=phase)
    for phase in (*UNUSED_PHASES, *"sfi")
}


class Detail(IntEnum):
    """How much of an event is decoded."""

    LEAN = 0
    SHAPED = 1  # and what was passed to operators
    WIDE = 2  # all args: collectives, the ids of 2021
    EXACT = 3  # and starts with every digit: stamps that count from the epoch with decimals


STAMPED = (ExactSpan, ExactFlowStart, ExactFlowEnd, ExactInstant)
Event = Span | FlowStart | FlowEnd | Instant | Metadata | msgspec.Struct
Events = list[Event]

_SPANS = {Detail.LEAN: Span, Detail.SHAPED: ShapedSpan, Detail.WIDE: WideSpan, Detail.EXACT: ExactSpan}


@cache
def decoder(detail: Detail, wanted: Wanted) -> msgspec.json.Decoder[Events]:
    """Return the decoder of a list of events; what is not wanted is checked and skipped."""
    exact = detail is Detail.EXACT
    kinds: dict[str, Any] = UNUSED | {"X": _SPANS[detail], "M": Metadata}
    if Wanted.FLOWS in wanted:
        kinds |= {"s": ExactFlowStart, "f": ExactFlowEnd} if exact else {"s": FlowStart, "f": FlowEnd}
    if Wanted.MEMORY in wanted:
        kinds["i"] = ExactInstant if exact else Instant
    event: Any = Union[tuple(kinds.values())]  # noqa: UP007  made at run time
    return msgspec.json.Decoder(list[event])


# Four of five operators of a real trace are views, allocations, or calls of another one that does the work.
_LAUNCHES_NOTHING = re.compile(
    r"aten::(?:as_strided_?|alias|chunk|clone|contiguous|detach_?|empty\w*|expand\w*|flatten|item|is_nonzero|lift_fresh"
    r"|movedim|narrow|new_\w+|ones\w*|permute|_?reshape\w*|resize_|resolve_\w+|result_type|select|set_|slice|split\w*"
    r"|squeeze|t|to|_to_copy|transpose|type_as|unbind|unflatten|_?unsafe_view|unsqueeze|view|zeros\w*)$|detach_?$"
)
# The cost of these depends on more than the shapes: on stride, padding, dilation, whether attention is causal. Of all
# others the values differ from call to call (slices, step sizes), so that their texts would fill the table of strings.
_VALUES_MATTER = re.compile(r"aten::\w*(?:conv|attention)|flash_attn")
# More than the distinct operators of any real trace; further ones are searched each time.
_REMEMBERED = 2**16


def launches_nothing(name: str) -> bool:
    """Whether an operator starts no work itself.

    >>> launches_nothing("aten::view"), launches_nothing("aten::copy_")
    (True, False)
    """
    return _LAUNCHES_NOTHING.match(name) is not None


class ArgumentsWanted(dict[str, tuple[bool, bool]]):
    """Operator to whether its shapes, and whether its values, are read.

    >>> wanted = ArgumentsWanted()
    >>> wanted["aten::mm"], wanted["aten::conv2d"], wanted["aten::t"]
    ((True, False), (True, True), (False, False))
    """

    def __missing__(self, name: str) -> tuple[bool, bool]:
        wanted = not launches_nothing(name), _VALUES_MATTER.match(name) is not None
        if len(self) < _REMEMBERED:
            self[name] = wanted
        return wanted


# Frames that explain why the host paused; the analysis looks for them by name.
_PAUSING = re.compile(
    r"gc\.collect|^Python GC|^<built-in function collect>$|dynamo_timed|entire_(?:frame|backward)_compile"
    r"|backend_compile|compile_inner|^dynamo$|^inductor_codecache"
)
FRAME = "python_function"
# More than the distinct frames of any real trace; further ones are searched each time.


class PausingFrames(dict[str, bool]):
    """Frame name to whether it is garbage collection or compilation.

    >>> frames = PausingFrames()
    >>> frames["gc.py(12): gc.collect"], frames["train.py(3): step"]
    (True, False)
    """

    def __missing__(self, name: str) -> bool:
        pausing = _PAUSING.search(name) is not None
        if len(self) < _REMEMBERED:
            self[name] = pausing
        return pausing


_KEY = b'"Collective name"'
_LONGEST_TEXT = 256
_WIDE = decoder(Detail.WIDE, Wanted.NOTHING)


def collective_args(text: bytes, separator: bytes) -> list[WideArgs] | None:
    """Return all args of the events of a JSON list that name a collective; None when an event cannot be cut out.

    A collective is one event of a hundred or fewer, so that only these are decoded with all their args.
    """
    found: list[WideArgs] = []
    at = text.find(_KEY)
    while at >= 0:
        before, after = text.rfind(separator, 0, at), text.find(separator, at)
        end = after + 1 if after >= 0 else len(text) - 1
        try:
            events = _WIDE.decode(b"[%b]" % text[before + len(separator) - 1 if before >= 0 else 1 : end])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        found += [event.args for event in events if isinstance(event, WideSpan) and event.args.collective]
        at = text.find(_KEY, end)
    return found


def collective(row: int, args: WideArgs) -> CollectiveArgs:
    """Return the metadata of the event in row ``row``, whose args name a collective."""
    return CollectiveArgs(
        row=row,
        name=_short(args.collective or ""),
        in_elements=count_of(args.in_elements),
        out_elements=count_of(args.out_elements),
        dtype=None if args.dtype is None else _short(args.dtype),
        group_size=count_of(args.group_size),
        group_name=None if args.group_name is None else _short(str(args.group_name)),
        sequence=count_of(args.sequence),
        source=count_of(args.source),
        target=count_of(args.target),
    )


def _short(text: str) -> str:
    """Return the text as one object however often it is met; its end is cut off where no real one is so long."""
    return intern(printable_text(text[:_LONGEST_TEXT]))


class ThreadNames:
    """Names as they are met; the last one of a thread or process counts."""

    def __init__(self) -> None:
        self.processes: dict[str, str] = {}
        self.threads: dict[tuple[str, str], str] = {}
        self.room_bytes = TEXT_BYTES

    def __len__(self) -> int:
        return len(self.threads) + len(self.processes)

    def add(self, events: Iterable[Event]) -> None:
        """Take the names among some events."""
        for event in events:
            if not isinstance(event, Metadata) or len(self) > DISTINCT_TEXTS:
                continue
            name = printable_text((event.args.name or "").strip())
            pid, tid = id_text(event.pid), id_text(event.tid)
            self.room_bytes -= len(name) + len(pid) + len(tid)
            if self.room_bytes < 0:
                return
            if name and event.name == "process_name":
                self.processes[pid] = name
            elif name and event.name == "thread_name":
                self.threads[pid, tid] = name

    def of(self, threads: ThreadIds) -> dict[int, str]:
        """Return thread id to name; a thread without one of its own takes its process's."""
        found = {
            thread: self.threads.get(pair) or self.processes.get(pair[0]) for pair, thread in threads.texts.items()
        }
        return {thread: name for thread, name in found.items() if name}
