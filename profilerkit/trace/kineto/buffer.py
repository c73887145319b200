"""The text that was read and not yet used, in one buffer that is used again for every block."""

from collections.abc import Iterator

BLANK = b" \t\r\n\0"


class TextBuffer:
    """A window on the plain text of a file; indices are into ``data``, and stay valid until the next ``fill``.

    Attributes:
        data: the buffer. The byte before the window may be overwritten.
        start: where the window begins.
        end: where it ends.
    """

    def __init__(self, blocks: Iterator[bytes], offset: int = 0) -> None:
        self.data = bytearray(2)
        self.start = self.end = 1
        self._blocks = blocks
        self._passed_bytes = offset - 1

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
        """Move the window to the front of the buffer, or of a larger one."""
        text = self.copy()
        needed = len(text) + count + 2
        if needed > len(self.data):
            self.data = bytearray(2 * needed)
        self.data[1 : 1 + len(text)] = text
        self._passed_bytes += self.start - 1
        self.start, self.end = 1, 1 + len(text)


_SKIPPED_BYTES = 64 * 1024
