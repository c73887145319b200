"""A chunk that cannot be decoded in one go: its events one by one, and whether the events end in it."""

import re
from dataclasses import dataclass

from profilerkit.trace.kineto import records
from profilerkit.trace.kineto.cutting import EventText
from profilerkit.trace.kineto.metadata import Document, parse_document, parse_fields
from profilerkit.trace.kineto.repair import RepairLog, read_exactly, read_piece

# An event whose text holds the separator itself was cut by mistake; so many pieces are tried as one.
_JOINED_PIECES = 8
# The end of all events is looked for at so many closing brackets from either side of a piece.
_CLOSINGS_TRIED = 32
_PUSHED_BACK_BYTES = 1024 * 1024
_NEAR_TAIL_BYTES = 1024 * 1024
_TAIL_BYTES = 32 * 1024 * 1024
_CLOSING = re.compile(rb"\}\s*,?\s*(\])")
_BLANK = b" \t\r\n\0"


@dataclass(slots=True)
class Salvage:
    """The slow path over one file.

    Attributes:
        text: where the chunks come from and where unread text is put back.
        log: what was repaired and dropped.
        document: what the file says beside its events, once the end of the events was found.
    """

    text: EventText
    log: RepairLog
    document: Document | None = None

    def note_empty_list(self) -> None:
        """Set ``document`` when the events end right after their opening bracket."""
        while not self.text.pending.strip() and self.text.fill():
            pass
        start = bytes(self.text.pending[:_NEAR_TAIL_BYTES]).lstrip()
        if start.startswith(b"]"):
            rest = self.text.take_rest().lstrip()
            self.document = self._document_with(rest[1:])

    def read(self, chunk: bytes, *, last: bool) -> list[records.Event]:
        """Return the events of a chunk; sets ``document`` when the events end in it.

        Args:
            chunk: whole pieces with separators between them.
            last: whether nothing but the end of the file follows.
        """
        pieces = self._split(chunk)
        after = b"" if last else self._between
        events: list[records.Event] = []
        index = 0
        while index < len(pieces) and self.document is None:
            found, used = self._read_at(pieces, index, last=last)
            if used == 0:
                self.text.push_back(self._join(pieces[index:]) + after)
                break
            events += found
            index += used
        return events

    @property
    def _between(self) -> bytes:
        return self.text.separator[1:-1]

    def _split(self, chunk: bytes) -> list[bytes]:
        parts = chunk.split(self.text.separator)
        tops = [b"", *[b"{"] * (len(parts) - 1)]
        tails = [*[b"}"] * (len(parts) - 1), b""]
        return [top + part + tail for top, part, tail in zip(tops, parts, tails, strict=True)]

    def _join(self, pieces: list[bytes]) -> bytes:
        return self._between.join(pieces)

    def _read_at(self, pieces: list[bytes], index: int, *, last: bool) -> tuple[list[records.Event], int]:
        """Return the events that begin at a piece and how many pieces they took; 0 pieces to read on first."""
        final = last and index == len(pieces) - 1
        piece = pieces[index]
        if final:
            piece = piece.strip(_BLANK + b",")
            if not piece:
                return [], 1
        events = read_exactly(piece)
        if events is not None:
            return events, 1
        events = self._read_last(piece, pieces, index, last=last)
        if events is not None:
            return events, len(pieces) - index if self.document else 1
        events = read_piece(piece, self.log)
        if events is not None:
            return events, 1
        for count in range(2, _JOINED_PIECES + 1):
            if index + count > len(pieces):
                if not last and len(self._join(pieces[index:])) < _PUSHED_BACK_BYTES:
                    return [], 0
                break
            events = read_exactly(self._join(pieces[index : index + count]))
            if events is not None:
                return events, count
        self.log.note_dropped(piece)
        return [], 1

    def _read_last(self, piece: bytes, pieces: list[bytes], index: int, *, last: bool) -> list[records.Event] | None:
        """Return the events up to the bracket that ends all events, or None when it is not in this piece."""
        closings = list(_CLOSING.finditer(piece))
        if len(closings) > 2 * _CLOSINGS_TRIED:
            closings[_CLOSINGS_TRIED:-_CLOSINGS_TRIED] = []
        for closing in closings:
            body = piece[: closing.start() + 1]
            events = read_exactly(body)
            if events is None:
                events = self._repaired(body)
            if events is None:
                continue
            following = pieces[index + 1 :] if last else [*pieces[index + 1 :], b""]
            tail = self._join([piece[closing.end() :], *following])
            self.document = self._document_with(tail)
            if self.document is not None:
                return events
            # A stray bracket: what follows it is read as if it were not there.
            self.log.note_repaired(piece)
            rest = piece[closing.end() :].strip(_BLANK + b",")
            following_events = read_piece(rest, self.log)
            if following_events is None:
                self.log.note_dropped(rest)
            return events + (following_events or [])
        return None

    def _repaired(self, body: bytes) -> list[records.Event] | None:
        """Return the events of a text after repair, or None and count nothing when it holds none."""
        trial = RepairLog()
        events = read_piece(body, trial)
        if not events:
            return None
        self.log.add(trial)
        return events

    def _document_with(self, tail: bytes) -> Document | None:
        """Return the document that ends with ``tail`` and what is still unread, or None when events follow."""
        for limit in (_NEAR_TAIL_BYTES, _TAIL_BYTES):
            while len(self.text.pending) < limit and self.text.fill():
                pass
            whole = tail + bytes(self.text.pending)
            document = parse_document(self.text.head, whole)
            if document is not None:
                return document
            if b'"ph"' in whole:
                return None
        return parse_fields(self.text.head + b"null" + whole)
