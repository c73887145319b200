"""What a trace says was passed to an operator, and what is made of text that says nothing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilerkit.analysis.device.formulas import arguments


def passed(dims, types=None, values=None):
    types = types or ["float"] * len(dims)
    return arguments(json.dumps(dims), json.dumps(types), "" if values is None else json.dumps(values))


@pytest.mark.parametrize(
    ("written", "dtype", "item_bytes"),
    [("float", "fp32", 4), ("c10::BFloat16", "bf16", 2), ("c10::Float8_e4m3fn", "fp8", 1), ("long int", "int64", 8)],
)
def test_types_have_names_and_sizes(written, dtype, item_bytes):
    found = passed([[2, 3]], [written]).tensor(0)
    assert (found.shape, found.dtype, found.item_bytes) == ((2, 3), dtype, item_bytes)


def test_scalars_absent_tensors_and_unknown_types_are_no_tensors():
    found = passed([[], [4], [4], [4]], ["Scalar", "", "c10::Exotic", "float"])
    assert [found.tensor(position) is None for position in range(5)] == [True, True, True, False, True]


def test_lists_of_tensors_keep_their_shapes_without_a_type():
    found = passed([[[2, 3], [], [5]], [7]], ["TensorList", "float"])
    assert found.lists == {0: {(2, 3): 1, (5,): 1}}
    assert [found.listed(position) for position in range(3)] == [11, 0, 0]
    assert found.tensors[0] is None


def test_values_are_read_as_flags_and_short_numbers():
    found = passed([[1]], values=["", "True", "[1, 12]", "3", "[-1]", "[1.5]", 7, "[" + "9," * 9 + "]", "[1234]"])
    assert (found.flag(1), found.flag(0), found.flag(99)) == (True, None, None)
    assert [found.numbers(position) for position in range(2, 9)] == [(1, 12), (3,), None, None, None, None, None]


@pytest.mark.parametrize(
    "dims",
    [
        "",
        "{}",
        "7",
        "[" * 100_000,
        "[[" + "9" * 5_000 + "]]",
        '[["2"]]',
        "[[true]]",
        "[[-1]]",
        "[[2.0]]",
        "[null]",
        f"[[{2**62}]]",
        "[[1048576, 1048576, 1048576]]",
        f"[[{', '.join(['1'] * 65)}]]",
    ],
)
def test_impossible_shapes_are_no_shapes(dims):
    found = arguments(dims, '["float"]', "")
    assert found is None or (found.tensor(0) is None and not any(found.lists.values()))


def test_lists_of_a_large_fused_optimizer_are_parsed():
    tensors = [[[4096, 4096]] * 1_500] * 4
    assert passed(tensors, ["TensorList"] * 4).lists == {at: {(4096, 4096): 1_500} for at in range(4)}


def test_texts_longer_than_any_real_operators_are_not_parsed():
    assert arguments("[" + "[1]," * 40_000 + "[1]]", "[]", "") is None
    assert arguments("[[1]]", '["float"]', '["' + "x" * 2**17 + '"]') is None


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_no_text_raises(dims, types, values):
    arguments(dims, types, values)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=12,
)


@given(json_values, json_values, json_values)
def test_no_json_raises(dims, types, values):
    found = arguments(json.dumps(dims), json.dumps(types), json.dumps(values))
    for position in range(3) if found else ():
        found.tensor(position)
        found.flag(position)
        found.numbers(position)
