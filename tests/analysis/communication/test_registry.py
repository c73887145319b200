import doctest
import time

import pytest

from profilerkit.analysis.communication import registry
from profilerkit.analysis.communication.registry import MOST_REPETITIONS, built_in, with_patterns
from profilerkit.errors import UsageError


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclWorkElem)", "reduce_scatter"),
        ("ncclSymkDevKernel_AllGather_LLMC", "all_gather"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("ncclDevKernel_Generic_4", "unknown"),
        ("rccl_main_kernel", "unknown"),
        ("hcom_allReduce__503_0_1", "all_reduce"),
        ("oneccl_allreduce_pcie", "all_reduce"),
        ("gloo:all_reduce", "all_reduce"),
        ("c10d::_allgather_base_", "all_gather"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("void deep_ep::intranode::dispatch<8, 768>(int4*)", "all_to_all"),
        ("void dpsk::ep::intranode::notify_dispatch<8>(int const*)", "barrier"),
        ("nvshmemi_barrier_all", "barrier"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", "all_reduce"),
        ("two_shot_all_reduce_kernel_inplace", "all_reduce"),
        ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>", "all_reduce"),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        ("flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport", "all_reduce"),
    ],
)
def test_communication_and_its_collective_are_read_from_the_name(name, kind):
    assert built_in().communicates(name)
    assert built_in().kind(name) == kind


@pytest.mark.parametrize(
    "name",
    [
        "ampere_sgemm_128x64_tn",
        "void at::native::reduce_kernel<512, 1>",
        "void deep_ep::layout::get_dispatch_layout<256, 32>",
        "aten::_index_put_impl_",
        "triton_red_fused_native_layer_norm_0",
    ],
)
def test_computation_is_not_taken_for_communication(name):
    assert not built_in().communicates(name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("all_to_allv", "all_to_all"),
        ("recv", "send_recv"),
        ("nccl:reduce", "reduce"),
        ("nccl:gather", "gather"),
        ("scatter", "scatter"),
        ("wait", "unknown"),
    ],
)
def test_names_in_metadata_and_annotations_are_read_alike(name, kind):
    assert built_in().kind(name) == kind


def test_the_users_own_kernels_are_communication_and_of_the_kind_that_was_said():
    own = with_patterns(["^my_exchange", "all_gather=^fancy", "reduce_scatter=Sum<.*>Kernel"])
    assert not built_in().communicates("my_exchange_kernel")
    assert own.communicates("my_exchange_kernel")
    assert own.kind("my_exchange_kernel") == "unknown"
    assert (own.kind("fancy_all_reduce"), own.kind("Sum<float>Kernel")) == ("all_gather", "reduce_scatter")
    assert own.kind("ncclDevKernel_AllReduce_Sum_f32") == "all_reduce"


def test_an_equals_sign_that_follows_no_kind_belongs_to_the_pattern():
    assert with_patterns(["op=sum"]).communicates("kernel<op=sum>")


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        ("[", "unterminated"),
        ("(?P<x>", "missing )"),
        ("", "empty name"),
        ("all_reduce=", "empty name"),
        (".*", "empty name"),
        ("x|", "empty name"),
        ("(a+)+$", "within itself"),
        ("((?:a|b)c)+$", "within itself"),
        ("(a?b?)+c", "within itself"),
        ("(x{2})*y", "within itself"),
        (r"\w*a\w*b\w*c\w*d", f"more than {MOST_REPETITIONS} times"),
        ("a" * 201, "longer than"),
    ],
)
def test_a_pattern_that_is_none_or_could_hang_is_refused(pattern, word):
    with pytest.raises(UsageError) as caught:
        with_patterns([pattern])
    assert word in caught.value.cause
    assert caught.value.hint
    assert len(caught.value.what) < 300


@pytest.mark.parametrize("pattern", ["(?:ab)+x", r"\(a\+\)+", "[(*+]+x", "(?i)my_.*_kernel", "(?P<kind>all)+_x"])
def test_a_pattern_that_looks_costly_and_is_not_is_taken(pattern):
    assert with_patterns([pattern]).custom


def test_the_costliest_pattern_that_is_taken_ends_soon_on_the_longest_name():
    own = with_patterns([r"\w*a\w*b\w*c$"])
    began = time.perf_counter()
    assert not own.communicates("ab" * 500_000)
    assert time.perf_counter() - began < 5.0


def test_examples_of_the_docstrings_hold():
    assert doctest.testmod(registry).failed == 0
