"""Kineto traces, ``torch.profiler``'s JSON of any release, and the JSON of JAX and TensorFlow, plain or gzip."""

from collections.abc import Iterable
from pathlib import Path

from profilerkit.errors import UnreadableInputError
from profilerkit.formats.blocks import BlockSource
from profilerkit.formats.kineto.builder import ColumnBuilder
from profilerkit.formats.kineto.metadata import Document, DocumentFrame, trace_meta
from profilerkit.formats.kineto.repair import UNDECODABLE, Ledger
from profilerkit.formats.kineto.salvage import Salvage, element_at
from profilerkit.formats.kineto.text import BLANK, BYTE_ORDER_MARK, EventText, first_event
from profilerkit.formats.values import printable_text
from profilerkit.model import revise
from profilerkit.trace.columns import ANALYZED, ANOTHER_FOLLOWS, Category, Damage, TraceColumns, Wanted

name = "kineto"
suffixes = (".json", ".json.gz", ".json.tmp")

_OWN_KEYS = (
    b'"traceEvents"',
    b'"schemaVersion"',
    b'"deviceProperties"',
    b'"distributedInfo"',
    b'"baseTimeNanoseconds"',
)
#: How torch_npu names the process of the host; Kineto takes the name of the program.
_TORCH_NPU = "Python"
#: Kineto's own frame around what it recorded, which may be nothing.
_FRAME = "Trace"
#: More kinds than this, or more of the text of one, say no more.
_NAMED, _LONGEST = 3, 40
_NOT_A_TRACE_HINT = "pass a file written by torch.profiler's export_chrome_trace or tensorboard_trace_handler"


def sniff(head: bytes) -> bool:
    """Return whether a text that begins like this is a Kineto trace, or a bare list of its events."""
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip(BLANK)
    if text.startswith(b"[") and text[1:].lstrip()[:1] in (b"{", b"]", b""):
        return True
    return (text.startswith(b"{") and any(key in text for key in _OWN_KEYS)) or first_event(text) is not None


def read(path: Path, *, wanted: Wanted = ANALYZED, strict: bool = False) -> TraceColumns:
    """Return the columns of a trace; what could not be read is counted in ``damage``.

    Args:
        path: the file.
        wanted: what is read beside the complete events of host and device. Flow links are read in a second pass where
            device work has nothing else to be joined by, Python frames where there are no other events.
        strict: whether the first damage is an error.

    Raises:
        UnreadableInputError: the file holds no events at all, or is damaged and ``strict`` is set.
        OSError: the file cannot be opened or read.
    """
    first = _Pass(path, wanted, strict=strict)
    first.run()
    missing = first.missing()
    if not missing:
        return first.columns()
    del first  # its columns would be there twice
    second = _Pass(path, wanted | missing, strict=strict)
    second.run()
    return second.columns()


class _Pass:
    def __init__(self, path: Path, wanted: Wanted, *, strict: bool) -> None:
        self._path = path
        self._source = BlockSource(path)
        self._text = EventText(self._source.blocks())
        self._builder = ColumnBuilder(wanted)
        self._ledger = Ledger(str(path), strict=strict)
        self._salvage = Salvage(self._text, self._builder, self._ledger)
        self._notes: list[str] = []

    def run(self) -> None:
        cause = self._text.find_events()
        if cause:
            raise UnreadableInputError(f"{self._path} holds no trace events", cause=cause, hint=_NOT_A_TRACE_HINT)
        self._salvage.note_empty_list()
        while self._salvage.document is None and self._read_chunk():
            pass

    def _read_chunk(self) -> bool:
        """Read the next events; False when there are no more, or reading on makes no sense."""
        array = self._text.next_array()
        if not array:
            offset, rest = self._text.buffer.offset, self._text.buffer.take_all()
            self._salvage.read(rest, offset, last=True)
            if self._salvage.document is None and rest.endswith(b"\0"):
                self._notes.append("the text ends in zero bytes")
            return False
        try:
            count = self._builder.decode(array)
        except UNDECODABLE:
            self._salvage.read(bytes(array[1:-1]), self._text.chunk_offset, last=False)
            if self._ledger.is_hopeless:
                self._notes.append("most of the file is damaged, so it was read no further")
            return not self._ledger.is_hopeless
        for index in self._builder.rejected:
            start, element = element_at(bytes(array[1:-1]), index)
            self._ledger.reject(element, self._text.chunk_offset + start, self._ledger.events + index)
        self._ledger.passed(count)
        return True

    def missing(self) -> Wanted:
        """Return what was not wanted but cannot be done without."""
        if not self._builder.n_spans:
            return Wanted.PYTHON if self._builder.skipped_frames else Wanted.NOTHING
        of_npu = _TORCH_NPU in self._builder.names.processes.values()  # its links tell that a device was used
        needed = self._builder.has_skipped_flows and (of_npu or self._builder.has_loose_work())
        return Wanted.FLOWS if needed else Wanted.NOTHING

    def columns(self) -> TraceColumns:
        document, notes = self._document()
        builder, ledger = self._builder, self._ledger
        found = self._salvage.document
        # Compressed data may lack no more than its checksum: a document that ends has all of its events.
        truncated = found is None or (self._source.truncated and not found.is_whole)
        if not builder.n_spans:
            raise UnreadableInputError(
                f"{self._path} holds no events",
                cause=self._why_empty(truncated=truncated),
                hint="record at least one step between the profiler's start and stop",
            )
        if truncated:
            ledger.refuse("the file ends early")
        for note in notes:
            ledger.refuse(note)
        damage = Damage(
            repaired=ledger.repaired,
            dropped=ledger.dropped + builder.dropped.total(),
            truncated=truncated,
            samples=tuple(ledger.samples),
            notes=(*notes, *builder.notes()),
        )
        return self._told(builder.finish(trace_meta(str(self._path), document.fields), damage))

    def _told(self, columns: TraceColumns) -> TraceColumns:
        """Return the columns, those of JAX and TensorFlow with what processes and threads say instead of categories."""
        processes, names = self._builder.names.processes, columns.thread_names
        places = [(processes.get(pid, ""), names.get(i) or "") for i, (pid, _) in enumerate(columns.threads)]
        if any(process.startswith("Ascend") for process in processes.values()):
            from profilerkit.formats.ascend import HARDWARE, of_npu

            if HARDWARE in processes.values():
                return of_npu(columns, places)
        if not any(self._builder.kinds):
            from profilerkit.formats.xla import is_xla, of_xla

            if is_xla(processes.values()):
                return of_xla(columns, places)
        why = _unprofiled(columns, self._builder.kinds)
        return revise(columns, meta=revise(columns.meta, unprofiled=why)) if why else columns

    def _document(self) -> tuple[Document, list[str]]:
        document, buffer = self._salvage.document, self._text.buffer
        rest = buffer.take_all()
        following, padded = rest.strip(BLANK)[:1], b"\0" in rest
        while buffer.fill():  # the checksum of compressed data is only known at its end
            rest = buffer.take_all()
            following, padded = following or rest.strip(BLANK)[:1], padded or b"\0" in rest
        notes = [*self._source.notes, *self._notes]
        if self._ledger.untried:
            notes.append(f"repairs failed too often, so {self._ledger.untried} damaged events were dropped untried")
        lost_bytes = self._text.lost_bytes
        if lost_bytes is not None:
            notes.append(f"the beginning is damaged: reading began with the first whole event, at byte {lost_bytes}")
        if document is None:
            return self._salvage.frame.broken_off(), notes
        if not document.is_whole and lost_bytes is None:
            what = "the metadata around the events is damaged and"
            if _is_preceded(self._text.head):
                what = "text that is no part of the trace stands before it and was ignored; the metadata"
            notes.append(f"{what} was read key by key")
        following = document.following[:1].encode() or following
        if following in (b"{", b"["):
            notes.append(ANOTHER_FOLLOWS)
        elif following:
            notes.append("text that is no part of the trace follows it and was ignored")
        elif document.padded or padded:
            notes.append("zero bytes follow the text and were ignored")
        return document, notes

    def _why_empty(self, *, truncated: bool) -> str:
        dropped = self._ledger.dropped + self._builder.dropped.total()
        if dropped:
            return f"all of its {dropped} events are damaged"
        if self._builder.unpaired:
            return (
                f"it has {self._builder.unpaired} begin and end events, as other tools write them, and no complete one"
            )
        return "the file breaks off before the first event" if truncated else "its list of events is empty"


def _is_preceded(head: bytes) -> bool:
    """Whether the text before the events holds a whole beginning of a document, behind something else."""
    opening = head.find(b"{")
    if opening <= 0:
        return False
    behind = DocumentFrame(head[opening:], is_list=False).closed_by(b"}")
    return behind is not None and behind.is_whole


def _unprofiled(columns: TraceColumns, kinds: Iterable[str]) -> str | None:
    """Return of what kinds the events are, in words, where not one is of a profiler; ``None`` where some are.

    A file of ``torch.profiler`` in which nothing was recorded is known by what it says beside its events.

    Args:
        columns: what was read.
        kinds: the categories as written; empty for none.
    """
    texts = [text for text in kinds if text]
    if columns.meta.versions or _FRAME in texts or (columns.category != Category.OTHER).any():
        return None
    if not texts:
        return "its events have no category"
    shown = [f"“{printable_text(text[:_LONGEST])}”" for text in texts[:_NAMED]]
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return f"its events are of the {'categories' if len(texts) > 1 else 'category'} {', '.join(shown)}{more}"
