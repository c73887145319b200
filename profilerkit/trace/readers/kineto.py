"""Kineto traces, ``torch.profiler``'s JSON of any release, plain or gzip."""

from pathlib import Path

from profilerkit.errors import UnreadableInputError
from profilerkit.trace.blocks import BlockSource
from profilerkit.trace.columns import ANALYZED, Damage, TraceColumns, Wanted
from profilerkit.trace.kineto import records
from profilerkit.trace.kineto.builder import ColumnBuilder
from profilerkit.trace.kineto.cutting import EventText
from profilerkit.trace.kineto.metadata import Document, parse_document, parse_fields, trace_meta
from profilerkit.trace.kineto.repair import UNDECODABLE, RepairLog
from profilerkit.trace.kineto.salvage import Salvage

name = "kineto"

_OWN_KEYS = (
    b'"traceEvents"',
    b'"schemaVersion"',
    b'"deviceProperties"',
    b'"distributedInfo"',
    b'"baseTimeNanoseconds"',
)
_NOT_A_TRACE_HINT = "pass a file written by torch.profiler's export_chrome_trace or tensorboard_trace_handler"


def sniff(head: bytes) -> bool:
    """Return whether a text that begins like this is a Kineto trace, or a bare list of its events."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return text[1:].lstrip()[:1] in (b"{", b"]", b"")
    return text.startswith(b"{") and any(key in text for key in _OWN_KEYS)


def read(path: Path, wanted: Wanted = ANALYZED) -> TraceColumns:
    """Return the columns of a trace; what could not be read is counted in ``damage``.

    Raises:
        UnreadableInputError: the file holds no events at all.
        OSError: the file cannot be opened or read.
    """
    source = BlockSource(path)
    blocks = source.blocks()
    text = EventText(blocks)
    if not text.find_events():
        raise UnreadableInputError(
            f"{path} holds no trace events",
            cause="its JSON has no 'traceEvents' list" if text.pending.strip() else "the file is empty",
            hint=_NOT_A_TRACE_HINT,
        )
    builder, log = ColumnBuilder(wanted), RepairLog()
    document = _read_events(text, builder, log)
    for _ in blocks:  # the checksum of compressed data is only known at its end
        pass
    notes = [*source.notes, *builder.notes()]
    truncated = source.truncated or document is None
    if document is None:
        document = parse_document(text.head, b"}") or parse_fields(text.head)
    elif not document.is_whole:
        notes.append("the metadata around the events is damaged and was read key by key")
    if document.followed:
        notes.append("another document follows the first; only the first was read")
    if not builder.n_spans:
        raise UnreadableInputError(
            f"{path} holds no events",
            cause=_why_empty(builder, log, truncated=truncated),
            hint="record at least one step between the profiler's start and stop",
        )
    damage = Damage(
        repaired=log.repaired,
        dropped=log.dropped + builder.dropped.total(),
        truncated=truncated,
        samples=tuple(log.samples),
        notes=tuple(notes),
    )
    return builder.finish(trace_meta(str(path), document.fields), damage)


def _read_events(text: EventText, builder: ColumnBuilder, log: RepairLog) -> Document | None:
    """Add all events to the builder; return the document around them, None when it breaks off."""
    salvage = Salvage(text, log)
    salvage.note_empty_list()
    while salvage.document is None:
        chunk = text.next_chunk()
        if not chunk:
            builder.add(salvage.read(text.take_rest(), last=True))
            return salvage.document
        array = b"[%b]" % chunk
        try:
            while not builder.add(records.decoder(builder.detail, builder.wanted).decode(array)):
                pass
        except UNDECODABLE:
            builder.add(salvage.read(chunk, last=False))
    return salvage.document


def _why_empty(builder: ColumnBuilder, log: RepairLog, *, truncated: bool) -> str:
    dropped = log.dropped + builder.dropped.total()
    if dropped:
        return f"all of its {dropped} events are damaged"
    return "the file breaks off before the first event" if truncated else "its list of events is empty"
