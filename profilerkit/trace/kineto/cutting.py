"""Blocks of text into chunks of whole events, without looking at every byte."""

import re
from collections import Counter
from collections.abc import Iterator

# The key, its colon and the opening bracket; a quote inside a string is escaped, so this is never inside one.
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*')
_BARE_ARRAY = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")
_KEY_BYTES = 64
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}]', re.DOTALL)
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_LIKELY_SEPARATOR = b"},\n  {"
# Without a single separator in this much text the one learnt from the first two events was wrong.
_RELEARN_BYTES = 4 * 1024 * 1024


class EventText:
    """The text of a trace: what stands before the events, and the events in chunks.

    Attributes:
        head: the text before the opening bracket of the events, once ``find_events`` found it.
        pending: text read and not yet handed out.
        separator: the bytes from one event's closing brace to the next one's opening brace.
    """

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.head = b""
        self.pending = bytearray()
        self.separator = _LIKELY_SEPARATOR
        self._blocks = blocks
        self._is_uncuttable = False
        self._relearn_bytes = _RELEARN_BYTES

    def fill(self) -> bool:
        """Read one more block; False at the end of the file."""
        block = next(self._blocks, b"")
        self.pending += block
        self._is_uncuttable = self._is_uncuttable and not block
        return bool(block)

    def find_events(self) -> bool:
        """Move past the bracket that opens the events and learn their separator; False when there is no such bracket.

        ``pending`` then holds what follows the key, or the whole text when there is no key.
        """
        searched = 0
        while True:
            found = _BARE_ARRAY.match(self.pending) if not searched else None
            if found is None:
                found = _EVENTS_KEY.search(self.pending, max(0, searched - _KEY_BYTES))
                if found is not None and found.end() == len(self.pending) and self.fill():
                    continue
            if found is not None:
                break
            searched = len(self.pending)
            if not self.fill():
                return False
        opens = found.end() - 1 if found[0].endswith(b"[") else found.end()
        self.head = bytes(self.pending[:opens])
        del self.pending[:opens]
        if not self.pending.startswith(b"["):
            return False
        del self.pending[:1]
        self._learn_separator()
        return True

    def next_chunk(self) -> bytes:
        """Return the next whole events, commas between them; empty when only the last piece is left in ``pending``."""
        if self._is_uncuttable and not self.fill():
            return b""
        searched = 0
        while True:
            cut = self.pending.rfind(self.separator, max(0, searched - len(self.separator)))
            if cut > 0:
                chunk = bytes(self.pending[: cut + 1])
                del self.pending[: cut + len(self.separator) - 1]
                return chunk
            searched = len(self.pending)
            if searched > self._relearn_bytes:
                self._relearn_bytes *= 2
                if self._relearn():
                    searched = 0
                    continue
            if not self.fill():
                return b""

    def push_back(self, text: bytes) -> None:
        """Put text back in front of what is pending; it is not cut again before more was read."""
        self.pending[:0] = text
        self._is_uncuttable = True

    def take_rest(self) -> bytes:
        """Return all that is pending."""
        rest = bytes(self.pending)
        self.pending.clear()
        return rest

    def _learn_separator(self) -> None:
        while True:
            first = _end_of_object(self.pending)
            found = _BETWEEN.match(self.pending, first - 1) if first else None
            if found is not None:
                self.separator = found[0]
                return
            if len(self.pending) > _RELEARN_BYTES or not self.fill():
                self._relearn()
                return

    def _relearn(self) -> bool:
        """Take the most frequent separator of the pending text; False when there is none but the known one."""
        seen = Counter(_BETWEEN.findall(self.pending))
        best = seen.most_common(1)
        if not best or best[0][0] == self.separator:
            return False
        self.separator = best[0][0]
        return True


def _end_of_object(text: bytearray) -> int:
    """Return where the first object of the text ends, 0 when it does not end."""
    depth = 0
    for token in _TOKEN.finditer(text):
        if token[0] == b"{":
            depth += 1
        elif token[0] == b"}":
            depth -= 1
            if depth <= 0:
                return token.end()
    return 0
