"""Text into small integer ids, in the order of first appearance."""

from collections.abc import Hashable

from profilerkit.trace.limits import DISTINCT_TEXTS, TEXT_BYTES

# Stands for every text past the limits.
OTHER_TEXTS = "(other names)"


def printable_text(text: str) -> str:
    r"""Return the text with lone surrogates replaced, so that it can always be encoded.

    >>> printable_text("a\ud800b")
    'a?b'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class StringIds(dict[str, int]):
    """Text to id; a lookup of an unknown text gives it the next id.

    Attributes:
        refused: how many lookups of texts past the limits got the id of ``OTHER_TEXTS``.

    >>> ids = StringIds()
    >>> [ids["a"], ids["b"], ids["a"]], list(ids)
    ([0, 1, 0], ['a', 'b'])
    """

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0
        self.room_bytes = TEXT_BYTES

    def __missing__(self, text: str) -> int:
        if len(self) >= DISTINCT_TEXTS or len(text) > self.room_bytes:
            self.refused += 1
            return self.setdefault(OTHER_TEXTS, len(self))
        self.room_bytes -= len(text)
        self[text] = new_id = len(self)
        return new_id


class RawTextIds(dict[bytes, int]):
    """Raw JSON bytes to the id of their text in ``strings``; nothing at all has the id -1."""

    def __init__(self, strings: StringIds) -> None:
        super().__init__({b"": -1})
        self._strings = strings

    def __missing__(self, raw: bytes) -> int:
        text_id = self._strings[raw.decode("utf-8", "replace")]
        if not self._strings.refused:
            self[raw] = text_id
        return text_id


class ThreadIds(dict[tuple[Hashable, Hashable], int]):
    """A (pid, tid) pair to the id of its thread; pairs that read the same as text are one thread.

    >>> ids = ThreadIds()
    >>> [ids[7, 1], ids["7", 1], ids[7, "stream 1"]]
    [0, 0, 1]
    """

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[tuple[str, str], int] = {}
        self.refused = 0
        self.room_bytes = TEXT_BYTES

    def __missing__(self, pair: tuple[Hashable, Hashable]) -> int:
        text = (id_text(pair[0]), id_text(pair[1]))
        self.room_bytes -= len(text[0]) + len(text[1])
        if len(self) >= DISTINCT_TEXTS or self.room_bytes < 0:
            self.refused += 1
            return self.texts.setdefault((OTHER_TEXTS, OTHER_TEXTS), len(self.texts))
        self[pair] = thread = self.texts.setdefault(text, len(self.texts))
        return thread


def id_text(value: Hashable) -> str:
    """Return a pid or tid as text; an absent one is empty."""
    return "" if value is None else printable_text(str(value))
