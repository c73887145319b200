"""Microseconds as written become nanoseconds without losing one."""

import random
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_recipes import FIRST_US, document, event_text, plain, span, write

from profilerkit.formats.registry import read_trace
from profilerkit.formats.values import stamps_to_ns, us_to_ns, written_to_ns
from profilerkit.trace.columns import Wanted


def written(ns, decimals=3):
    """A time of ``ns`` nanoseconds as a trace writes it, in µs."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    text = f"{sign}{ns // 1000}.{ns % 1000:03d}"
    return text if decimals == 3 else text.split(".", maxsplit=1)[0]


def read_stamps(tmp_path, stamps, dur="0.001"):
    return read_trace(write(tmp_path, document([event_text(i, ts=ts, dur=dur) for i, ts in enumerate(stamps)])))


@given(st.integers(min_value=-(2**40), max_value=2**43 * 1000 - 1))
def test_relative_stamp_is_exact_through_a_float(ns):
    assert stamps_to_ns([float(written(ns))])[0].tolist() == [ns]


@given(st.integers(min_value=2**43 * 1000, max_value=2**62))
def test_stamp_beyond_the_exact_floats_asks_for_decimals_and_is_exact_with_them(ns):
    assert stamps_to_ns([float(written(ns))]) is None
    assert written_to_ns([written(ns).encode()])[0].tolist() == [ns]


def exact_ns(text):
    return int((Decimal(text) * 1000).to_integral_value())


stamp_texts = st.one_of(
    st.integers(-(2**62), 2**62).map(written),
    st.integers(-(2**53), 2**53).map(str),
    st.decimals("-9e15", "9e15", allow_nan=False, places=5).map(str),
    st.sampled_from(["0", "-0.0", "1e3", "12.5E-1", "9007199254740993", "1712195496004644.2035"]),
)


@given(
    st.one_of(st.lists(stamp_texts, max_size=20), st.lists(st.integers(10**18, 10**19 - 1).map(written), max_size=9))
)
def test_stamps_as_written_are_exact_alike_or_not(texts):
    ns, us = written_to_ns([text.encode() for text in texts])
    last = (2**63 - 1) // 1000 - 1
    expected = [exact_ns(text) if abs(Decimal(text)) <= last else 0 for text in texts]
    assert ns.tolist() == expected
    assert us.tolist() == pytest.approx([float(text) for text in texts], rel=1e-12)


@pytest.mark.parametrize("text", ['"1_7"', '" 17"', "null", "{}", "[1,\n2]", '"a"', "true", "1\n2"])
def test_what_is_no_number_is_no_stamp(text):
    with pytest.raises(ValueError, match="no"):
        written_to_ns([b"1712195496004644.203", text.encode()])


def test_an_empty_stamp_is_no_time_and_a_quoted_one_is_read():
    ns, us = written_to_ns([b"", b'"5.25"', b"1e999", b""])
    assert ns.tolist() == [0, 5250, 0, 0]
    assert np.isnan(us).tolist() == [True, False, False, True]
    assert np.isnan(written_to_ns([b"", b""])[1]).all()
    assert written_to_ns([b'"1712195496004644.203"', b'"1712195496004645.204"'])[0].tolist() == [
        1712195496004644203,
        1712195496004645204,
    ]


@given(st.integers(min_value=0, max_value=2**53))
def test_whole_microseconds_are_exact_until_the_year_2255(us):
    assert stamps_to_ns([us])[0].tolist() == [us * 1000]


def test_rounding_the_product_would_lose_nanoseconds():
    """Why whole and fraction are converted apart: the product is off for a quarter of the stamps in this range."""
    rng = random.Random(7)
    exact = [rng.randrange(4_400 * 10**9, 4_500 * 10**9) * 1000 + rng.randrange(1000) for _ in range(2000)]
    floats = [float(written(ns)) for ns in exact]
    assert us_to_ns(np.array(floats)).tolist() == exact
    assert sum(round(value * 1000) != ns for value, ns in zip(floats, exact, strict=True)) > 100


def test_epoch_stamps_with_decimals_are_exact(tmp_path):
    rng = random.Random(5)
    exact = [1712195496004644203 + index * 10**6 + rng.randrange(10**6) for index in range(3000)]
    columns = read_stamps(tmp_path, [written(ns) for ns in exact])
    assert columns.ts_ns.tolist() == exact
    assert columns.dur_ns.tolist() == [1] * 3000


@pytest.mark.parametrize(
    ("stamp", "ns"), [("1712195496004644.031", 1712195496004644031), ("1712195496004644", 1712195496004644000)]
)
def test_one_epoch_stamp_among_relative_ones_is_exact(tmp_path, stamp, ns):
    columns = read_stamps(tmp_path, [stamp if index == 1500 else f"{FIRST_US + index}.001" for index in range(3000)])
    assert columns.ts_ns[1500] == ns
    assert columns.ts_ns[1499] == (FIRST_US + 1499) * 1000 + 1
    assert columns.ts_ns[2999] == (FIRST_US + 2999) * 1000 + 1


def test_epoch_stamps_of_flows_and_memory_are_exact(tmp_path):
    flow = '\n  {"ph": "s", "id": 1, "pid": 0, "tid": 7, "ts": 1712195496004644.203, "cat": "ac2g", "name": "ac2g"\n  }'
    freed = (
        '\n  {"ph": "i", "name": "[memory]", "pid": 0, "tid": 7, "ts": 1712195496004644.207,'
        ' "args": {"Bytes": -512, "Device Type": 1, "Device Id": 0}\n  }'
    )
    columns = read_trace(
        write(tmp_path, document([event_text(0, ts="1712195496004644"), flow, freed])), wanted=Wanted.EVERYTHING
    )
    assert columns.flows.ts_ns.tolist() == [1712195496004644203]
    assert columns.memory.ts_ns.tolist() == [1712195496004644207]
    assert columns.memory.bytes.tolist() == [-512]


def test_whole_epoch_microseconds_are_exact(tmp_path):
    columns = read_trace(write(tmp_path, plain([span(ts=1623142624633484, dur=3), span(ts=1623142624633490, dur=1)])))
    assert columns.ts_ns.tolist() == [1623142624633484000, 1623142624633490000]


@pytest.mark.parametrize(
    ("dur", "ns"), [("0", 0), ("0.001", 1), ("4.123999999999967", 4124), ("1e3", 1_000_000), ("2", 2000)]
)
def test_duration_is_exact(tmp_path, dur, ns):
    columns = read_stamps(tmp_path, ["5.5"], dur=dur)
    assert (columns.ts_ns.tolist(), columns.dur_ns.tolist()) == ([5500], [ns])
    assert columns.end_ns.tolist() == [5500 + ns]
    assert columns.damage.dropped == 0


def test_ten_years_are_possible_and_more_are_not(tmp_path):
    ten_years_us = 3_155_760 * 10**8
    columns = read_trace(write(tmp_path, plain([span(dur=ten_years_us), span(dur=ten_years_us + 1)])))
    assert columns.dur_ns.tolist() == [ten_years_us * 1000]
    assert columns.damage.dropped == 1
