"""The wire format of protocol buffers, read within bounds: a length is never believed beyond its message."""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
#: Of a message for which nobody says less: 2 GiB hold no more.
MOST_FIELDS = 2**31

_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
# A varint holds 64 bits, seven in each byte.
_VARINT_BITS = 70
_UNSIGNED = 2**64
# The first field has the number 1.
_FIRST_TAG = 1 << 3


class Message(bytearray):
    """The bytes of a message, and how many more of its fields are read: a hostile one may have one in two bytes.

    Attributes:
        fields_left: below 0 once there were more.
    """

    fields_left = MOST_FIELDS


class WireError(ValueError):
    """Bytes that are no message.

    Attributes:
        tag: of the field whose length reaches beyond its message; 0 for other damage.
        at: where what that field holds begins.
    """

    def __init__(self, what: str, *, tag: int = 0, at: int = 0) -> None:
        super().__init__(what)
        self.tag = tag
        self.at = at


def tag_of(number: int, kind: int) -> int:
    """Return what stands before each field of this number and kind.

    >>> tag_of(1, BYTES), tag_of(2, VARINT)
    (10, 16)
    """
    return number << 3 | kind


def fields(data: Message, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    r"""Yield each field of the message in ``data[start:end]``: its tag, its value or where it begins, where it ends.

    Of a varint the value is its number; of anything else it is where its bytes begin. Nothing is copied.
    Where the message has no fields left, they end.

    Raises:
        WireError: the rest of the message is damaged. What came before was yielded.

    >>> list(fields(Message(b"\x08\x96\x01\x12\x02ab"), 0, 7))
    [(8, 150, 3), (18, 5, 7)]
    """
    at = start
    while at < end:
        data.fields_left -= 1
        if data.fields_left < 0:
            return
        tag, at = varint(data, at, end)
        kind = tag & 7
        if tag < _FIRST_TAG:
            raise WireError("a field has no number")
        if kind == VARINT:
            value, at = varint(data, at, end)
            yield tag, value, at
            continue
        if kind == BYTES:
            length, at = varint(data, at, end)
        elif kind in _FIXED_BYTES:
            length = _FIXED_BYTES[kind]
        else:
            raise WireError(f"no field is of kind {kind}")
        if length > end - at:
            raise WireError("a length reaches beyond its message", tag=tag, at=at)
        yield tag, at, at + length
        at += length


def varint(data: bytearray, at: int, end: int) -> tuple[int, int]:
    """Return the number that begins at ``at``, 0 to 2**64 - 1, and where it ends.

    Raises:
        WireError: it does not end before ``end``, or has more than ten bytes.
    """
    value = shift = 0
    while at < end and shift < _VARINT_BITS:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value % _UNSIGNED, at
        shift += 7
    raise WireError("a number does not end")


def signed(value: int) -> int:
    """Return a varint of a signed field as the number it stands for.

    >>> signed(2**64 - 1), signed(5)
    (-1, 5)
    """
    return value - _UNSIGNED if value >= _UNSIGNED // 2 else value
