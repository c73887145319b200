"""Text into small integer ids, in the order of first appearance."""

from collections.abc import Hashable


def printable_text(text: str) -> str:
    r"""Return the text with lone surrogates replaced, so that it can always be encoded.

    >>> printable_text("a\ud800b")
    'a?b'
    """
    return text.encode("utf-8", "replace").decode()


class StringIds(dict[str, int]):
    """Text to id; a lookup of an unknown text gives it the next id.

    >>> ids = StringIds()
    >>> [ids["a"], ids["b"], ids["a"]], list(ids)
    ([0, 1, 0], ['a', 'b'])
    """

    def __missing__(self, text: str) -> int:
        self[text] = new_id = len(self)
        return new_id


class RawTextIds(dict[bytes, int]):
    """Raw JSON bytes to the id of their text in ``strings``; nothing at all has the id -1."""

    def __init__(self, strings: StringIds) -> None:
        super().__init__({b"": -1})
        self._strings = strings

    def __missing__(self, raw: bytes) -> int:
        self[raw] = text_id = self._strings[raw.decode("utf-8", "replace")]
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

    def __missing__(self, pair: tuple[Hashable, Hashable]) -> int:
        text = (id_text(pair[0]), id_text(pair[1]))
        self[pair] = thread = self.texts.setdefault(text, len(self.texts))
        return thread


def id_text(value: Hashable) -> str:
    """Return a pid or tid as text; an absent one is empty."""
    return "" if value is None else printable_text(str(value))
