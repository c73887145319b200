"""Hold the events of a Kineto trace as typed records, and choose what is read of their arguments."""

import re
from collections.abc import Iterable
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
    """``args`` of a complete event that the columns hold, whatever the release; what few events have is as written.

    To skip keys that most events lack costs less than to decode the others again.
    """

    correlation: Id = -1
    external_id: Id = field(default=-1, name="External id")
    stream: Id = -1
    device: Id = -1
    bytes: int | float | str | None = -1
    collective: str | None = field(default=None, name="Collective name")
    input_dims: Raw = field(default=NO_TEXT, name="Input Dims")
    input_types: Raw = field(default=NO_TEXT, name="Input type")
    concrete_inputs: Raw = field(default=NO_TEXT, name="Concrete Inputs")
    blocks_per_sm: int | float | str | None = field(default=0, name="blocks per SM")
    external_id_2021: Id = field(default=-1, name="external id")
    awaited_stream: Id = field(default=-1, name="wait_on_stream")
    in_elements: Raw = field(default=NO_TEXT, name="In msg nelems")
    out_elements: Raw = field(default=NO_TEXT, name="Out msg nelems")
    dtype: Raw = NO_TEXT
    group_size: Raw = field(default=NO_TEXT, name="Group size")
    group_name: Raw = field(default=NO_TEXT, name="Process Group Name")
    sequence: Raw = field(default=NO_TEXT, name="Seq")
    source: Raw = field(default=NO_TEXT, name="Src Rank")
    target: Raw = field(default=NO_TEXT, name="Dst Rank")


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


class ExactSpan(Span, tag="X"):
    """A complete event whose start is kept as it is written."""

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


STAMPED = (ExactSpan, ExactFlowStart, ExactFlowEnd, ExactInstant)
Event = Span | FlowStart | FlowEnd | Instant | Metadata | msgspec.Struct
Events = list[Event]


@cache
def decoder(wanted: Wanted, *, exact: bool) -> msgspec.json.Decoder[Events]:
    """Return the decoder of a list of events; what is not wanted is checked and skipped.

    ``exact`` keeps times with every digit: stamps that count from the epoch with decimals.
    """
    kinds: dict[str, Any] = UNUSED | {"X": ExactSpan if exact else Span, "M": Metadata}
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
_TOLD_APART = ("aten::", "detach", "flash_attn")  # how the names begin that either pattern can find
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
        if not name.startswith(_TOLD_APART):
            return True, False
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


_LONGEST_TEXT = 256
_SCALAR: msgspec.json.Decoder[int | float | str | None] = msgspec.json.Decoder(int | float | str | None)


def collective(row: int, args: SpanArgs) -> CollectiveArgs:
    """Return the metadata of the event in row ``row``, whose args name a collective."""
    return CollectiveArgs(
        row=row,
        name=_short(args.collective or ""),
        in_elements=count_of(_value(args.in_elements)),
        out_elements=count_of(_value(args.out_elements)),
        dtype=_text(args.dtype),
        group_size=count_of(_value(args.group_size)),
        group_name=_text(args.group_name),
        sequence=count_of(_value(args.sequence)),
        source=count_of(_value(args.source)),
        target=count_of(_value(args.target)),
    )


def _value(written: Raw) -> int | float | str | None:
    try:
        return _SCALAR.decode(written) if written else None
    except (msgspec.MsgspecError, ValueError):
        return None


def _text(written: Raw) -> str | None:
    value = _value(written)
    return None if value is None else _short(str(value))


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
