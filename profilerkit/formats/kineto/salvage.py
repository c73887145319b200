"""A chunk that cannot be decoded in one go: its events one by one, and whether the events end in it."""

import json
import re
from collections import deque
from functools import cached_property
from itertools import islice

from profilerkit.formats import limits
from profilerkit.formats.kineto.builder import ColumnBuilder
from profilerkit.formats.kineto.metadata import Document, DocumentFrame
from profilerkit.formats.kineto.records import Events, Span
from profilerkit.formats.kineto.repair import ELEMENTS, UNDECODABLE, Found, Ledger, Repairer
from profilerkit.formats.kineto.text import BLANK, EventText
from profilerkit.formats.limits import REPAIRED_BYTES

# An event whose text holds the separator itself was cut by mistake; so many pieces are tried as one.
# What TensorFlow and JAX end their list with.
_NO_EVENT = b"{}"
_JOINED_PIECES = 8
_JOINED_BYTES = 1024 * 1024
# The end of all events is looked for at so many closing brackets from either side of a piece.
_CLOSINGS_TRIED = 16
# What follows the bracket that ends the events: another key, the end of the document, or nothing.
_CLOSING = re.compile(rb'\](?=[\s\0]*(?:,\s*"|\}|\Z))')
# What a second document in the file begins with: a list of events, or a key that no event begins with.
_DOCUMENT = re.compile(r'\[\s*\{\s*"|\{\s*"(?!(?:ph|name|cat|pid|tid|ts|dur|id|args|bp|s)")\w+"\s*:')
_TAILS_BYTES = (64 * 1024, 1024 * 1024, limits.TAIL_BYTES)
_JUNK = re.compile(rb"[\s,\]\0]*")
_OBJECT = json.JSONDecoder(strict=False)


class Salvage:
    """The slow path over one file.

    Attributes:
        document: what the file says beside its events, once the end of the events was found.
    """

    def __init__(self, text: EventText, builder: ColumnBuilder, ledger: Ledger) -> None:
        self.document: Document | None = None
        self._text = text
        self._builder = builder
        self._ledger = ledger
        self._repairer = Repairer(builder.wanted)
        self._events: Events = []
        self._places: list[tuple[int, int, int, bytes]] = []

    @cached_property
    def frame(self) -> DocumentFrame:
        """The document around the events, to be asked for once they were found."""
        return DocumentFrame(self._text.head, is_list=self._text.is_list)

    def note_empty_list(self) -> None:
        """Set ``document`` when the events end right after their opening bracket, and none follow."""
        buffer = self._text.buffer
        buffer.skip_blank()
        if buffer.startswith(b"]"):
            text = buffer.take_all()
            self.document = self._document_with(text[1:], is_sure=False)
            if self.document is None:
                buffer.put_back(text)

    def read(self, chunk: bytes, offset: int, *, last: bool) -> None:
        """Add the events of a chunk to the builder; sets ``document`` when the events end in it.

        Args:
            chunk: whole pieces with separators between them.
            offset: where in the plain text the chunk begins.
            last: whether nothing but the end of the file follows.
        """
        pieces = _Pieces(chunk, self._text.separator)
        index, step = 0, len(pieces)
        while index < len(pieces) and self.document is None and not self._ledger.is_hopeless:
            count = min(step, len(pieces) - index)
            start, run = pieces.text(index, count)
            if last and index + count == len(pieces):
                run = run.rstrip(BLANK + b",")
            events = self._repairer.read_exactly(run)
            if events is not None:
                self._take(Found(events), run, offset + start)
                index += count
                step *= 2
            elif count > 1:
                step = count // 2
            else:
                taken = self._read_damaged(pieces, index, offset, last=last)
                if taken == 0:
                    self._text.buffer.put_back(chunk[start:] + self._text.after_chunk)
                    break
                index += taken
        self._flush()

    def _take(self, found: Found, text: bytes, offset: int) -> None:
        self._places.append((len(self._events), self._ledger.events, offset, text))
        self._events += found.events
        before, damaged = found.first_damaged
        if damaged:
            offset += text.index(damaged)
            text = damaged
        if found.repaired:
            self._ledger.repair(text, offset, found.repaired, before=before)
        if found.dropped:
            self._ledger.drop(text, offset, found.dropped, before=before)
        self._ledger.passed(len(found.events))

    def _flush(self) -> None:
        events, self._events = self._events, []
        places, self._places = self._places, []
        if not events:
            return
        before = self._builder.dropped.total()
        self._builder.add(events)
        self._ledger.rejected += self._builder.dropped.total() - before
        for index in self._builder.rejected:
            first, event, offset, text = next(place for place in reversed(places) if place[0] <= index)
            start, element = element_at(text, index - first)
            self._ledger.reject(element, offset + start, event + index - first)

    def _read_damaged(self, pieces: "_Pieces", index: int, offset: int, *, last: bool) -> int:
        """Take the events that begin at a broken piece; return how many pieces they took, 0 to read on first."""
        start, piece = pieces.text(index)
        final = last and index == len(pieces) - 1
        if final:
            piece = piece.rstrip(BLANK + b",")
        if not self._ledger.may_repair:
            if self._events_end_in(pieces, index, offset, last=last):
                return len(pieces) - index
            self._ledger.drop(piece, offset + start, _count(piece))
            self._ledger.untried += _count(piece)
            return 1
        found = self._repairer.read_piece(piece)
        if found is not None:
            self._take(found, piece, offset + start)
            return 1
        if self._events_end_in(pieces, index, offset, last=last):
            return len(pieces) - index
        if (joined := self._joined(pieces, index, offset, last=last)) is not None:
            return joined
        self._recover(piece, offset + start)
        return 1

    def _joined(self, pieces: "_Pieces", index: int, offset: int, *, last: bool) -> int | None:
        """Take an event that was cut by mistake, as its text holds the separator; None when that is not it."""
        for count in range(2, _JOINED_PIECES + 1):
            if index + count > len(pieces):
                short = len(pieces.text(index, len(pieces) - index)[1]) < _JOINED_BYTES
                return 0 if short and not last else None
            start, text = pieces.text(index, count)
            events = self._repairer.read_exactly(text)
            if events is not None:
                self._take(Found(events), text, offset + start)
                return count
        return None

    def _events_end_in(self, pieces: "_Pieces", index: int, offset: int, *, last: bool) -> bool:
        """Take the events up to the bracket that ends all events and set ``document``, when it is in this piece."""
        start, piece = pieces.text(index)
        if b"]" not in piece:
            return False
        following = b"" if last else self._text.after_chunk
        for closing in _closings(piece):
            body = piece[:closing].rstrip(BLANK + b",")
            if body == _NO_EVENT:
                body = b""
            is_followed = start + closing < pieces.last_phase
            if is_followed and not body.endswith(b"}"):
                continue
            events: Events | None = self._repairer.read_exactly(body)
            if events is None and (is_followed or not _is_list(body)):
                continue
            tail = pieces.chunk[start + closing + 1 :] + following
            # A list that only names processes and threads is not the one that ends a trace if another follows.
            is_sure = events is not None and (self._builder.n_spans > 0 or any(isinstance(e, Span) for e in events))
            self.document = self._document_with(tail, is_sure=is_sure)
            if self.document is None:
                continue
            if events is not None:
                self._take(Found(events), body, offset + start)
            elif (found := self._repairer.read_piece(body)) is not None:
                self._take(found, body, offset + start)
            else:
                self._recover(body, offset + start)
            return True
        return False

    def _recover(self, piece: bytes, offset: int) -> None:
        """Take what is whole or can be repaired in a piece of several events, damaged, with damage between them."""
        text = piece.decode("latin-1")  # one character for each byte; only the structure is looked at
        at, is_separated = 0, True
        while True:
            junk = _JUNK.match(piece, at)
            assert junk is not None
            at = junk.end()
            if at >= len(piece) or not self._ledger.may_repair:
                break
            end, searched = _end_of_value(text, at)
            self._ledger.searched_bytes += searched
            if end is not None:
                found = self._repairer.read_piece(piece[at:end]) or Found(dropped=1)
                is_misplaced = b"]" in junk[0] or not (is_separated or b"," in junk[0])
                found.repaired += is_misplaced and len(found.events) > found.repaired
            else:
                opening = self._text.opening.search(piece, at + 1)
                end = opening.start() if opening else len(piece)
                found = self._completed(piece[at:end].rstrip(BLANK + b",]")) or Found(dropped=_count(piece[at:end]))
            self._take(found, piece[at:end], offset + at)
            is_separated = piece[at:end].rstrip(BLANK).endswith(b",")
            at = end
        if at < len(piece):
            self._take(Found(dropped=_count(piece[at:])), piece[at:], offset + at)
            self._ledger.untried += _count(piece[at:])
        elif b"]" in junk[0]:
            self._ledger.repair(piece, offset)

    def _completed(self, text: bytes) -> Found | None:
        """Return the events of a text that lost a brace at its beginning or end, or is damaged otherwise."""
        for completed in (
            text,
            b"{" + text if text.startswith(b'"') else b"",
            text + b"}" if text[-1:] == b"}" else b"",
        ):
            found = self._repairer.read_piece(completed) if completed else None
            if found is not None and found.events:
                return Found(found.events, max(1, found.repaired), found.dropped)
        return None

    def _document_with(self, tail: bytes, *, is_sure: bool) -> Document | None:
        """Return the document that ends with ``tail`` and what is still unread, or None when events follow.

        ``is_sure``: what stands before the bracket is whole, so that the file may break off or another document follow.
        A stray bracket and brace make a document too, and so does an event that lost its end.
        """
        buffer = self._text.buffer
        for size in _TAILS_BYTES:
            buffer.fill_to(size)
            whole = tail[: limits.TAIL_BYTES] + buffer.copy(size)
            has_events = b'"ph"' in whole
            if has_events and not is_sure:
                return None
            document = self.frame.closed_by(whole)
            if document is not None:
                if document.lists_again:
                    return None
                following = document.following
                if following and not (is_sure and (_DOCUMENT.match(following) or '"ph"' not in following)):
                    return None
                break
            if has_events:
                return None
        else:
            if not is_sure:
                return None
        buffer.start += min(size, len(buffer))
        return document or self.frame.broken_off(whole)


def _is_list(text: bytes) -> bool:
    """Return whether a text can be all of a list but its bracket: it ends like an event, or is whole."""
    if not text or text.rstrip(BLANK + b",]").endswith(b"}"):
        return True
    try:
        ELEMENTS.decode(b"[%b]" % text)
    except UNDECODABLE:
        return False
    return True


def _closings(piece: bytes) -> list[int]:
    """Return where brackets stand that may end all events: some from either side of the piece."""
    ends = [found.start() for found in islice(_CLOSING.finditer(piece, 0, REPAIRED_BYTES), _CLOSINGS_TRIED)]
    start = max(ends[-1] + 1 if ends else 0, len(piece) - REPAIRED_BYTES)
    return ends + [found.start() for found in deque(_CLOSING.finditer(piece, start), _CLOSINGS_TRIED)]


class _Pieces:
    """A chunk cut at its separators.

    Attributes:
        chunk: the whole text.
        last_phase: where the last key ``ph`` stands, which every event has; -1 without one.
    """

    def __init__(self, chunk: bytes, separator: bytes) -> None:
        self.chunk = chunk
        self.last_phase = chunk.rfind(b'"ph"')
        self._between = separator[1:-1]
        self._starts = [0]
        at = chunk.find(separator)
        while at >= 0:
            self._starts.append(at + len(separator) - 1)
            at = chunk.find(separator, at + 1)
        self._starts.append(len(chunk) + len(self._between))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def text(self, index: int, count: int = 1) -> tuple[int, bytes]:
        """Return where some pieces begin in the chunk, and their text with what is between them."""
        start = self._starts[index]
        return start, self.chunk[start : self._starts[index + count] - len(self._between)]


def _end_of_value(text: str, at: int) -> tuple[int | None, int]:
    """Return where the JSON object that begins here ends, None when there is none or it is broken.

    Also how much text was searched in vain.
    """
    if text[at] != "{":
        return None, 0
    try:
        return at + int(_OBJECT.raw_decode(text[at : at + REPAIRED_BYTES])[1]), 0
    except json.JSONDecodeError as error:
        return None, error.pos
    except (ValueError, RecursionError):
        return None, REPAIRED_BYTES


def _count(text: bytes) -> int:
    return max(1, text.count(b'"ph"'))


def element_at(text: bytes, index: int) -> tuple[int, bytes]:
    """Return where an element of a JSON list without its brackets begins, and its text.

    >>> element_at(b'{"a": 1}, {"a": 1}', 1)
    (10, b'{"a": 1}')
    """
    try:
        elements = list(map(bytes, ELEMENTS.decode(b"[%b]" % text)))
    except UNDECODABLE:
        return 0, text
    start = 0
    for element in elements[:index]:
        start = text.index(element, start) + len(element)
    return text.index(elements[index], start), elements[index]
