"""Microseconds as traces write them into exact nanoseconds."""

import struct
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from profilerkit.trace.columns import I64, Bools, TraceColumns

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


def written_to_ns(texts: Sequence[bytes | Raw], *, quoted: bool = False) -> tuple[I64, F64]:
    """Return ``(n,)`` int64 ns and float µs of time stamps as written, exact; NaN µs for an empty text.

    Args:
        texts: the JSON of each stamp.
        quoted: whether a number written as text is one.

    Raises:
        ValueError: a text is no number.

    >>> written_to_ns([b"1712195496004644.203"])[0].tolist()
    [1712195496004644203]
    """
    joined = b"\n".join((*texts, b""))
    ns = _aligned_to_ns(joined, len(texts))
    if ns is not None:
        return ns, ns / 1000
    plain = joined.replace(b'"', b"") if quoted else joined
    values = list(map(_decimal, plain.decode("utf-8", "replace").split("\n")[:-1]))
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


def resolution_ns(columns: TraceColumns) -> int:
    """Return 1 when the trace tells single nanoseconds apart, 1000 when all its times are whole microseconds."""
    whole = not (columns.ts_ns % 1000).any() and not (columns.dur_ns % 1000).any()
    return 1000 if whole else 1
