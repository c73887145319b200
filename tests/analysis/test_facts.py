"""What a trace says beside its partition: windows, kernels, copies, syncs, collectives, memory, samples."""

import pytest

from profilerkit.model.step import DeviceWindow, leaf
from tests.recipes import ALL_REDUCE, ELEMENTWISE, GEMM, SINGLE, US, WORKERS, Trace, host_training, training

A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_000_000_000, "computeMajor": 8, "numSms": 108}


def loop(body, *, steps=5, length=1_000, **fields):
    """Five steps of 1,000 µs, three of them judged, each filled by ``body(trace, its start)``."""
    trace = Trace(**fields)
    for number in range(steps):
        start = 1_000 + number * length
        trace.step(number, start, start + length)
        body(trace, start)
    return trace.facts()


def test_the_device_window_runs_from_the_first_to_the_last_device_event():
    trace = Trace()
    trace.step(0, 0, 5_000)
    trace.kernel(1_000, 1_400)
    trace.kernel(1_200, 1_600, stream=8)
    trace.collective(1_500, 1_900)
    trace.memset(1_850, "1950.5")
    trace.copy(1_900, 2_100, stream=9)
    trace.kernel("2500.001", 3_000)
    assert trace.facts().device_window == DeviceWindow(
        window_ns=2_000_000,
        busy_ns=1_599_999,
        idle_ns=400_001,
        compute_ns=600_000 + 100_500 + 499_999,
        comm_ns=400_000,
        exposed_comm_ns=250_000,  # 1,600 to 1,850
        copy_ns=200_000,
        exposed_copy_ns=149_500,  # 1,950.5 to 2,100
    )


def stretch_of(*kernels, launched=()):
    """The first stretch of kernels from ms to ms; ``launched`` are the places of those whose call was recorded."""
    trace = Trace()
    for place, (start_ms, end_ms) in enumerate(kernels):
        call = (1000 * start_ms - 20, 1000 * start_ms - 10) if place in launched else None
        trace.kernel(1000 * start_ms, 1000 * end_ms, launch=call)
    return trace.facts().device_window.stretch_ns


def test_the_first_stretch_of_kernels_ends_before_the_first_long_pause():
    assert stretch_of((1, 5), (6, 9), (12, 13), (14, 20)) == 8_000_000
    assert stretch_of((1, 5), (7, 9), (11, 13)) is None  # pauses of 2 ms are not longer than that
    assert stretch_of((1, 5)) is None


def test_what_was_launched_before_the_recording_is_no_part_of_the_first_stretch():
    assert stretch_of((1, 5), (8, 9), (10, 12), (15, 16), launched=(1, 2, 3)) == 4_000_000


def test_without_device_events_there_is_no_device_window():
    facts = host_training(3).facts()
    assert facts.device_window is None
    for field in ("device", "copies", "syncs", "allocator", "math", "chains"):
        assert getattr(facts, field) is None, field


def test_kernels_are_counted_per_judged_step():
    device = training(8, kernels=7, kernel=40).facts().device
    assert device.kernels_per_step == 7
    assert device.median_kernel_ns == 40 * US
    # 10 µs of a step are dispatch and latency; fast launches keep the queue filled behind the first kernel.
    assert device.busy_ratio == pytest.approx(280 / 290)
    assert device.queue_empty_ratio == pytest.approx(1 / 7)


@pytest.mark.parametrize(("length", "part"), [("9.999", "compute.small"), ("10", "compute.other")])
def test_a_small_kernel_is_shorter_than_ten_microseconds(length, part):
    facts = loop(lambda trace, at: trace.kernel(at, at + float(length), name="unheard_of"))
    assert facts.totals[leaf(part)] > 0


def test_pageable_batch_copies_are_told_from_pinned_small_and_returning_ones():
    def body(trace, at):
        trace.copy(at, at + 100, size=1 << 20)
        trace.copy(at + 100, at + 200, size=65_536)
        trace.copy(at + 200, at + 300, size=65_535)
        trace.copy(at + 300, at + 400, size=1 << 20, memory="Pinned -> Device")
        trace.copy(at + 400, at + 500, size=1 << 20, kind="DtoH", memory="Device -> Pageable")
        trace.kernel(at + 50, at + 100, stream=8)

    copies = loop(body).copies
    assert copies.per_step == 2
    assert copies.bytes_per_step == (1 << 20) + 65_536
    assert copies.time_ns == 200 * US
    assert copies.exposed_ns == 150 * US
    assert copies.bytes_per_s == pytest.approx(((1 << 20) + 65_536) / 200e-6)


def test_the_call_that_copies_from_pageable_memory_is_part_of_what_the_copy_costs():
    def body(trace, at):
        trace.copy(at + 300, at + 400, launch=(at + 100, at + 390))
        trace.copy(at + 400, at + 600, memory="Pinned -> Device", launch=(at + 391, at + 395))
        trace.kernel(at + 600, at + 1_000, launch=(at + 396, at + 399))

    facts = loop(body)
    copies = facts.copies
    assert copies.time_ns == 100 * US
    assert copies.exposed_ns == 300 * US  # the device idles for 200 of the call, then copies for 100
    assert facts.totals[leaf("input.h2d")] == 3 * 500 * US


@pytest.mark.parametrize(("devices", "name"), [((3,), "A100"), ((3, 4), "A100"), ((0, 3), "T4"), ((), None)])
def test_a_single_name_of_a_device_is_that_of_the_judged_one_whatever_its_number(devices, name):
    named = [{"id": number, "name": "T4" if not number else "A100", "totalGlobalMem": 1 << 30} for number in devices]
    trace = Trace(devices=named)
    trace.step(0, 1_000, 2_000)
    trace.kernel(1_000, 2_000)
    found = trace.facts().properties
    assert (found.name if found else None) == name


@pytest.mark.parametrize(("gap", "between"), [("999.999", 1.0), (1_000, 1.0), ("1000.001", 0.0)])
def test_a_gap_of_up_to_a_millisecond_lies_between_operators(gap, between):
    trace = Trace()
    for number in range(5):
        at = 1_000 + 5_000 * number
        trace.step(number, at, at + 5_000)
        trace.op(at - 5, at - 4)
        trace.kernel(at, at + 1_000)
        trace.kernel(at + 1_000 + float(gap), at + 5_000)
    assert trace.facts().device.between_ratio == between


@pytest.mark.parametrize(("length", "held"), [(1_000, 0.0), (1_001, 1.0)])
def test_an_operator_that_holds_the_host_for_more_than_a_millisecond_does_more_than_issue(length, held):
    def body(trace, at):
        trace.kernel(at, at + 900)
        trace.op(at + 900, at + 900 + length)
        trace.op(at + 900 + length, at + 900 + 2 * length)  # no longer than either of them
        trace.kernel(at + 900 + 2 * length, at + 3_900)

    assert loop(body, length=4_000).device.held_ratio == pytest.approx(held)


def test_without_idle_python_no_gap_lies_between_operators():
    assert loop(lambda trace, at: trace.kernel(at, at + 1_000)).device.between_ratio == 0.0


@pytest.mark.parametrize("copies", ["cudaMemcpy", "hipMemcpy", "hipMemcpyWithStream"])
def test_blocking_calls_are_those_of_ten_microseconds_and_reads_of_results(copies):
    def body(trace, at):
        trace.kernel(at, at + 900)
        trace.sync(at, at + 10)
        trace.sync(at + 100, at + 109)
        trace.call(copies, at + 200, at + 220)
        trace.copy(at + 900, at + 910, kind="DtoH", memory="Device -> Pageable", size=4, launch=(at + 300, at + 350))
        trace.copy(at + 910, at + 920, launch=(at + 400, at + 450))  # sends a batch, reads nothing back

    syncs = loop(body).syncs
    assert syncs.per_step == 3
    assert syncs.reads_per_step == 1  # one copy to the host that the host waited for
    assert syncs.blocked_ns == (10 + 20 + 50) * US
    assert sorted(syncs.culprits) == sorted([(copies, 3), ("cudaMemcpyAsync", 3), ("cudaStreamSynchronize", 3)])


def test_a_read_is_a_copy_to_the_host_that_its_call_or_the_next_one_waits_for():
    def body(trace, at):
        trace.kernel(at, at + 900)
        for read in range(4):  # item(): into pinned memory, and a wait that is short as the queue is empty
            start = at + 100 * read
            trace.copy(start + 4, start + 5, kind="DtoH", memory="Device -> Pinned", size=4, launch=(start, start + 2))
            trace.sync(start + 3, start + 8)
        trace.copy(at + 504, at + 505, kind="HtoD", launch=(at + 500, at + 502))  # a batch
        trace.sync(at + 503, at + 508)
        trace.copy(at + 604, at + 605, kind="DtoH", memory="Device -> Pinned", size=4, launch=(at + 600, at + 602))
        trace.call("cudaLaunchKernel", at + 603, at + 608)  # goes on
        trace.sync(at + 700, at + 705)

    assert loop(body).syncs.reads_per_step == 4


def test_allocator_calls_are_counted_per_step():
    def body(trace, at):
        trace.kernel(at, at + 900)
        trace.malloc(at, at + 30)
        trace.malloc(at + 40, at + 50, name="cudaFree")

    allocator = loop(body).allocator
    assert allocator.calls_per_step == 2


def test_math_is_told_by_the_names_of_the_kernels():
    def body(trace, at):
        trace.kernel(at, at + 400, name=GEMM)
        trace.kernel(at + 400, at + 600, name="ampere_fp16_s16816gemm_fp16_128x128_tn")
        trace.kernel(at + 600, at + 700, name=ELEMENTWISE)

    math = loop(body, devices=(A100,)).math
    assert math.fp32_share == pytest.approx(0.4)
    assert math.tensor_core_share == pytest.approx(0.2)
    assert (math.compute_major, math.example) == (8, GEMM)


def test_the_version_of_an_unknown_device_of_amd_is_no_compute_capability():
    def body(trace, at):
        trace.kernel(at, at + 400, name=GEMM)

    unknown = {**A100, "name": "AMD Radeon Graphics", "computeMajor": 9}
    assert loop(body, devices=(unknown,)).math.compute_major is None
    assert loop(body, devices=({**unknown, "name": "NVIDIA L4 Laptop GPU"},)).math.compute_major == 9


@pytest.mark.parametrize(
    ("name", "fp32", "tensor_core"),
    [
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma_execute_kernel__5x_cublas", 1.0, 0.0),
        ("sm90_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_ffma", 1.0, 0.0),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>(Params)", 1.0, 0.0),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_tensor16x8x8_execute", 0.0, 1.0),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128", 0.0, 1.0),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT", 0.0, 1.0),
        (ELEMENTWISE, 0.0, 0.0),
        ("void dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)", 1.0, 0.0),
        ("void convolveNd_dgrad_float_engine<float, (int)3, (int)512>(int, const T1 *)", 1.0, 0.0),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128>(cublasGemvParams)", 0.0, 0.0),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm75(AttentionKernel<float, cutlass::arch::Sm75, true>)", 1.0, 0.0),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80(AttentionKernel<cutlass::half_t, Sm80, true>)", 0.0, 1.0),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT16x16x256_MI16x16x1", 0.0, 1.0),
        ("Cijk_Ailk_Bjlk_SB_Bias_AS_SAV_UserArgs_MT64x16x16_MI16x16x1", 1.0, 0.0),
    ],
)
def test_vector_units_are_known_by_their_own_names_whatever_else_the_name_holds(name, fp32, tensor_core):
    math = loop(lambda trace, at: trace.kernel(at, at + 1_000, name=name)).math
    assert (math.fp32_share, math.tensor_core_share) == (fp32, tensor_core)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fmha_cutlassB_f32_aligned_64x64_k64_sm80(AttentionBackwardKernel<cutlass::arch::Sm80, float>)", "3xtf32"),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4", "tf32"),
        ("void xmma_cudnn::gemm::kernel<xmma_cudnn::Ampere_hmma_tf32_traits<unsigned int, float>>", "tf32"),
        ("nvjet_sm100_tst_8x64_64x16_1x4_h_bz_TNN", "half"),
        ("cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1", "half"),
        ("nvjet_qrtst_128x160_128x5_1x2_h_bz_coopA_algo2_TNT", "fp8"),
        ("cutlass::gemm::GemmUniversal<cutlass::float_e4m3_t>", "fp8"),
    ],
)
def test_the_type_of_the_operands_is_told_by_names_and_arguments(name, kind):
    math = loop(lambda trace, at: trace.kernel(at, at + 1_000, name=name)).math
    assert [found.type for found in math.wide] == ([kind] if kind.endswith("tf32") else [])
    assert math.narrow_share == (0.0 if kind.endswith("tf32") else 1.0)


@pytest.mark.parametrize(
    ("name", "is_3d"),
    [
        ("void convolveNd_dgrad_float_engine<float, (int)3, (int)512>(int)", True),
        ("sm80_xmma_wgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", None),
    ],
)
def test_convolutions_without_operators_are_told_by_the_names_of_their_kernels(name, is_3d):
    found = loop(lambda trace, at: trace.kernel(at, at + 500, name=name)).kernel_losses.layout
    assert found.convolution_share == pytest.approx(0.5)
    assert found.is_3d is is_3d


@pytest.mark.parametrize("name", [GEMM, ELEMENTWISE])
def test_kernels_beside_each_other_on_several_streams_never_own_more_than_the_step(name):
    def body(trace, at):
        for stream in range(4):
            for part in range(4):
                trace.kernel(at + 200 * part, at + 200 * part + 200, name=name, stream=stream)

    facts = loop(body)
    assert (facts.math.fp32_share if name == GEMM else facts.chains.share) == pytest.approx(0.8)


def test_three_fusible_kernels_in_a_row_on_one_stream_are_a_chain():
    def body(trace, at):
        for index in range(3):
            trace.kernel(at + 100 * index, at + 100 * index + 100, name=ELEMENTWISE)
            trace.kernel(at + 100 * index + 20, at + 100 * index + 60, name=GEMM, stream=8)
        trace.kernel(at + 300, at + 400, name=GEMM)
        trace.kernel(at + 400, at + 500, name=ELEMENTWISE)
        trace.kernel(at + 500, at + 600, name=ELEMENTWISE)
        trace.kernel(at + 600, at + 609, name=ELEMENTWISE)  # too short to count
        trace.kernel(at + 700, at + 800, name=GEMM)

    chains = loop(body).chains
    assert chains.share == pytest.approx(0.3)
    assert (chains.chains_per_step, chains.mean_length) == (1.0, 3.0)
    assert chains.example == (ELEMENTWISE,) * 3


def chains_of(*names, length=100, steps=5):
    def body(trace, at):
        for index, name in enumerate(names):
            trace.kernel(at + length * index, at + length * (index + 1), name=name)

    return loop(body, steps=steps).chains


def test_the_longer_of_two_chains_weighs_as_much_as_its_time():
    chains = chains_of(*[ELEMENTWISE] * 3, GEMM, *[ELEMENTWISE] * 6)
    assert (chains.chains_per_step, chains.mean_length) == (2.0, pytest.approx((3 * 3 + 6 * 6) / 9))


@pytest.mark.parametrize("between", [GEMM, "my_custom_kernel", "triton_poi_fused_add_0", ALL_REDUCE])
def test_any_kernel_that_cannot_be_fused_breaks_a_chain(between):
    assert chains_of(*[ELEMENTWISE] * 4).mean_length == 4.0
    assert chains_of(ELEMENTWISE, ELEMENTWISE, between, ELEMENTWISE, ELEMENTWISE).share == 0.0


def test_kernels_that_a_compiler_has_fused_are_no_chain():
    assert chains_of(*["triton_poi_fused_add_mul_0", "triton_per_fused_native_layer_norm_1"] * 4).share == 0.0


def test_a_chain_ends_with_its_step():
    assert chains_of(ELEMENTWISE, ELEMENTWISE, length=500).share == 0.0
    whole = chains_of(*[ELEMENTWISE] * 4, length=250)
    assert (whole.chains_per_step, whole.mean_length, whole.share) == (1.0, 4.0, pytest.approx(1.0))


def test_communication_is_split_into_hidden_and_exposed():
    def body(trace, at):
        trace.kernel(at, at + 500)
        trace.collective(at + 400, at + 700, elements=1 << 20)
        trace.copy(at + 600, at + 700, stream=9)
        trace.kernel(at + 700, at + 1_000)

    comm = loop(body).comm
    assert (comm.per_step, comm.total_ns, comm.exposed_ns) == (1, 300 * US, 200 * US)
    assert comm.alone_compute_ns == 700 * US
    assert comm.overlap_ratio == pytest.approx(1 / 3)
    (entry,) = comm.table
    assert (entry.name, entry.count, entry.total_ns, entry.exposed_ns) == ("allreduce", 3, 900 * US, 600 * US)
    assert (entry.bytes, entry.dtype, entry.group_size) == (3 * (4 << 20), "Float", 2)


@pytest.mark.parametrize(("elements", "ratio"), [(249_999, 1.0), (250_000, 0.0), (None, None)])
def test_a_collective_below_one_megabyte_is_small_and_one_without_size_is_unknown(elements, ratio):
    comm = loop(lambda trace, at: trace.collective(at, at + 100, elements=elements)).comm
    assert comm.small_ratio == ratio


def test_small_collectives_count_by_the_time_they_take():
    def body(trace, at):
        for index in range(3):  # three of four are small, and take a quarter of the time
            trace.collective(at + 20 * index, at + 20 * index + 20, elements=100)
        trace.collective(at + 100, at + 280, elements=1 << 20)
        trace.collective(at + 300, at + 900)  # of unknown size

    assert loop(body).comm.small_ratio == pytest.approx(0.25)


def test_without_collectives_there_are_no_communication_facts():
    assert training(4).facts().comm is None


def test_the_wait_for_data_is_what_the_device_idled_for_it():
    def body(trace, at):
        trace.kernel(at, at + 400, launch=(at - 20, at - 12))
        trace.loader(at + 300, at + 600, name=SINGLE)
        trace.kernel(at + 700, at + 1_000, launch=(at + 680, at + 690))

    found = loop(body).input
    assert (found.fetches, found.single_process, found.origin) == (3, True, SINGLE)
    assert (found.source, found.cpu_ratio) == ("derived", None)
    assert found.longest_ns == (2_300 * US, 2_600 * US)


def test_fetches_outside_the_judged_steps_say_nothing():
    trace = training(6)
    trace.loader(1_100, 1_300)  # in the warm-up step
    assert trace.facts().input is None


def test_a_worker_loader_is_known_by_its_iterator():
    assert training(6, fetch=100, loader=WORKERS).facts().input.single_process is False


def test_first_use_calls_in_the_judged_step_make_the_window_cold():
    trace = Trace()
    trace.step(0, 0, 200_000)
    trace.call("cudaLaunchKernel", 1_000, 101_000)
    trace.call("cudaStreamSynchronize", 110_000, 170_000)  # waits for the device: no first-use work
    trace.kernel(150_000, 160_000)
    cold = trace.facts().cold
    assert cold.share == pytest.approx(0.5)
    assert cold.calls == (("cudaLaunchKernel", 100_000 * US),)


@pytest.mark.parametrize(("length", "cold"), [(50_000, True), ("49999.9", False)])
def test_a_window_is_cold_when_the_device_idles_a_quarter_of_it_under_slow_calls(length, cold):
    trace = Trace()
    trace.step(0, 0, 200_000)
    trace.call("cudaFree", 50_000, 50_000 + 60_000)  # beside which the device works at first
    trace.kernel(0, 50_000 + 60_000 - float(length))
    trace.kernel(150_000, 200_000)
    assert (trace.facts().cold is not None) is cold


@pytest.mark.parametrize(("count", "cold"), [(3, True), (4, False)])
def test_only_a_window_of_at_most_three_steps_can_be_cold(count, cold):
    trace = Trace()
    trace.steps(*range(0, 100_000 * (count + 1), 100_000))
    for number in range(count):
        trace.kernel(100_000 * number + 95_000, 100_000 * number + 99_000)
    trace.call("cudaMalloc", 100_000, 190_000)
    assert (trace.facts().cold is not None) is cold


def test_a_launch_that_waits_for_room_in_the_queue_is_no_first_use_work():
    trace = Trace()
    trace.step(0, 0, 200_000)
    trace.call("cudaLaunchKernel", 1_000, 190_000)
    trace.kernel(1_000, 200_000)
    assert trace.facts().cold is None


def test_without_a_device_nothing_is_cold():
    trace = host_training(1, compute=200_000)
    trace.call("cudaGetDeviceProperties", 1_000, 190_000)
    assert trace.facts().cold is None


def test_calls_below_fifty_milliseconds_are_no_first_use_work():
    trace = Trace()
    trace.step(0, 0, 200_000)
    trace.call("cudaLaunchKernel", 1_000, 50_999)
    trace.kernel(150_000, 160_000)
    assert trace.facts().cold is None


def test_slow_calls_that_recur_are_not_cold():
    trace = Trace()
    trace.steps(0, 200_000, 400_000, 600_000)
    for start in (0, 200_000, 400_000):
        trace.call("cudaLaunchKernel", start, start + 60_000)
        trace.kernel(start + 100_000, start + 110_000)
    assert trace.facts().cold is None


def test_memory_peaks_are_those_of_the_device_inside_the_window():
    trace = training(8, devices=(A100,))
    trace.memory(1_500, 10, allocated=900, reserved=950)  # warm-up
    trace.memory(3_000, 10, allocated=500, reserved=600)
    trace.memory(3_100, -10, allocated=400, reserved=700)
    trace.memory(3_200, 10, allocated=5_000, reserved=5_000, device_type=0)
    memory = trace.facts().memory
    assert (memory.peak_allocated_bytes, memory.peak_reserved_bytes) == (500, 700)
    assert memory.capacity_bytes == 85_000_000_000


def test_without_memory_instants_peaks_are_not_measured():
    memory = training(8).facts().memory
    assert (memory.peak_allocated_bytes, memory.peak_reserved_bytes, memory.capacity_bytes) == (None, None, None)


def test_kernels_are_listed_by_total_time():
    def body(trace, at):
        trace.kernel(at, at + 100, name=ELEMENTWISE)
        trace.kernel(at + 100, at + 300, name=GEMM)
        trace.kernel(at + 300, at + 340, name=GEMM)
        trace.collective(at + 340, at + 350)

    first, second, third = loop(body).kernels
    assert (first.name, first.kind, first.count, first.total_ns, first.median_ns) == (GEMM, "math", 6, 720_000, 120_000)
    assert first.share == pytest.approx(0.24)
    assert (second.kind, third.kind) == ("membw", "comm")


def test_operators_of_a_host_are_listed_by_the_time_no_operator_inside_them_takes():
    def body(trace, at):
        trace.op(at, at + 500, name="aten::linear")
        trace.op(at + 100, at + 400, name="aten::addmm")
        trace.op(at + 600, at + 700, name="aten::relu")

    found = {kernel.name: (kernel.total_ns, kernel.median_ns, kernel.count) for kernel in loop(body).kernels}
    assert found == {
        "aten::addmm": (900 * US, 300 * US, 3),
        "aten::linear": (600 * US, 200 * US, 3),
        "aten::relu": (300 * US, 100 * US, 3),
    }
