"""Facts survive being written and read; what was not written so is refused, never taken."""

import dataclasses
import zlib
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from profilerkit.summaries import compact
from profilerkit.summaries.compact import decode, encode


@dataclass(frozen=True)
class Inner:
    flags: npt.NDArray[np.bool_]
    pairs: tuple[tuple[int, int] | None, ...] = ()


@dataclass(frozen=True)
class Outer:
    values: npt.NDArray[np.int64]
    name: str
    inner: Inner | None = None


SAMPLE = Outer(np.arange(12).reshape(3, 4), "a", Inner(np.array([True, False]), ((1, 2), None)))


def packed(value):
    return zlib.compress(msgspec.msgpack.encode(value))


def test_records_and_arrays_come_back_as_they_were():
    found = decode(encode(SAMPLE), Outer)
    assert found.name == "a"
    assert found.values.dtype == np.int64
    assert found.values.tolist() == SAMPLE.values.tolist()
    assert found.inner.flags.tolist() == [True, False]
    assert found.inner.pairs == ((1, 2), None)
    assert not found.values.flags.writeable


def test_numbers_of_numpy_are_plain_numbers():
    assert decode(encode(dataclasses.replace(SAMPLE, inner=None, name=str(np.str_("b")))), Outer).name == "b"
    assert decode(encode({"n": np.int64(3), "x": np.float32(0.5)}), dict) == {"n": 3, "x": 0.5}


@pytest.mark.parametrize(
    "values",
    [
        ("|O", (1,), b"\0" * 8),  # objects are never made of bytes
        ("<i4", (2,), b"\0" * 8),  # another type than the record has
        ("<i8", (3,), b"\0" * 8),
        ("<i8", (-1,), b"\0" * 8),
        ("<i8", (1 << 62, 4), b""),
        ("no type", (1,), b"\0" * 8),
        ("|, .", (1,), b"\0" * 8),  # a SyntaxError of numpy
        (["<i8"], (1,), b"\0" * 8),
        ("(1,i8", (1,), b"\0" * 8),  # numpy evaluates the shape in a type's name
        ("{'a'", (1,), b"\0" * 8),
        ({"a": []}, (1,), b"\0" * 8),
        ("<i8", "x", b"\0" * 8),
        "text",
        None,
    ],
)
def test_an_array_that_is_none_is_refused(values):
    with pytest.raises(ValueError, match="not of this version"):
        decode(packed({"values": values, "name": "a"}), Outer)


def test_broken_bytes_are_refused():
    whole = encode(SAMPLE)
    for data in (b"", b"no zlib", whole[:-3], packed([1, 2]), packed({"values": 1})):
        with pytest.raises(ValueError, match=r"^it(s|) "):
            decode(data, Outer)


def test_more_than_a_summary_can_be_is_not_unpacked(monkeypatch):
    monkeypatch.setattr(compact, "MOST_BYTES", 1_000)
    with pytest.raises(ValueError, match="larger than any summary"):
        decode(zlib.compress(b"\0" * 1_000_000), Outer)
