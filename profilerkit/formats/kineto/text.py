"""Cut the text of a trace into chunks of whole events, without looking at every byte."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from profilerkit.formats import limits

BLANK = b" \t\r\n\0"


class TextBuffer:
    """A window on the plain text of a file; indices are into ``data``, and stay valid until the next ``fill``.

    Attributes:
        data: the buffer. The byte before the window may be overwritten.
        start: where the window begins.
        end: where it ends.
    """

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.data = bytearray(2)
        self.start = self.end = 1
        self._blocks = blocks
        self._passed_bytes = -1

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def offset(self) -> int:
        """Where in the plain text the window begins, in bytes."""
        return self._passed_bytes + self.start

    def copy(self, limit: int | None = None) -> bytes:
        """Return the text in the window, or as much of its beginning."""
        end = self.end if limit is None else min(self.end, self.start + limit)
        return bytes(memoryview(self.data)[self.start : end])

    def take_all(self) -> bytes:
        """Return the text in the window and empty it."""
        text = self.copy()
        self.start = self.end
        return text

    def fill(self) -> bool:
        """Read one more block; False at the end of the file."""
        block = next(self._blocks, b"")
        if self.end + len(block) >= len(self.data):
            self._make_room(len(block))
        self.data[self.end : self.end + len(block)] = block
        self.end += len(block)
        return bool(block)

    def put_back(self, text: bytes) -> None:
        """Put text that was in the window back in front of it."""
        following = self.copy()
        self._passed_bytes += self.start - len(text) - 1
        self.data = bytearray(2 * (len(text) + len(following)) + 2)
        self.start, self.end = 1, 1 + len(text) + len(following)
        self.data[1 : self.end] = text + following

    def fill_to(self, size: int) -> None:
        """Read until the window holds so many bytes or the file ends."""
        while len(self) < size and self.fill():
            pass

    def skip_blank(self) -> None:
        """Move past white space and zero bytes, however many there are."""
        while len(self) or self.fill():
            first = self.copy(_SKIPPED_BYTES)
            rest = first.lstrip(BLANK)
            self.start += len(first) - len(rest)
            if rest:
                return

    def startswith(self, text: bytes) -> bool:
        """Return whether the window begins with a text."""
        self.fill_to(len(text))
        return self.data.startswith(text, self.start, self.end)

    def _make_room(self, count: int) -> None:
        text = self.copy()
        needed = len(text) + count + 2
        if needed > len(self.data):
            self.data = bytearray(2 * needed)
        self.data[1 : 1 + len(text)] = text
        self._passed_bytes += self.start - 1
        self.start, self.end = 1, 1 + len(text)


_SKIPPED_BYTES = 64 * 1024

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A quote inside a string is escaped, so this is never inside one.
_EVENTS_KEY = b'"traceEvents"'
# A string without end runs to the end of the text, so that none of its quotes begins another.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[{}]', re.DOTALL)
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_LIKELY_SEPARATOR = b"},\n  {"
_OPENING = re.compile(rb'\{\s*"(ph|name|cat|pid|tid|ts|dur|id|args|bp)"\s*:')
_JSON = json.JSONDecoder(strict=False)
# The first event of a file that lost its beginning is looked for at so many places.
_OPENINGS_TRIED = 100
# Without a single separator in this much text the one learnt from the first two events was wrong.
_RELEARN_BYTES = 4 * 1024 * 1024
# The first two events and the keys that events begin with show in this much.
_LEARNT_BYTES = 1024 * 1024


class EventText:
    """What stands before the events of a trace, and the events in chunks.

    Attributes:
        head: the text before the opening bracket of the events, once ``find_events`` found it.
        is_list: whether the file begins with that bracket, so that the events are all of the document.
        lost_bytes: None, or where the first whole event begins, when the beginning is too damaged to find their list.
        separator: the bytes from one event's closing brace to the next one's opening brace.
        chunk_offset: where in the plain text the chunk handed out last begins, in bytes.
        after_chunk: what stands between that chunk and the text in ``buffer``.
    """

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.head = b""
        self.is_list = False
        self.lost_bytes: int | None = None
        self.buffer = TextBuffer(blocks)
        self.separator = _LIKELY_SEPARATOR
        self.chunk_offset = 0
        self.after_chunk = b""
        self._fresh = 0  # so many bytes at the end of the window were not yet searched for a separator
        self._is_inside_overlong = False
        self._opening: re.Pattern[bytes] | None = None
        self._has_no_separators = False
        self._relearn_bytes = _RELEARN_BYTES

    def find_events(self) -> str:
        """Move past the bracket that opens the events; return why there is none, or nothing when there is."""
        buffer = self.buffer
        buffer.skip_blank()
        if buffer.startswith(BYTE_ORDER_MARK):
            buffer.start += len(BYTE_ORDER_MARK)
            buffer.skip_blank()
        if not len(buffer):
            return "the file is empty"
        self.is_list = buffer.startswith(b"[")
        if not self.is_list and not self._find_list():
            return f"its JSON has no 'traceEvents' list in its first {limits.HEAD_BYTES // 1024**2} MiB"
        if self.lost_bytes is None:
            buffer.start += 1
        self._learn_separator()
        return ""

    def _find_list(self) -> bool:
        """Move from the head to the bracket behind the key of the events, or to the first event when there is none."""
        buffer = self.buffer
        head = bytearray()
        while len(head) <= limits.HEAD_BYTES:
            at = buffer.data.find(_EVENTS_KEY, buffer.start, buffer.end)
            passed = at + len(_EVENTS_KEY) if at >= 0 else max(buffer.start, buffer.end - len(_EVENTS_KEY))
            head += memoryview(buffer.data)[buffer.start : passed]
            buffer.start = passed
            if at >= 0:
                buffer.skip_blank()
                if buffer.startswith(b":"):
                    buffer.start += 1
                    head += b":"
                    buffer.skip_blank()
                    if buffer.startswith(b"["):
                        self.head = bytes(head)
                        return True
            elif not buffer.fill():
                head += buffer.take_all()
                break
        first = first_event(bytes(head))
        if first is None:
            return False
        self.head = bytes(head[:first])
        buffer.put_back(bytes(head[first:]))
        self.lost_bytes = buffer.offset
        return True

    def next_array(self) -> memoryview | bytes:
        """Return the next whole events as a JSON array, valid until the next call; empty when no more can be cut off.

        What cannot be cut off is left in ``buffer``.
        """
        buffer = self.buffer
        while self._fresh or self._read_on():
            width = len(self.separator)
            unsearched = max(buffer.start, buffer.end - self._fresh - width)
            self._fresh = 0
            if self._is_inside_overlong:
                cut = buffer.data.find(self.separator, unsearched, buffer.end)
                self._is_inside_overlong = cut < 0
                buffer.start = cut + width - 1 if cut >= 0 else max(buffer.start, buffer.end - width)
                self._fresh = len(buffer) if cut >= 0 else 0
                continue
            cut = buffer.data.rfind(self.separator, unsearched, buffer.end)
            if cut > buffer.start:
                return self._cut(cut)
            if len(buffer) > self._relearn_bytes or self._has_no_separators:
                array = self._cut_otherwise()
                if array:
                    return array
        if self._is_inside_overlong:
            buffer.start = buffer.end
        return b""

    def _read_on(self) -> bool:
        before = len(self.buffer)
        is_more = self.buffer.fill()
        self._fresh = len(self.buffer) - before
        return is_more

    def _cut(self, cut: int) -> memoryview:
        buffer = self.buffer
        first, end = buffer.start, cut + 1
        self.chunk_offset = buffer.offset
        self.after_chunk = self.separator[1:-1]
        buffer.data[first - 1] = ord("[")
        buffer.data[end] = ord("]")
        buffer.start = cut + len(self.separator) - 1
        return memoryview(buffer.data)[first - 1 : end + 1]

    def _cut_otherwise(self) -> bytes:
        """Return events up to where the last one in the window begins, for texts whose separators are damaged.

        Learns another separator and returns nothing where there is one. Of a text longer than any event the beginning
        is returned, and what follows is left out up to the next separator.
        """
        buffer = self.buffer
        seen = Counter(_BETWEEN.findall(buffer.data, buffer.start, buffer.end)).most_common(1)
        if seen and seen[0][0] != self.separator:
            self.separator = seen[0][0]
            self._fresh = len(buffer)
            return b""
        openings = [found.start() for found in self.opening.finditer(buffer.data, buffer.start + 1, buffer.end)]
        self._has_no_separators = bool(openings)
        end = openings[-1] if openings else buffer.end
        if not openings and len(buffer) <= limits.EVENT_BYTES:
            self._relearn_bytes = 2 * len(buffer)
            return b""
        self.chunk_offset, self.after_chunk = buffer.offset, b""
        text = buffer.copy(end - buffer.start)
        buffer.start = end
        self._is_inside_overlong = not openings
        self._relearn_bytes = _RELEARN_BYTES
        return b"[%b]" % text

    @property
    def opening(self) -> re.Pattern[bytes]:
        """How an event begins, learnt from the events in the window: a brace and the first key of most of them."""
        if self._opening is None:
            keys = Counter(_OPENING.findall(self.buffer.copy(_LEARNT_BYTES))).most_common(1)
            self._opening = re.compile(rb'\{\s*"%b"\s*:' % keys[0][0]) if keys else _OPENING
        return self._opening

    def _learn_separator(self) -> None:
        """Take the bytes between the first two events, else the most frequent ones of the window."""
        buffer = self.buffer
        while True:
            text = buffer.copy()
            first = _end_of_object(text)
            found = _BETWEEN.match(text, first - 1) if first else None
            if found is None and len(text) <= _LEARNT_BYTES and buffer.fill():
                continue
            seen = [found[0]] if found else [text for text, _ in Counter(_BETWEEN.findall(text)).most_common(1)]
            self.separator = seen[0] if seen else _LIKELY_SEPARATOR
            self._fresh = len(buffer)
            return


def first_event(text: bytes) -> int | None:
    """Return where the first whole event in a text begins, None when there is none.

    >>> first_event(b'{"x": [{"id": 1}, {"ph": "X", "ts": 1}')
    18
    """
    for opening in islice(_OPENING.finditer(text), _OPENINGS_TRIED):
        candidate = text[opening.start() : opening.start() + limits.REPAIRED_BYTES]
        if b'"ph"' not in candidate:
            continue
        try:
            value, _ = _JSON.raw_decode(candidate.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            continue
        if isinstance(value.get("ph"), str):
            return opening.start()
    return None


def _end_of_object(text: bytes) -> int:
    depth = 0
    for token in _TOKEN.finditer(text):
        if token[0] == b"{":
            depth += 1
        elif token[0] == b"}":
            depth -= 1
            if depth <= 0:
                return token.end()
    return 0
