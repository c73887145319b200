"""What memory costs beside its size: zeros, offloading, recomputed activations, and how the allocator uses its own."""

import pytest

from profilerkit.analysis.memory.use import AllocatorUse, MemoryUse, allocator_use, memory_use_of, page_faults
from profilerkit.analysis.steps.log import read_log
from profilerkit.rundir.sampled import AllocatorSample, HostSample, Sample
from tests.recipes import AUTOGRAD, ELEMENTWISE, MAIN, MS, Log, Trace, training

MIB = 1 << 20
ZEROS = "Optimizer.zero_grad#SGD.zero_grad"
ACCUMULATE = "torch::autograd::AccumulateGrad"


def host_loop(steps=6, *, fills=2, adds=2, fill="aten::zero_", clear=True):
    """Steps of 1,000 µs: gradients are cleared for up to 100, operators run, backward adds from 500 on."""
    trace = Trace()
    for number in range(steps):
        at = 1_000 + 1_000 * number
        trace.step(number, at, at + 1_000)
        if clear:
            trace.annotation(ZEROS, at + 10, at + 110)
        for index in range(fills):
            start = at + 20 + 40 * index
            trace.op(start, start + 30, name=fill)
            trace.op(start + 5, start + 25, name="aten::fill_")
        trace.op(at + 120, at + 480, name="aten::mm")
        for index in range(adds):
            start = at + 500 + 50 * index
            trace.op(start, start + 40, name=ACCUMULATE)
            trace.op(start + 10, start + 30, name="aten::add_")
        trace.op(at + 700, at + 720, name="aten::add_")  # the optimizer's own
        trace.op(at + 800, at + 820, name="aten::zero_")  # somebody else's
    return trace


def zeroed(trace):
    return trace.facts().memory_use.zeroed


def test_filling_and_adding_are_shares_of_the_steps():
    found = zeroed(host_loop())
    assert found.per_step == 2
    assert found.share == pytest.approx(0.06)
    assert found.added_share == pytest.approx(0.04)
    assert found.spared_ratio == 1.0


def test_of_accumulated_gradients_only_as_many_are_spared_as_were_filled():
    assert zeroed(host_loop(adds=4)).spared_ratio == pytest.approx(0.5)


def test_one_operator_that_fills_many_does_not_tell_how_many():
    found = zeroed(host_loop(fills=1, fill="aten::_foreach_zero_"))
    assert found.spared_ratio is None
    assert found.share == pytest.approx(0.03)


def test_dropped_gradients_are_known_to_cost_nothing_and_no_call_is_not_known():
    found = zeroed(host_loop(fills=0))
    assert (found.per_step, found.share) == (0.0, 0.0)
    assert zeroed(host_loop(clear=False)) is None


def test_the_frame_of_a_module_clears_gradients_as_well():
    trace = host_loop(clear=False)
    for number in range(6):
        at = 1_000 + 1_000 * number
        trace.frame("torch/nn/modules/module.py(2900): zero_grad", at + 10, at + 110)
    assert zeroed(trace).share == pytest.approx(0.06)


def test_on_a_device_what_was_launched_counts_and_the_idle_time_of_issuing_it():
    trace = Trace()
    for number in range(6):
        at = 1_000 + 1_000 * number
        trace.step(number, at, at + 1_000)
        trace.annotation(ZEROS, at, at + 100)
        trace.op(at + 10, at + 60, name="aten::zero_")  # the device is busy with the step before up to at + 40
        trace.memset(at + 60, at + 160, launch=(at + 50, at + 55))
        trace.kernel(at + 200, at + 1_040, launch=(at + 170, at + 175))
    found = zeroed(trace)
    # 100 of the memset, and 20 between the kernel before and it; the first step has no kernel before.
    assert found.share == pytest.approx(0.12)
    assert found.added_share == 0.0


def sampled(second, **fields):
    return Sample(t_ns=round((second + 0.5) * 1_000 * MS), allocator=AllocatorSample(**fields))


def log(steps=100):
    """Steps of one second from 0 on; the first is warm-up."""
    return read_log(Log().steps(steps, 1_000_000).data, {})


def test_free_pieces_count_where_most_is_allocated():
    samples = [
        sampled(s, allocated_bytes=(80 if s % 4 == 0 else 20) * MIB, reserved_bytes=100 * MIB,
                inactive_split_bytes=(10 if s % 4 == 0 else 70) * MIB)
        for s in range(100)
    ]  # fmt: skip
    found = allocator_use(samples, log())
    assert found.samples == 99
    assert found.split_ratio == pytest.approx(0.1)
    assert (found.allocated_bytes, found.reserved_bytes) == (80 * MIB, 100 * MIB)


def test_peaks_between_two_samples_are_told_by_the_allocator():
    samples = [
        sampled(s, allocated_bytes=MIB, allocated_peak_bytes=9 * MIB, reserved_bytes=2, reserved_peak_bytes=10 * MIB)
        for s in range(50)
    ]
    found = allocator_use(samples, log(50))
    assert (found.allocated_bytes, found.reserved_bytes) == (9 * MIB, 10 * MIB)
    assert (found.split_ratio, found.rounding_bytes, found.retries) == (None, None, None)


def test_rounding_is_that_of_the_fullest_moment():
    samples = [
        sampled(s, allocated_bytes=(s + 1) * MIB, requested_bytes=s * MIB, reserved_bytes=200 * MIB) for s in range(100)
    ]
    found = allocator_use(samples, log())
    assert (found.rounding_bytes, found.rounding_ratio) == (MIB, pytest.approx(0.01))


def test_retries_of_the_warm_up_do_not_count():
    samples = [sampled(s, reserved_bytes=MIB, alloc_retries=5 if s else 0) for s in range(50)]
    assert allocator_use(samples, log(50)).retries == 0
    samples = [sampled(s, reserved_bytes=MIB, alloc_retries=5 + s // 25) for s in range(50)]
    assert allocator_use(samples, log(50)).retries == 1


def test_an_allocator_that_counts_nothing_was_not_measured():
    assert allocator_use([sampled(s, allocated_bytes=0, reserved_bytes=0) for s in range(50)], log(50)) is None
    assert allocator_use([], log(50)) is None
    early = [sampled(-1, reserved_bytes=MIB), sampled(0, reserved_bytes=MIB)]
    assert allocator_use(early, log(50)) is None


def test_one_sample_is_enough_to_say_what_it_says():
    assert allocator_use([sampled(9, reserved_bytes=MIB)], log(50)) == AllocatorUse(samples=1, reserved_bytes=MIB)


def hosted(second, **fields):
    return Sample(t_ns=round((second + 0.5) * 1_000 * MS), host=HostSample(**fields))


def test_faults_are_counted_from_sample_to_sample_within_the_judged_steps():
    known = {"thread_faults_per_s": 1_000.0, "thread_system_ratio": 0.2, "thread_cpu_ratio": 0.8}
    samples = [hosted(s, **{**known, "thread_queue_ratio": 0.1}) for s in range(20)]
    samples += [hosted(s, **{**known, "thread_faults_per_s": 9e9}) for s in (-1, 0, 60)]
    found = page_faults(sorted(samples, key=lambda sample: sample.t_ns), log(50))
    assert found.samples == 18  # of 20 one lies in the warm-up, and one counts from there
    assert found.per_step == pytest.approx(1_000.0)
    assert found.share == pytest.approx(0.2 + 0.1 / 4)
    assert found.each_ns == pytest.approx(200_000.0)


def test_no_faults_take_no_time_each_and_unknown_ones_are_not_zero():
    none = {"thread_faults_per_s": 0.0, "thread_system_ratio": 0.0, "thread_cpu_ratio": 0.0}
    found = page_faults([hosted(s, **none) for s in range(9)], log(50))
    assert (found.per_step, found.share, found.each_ns) == (0.0, 0.0, 0.0)
    assert page_faults([hosted(s, thread_faults_per_s=5.0) for s in range(9)], log(50)) is None
    assert page_faults([], log(50)) is None


def test_the_newer_name_of_the_settings_wins():
    def settings(environment):
        return memory_use_of(MemoryUse(), None, None, environment).allocator_settings

    both = {"PYTORCH_ALLOC_CONF": "a:1", "PYTORCH_CUDA_ALLOC_CONF": "b:1"}
    assert settings(both) == "a:1"
    assert settings({"PYTORCH_CUDA_ALLOC_CONF": "b:1"}) == "b:1"
    assert settings({}) == ""


def offloading(steps=6, *, up=4 * MIB, down=8 * MIB, memory="Pinned"):
    """Each step sends ``up`` to the host and takes ``down`` back, both under a name that says so."""
    trace = training(steps, kernels=4)
    at = 1_000
    length = (trace.events[-1]["ts"] + trace.events[-1]["dur"] - 1_000) / steps
    for number in range(steps):
        at = 1_000 + float(length) * number
        trace.annotation("offload_state", at + 100, at + 300)
        to_host = {"kind": "DtoH", "memory": f"Device -> {memory}", "size": up, "stream": 9}
        back = {"kind": "HtoD", "memory": f"{memory} -> Device", "size": down, "stream": 9}
        trace.copy(at + 150, at + 180, launch=(at + 110, at + 112), **to_host)
        trace.copy(at + 200, at + 240, launch=(at + 190, at + 192), **back)
    return trace


def test_offloaded_bytes_are_told_by_direction():
    found = offloading().facts().memory_use.offload
    assert (found.to_host_bytes, found.to_device_bytes, found.pageable_ratio) == (4 * MIB, 8 * MIB, 0.0)
    assert found.pinned_ns == 40_000  # of the copies back, which take longer
    pageable = offloading(memory="Pageable").facts().memory_use.offload
    assert (pageable.pageable_ratio, pageable.pinned_ns) == (1.0, 0.0)


def test_batches_are_not_offloaded():
    assert training(6, batch_copy=50).facts().memory_use.offload is None
    assert host_loop().facts().memory_use.offload is None


def recomputing(steps=6, *, memory=True):
    """Steps of 2,000 µs: two linear layers forward, and again in backward, where each leaves 3 MiB behind."""
    trace = Trace(devices=[{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_000_000_000}])
    node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
    dims = [[64, 64], [64, 64], [64]]
    for number in range(steps):
        at = 1_000 + 2_000 * number
        trace.step(number, at, at + 2_000)
        for layer in range(2):
            start = at + 100 * layer
            trace.op(start, start + 90, name="aten::linear", dims=dims)
            trace.kernel(start + 20, start + 100, launch=(start + 10, start + 12))
        for layer in range(2):
            start = at + 400 + 600 * layer
            trace.op(start, start + 500, name=node, tid=AUTOGRAD)
            trace.op(start + 20, start + 120, name="aten::linear", tid=AUTOGRAD, dims=dims)
            trace.kernel(start + 40, start + 140, launch=(start + 30, start + 32), tid=AUTOGRAD)
            trace.kernel(start + 200, start + 400, name=ELEMENTWISE, launch=(start + 180, start + 182), tid=AUTOGRAD)
            if memory:
                for offset, size in ((50, 4 * MIB), (60, -MIB), (300, -3 * MIB)):
                    trace.memory(
                        start + offset, size, allocated=50 * MIB, reserved=90 * MIB, tid=AUTOGRAD, address=64 * layer
                    )
                trace.memory(start + 55, MIB, allocated=50 * MIB, reserved=90 * MIB, tid=MAIN)  # of another thread
    return trace


def test_what_recomputed_code_leaves_behind_is_what_it_would_keep():
    known = recomputing().facts()
    assert known.partition.per_step.sum(axis=0).sum() > 0
    assert known.memory_use.recomputed_bytes == 2 * 3 * MIB


def test_without_memory_instants_the_size_of_the_activations_is_not_known():
    assert recomputing(memory=False).facts().memory_use.recomputed_bytes is None
    assert training(6).facts().memory_use.recomputed_bytes is None
