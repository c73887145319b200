"""The later part of a trace that another process reads ahead, and its joining to what was read before it."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from profilerkit.model.change import revise
from profilerkit.trace import blocks, limits
from profilerkit.trace.columns import I32, Wanted
from profilerkit.trace.kineto.builder import ColumnBuilder
from profilerkit.trace.kineto.cutting import EventText
from profilerkit.trace.kineto.records import Detail
from profilerkit.trace.kineto.repair import UNDECODABLE
from profilerkit.trace.strings import StringIds, ThreadIds

_STRINGS = ("name", "input_dims", "input_types", "concrete_inputs")


class Part(msgspec.Struct, frozen=True):
    """Whole events of a file, one after the other; places are bytes in its text.

    Attributes:
        start: where the first of them begins.
        end: where the first event begins that is not among them.
        events: how many elements of the list of events they are.
        separator: what they were cut at.
        least: how the events after the first chunk were decoded as a rule.
        builder: their columns.
    """

    start: int
    end: int
    events: int
    separator: bytes
    least: Detail
    builder: ColumnBuilder


class Ahead(msgspec.Struct, frozen=True):
    """A part that another process reads.

    Attributes:
        middle: the end of the block in which the part begins.
        part: waits for the part; ``None`` when there is none.
    """

    middle: int
    part: Callable[[], Part | None]


def read_part(path: Path, middle: int, wanted: Wanted) -> Part | None:
    """Return the events that follow the last separator before ``middle``, up to the first damage or the end of all.

    They are cut into the same chunks as when the file is read from its beginning: strings get their ids chunk by chunk.

    Args:
        path: a file that is not compressed.
        middle: where a block ends.
        wanted: what is read.

    Returns:
        None when there are no such events, or some were dropped: whoever reads the whole file says which.
    """
    source = blocks.BlockSource(path)
    text = EventText(source.blocks())
    if text.find_events():
        return None
    separator, before = text.separator, middle - blocks.BLOCK_BYTES
    cut = next(source.blocks(before), b"").rfind(separator)
    if cut < 0:
        return None
    start = end = before + cut + len(separator) - 1
    text.move_to(start, source.blocks(start))
    builder = ColumnBuilder(wanted)
    events, least = 0, builder.least
    while (array := text.next_array()) and text.is_regular and text.separator == separator:
        try:
            count = builder.decode(array, separator)
        except UNDECODABLE:
            break
        least = least if events else builder.least
        events += count
        end = text.buffer.offset
    if builder.dropped or not events:
        return None
    return Part(start, end, events, separator, least, builder)


def join(part: Part, builder: ColumnBuilder, text: EventText) -> bool:
    """Append a part's columns as if its events had been read here.

    Returns:
        False, and nothing is appended, where reading on gives other columns, or may: another event is next, it is
        decoded otherwise, or the names of both come near a limit.
    """
    if (
        (part.start, part.separator, True) != (text.buffer.offset, text.separator, text.is_regular)
        or not part.least == builder.least == builder.detail
        or ("Runtime" in builder.kinds and part.least < Detail.WIDE)
        or part.builder.wanted != builder.wanted
        or not _have_room(builder, part.builder)
    ):
        return False
    _append(builder, part.builder)
    return True


def _have_room(builder: ColumnBuilder, other: ColumnBuilder) -> bool:
    """Return whether no limit is reached even if both have no name in common."""
    return len(builder.collectives) + len(other.collectives) <= limits.COLLECTIVES and all(
        not ids.refused
        and not added.refused
        and len(ids) + len(added) <= limits.DISTINCT_TEXTS
        and limits.TEXT_BYTES - added.room_bytes <= ids.room_bytes
        for ids, added in (
            (builder.strings, other.strings),
            (builder.kinds, other.kinds),
            (builder.threads, other.threads),
            (builder.names, other.names),
        )
    )


def _append(builder: ColumnBuilder, other: ColumnBuilder) -> None:
    strings, kinds = _ids(builder.strings, other.strings), _ids(builder.kinds, other.kinds)
    threads = _ids(builder.threads, other.threads)
    builder.collectives += [revise(args, row=args.row + builder.n_spans) for args in other.collectives]
    for table, added, texts in (
        (builder.spans, other.spans, {**dict.fromkeys(_STRINGS, strings), "kind": kinds}),
        (builder.flows, other.flows, {"kind": strings}),
        (builder.memory, other.memory, {}),
    ):
        columns = added.views()
        for name, ids in (*texts.items(), ("thread", threads)):
            if name in columns:
                columns[name] = ids[columns[name]]
        table.append(columns)
    builder.names.update(other.names)
    builder.waits |= other.waits
    builder.has_skipped_flows |= other.has_skipped_flows
    builder.skipped_frames += other.skipped_frames
    builder.unpaired += other.unpaired
    builder.detail, builder.least = other.detail, other.least


def _ids(known: StringIds | ThreadIds, added: StringIds | ThreadIds) -> I32:
    """Return ``(n + 1,)`` the id among the known ones of each added id; the last is that of no text, -1."""
    found = np.full(len(added) + 1, -1, np.int32)
    for text, number in added.items():
        found[number] = known[text]  # type: ignore[index]  # both are of one kind
    return found
