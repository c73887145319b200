"""The cost of each kind of operator against sums done by hand."""

import json
from math import prod

import pytest

from profilerkit.analysis.device.formulas import FAMILIES, Seen, arguments, seen_in
from profilerkit.analysis.device.operator_costs import model_of, models_of

NOTHING_SEEN = Seen({}, {})
BF16, FP8 = "c10::BFloat16", "c10::Float8_e4m3fn"


def passed(dims, types=None, values=None):
    types = types or ["float" if shape else "Scalar" for shape in dims]
    return arguments(json.dumps(dims), json.dumps(types), "" if values is None else json.dumps(values))


def cost(name, dims, types=None, values=None, seen=NOTHING_SEEN):
    model = model_of(name, models_of(seen))
    found = model and model(passed(dims, types, values))
    assert found is None or found.family in FAMILIES
    return found


def counted(*args, **kwargs):
    found = cost(*args, **kwargs)
    return found.flops, found.bytes


@pytest.mark.parametrize("name", ["aten::mm", "aten::_int_mm", "aten::_scaled_mm"])
def test_a_matrix_product_multiplies_and_adds_for_each_of_its_terms(name):
    assert counted(name, [[4, 8], [8, 3]]) == (2 * 4 * 8 * 3, 4 * (4 * 8 + 8 * 3 + 4 * 3))


def test_a_bias_is_read_and_a_full_addend_too():
    m, k, n = 4, 8, 3
    product, moved = 2 * m * k * n, 2 * (m * k + k * n + m * n)
    assert counted("aten::addmm", [[n], [m, k], [k, n], [], []], [BF16] * 3 + ["Scalar"] * 2) == (
        product,
        moved + 2 * n,
    )
    assert counted("aten::addmm", [[m, n], [m, k], [k, n], [], []], [BF16] * 3 + ["Scalar"] * 2) == (
        product,
        moved + 2 * m * n,
    )


def test_a_batch_is_that_many_products():
    one, _ = counted("aten::mm", [[4, 8], [8, 3]])
    assert counted("aten::bmm", [[5, 4, 8], [5, 8, 3]])[0] == 5 * one
    assert counted("aten::baddbmm", [[5, 4, 3], [5, 4, 8], [5, 8, 3]])[0] == 5 * one


def test_products_of_8_bit_factors_are_written_in_16_bits():
    assert counted("aten::_scaled_mm", [[4, 8], [8, 3], [], []], [FP8, FP8, "float", "float"])[1] == 32 + 24 + 2 * 12


def test_rows_of_all_experts_together_are_the_rows_of_a_grouped_product():
    tokens, k, n, experts = 64, 8, 3, 4
    types = [BF16, BF16, "int"]
    forward = counted("aten::_grouped_mm", [[tokens, k], [experts, k, n], [experts]], types)
    assert forward == (2 * tokens * k * n, 2 * (tokens * k + experts * k * n + tokens * n))
    weights = counted("aten::_grouped_mm", [[k, tokens], [tokens, n], [experts]], types)
    assert weights == (2 * tokens * k * n, 2 * (tokens * k + tokens * n + experts * k * n))


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("aten::mm", [[4, 8], [7, 3]]),
        ("aten::mm", [[4, 8]]),
        ("aten::mm", [[8], [8]]),
        ("aten::bmm", [[4, 8], [5, 8, 3]]),
        ("aten::_grouped_mm", [[64, 8], [4, 7, 3]]),
    ],
)
def test_shapes_that_do_not_fit_have_no_cost(name, dims):
    assert cost(name, dims) is None


STEM = [[32, 3, 224, 224], [64, 3, 7, 7], [], [], [], [], [], [], []]
STEM_OUT = (32, 64, 112, 112)
STEM_FLOPS = 2 * prod(STEM_OUT) * 3 * 7 * 7
STEM_BYTES = 4 * (prod(STEM[0]) + prod(STEM[1]) + prod(STEM_OUT))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("aten::cudnn_convolution", ["", "", "[3, 3]", "[2, 2]", "[1, 1]", "1"]),
        ("aten::miopen_convolution", ["", "", "", "[3, 3]", "[2, 2]", "[1, 1]", "1"]),
        ("aten::mkldnn_convolution", ["", "", "", "[3]", "[2]", "[1]", "1"]),
        ("aten::cudnn_convolution_relu", ["", "", "", "[2, 2]", "[3, 3]", "[1, 1]", "1"]),
        ("aten::_slow_conv2d_forward", ["", "", "[7, 7]", "", "[2, 2]", "[3, 3]"]),
    ],
)
def test_a_convolution_takes_a_filter_for_each_output_element(name, values):
    assert counted(name, STEM, values=values) == (STEM_FLOPS, STEM_BYTES)


def test_groups_and_dilation_follow_from_the_weight_and_the_values():
    depthwise = cost(
        "aten::cudnn_convolution", [[8, 16, 20, 20], [16, 1, 3, 3]], values=["", "", "[2, 2]", "[1, 1]", "[2, 2]"]
    )
    assert depthwise.flops == 2 * (8 * 16 * 20 * 20) * 9


def test_a_transposed_convolution_spreads_a_filter_from_each_input_element():
    values = ["", "", "[0, 0]", "[0, 0]", "[2, 2]", "[1, 1]", "1"]
    found = cost("aten::cudnn_convolution_transpose", [[64, 256, 64, 64], [256, 64, 2, 2]], values=values)
    assert found.flops == 2 * (64 * 256 * 64 * 64) * 64 * 2 * 2
    assert found.bytes == 4 * (64 * 256 * 64 * 64 + 256 * 64 * 2 * 2 + 64 * 64 * 128 * 128)


def test_without_stride_the_output_is_the_one_its_backward_shows():
    backward = ("aten::cudnn_convolution_backward", passed([STEM[0], list(STEM_OUT), STEM[1]]))
    assert cost("aten::cudnn_convolution", STEM[:2]) is None
    assert counted("aten::cudnn_convolution", STEM[:2], seen=seen_in([backward])) == (STEM_FLOPS, STEM_BYTES)


def test_what_two_backward_calls_show_differently_is_not_known():
    one = ("aten::convolution_backward", passed([[8, 16, 20, 20], [8, 16, 20, 20], [16, 16, 3, 3]]))
    other = ("aten::convolution_backward", passed([[8, 16, 20, 20], [8, 16, 20, 20], [16, 16, 1, 1]]))
    assert seen_in([one]).weights
    assert not seen_in([one, other, one]).weights
    assert len(seen_in([one, other]).outputs) == 2


@pytest.mark.parametrize(
    ("mask", "gradients"),
    [("[True, True, False]", 2), ("[False, True, True]", 1), ("", 2), ("[False, False, True]", 0)],
)
def test_each_gradient_of_a_convolution_costs_as_much_as_the_forward_call(mask, gradients):
    values = ["", "", "", "[0]", "[2, 2]", "[3, 3]", "[1, 1]", "False", "[0, 0]", "1", mask]
    found = cost("aten::convolution_backward", [list(STEM_OUT), *STEM[:2]], values=values)
    assert (found.flops, found.bytes) == (gradients * STEM_FLOPS, gradients * STEM_BYTES)


def test_gradients_that_older_releases_computed_apart_cost_one_each():
    out, source, weight = list(STEM_OUT), *STEM[:2]
    seen = seen_in([("aten::cudnn_convolution_backward", passed([source, out, weight]))])
    assert cost("aten::cudnn_convolution_backward_input", [[], out, weight]).flops == STEM_FLOPS
    of_weight = cost("aten::cudnn_convolution_backward_weight", [[], out, source], seen=seen)
    assert (of_weight.flops, of_weight.bytes) == (STEM_FLOPS, STEM_BYTES)
    assert cost("aten::cudnn_convolution_backward_weight", [[], out, source]) is None


QKV = [[16, 559, 8, 64]] * 3
ALL_PAIRS = 4 * 16 * 8 * 559 * 559 * 64
TENSOR_BYTES = 2 * 16 * 559 * 8 * 64


def flash(causal):
    return ["", "", "", "", "", "559", "559", "0.", causal]


def test_attention_scores_and_weighs_all_pairs_of_positions():
    full = counted("aten::_flash_attention_forward", QKV, [BF16] * 3, flash("False"))
    assert full == (ALL_PAIRS, 4 * TENSOR_BYTES)


def test_a_causal_mask_halves_attention():
    assert counted("aten::_flash_attention_forward", QKV, [BF16] * 3, flash("True"))[0] == ALL_PAIRS // 2


def test_attention_is_not_priced_where_it_is_not_known_whether_it_is_causal():
    assert cost("aten::_flash_attention_forward", QKV, [BF16] * 3) is None
    assert cost("aten::_flash_attention_forward", [[8944, 8, 64]] * 3, [BF16] * 3, flash("True")) is None


def test_attention_backward_takes_five_products_for_two():
    values = [""] * 11 + ["False"]
    found = counted("aten::_flash_attention_backward", [*QKV, QKV[0], QKV[0]], [BF16] * 5, values)
    assert found == (2.5 * ALL_PAIRS, 8 * TENSOR_BYTES)


def test_layouts_and_masks_of_the_other_attention_kernels():
    by_head = [[16, 8, 559, 64]] * 3
    values = ["", "", "", "", "False", "0.", "True"]
    assert counted("aten::_scaled_dot_product_cudnn_attention", by_head, [BF16] * 3, values)[0] == ALL_PAIRS // 2
    for mask, part in (("0", 1), ("1", 2), ("2", 2)):
        values = [""] * 9 + [mask]
        assert counted("aten::_efficient_attention_forward", QKV, [BF16] * 3, values)[0] == ALL_PAIRS // part


def test_shared_keys_do_not_make_the_queries_cheaper():
    shared = [QKV[0], [16, 559, 2, 64], [16, 559, 2, 64]]
    flops, moved = counted("aten::_flash_attention_forward", shared, [BF16] * 3, flash("False"))
    assert (flops, moved) == (ALL_PAIRS, 2 * TENSOR_BYTES + 2 * TENSOR_BYTES // 4)


def test_one_query_against_a_long_cache_sees_nearly_all_of_it_under_a_causal_mask():
    values = ["", "", "", "", "", "1", "1000", "0.", "True"]
    found = cost("aten::_flash_attention_forward", [[1, 1, 8, 64], *[[1, 1000, 8, 64]] * 2], [BF16] * 3, values)
    assert found.flops == pytest.approx(4 * 8 * 1000 * 64, rel=0.001)


N = 32 * 64


@pytest.mark.parametrize(
    ("name", "dims", "elements"),
    [
        ("aten::copy_", [[32, 64], [32, 64]], 2 * N),
        ("aten::fill_", [[32, 64], []], N),
        ("aten::sum", [[32, 64], []], N),
        ("aten::_softmax", [[32, 64], [], []], 2 * N),
        ("aten::_softmax_backward_data", [[32, 64], [32, 64], [], []], 3 * N),
        ("aten::native_layer_norm", [[32, 64], [], [64], [64], []], 2 * N),
        ("aten::native_layer_norm_backward", [[32, 64], [32, 64], [], [32, 1], [32, 1], [64], [64]], 3 * N),
        ("aten::cudnn_batch_norm_backward", [[32, 64], [32, 64], [64]], 3 * N),
        ("aten::embedding_dense_backward", [[32, 64], [32]], 2 * N + 32),
    ],
)
def test_traffic_is_what_must_be_read_and_written_at_least(name, dims, elements):
    assert counted(name, dims) == (0, 4 * elements)


def test_of_a_table_only_the_chosen_rows_are_read():
    types = ["float", "Scalar", "long int"]
    assert counted("aten::index_select", [[50_000, 64], [], [10]], types)[1] == 10 * (2 * 64 * 4 + 8)
    assert counted("aten::gather", [[32, 64], [], [32, 2]], types)[1] == 64 * (2 * 4 + 8)


def test_lists_of_tensors_count_elements_whose_size_is_not_recorded():
    parameters = [[32, 64], [64]]
    listed = ["TensorList"] * 4
    elements = N + 64
    assert cost("aten::_fused_adamw_", [parameters] * 4, listed).untyped == 7 * elements
    assert cost("aten::_foreach_addcdiv_", [parameters] * 3, listed).untyped == 4 * elements
    assert cost("aten::_foreach_norm", [parameters], listed).untyped == elements
    assert cost("aten::cat", [parameters, []], ["TensorList", "Scalar"]).untyped == 2 * elements
    assert cost("aten::cat", [[], []], ["TensorList", "Scalar"]) is None


def test_a_pointwise_operator_reads_its_inputs_and_writes_the_common_shape():
    found = cost("aten::lerp", [[32, 1], [64], []])
    assert (found.bytes, found.pointwise_only) == (4 * (32 + 64 + N), True)
    assert cost("aten::lerp", [[32, 3], [64]]) is None
    assert cost("aten::lerp", [[], []]) is None


def test_a_result_that_is_passed_in_is_not_read():
    assert cost("aten::mul", [[32, 64], [], [32, 64]]).bytes == 4 * 2 * N
    assert cost("aten::clamp_min", [[32, 64], [], [32, 64]]).bytes == 4 * 2 * N


def test_a_fused_kernel_moves_each_of_its_arguments_once():
    found = cost("triton_poi_fused_add_mul_0", [[32, 64], [64], [32, 64], []])
    assert (found.bytes, found.flops, found.pointwise_only) == (4 * (2 * N + 64), 0, False)
    assert cost("triton_tem_fused_mm_1", [[32, 64], [64, 32], [32, 32]]) is None


def test_ranges_that_are_no_operators_of_torch_have_no_cost_of_their_own():
    assert cost("CompiledFunction", [[32, 64], [32, 64]]) is None
