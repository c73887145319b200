"""The largest kernels: what they reach, what launched them, and where in the model."""

import pytest

from tests.recipes import AUTOGRAD, ELEMENTWISE, GEMM, MS, SINGLE, US, Trace

A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_899_345_920, "computeMajor": 8}
TENSOR_CORE = "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32"
SHAPE = [4096, 4096]
FLOPS, BYTES = 2 * 4096**3, 2 * 3 * 4096**2
TYPES = ["c10::BFloat16"] * 2


def products(*lengths, end=None, devices=(A100,), dims=(SHAPE, SHAPE), name=TENSOR_CORE, tid=100, types=TYPES):
    """One step with a product for each length in µs."""
    trace = Trace(devices=devices)
    at = 1_000
    for length in lengths:
        trace.op(at, at + 10, name="aten::mm", dims=[list(shape) for shape in dims], types=types, tid=tid)
        trace.kernel(at + 20, at + 20 + length, name=name, launch=(at + 2, at + 4), tid=tid)
        at += 20 + length
    trace.steps(1_000, end or at)
    return trace


def largest(trace):
    return trace.facts().kernels[0]


def test_a_product_says_what_it_reaches_of_the_device():
    kernel = largest(products(1_000, 600))
    assert (kernel.name, kernel.kind, kernel.kind_source) == (TENSOR_CORE, "math", "derived")
    assert (kernel.count, kernel.total_ns, kernel.priced_ns) == (2, 1_600 * US, 1_600 * US)
    assert (kernel.flops, kernel.bytes) == (2 * FLOPS, 2 * BYTES)
    assert kernel.efficiency == pytest.approx(2 * FLOPS / (312e3 * 0.869) / (1_600 * US))
    assert (kernel.precision, kernel.tensor_core, kernel.operator) == ("bf16", True, "aten::mm")


def test_a_thin_product_is_of_the_kind_its_shapes_tell():
    kernel = largest(products(40, dims=([8, 4096], SHAPE)))
    assert (kernel.kind, kernel.kind_source) == ("membw", "derived")


def test_an_unknown_device_leaves_the_kind_to_the_name_and_the_efficiency_open():
    kernel = largest(products(1_000, devices=()))
    assert (kernel.kind, kernel.kind_source, kernel.efficiency) == ("math", "estimated", None)
    assert (kernel.flops, kernel.precision) == (FLOPS, "bf16")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("volta_scudnn_128x64_relu_small_nn_v1", "math"),
        ("_5x_cudnn_ampere_scudnn_128x32_relu_small_nn_v1", "math"),
        ("volta_fp16_s884cudnn_fp16_256x128_ldg8_relu_f2f_exp_interior_nhwc2nchw_tn_v1", "math"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 128, true, 1>", "membw"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>", "membw"),
        ("matmul_kernel", "math"),
        ("triton_tem_fused_addmm_relu_4", "math"),
        ("triton_poi_fused_convolution_relu_2", "membw"),
        ("triton_fused_convolution_relu_2", "membw"),
        ("triton_for_fused_0", "membw"),
        ("triton_per_fused__flash_attn_backward_mul_sum_8", "membw"),
    ],
)
def test_the_name_tells_a_product_from_memory_traffic(name, kind):
    assert largest(products(1_000, dims=([], []), name=name)).kind == kind


def test_what_was_not_recorded_stays_open():
    trace = products(1_000, dims=([], []))
    trace.kernel(5_000, 5_500, name=ELEMENTWISE)
    kernels = {kernel.name: kernel for kernel in trace.facts().kernels}
    for kernel in kernels.values():
        assert (kernel.priced_ns, kernel.flops, kernel.bytes, kernel.efficiency) == (None, None, None, None)
        assert (kernel.module, kernel.line, kernel.kind_source) == (None, None, "estimated")


def test_names_of_amd_kernels_do_not_tell_their_units():
    device = {"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 206_141_652_992, "computeMajor": 9}
    trace = products(1_000, devices=(device,), name="Cijk_Alik_Bljk_BBS_BH_MT128x128x32")
    assert largest(trace).tensor_core is None
    assert trace.facts().compute.tensor_core_ratio is None


def test_copies_and_collectives_have_no_roof():
    trace = products(1_000)
    trace.copy(1_100, 1_900, stream=9)
    trace.collective(1_100, 1_950, stream=20)
    kinds = {kernel.kind: kernel for kernel in trace.facts().kernels}
    assert kinds["comm"].efficiency is kinds["comm"].tensor_core is kinds["comm"].operator is None
    assert kinds["membw"].efficiency is None


def test_the_module_and_the_line_around_the_longest_call_are_named():
    trace = products(600, 1_000)
    trace.frame("train.py(7): main", 900, 5_000)
    trace.frame("nn.Module: Net_0", 1_000, 4_000)
    trace.frame("torch/nn/modules/module.py(1700): _call_impl", 1_001, 3_999)
    trace.frame("net.py(30): forward", 1_600, 3_000)
    trace.frame("nn.Module: Linear_3", 1_610, 2_900)
    trace.frame("torch/nn/modules/linear.py(114): forward", 1_612, 2_890)
    trace.frame("<built-in function linear>", 1_613, 2_880)
    kernel = largest(trace)
    assert (kernel.module, kernel.line) == ("Linear_3", "net.py(30): forward")


def test_a_call_without_frames_leaves_the_place_to_a_shorter_one_that_has_them():
    trace = products(1_000, end=4_000, tid=AUTOGRAD)
    trace.op(2_100, 2_110, name="aten::mm", dims=[SHAPE, SHAPE], types=TYPES)
    trace.kernel(2_150, 2_650, name=TENSOR_CORE, launch=(2_102, 2_104))
    trace.frame("nn.Module: Linear_3", 2_090, 2_120)
    kernel = largest(trace)
    assert (kernel.count, kernel.module, kernel.line) == (2, "Linear_3", None)


def test_operators_of_a_cpu_run_count_their_arithmetic():
    trace = Trace()
    trace.loader(900, 1_000, name=SINGLE)
    trace.op(1_000, 3_000, name="aten::linear", dims=[[64, 256], [128, 256]])
    trace.op(1_100, 2_900, name="aten::addmm", dims=[[128], [64, 256], [256, 128]])
    trace.steps(1_000, 4_000)
    facts = trace.facts()
    kernels = {kernel.name: kernel for kernel in facts.kernels}
    assert kernels["aten::addmm"].flops == 2 * 64 * 256 * 128
    assert kernels["aten::addmm"].total_ns == 1_800 * US
    assert kernels["aten::linear"].flops is None
    assert facts.compute.flops_per_step == 2 * 64 * 256 * 128
    assert facts.compute.mfu is facts.compute.by_shape_ratio is facts.compute.tensor_core_ratio is None


def test_utilisation_is_the_arithmetic_of_the_step_over_its_peak():
    trace = products(1_000, 600)
    compute = trace.facts().compute
    window_ns = 1_640 * US
    assert compute.mfu == compute.hfu == pytest.approx(2 * FLOPS / (window_ns * 312e3))
    assert (compute.spec, compute.precision, compute.peak_flops_per_s) == ("a100-sxm-80gb", "bf16", 312e12)
    assert (compute.priced_ratio, compute.by_shape_ratio, compute.tensor_core_ratio) == (1.0, 1.0, 1.0)
    assert (compute.small_ratio, compute.beyond_ratio) == (0.0, 0.0)
    assert compute.efficiency == pytest.approx(2 * FLOPS / (312e3 * 0.869) / (1_600 * US))


def test_utilisation_is_not_known_while_a_tenth_of_the_math_is_not_priced():
    trace = products(1_000, end=3_000)
    trace.kernel(2_030, 2_130, name=GEMM)
    assert trace.facts().compute.mfu is not None
    trace.kernel(2_140, 2_240, name=GEMM)
    compute = trace.facts().compute
    assert compute.mfu is compute.hfu is None
    assert compute.priced_ratio == pytest.approx(1_000 / 1_200)
    assert compute.flops_per_step == FLOPS


def test_recomputation_is_in_the_hardware_utilisation_alone():
    trace = products(1_000, end=4_000)
    trace.op(900, 950, name="aten::linear", dims=[SHAPE, SHAPE])
    trace.op(2_100, 2_200, name="autograd::engine::evaluate_function: GeluBackward0", tid=AUTOGRAD)
    trace.op(2_105, 2_150, name="aten::linear", dims=[SHAPE, SHAPE], tid=AUTOGRAD)
    trace.op(2_110, 2_140, name="aten::mm", dims=[SHAPE, SHAPE], types=TYPES, tid=AUTOGRAD)
    trace.kernel(2_300, 3_300, name=TENSOR_CORE, launch=(2_115, 2_118), tid=AUTOGRAD)
    facts = trace.facts()
    assert facts.compute.recomputed_flops_per_step == FLOPS
    assert facts.compute.hfu == pytest.approx(2 * facts.compute.mfu)
    assert trace.parts()["mem.recompute"] == 1 * MS


def test_fp32_is_judged_by_the_vector_peak_and_tf32_by_that_of_the_matrix_units():
    fp32 = products(9_000, name="void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128>", types=["float"] * 2)
    tf32 = products(2_000, name="cutlass_80_tensorop_s1688gemm_256x128_32x3_tn_align4", types=["float"] * 2)
    for trace, precision, peak in ((fp32, "fp32", 19.5e12), (tf32, "tf32", 156e12)):
        facts = trace.facts()
        assert (facts.compute.precision, facts.compute.peak_flops_per_s) == (precision, peak)
        assert facts.kernels[0].precision == precision
        assert (facts.math.fp32_share > 0.5) == (precision == "fp32")
