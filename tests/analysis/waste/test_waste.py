"""What kernels waste, from traces with known answers."""

import numpy as np
import pytest

from profilerkit.analysis.device import kernel_losses
from profilerkit.analysis.device.shape_losses import idle_ratio
from tests.recipes import ALL_REDUCE, ELEMENTWISE, GEMM, Trace

A100 = {
    "id": 0,
    "name": "NVIDIA A100-SXM4-80GB",
    "totalGlobalMem": 85_000_000_000,
    "computeMajor": 8,
    "computeMinor": 0,
    "numSms": 108,
}
BF16 = "c10::BFloat16"
TENSOR_CORE = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, float, 11>"
STEP_US = 10_000
PEAK, REACHED, MEMORY = 312e12, 0.869, 2039e9  # of that A100, dense BF16


class Steps:
    """Steps of 10 ms, in each of which calls are made one after the other, each with kernels of its own."""

    def __init__(self, count=4, devices=(A100,)):
        self.trace = Trace(devices=devices)
        self.count = count
        self.trace.steps(*(STEP_US * number for number in range(count + 1)))
        self._host = [STEP_US * number + 10 for number in range(count)]
        self._device = [STEP_US * number + 1_000 for number in range(count)]

    def call(self, op, dims, *kernels, types=BF16, only=None, syncs=0, sync="cudaEventSynchronize", **args):
        """One operator in every step, or in ``only`` these; kernels are (name, µs), ``syncs`` waits follow them."""
        kinds = [] if types is None else [types if shape and not isinstance(shape[0], list) else "" for shape in dims]
        for number in range(self.count) if only is None else only:
            host, at = self._host[number], self._device[number]
            end = host + 10 * (len(kernels) + syncs) + 5
            self.trace.op(host, end, name=op, dims=None if types is None else dims, types=kinds)
            for index, (name, length) in enumerate(kernels):
                start = host + 10 * index + 2
                self.trace.kernel(at, at + length, name=name, launch=(start, start + 5), **args)
                at += length
            for index in range(syncs):
                start = host + 10 * (len(kernels) + index) + 2
                self.trace.sync(start, start + 5, name=sync)
            self._host[number], self._device[number] = end + 5, at

    def optimizer(self, *calls, name="AdamW", inside=()):
        """An optimizer step of the calls in every step; ``inside`` are operators that run within it besides."""
        began = list(self._host)
        for call in calls:
            self.call(*call[:2], *call[2:], types="float")
        for number, start in enumerate(began):
            self.trace.annotation(f"Optimizer.step#{name}.step", start - 2, self._host[number])
            for op in inside:
                self.trace.op(start + 1, start + 2, name=op)

    def idle(self, length):
        """A pause of the device."""
        self._device = [at + length for at in self._device]

    @property
    def facts(self):
        return self.trace.facts()

    @property
    def kernel_losses(self):
        return self.facts.kernel_losses


def share(us):
    return pytest.approx(us / STEP_US)


# Alignment


def test_a_product_of_an_odd_size_loses_what_is_beyond_its_least_time():
    steps = Steps()
    steps.call("aten::mm", [[4096, 1024], [1024, 50257]], (TENSOR_CORE, 4_000))
    steps.call("aten::mm", [[4096, 1024], [1024, 4096]], (TENSOR_CORE, 1_000))
    found = steps.kernel_losses.alignment
    least_us = 1e6 * 2 * 4096 * 1024 * 50257 / (PEAK * REACHED)
    assert found.share == share(4_000)
    assert found.lost_share == share(4_000 - least_us)
    assert (found.sizes, found.operator, found.calls_per_step) == ((4096, 50257, 1024), "aten::mm", 1.0)
    assert found.others_ratio is None


def test_products_of_fitting_sizes_say_what_is_reached():
    steps = Steps()
    steps.call("aten::mm", [[4096, 1024], [1024, 50257]], (TENSOR_CORE, 4_000))
    steps.call("aten::mm", [[4096, 4096], [4096, 4096]], (TENSOR_CORE, 2_000))
    steps.call("aten::add", [[4096, 4096], [4096, 4096]], (ELEMENTWISE, 1_000))
    least_us = 1e6 * 2 * 4096**3 / (PEAK * REACHED)
    assert steps.kernel_losses.alignment.others_ratio == pytest.approx(least_us / 2_000)


def test_the_sizes_told_are_those_that_lose_most():
    steps = Steps()
    steps.call("aten::mm", [[4096, 1024], [1024, 50257]], (TENSOR_CORE, 1_700))
    steps.call("aten::addmm", [[999], [4096, 64], [64, 999]], (TENSOR_CORE, 1_000))
    found = steps.kernel_losses.alignment
    assert found.share == share(2_700)
    assert found.sizes == (4096, 999, 64)


@pytest.mark.parametrize(
    ("op", "dims", "types"),
    [
        ("aten::mm", [[4096, 1024], [1024, 4096]], BF16),
        ("aten::mm", [[4096, 1023], [1023, 4096]], "float"),
        ("aten::bmm", [[7, 128, 64], [7, 64, 128]], BF16),
        ("aten::mm", [[4096, 1023], [1023, 4096]], None),
        ("aten::add", [[4096, 1023], [4096, 1023]], BF16),
    ],
)
def test_sizes_that_fit_other_types_and_batches_are_not_odd(op, dims, types):
    steps = Steps()
    steps.call(op, dims, (TENSOR_CORE, 4_000), types=types)
    assert steps.kernel_losses.alignment is None
    assert steps.kernel_losses.has_shapes is (types is not None)


def test_without_peaks_what_is_lost_is_not_known():
    steps = Steps(devices=[{**A100, "name": "Some Accelerator"}])
    steps.call("aten::mm", [[4096, 1024], [1024, 50257]], (TENSOR_CORE, 4_000))
    found = steps.kernel_losses.alignment
    assert (found.lost_share, found.share) == (None, share(4_000))


# Grids


def test_the_last_round_of_a_grid_is_idle_as_far_as_it_is_empty():
    steps = Steps()
    steps.call("aten::mm", [[8, 8], [8, 8]], (GEMM, 2_000), types=None, **{"blocks per SM": 1.25})
    steps.call("aten::mm", [[8, 8], [8, 8]], (GEMM, 1_000), types=None, **{"blocks per SM": 2})
    first, second = steps.kernel_losses.grids
    assert (first.blocks_per_sm, first.share, first.idle_share, first.per_step) == (1.25, share(2_000), share(750), 1.0)
    assert (second.share, second.idle_share) == (share(1_000), 0.0)
    assert steps.kernel_losses.multiprocessors == 108


def test_a_grid_cannot_gain_more_than_its_shapes_leave():
    steps = Steps()
    least_us = 1e6 * 2 * 4096**3 / (PEAK * REACHED)
    dims = [[4096, 4096], [4096, 4096]]
    steps.call("aten::mm", dims, (TENSOR_CORE, round(least_us) + 10), **{"blocks per SM": 0.25})
    (found,) = steps.kernel_losses.grids
    assert found.idle_share == pytest.approx((round(least_us) + 10 - least_us) / STEP_US, abs=1e-6)


def test_small_and_pointwise_kernels_have_no_grid_to_fill():
    steps = Steps()
    steps.call("aten::mm", [[8, 8], [8, 8]], (GEMM, 9), (ELEMENTWISE, 2_000), types=None, **{"blocks per SM": 0.25})
    assert steps.kernel_losses.grids == ()


def test_a_trace_without_grids_says_nothing_of_them():
    steps = Steps()
    steps.call("aten::mm", [[8, 8], [8, 8]], (GEMM, 2_000), types=None)
    assert steps.kernel_losses.grids is None


def test_streams_side_by_side_waste_no_more_than_the_time_they_take():
    steps = Steps(1)
    for stream in (7, 8):
        steps.trace.kernel(1_000, 3_000, name=GEMM, stream=stream, **{"blocks per SM": 0.5})
    (found,) = steps.kernel_losses.grids
    assert found.share == pytest.approx(2 * found.idle_share)
    assert found.share == share(2_000)


def test_a_grid_written_with_six_digits_fills_whole_rounds():
    assert idle_ratio(np.array([1.00001, 0.999999, 5.0])) == pytest.approx([0.0, 1e-6, 0.0], abs=1e-5)


# Attention


def attention(steps, *, heads=32, queries=1024, keys=1024, size=64):
    """Forward and backward by separate operators: 100 µs for each of four products, 200 for what is in between."""
    kernel_losses, head, value = [heads, queries, keys], [heads, queries, size], [heads, keys, size]
    turned = [heads, size, keys]
    steps.call("aten::bmm", [head, turned], (TENSOR_CORE, 100))
    steps.call("aten::add", [[2, heads // 2, queries, keys], [2, 1, 1, keys]], (ELEMENTWISE, 50))
    steps.call("aten::_softmax", [[2, heads // 2, queries, keys], [], []], (SOFTMAX, 50))
    steps.call("aten::bmm", [kernel_losses, value], (TENSOR_CORE, 100))
    steps.call("aten::bmm", [[heads, keys, queries], head], (TENSOR_CORE, 100))
    steps.call("aten::bmm", [head, turned], (TENSOR_CORE, 100))
    steps.call("aten::_softmax_backward_data", [[2, heads // 2, queries, keys]] * 2, (SOFTMAX, 100))
    steps.call("aten::mm", [[4096, 4096], [4096, 4096]], (TENSOR_CORE, 1_000))


def test_products_and_softmax_over_one_shape_are_unfused_attention():
    steps = Steps()
    attention(steps)
    (found,) = steps.kernel_losses.scores
    assert (found.queries, found.keys, found.matrices) == (1024, 1024, 32)
    assert (found.share, found.pointwise_share) == (share(600), share(200))
    assert found.peak_share == share(1e6 * 4 * 2 * 32 * 1024 * 1024 * 64 / PEAK)


def test_queries_and_keys_of_different_number_are_not_mixed_up():
    steps = Steps()
    attention(steps, queries=2048, keys=512)
    (found,) = steps.kernel_losses.scores
    assert (found.queries, found.keys, found.share) == (2048, 512, share(600))


def test_of_many_kinds_of_score_matrices_only_the_told_ones_are_priced(monkeypatch):
    priced = []
    whole = kernel_losses._scores
    monkeypatch.setattr(kernel_losses, "_scores", lambda *given: priced.append(given[3]) or whole(*given))
    steps = Steps()
    for queries in range(256, 276):
        attention(steps, queries=queries)
    assert len(steps.kernel_losses.scores) == len(priced) == 16


def test_a_softmax_that_no_product_stands_around_is_no_attention():
    steps = Steps()
    steps.call("aten::_softmax", [[4, 1024, 1024], [], []], (SOFTMAX, 500))
    steps.call("aten::bmm", [[4, 1024, 64], [4, 64, 1024]], (TENSOR_CORE, 500))
    assert steps.kernel_losses.scores == ()


def test_without_peaks_the_arithmetic_of_attention_is_not_priced():
    steps = Steps(devices=[{**A100, "name": "Some Accelerator"}])
    attention(steps)
    (found,) = steps.kernel_losses.scores
    assert (found.share, found.peak_share) == (share(600), None)


# Optimizer

ADAM = (
    ("aten::mul_", [[1 << 20], []], (ELEMENTWISE, 100)),
    ("aten::lerp_", [[1 << 20], [1 << 20], []], (ELEMENTWISE, 100)),
    ("aten::addcdiv_", [[1 << 20], [1 << 20], [1 << 20], []], (ELEMENTWISE, 100)),
)
LISTS = [[[1 << 20], [1 << 18]], [[1 << 20], [1 << 18]], []]
MULTI = "void at::native::multi_tensor_apply_kernel<float>"


def test_an_optimizer_that_takes_one_tensor_at_a_time():
    steps = Steps()
    steps.call("aten::mm", [[64, 64], [64, 64]], (GEMM, 1_000), types="float")
    steps.optimizer(*ADAM, *ADAM)
    found = steps.kernel_losses.optimizer
    assert (found.name, found.style, found.kernels_per_step) == ("AdamW", "single", 6.0)
    assert (found.tensors, found.kernels_per_tensor, found.parameters) == (2.0, 3.0, 2 << 20)
    assert found.share == found.kernel_share == share(600)
    assert found.least_share == share(1e6 * 28 * (2 << 20) / (0.9 * MEMORY))


def test_an_optimizer_that_takes_lists():
    steps = Steps()
    call = ("aten::_foreach_addcdiv_", LISTS, (MULTI, 100))
    steps.optimizer(call, ("aten::_foreach_lerp_", LISTS, (MULTI, 100)), name="Adam")
    found = steps.kernel_losses.optimizer
    assert (found.name, found.style, found.kernels_per_tensor) == ("Adam", "foreach", None)
    assert found.parameters == (1 << 20) + (1 << 18)


@pytest.mark.parametrize(("op", "style"), [("aten::_fused_adamw_", "fused"), ("apex::multi_tensor", None)])
def test_what_launches_most_of_the_time_is_the_style(op, style):
    steps = Steps()
    steps.optimizer((op, LISTS, (MULTI, 300)), ("aten::_foreach_add_", LISTS, (MULTI, 100)))
    assert steps.kernel_losses.optimizer.style == style


def test_an_optimizer_counts_from_its_first_to_its_last_kernel_without_communication():
    steps = Steps(1)
    steps.optimizer(ADAM[0])
    steps.idle(400)
    steps.optimizer()
    trace = steps.trace
    trace.kernel(1_500, 1_600, name=ELEMENTWISE, launch=(12, 14))
    trace.collective(1_200, 1_300, name=ALL_REDUCE)
    found = steps.kernel_losses.optimizer
    assert (found.share, found.kernel_share) == (share(500), share(200))


def test_a_training_step_inside_an_optimizer_step_is_no_optimizer():
    steps = Steps()
    steps.optimizer(*ADAM, inside=["autograd::engine::evaluate_function: MmBackward0"])
    assert steps.kernel_losses.optimizer is None


def test_matrix_products_are_the_optimizers_mathematics():
    steps = Steps()
    steps.optimizer(*ADAM, ("aten::mm", [[1024, 1024], [1024, 1024]], (GEMM, 2_000)), name="Muon")
    assert steps.kernel_losses.optimizer.kernel_share == share(300)


def named(steps, name):
    """The same, with the optimizer's mark under a name of the program's own."""

    def renamed(event):
        return {**event, "name": name} if event["name"].startswith("Optimizer.step#") else event

    steps.trace = steps.trace.changed(renamed)
    return steps


@pytest.mark.parametrize("name", ["optimizer_step", "opt", "## optimizer ##", "[pl][profile]Lit.optimizer_step"])
def test_a_range_that_the_program_named_for_its_optimizer_is_one(name):
    steps = Steps()
    steps.optimizer(*ADAM)
    known = steps.kernel_losses.optimizer
    found = named(steps, name).kernel_losses.optimizer
    assert (found.name, found.style, found.share) == ("", known.style, known.share)


@pytest.mark.parametrize("name", ["load optimizer", "step", "adopt", "on_before_optimizer_step"])
def test_a_range_that_is_about_something_else_is_no_optimizer(name):
    steps = Steps()
    steps.optimizer(*ADAM)
    assert named(steps, name).kernel_losses.optimizer is None


def test_torchs_own_marks_go_before_ranges_around_them():
    steps = Steps()
    steps.optimizer(*ADAM)
    for number in range(steps.count):
        steps.trace.annotation("optimizer", STEP_US * number + 1, STEP_US * number + 900)
    assert steps.kernel_losses.optimizer.name == "AdamW"


@pytest.mark.parametrize(
    ("kernel", "style"),
    [
        (
            "void multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor>",
            "fused",
        ),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>", "fused"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<1>, BinaryOpScalarFunctor<float>>", "foreach"),
        (ELEMENTWISE, "single"),
        ("my_kernel", None),
    ],
)
def test_without_operators_the_kernels_tell_how_an_optimizer_goes_over_its_tensors(kernel, style):
    steps = Steps()
    steps.optimizer(("aten::x", [[1024]], (kernel, 100)))
    steps.trace = named(steps, "opt").trace.changed(lambda event: [] if event.get("cat") == "cpu_op" else event)
    assert steps.kernel_losses.optimizer.style == style


def test_without_an_optimizer_step_nothing_is_known_of_it():
    steps = Steps()
    steps.call("aten::mm", [[64, 64], [64, 64]], (GEMM, 1_000))
    assert steps.kernel_losses.optimizer is None


# Layout


@pytest.mark.parametrize(
    "name",
    [
        "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>",
        "void cudnn::ops::nhwcToNchwKernel<float, float, float>",
        "void nhwcToFoldedNhwcKernel<__half> nchwToFoldedNhwc",
        "batched_transpose_16x32_half",
    ],
)
def test_conversions_are_told_by_name_and_convolutions_by_operator(name):
    steps = Steps()
    steps.call("aten::cudnn_convolution", [[8, 64, 56, 56], [64, 64, 3, 3]], (name, 500), ("sm80_xmma_fprop", 1_500))
    steps.call("aten::mm", [[64, 64], [64, 64]], (TENSOR_CORE, 1_000))
    found = steps.kernel_losses.layout
    assert (found.conversion_share, found.convolution_share, found.per_step) == (share(500), share(1_500), 1.0)
    assert found.example == name


@pytest.mark.parametrize(("size", "is_3d"), [((56, 56), False), ((16, 56, 56), True)])
def test_the_dimensions_of_a_convolution_are_those_of_its_shapes(size, is_3d):
    steps = Steps()
    shapes = [[8, 64, *size], [64, 64, *(3 for _ in size)]]
    steps.call("aten::cudnn_convolution", shapes, ("nchwToNhwcKernel", 500), ("sm80_xmma_fprop", 1_500))
    assert steps.kernel_losses.layout.is_3d is is_3d


def test_a_cast_is_no_conversion_of_the_layout():
    steps = Steps()
    steps.call("aten::convert_element_type", [[8, 64]], ("convert_fp32_to_bf16 unrolled_elementwise_kernel", 500))
    found = steps.kernel_losses.layout
    assert (found.conversion_share, found.convolution_share, found.example) == (0.0, 0.0, None)


# Searches

IMAGES = [[8, 64, 56, 56], [64, 64, 3, 3]]


def test_an_operator_that_waits_for_several_events_searches():
    steps = Steps()
    for number in (1, 2):
        images = [[8, 64, 56 + number, 56], [64, 64, 3, 3]]
        steps.call("aten::cudnn_convolution", images, *[("implicit_convolve", 400)] * 3, only=[number], syncs=3)
    steps.call("aten::cudnn_convolution", IMAGES, ("implicit_convolve", 400))
    found = steps.kernel_losses.searches
    assert (found.steps, found.per_step, found.trials) == (2, 2 / 3, 3.0)
    assert (found.shapes, found.operator) == (2, "aten::cudnn_convolution")
    # Three kernels of 400 µs, and the operator on the host, in two of the three steady steps.
    assert found.share == pytest.approx(2 * (1_200 + 65) / (3 * STEP_US))


def test_before_waits_for_events_were_written_those_for_the_device_tell():
    steps = Steps()
    kernels = [("implicit_convolve", 400)] * 2
    steps.call("aten::cudnn_convolution", IMAGES, *kernels, syncs=3, sync="cudaDeviceSynchronize")
    assert steps.kernel_losses.searches.trials == 2.0
    once = Steps()
    once.call("aten::cudnn_convolution", IMAGES, *kernels, syncs=2, sync="cudaDeviceSynchronize")
    assert once.kernel_losses.searches is None


@pytest.mark.parametrize(("op", "kernel", "syncs"), [("aten::mm", GEMM, 1), ("c10d::allreduce_", ELEMENTWISE, 4)])
def test_one_wait_and_waits_of_what_does_not_compute_are_no_search(op, kernel, syncs):
    steps = Steps()
    steps.call(op, [[64, 64], [64, 64]], (kernel, 400), syncs=syncs)
    assert steps.kernel_losses.searches is None


# What other rules read


def test_chains_leave_the_optimizer_out():
    steps = Steps()
    steps.optimizer(*ADAM)
    assert steps.facts.chains.share == 0.0
    for _ in range(3):
        steps.call("aten::add", [[1 << 20], [1 << 20]], (ELEMENTWISE, 100), types="float")
    chains = steps.facts.chains
    assert (chains.share, chains.mean_length) == (share(300), 3.0)
    assert chains.memory_ratio == pytest.approx(3 * 4 * (1 << 20) / (100e-6 * MEMORY))


def test_chains_of_unknown_traffic_have_no_rate():
    steps = Steps()
    for types in ("float", None, None):
        steps.call("aten::add", [[1 << 20], [1 << 20]], (ELEMENTWISE, 100), types=types)
    assert steps.facts.chains.memory_ratio is None


def test_fp32_products_keep_what_their_bytes_take():
    steps = Steps()
    steps.call("aten::mm", [[2048, 4096], [4096, 4096]], (GEMM, 4_000), types="float")
    steps.call("aten::mm", [[8, 8192], [8192, 8192]], (GEMM, 1_000), types="float")
    steps.call("aten::mm", [[8, 8], [8, 8]], (GEMM, 1_000), types=None)
    math = steps.facts.math
    moved_us = 1e6 * 4 * (2 * 8 * 8192 + 8192**2) / (0.9 * MEMORY)
    assert (math.fp32_share, math.priced_share) == (share(6_000), share(5_000))
    assert math.floor_share == share(4_000 / (156 / 19.5 * REACHED) + moved_us)
    assert math.fastest_share == share(1e6 * 2 * 2048 * 4096**2 / 156e12 + 0.9 * moved_us)


def test_a_cpu_run_wastes_nothing_of_a_device():
    trace = Trace()
    trace.steps(0, 1_000, 2_000)
    trace.op(10, 900, name="aten::mm", dims=[[64, 63], [63, 64]])
    assert trace.facts().kernel_losses is None
