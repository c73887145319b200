"""Kernels against the roofs of a device, from what their operators were passed."""

import numpy as np
import pytest

from profilerkit.analysis.device.compute import compute_leaves
from profilerkit.analysis.device.kernels import KernelNames
from profilerkit.analysis.device.roofline import BANDWIDTH_ROOF, MATH_ROOF, UNKNOWN
from profilerkit.hardware import lookup
from profilerkit.model.step import LEAVES
from profilerkit.trace.columns import Category
from profilerkit.trace.launches import launch_of
from tests.recipes import ELEMENTWISE, GEMM, OTHER_KERNEL, Trace

A100 = lookup("NVIDIA A100-SXM4-80GB")
BF16 = ["c10::BFloat16"] * 2
TENSOR_CORE = "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32"
SPLIT_K = "void cublasLt::splitKreduce_kernel<32, 16, int, float>"


def judged(trace, spec=A100):
    """The kernels against the roofs, and the part of each."""
    columns = trace.read()
    ran = columns.is_a(Category.KERNEL)
    roof, leaves = compute_leaves(columns, KernelNames.of(columns), launch_of(columns), ran, spec)
    return roof, [LEAVES[label] for label in leaves[roof.rows]]


def launched(*kernels, op="aten::mm", dims=((4096, 4096), (4096, 4096)), types=None, values=None):
    """One operator that launches kernels of (name, µs) one after the other."""
    trace = Trace()
    trace.op(0, 100, name=op, dims=[list(shape) for shape in dims], types=types, values=values)
    at = 200
    for number, (name, length) in enumerate(kernels):
        trace.kernel(at, at + length, name=name, launch=(10 + 5 * number, 12 + 5 * number))
        at += length
    return trace


FLOPS, BYTES = 2 * 4096**3, 2 * 3 * 4096**2


def test_a_large_product_is_bound_by_arithmetic_and_its_efficiency_is_that_of_reachable_peaks():
    roof, parts = judged(launched((TENSOR_CORE, 1_000), types=BF16))
    assert (roof.flops.tolist(), roof.bytes.tolist()) == ([FLOPS], [BYTES])
    assert parts == ["compute.math"]
    assert roof.least_ns[0] == pytest.approx(FLOPS / (312e3 * 0.869))
    assert roof.by_shape.all()


def test_a_thin_product_is_bound_by_memory_whatever_its_name():
    roof, parts = judged(launched((TENSOR_CORE, 30), dims=((8, 4096), (4096, 4096)), types=BF16))
    assert parts == ["compute.membw"]
    assert roof.least_ns[0] == pytest.approx(2 * (8 * 4096 + 4096**2 + 8 * 4096) / (2039 * 0.9))


@pytest.mark.parametrize(
    ("name", "peak_tflops"), [(GEMM, 19.5), ("cutlass_80_tensorop_s1688gemm_256x128_32x3_tn_align4", 156.0)]
)
def test_fp32_is_judged_by_the_units_its_kernel_names(name, peak_tflops):
    roof, _ = judged(launched((name, 20_000)))
    assert roof.least_ns[0] == pytest.approx(FLOPS / (1e3 * peak_tflops * 0.869))


def test_the_kernels_that_compute_share_the_arithmetic_by_time_and_helpers_get_none():
    roof, parts = judged(launched((GEMM, 9_000), (SPLIT_K, 500), (GEMM, 3_000)))
    assert roof.flops[[0, 2]].tolist() == [0.75 * FLOPS, 0.25 * FLOPS]
    assert np.isnan(roof.flops[1])
    assert np.nansum(roof.flops) == FLOPS
    assert np.nansum(roof.bytes) == 2 * BYTES
    assert parts == ["compute.math", "compute.membw", "compute.math"]
    assert roof.by_shape.tolist() == [True, False, True]


def test_where_no_kernel_names_itself_all_of_them_compute():
    roof, _ = judged(launched((OTHER_KERNEL, 600), ("another_kernel", 200), types=BF16))
    assert roof.flops.tolist() == [0.75 * FLOPS, 0.25 * FLOPS]


def test_nothing_is_counted_twice_where_operators_are_nested():
    trace = launched((TENSOR_CORE, 1_000), types=BF16)
    trace.op(0, 200, name="aten::linear", dims=[[4096, 4096], [4096, 4096]], types=BF16)
    trace.op(-1, 210, name="aten::addmm", dims=[[4096], [4096, 4096], [4096, 4096]], types=[*BF16, BF16[0]])
    roof, _ = judged(trace)
    assert roof.flops.tolist() == [FLOPS]


def test_pointwise_cost_is_that_of_pointwise_kernels_alone():
    dims = ((1 << 24,), (1 << 24,))
    roof, parts = judged(launched((ELEMENTWISE, 150), ("void reduce_kernel<512>", 40), op="aten::lerp", dims=dims))
    assert roof.bytes[0] == 3 * 4 * (1 << 24)
    assert np.isnan(roof.bytes[1])
    assert parts == ["compute.membw", "compute.membw"]
    assert (roof.flops[0], roof.by_shape.tolist()) == (0, [True, False])


def test_the_size_of_listed_tensors_is_in_the_name_of_the_kernel():
    lists = [[[1 << 22], [1 << 22]], []]
    trace = Trace()
    trace.op(0, 100, name="aten::cat", dims=lists, types=["TensorList", "Scalar"])
    for number, name in enumerate(("CatArrayBatchedCopy<OpaqueType<2u>, 2>", "multi_tensor_apply_kernel<c10::Half>")):
        trace.kernel(200 + 50 * number, 250 + 50 * number, name=name, launch=(10 + number * 5, 12 + number * 5))
    roof, _ = judged(trace)
    assert roof.bytes.tolist() == [2 * (1 << 23)] * 2  # half of the elements each, 2 bytes each, read and written


def test_small_kernels_are_small_however_they_are_bound():
    _, parts = judged(launched((TENSOR_CORE, 9), dims=((64, 64), (64, 64)), types=BF16))
    assert parts == ["compute.small"]


def test_without_a_known_device_names_decide_and_the_arithmetic_is_still_known():
    roof, parts = judged(launched((TENSOR_CORE, 30), dims=((8, 4096), (4096, 4096)), types=BF16), spec=None)
    assert parts == ["compute.math"]
    assert roof.flops.tolist() == [2 * 8 * 4096**2]
    assert not roof.by_shape.any()
    assert np.isnan(roof.least_ns).all()


def test_without_shapes_names_decide():
    trace = Trace()
    trace.op(0, 100, name="aten::mm")
    for number, name in enumerate((GEMM, ELEMENTWISE, OTHER_KERNEL)):
        trace.kernel(200 + 50 * number, 250 + 50 * number, name=name, launch=(10 + number * 5, 12 + number * 5))
    roof, _ = judged(trace)
    assert roof.roof.tolist() == [MATH_ROOF, BANDWIDTH_ROOF, UNKNOWN]
    assert not roof.by_shape.any()


def test_a_kernel_without_a_launch_is_told_by_its_name():
    trace = launched((TENSOR_CORE, 1_000), types=BF16)
    trace.kernel(2_000, 3_000, name=TENSOR_CORE)
    roof, parts = judged(trace)
    assert roof.flops[0] == FLOPS
    assert np.isnan(roof.flops[1])
    assert parts == ["compute.math", "compute.math"]


def test_a_product_faster_than_the_peak_was_not_what_ran():
    roof, parts = judged(launched((TENSOR_CORE, 400), types=BF16))  # 344 TFLOP/s on a chip of 312
    assert roof.beyond.tolist() == [True]
    assert np.isnan(roof.flops).all()
    assert (parts, roof.by_shape.tolist()) == (["compute.math"], [False])


def test_a_convolution_faster_than_the_peak_has_an_algorithm_with_less_arithmetic():
    values = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]
    dims = ((32, 256, 56, 56), (256, 256, 3, 3))
    flops = 2 * 32 * 256 * 56 * 56 * 256 * 9
    kernels = ("ampere_scudnn_winograd_128x128_ldg1_ldg4", round(flops / 19.5e6 / 2))
    roof, parts = judged(launched(kernels, op="aten::cudnn_convolution", dims=dims, values=values))
    assert (roof.flops.tolist(), roof.beyond.tolist()) == ([flops], [True])
    assert roof.least_ns[0] == kernels[1] * 1_000
    assert parts == ["compute.math"]


def test_traffic_from_a_cache_counts_as_fully_efficient():
    roof, _ = judged(launched((ELEMENTWISE, 20), op="aten::add", dims=((1 << 23,), (1 << 23,), ())))
    assert roof.beyond.tolist() == [True]
    assert roof.least_ns.tolist() == [20_000]


@pytest.mark.parametrize("spec", [None, A100])
@pytest.mark.parametrize(
    ("op", "dims"),
    [
        ("aten::mm", ((1 << 22, 1 << 22), (1 << 22, 1 << 22))),  # 1.5e24 FLOP/s
        ("aten::add", ((1 << 40, 1), (1 << 3,), ())),  # 7e17 B/s
        ("aten::add", ((1 << 40, 1), (1, 1 << 40), ())),  # a result of 5e24 bytes
        ("aten::cudnn_convolution_backward_input", ((), (1 << 20, 1 << 20), (1 << 20, 1 << 20))),
    ],
)
def test_what_no_device_can_do_is_not_priced(op, dims, spec):
    roof, _ = judged(launched((ELEMENTWISE, 100), op=op, dims=dims), spec=spec)
    assert np.isnan(roof.flops).all()
    assert np.isnan(roof.bytes).all()
    assert not roof.by_shape.any()


def test_the_fastest_device_there_may_be_is_priced_without_its_peaks():
    roof, _ = judged(launched((TENSOR_CORE, 14), types=BF16), spec=None)  # 9.8e15 FLOP/s
    assert roof.flops.tolist() == [FLOPS]
    roof, _ = judged(launched((TENSOR_CORE, 11), types=BF16), spec=None)  # 1.15e16 with 1 µs of rounding
    assert np.isnan(roof.flops).all()


def test_whole_microseconds_make_no_short_kernel_impossible():
    dims = ((200_000,), (200_000,), ())  # 2.4 MB take 1.2 µs
    roof, _ = judged(launched((ELEMENTWISE, 1), op="aten::add", dims=dims))
    assert not roof.beyond.any()


def test_a_type_without_a_peak_is_told_by_its_name():
    roof, parts = judged(launched((GEMM, 20_000), types=["double", "double"]))
    assert roof.flops.tolist() == [FLOPS]
    assert (parts, roof.by_shape.tolist()) == (["compute.math"], [False])


def test_the_order_of_the_file_changes_nothing():
    trace = launched((GEMM, 9_000), (SPLIT_K, 500), (GEMM, 3_000))
    turned = trace.changed(lambda event: event)
    turned.events.reverse()
    first, second = judged(trace)[0], judged(turned)[0]
    assert np.sort(first.flops)[:2].tolist() == np.sort(second.flops)[:2].tolist() == [0.25 * FLOPS, 0.75 * FLOPS]
