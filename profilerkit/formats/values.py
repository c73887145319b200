"""Turn values as files write them into arrays: exact ns, whole numbers, ids of texts, and columns that grow."""

import struct
from collections.abc import Collection, Hashable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from profilerkit.formats.limits import DISTINCT_TEXTS, TEXT_BYTES
from profilerkit.trace.columns import F32, I32, I64, Bools

Microseconds = int | float
F64 = npt.NDArray[np.float64]

# A float64 tells neighbouring nanoseconds apart up to here (its spacing is 2**-10 µs); about 101 days in µs.
EXACT_FLOAT_US = float(2**43)
# An int64 of nanoseconds ends in the year 2262.
LAST_US = float((2**63 - 1) // 1000 - 1)
# No run is longer than ten years; kineto writes such durations when a stop was never recorded.
LONGEST_DURATION_US = 10 * 365.25 * 86_400 * 1e6
# Digits of a whole µs that fit an int64, and of the ns in it.
_WHOLE_DIGITS, _DECIMALS = 16, 3


def float_us(values: Sequence[Microseconds]) -> F64:
    """Return the values as ``(n,)`` float64 µs, read-only; what no float can hold becomes infinite."""
    try:
        return np.frombuffer(struct.pack(f"{len(values)}d", *values), np.float64)
    except (OverflowError, struct.error):
        return np.fromiter(map(_float_or_not, values), np.float64, len(values))


def _float_or_not(value: Microseconds | Decimal) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def stamps_to_ns(values: Sequence[Microseconds]) -> tuple[I64, F64] | None:
    """Return ``(n,)`` int64 ns and float µs of time stamps as decoded, or None when floats cannot tell the ns.

    Such stamps count from the epoch and have decimals (PyTorch releases of spring 2024); as float64 they are
    wrong by up to 125 ns, so that their text is needed. The ns are 0 where no int64 can hold them.

    >>> stamps_to_ns([1712195496004644])[0].tolist()
    [1712195496004644000]
    >>> stamps_to_ns([1712195496004644.203]) is None
    True
    """
    us = float_us(values)
    if len(us) and not (us.min() > -EXACT_FLOAT_US and us.max() < EXACT_FLOAT_US):
        far = np.flatnonzero(np.abs(us) >= EXACT_FLOAT_US)
        if any(type(values[index]) is float for index in far.tolist()):
            return None
    return us_to_ns(us), us


def written_to_ns(texts: Sequence[bytes | Raw]) -> tuple[I64, F64]:
    """Return ``(n,)`` int64 ns and float µs of time stamps as written, exact; NaN µs for an empty text.

    Args:
        texts: the JSON of each stamp, a number or a text of one.

    Raises:
        ValueError: a text is no number.

    >>> written_to_ns([b"1712195496004644.203"])[0].tolist()
    [1712195496004644203]
    """
    joined = b"\n".join((*texts, b"")).replace(b'"', b"")
    ns = _aligned_to_ns(joined, len(texts))
    if ns is not None:
        return ns, ns / 1000
    values = list(map(_decimal, joined.decode("utf-8", "replace").split("\n")[:-1]))
    if len(values) != len(texts):
        raise ValueError("a text of several lines is no number")
    us = np.fromiter(map(_float_or_not, values), np.float64, len(values))
    exact = [round(v * 1000) if possible else 0 for v, possible in zip(values, is_time(us).tolist(), strict=True)]
    return np.array(exact, np.int64), us


def _aligned_to_ns(joined: bytes, count: int) -> I64 | None:
    """Return ``(count,)`` ns of stamps in lines that all have the same digits before and after the point, else None.

    That is how a file writes almost all of them, and ten times as fast as number by number.
    """
    whole, _, decimals = joined[: joined.find(b"\n")].partition(b".")
    width = len(whole) + bool(decimals) + len(decimals) + 1
    if not whole or len(joined) != count * width or len(whole) > _WHOLE_DIGITS or len(decimals) > _DECIMALS:
        return None
    lines = np.frombuffer(joined, np.uint8).reshape(count, width)
    digits = np.delete(lines, [len(whole), width - 1], axis=1) - ord("0")
    if (
        (digits > 9).any()
        or (lines[:, -1] != ord("\n")).any()
        or (decimals and (lines[:, len(whole)] != ord(".")).any())
    ):
        return None
    powers = 10 ** np.arange(digits.shape[1] - 1, -1, -1)
    if len(whole) == _WHOLE_DIGITS and (digits[:, :_WHOLE_DIGITS] @ powers[-_WHOLE_DIGITS:]).max() >= LAST_US:
        return None
    ns: I64 = digits @ powers * 10 ** (_DECIMALS - len(decimals))
    return ns


def _decimal(text: str) -> Decimal:
    try:
        if "_" in text or text != text.strip():  # Python's own spellings
            raise InvalidOperation
        return Decimal(text or "NaN")
    except InvalidOperation as error:
        raise ValueError(f"not a number: {text[:40]!r}") from error


def us_to_ns(microseconds: F64) -> I64:
    """Return ``(n,)`` int64 ns of float µs; 0 where no int64 can hold it.

    Exact for stamps with up to three decimals below 2**43 µs and for whole ones below 2**53. The whole and the
    fraction are converted apart because ``round(us * 1000)`` is wrong by 1 ns for a quarter of the stamps
    between 4.4e12 and 4.5e12 µs.

    >>> us_to_ns(np.array([4458676524648.797, 0.001, -1.5])).tolist()
    [4458676524648797, 1, -1500]
    """
    if len(microseconds) and not (microseconds.min() >= -LAST_US and microseconds.max() <= LAST_US):
        microseconds = np.where(is_time(microseconds), microseconds, 0.0)
    whole = np.floor(microseconds)
    ns: I64 = whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000).astype(np.int64)
    return ns


def is_time(microseconds: F64) -> Bools:
    """Return ``(n,)`` whether each value can be a time: a number, and in ns within an int64."""
    return np.abs(microseconds) <= LAST_US


_INT64 = range(-(2**63), 2**63)
_UNPACKABLE = (struct.error, OverflowError, ValueError)


def whole_number(value: object) -> int:
    """Return the value as an int64, or -1 for what is none: null, text without a number, beyond 64 bits.

    >>> [whole_number(value) for value in (7, "0x10", 12.0, None, "INVALID", 2**64, 0.5)]
    [7, 16, 12, -1, -1, -1, -1]
    """
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return -1
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and value in _INT64 else -1


def count_of(value: object) -> int | None:
    """Return the value as an int64, ``None`` for what is none, and for negative ones."""
    number = whole_number(value)
    return number if number >= 0 else None


def whole_numbers(values: Sequence[object]) -> I64:
    """Return ``(n,)`` int64, -1 for what is not a whole number; read-only.

    Packing is three times as fast as ``np.fromiter`` and refuses all that is not a whole number of 64 bits.
    """
    count = len(values)
    try:
        return np.frombuffer(struct.pack(f"{count}q", *values), np.int64)
    except _UNPACKABLE:
        return np.fromiter(map(whole_number, values), np.int64, count)


#: More blocks for each multiprocessor than any grid has: 2**31 blocks on a device with a single one.
_MOST_BLOCKS = float(2**31)


def grid_size(value: object) -> float:
    """Return blocks per multiprocessor, or 0 for what is no such number: no grid is empty.

    >>> [grid_size(value) for value in (0.25, 3, "1.5", None, -1, 1e30)]
    [0.25, 3.0, 0.0, 0.0, 0.0, 0.0]
    """
    return float(value) if isinstance(value, int | float) and 0.0 < value <= _MOST_BLOCKS else 0.0


def grid_sizes(values: Sequence[object]) -> F32:
    """Return ``(n,)`` float32 blocks per multiprocessor, 0 where unknown."""
    try:
        found = np.frombuffer(struct.pack(f"{len(values)}d", *values), np.float64)
    except _UNPACKABLE:
        return np.fromiter(map(grid_size, values), np.float32, len(values))
    return np.where((found > 0.0) & (found <= _MOST_BLOCKS), found, 0.0).astype(np.float32)


def small_numbers(values: Collection[int]) -> I32:
    """Return ``(n,)`` int32 of ids, which fit by the way they are given; read-only."""
    return np.frombuffer(struct.pack(f"{len(values)}i", *values), np.int32)


def as_int32(values: I64) -> I32:
    """Return the values as int32, -1 where they do not fit."""
    if len(values) and (values.min() < -(2**31) or values.max() >= 2**31):
        values = np.where(np.abs(values) < 2**31, values, -1)
    return values.astype(np.int32)


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


_FIRST_ROWS = 4096
# Large arrays are grown by the operating system moving pages, not bytes, so small steps cost little and leave
# at most an eighth unused.
_LARGE_ROWS = 2**18


class Table:
    """Arrays of one common length to which rows are appended.

    >>> table = Table({"id": np.int64})
    >>> table.append({"id": np.array([4, 5, 6])}, keep=np.array([True, False, True]))
    >>> table.rows, table.take("id").tolist()
    (2, [4, 6])
    """

    def __init__(self, dtypes: Mapping[str, npt.DTypeLike]) -> None:
        self.rows = 0
        self._capacity = 0
        self._columns: dict[str, npt.NDArray[Any]] = {name: np.empty(0, dtype) for name, dtype in dtypes.items()}

    def append(self, values: Mapping[str, npt.NDArray[Any]], *, keep: Bools | None = None) -> None:
        """Append the kept rows of every column, all of them without ``keep``."""
        count = len(next(iter(values.values()))) if keep is None else int(np.count_nonzero(keep))
        end = self.rows + count
        if end > self._capacity:
            self._grow(end)
        for name, column in self._columns.items():
            column[self.rows : end] = values[name] if keep is None else values[name][keep]
        self.rows = end

    def view(self, name: str) -> npt.NDArray[Any]:
        """Return a whole column, not to be kept."""
        return self._columns[name][: self.rows]

    def take(self, name: str) -> npt.NDArray[Any]:
        """Return a whole column and forget it."""
        column = self._columns.pop(name)
        column.resize(self.rows, refcheck=False)
        return column

    def _grow(self, rows: int) -> None:
        step = self._capacity // (8 if self._capacity > _LARGE_ROWS else 1)
        self._capacity = max(rows, self._capacity + step, _FIRST_ROWS)
        for column in self._columns.values():
            column.resize(self._capacity, refcheck=False)
