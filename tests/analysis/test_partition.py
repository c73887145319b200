"""Steps whose parts are known to the nanosecond. Recipes are in µs, answers in ns."""

import numpy as np
import pytest

from profilerkit.analysis.intervals import Spans
from profilerkit.errors import InvariantError
from profilerkit.model.step import leaf
from tests.recipes import (
    AUTOGRAD,
    ELEMENTWISE,
    LOADER_THREAD,
    OTHER_KERNEL,
    SINGLE,
    US,
    WORKERS,
    Trace,
    cut,
    named,
)


def one_step(end=2_000):
    """A step from 1,000 to ``end`` µs."""
    trace = Trace()
    trace.step(0, 1_000, end)
    return trace


def of_operators(end=2_000):
    """A step of a trace that records operators, which has none in it."""
    trace = one_step(end=end)
    trace.op(890, 895)
    return trace


def after_a_gap(end=1_600):
    """A step that computes, but for a gap from 1,500 to ``end`` that a kernel launched by the main thread ends."""
    trace = of_operators()
    trace.kernel(1_000, 1_500, launch=(900, 908))
    trace.kernel(end, 2_000, launch=(end - 10, end - 2))
    return trace


def test_wait_before_first_kernel_counts_as_input():
    trace = one_step()
    trace.loader(1_000, "1300.001")
    trace.op("1300.001", 1_310)
    trace.kernel(1_310, 2_000, launch=(1_302, "1308.5"))
    assert trace.parts() == {
        "input.wait": 300_001,
        "over.dispatch": 8_499,
        "over.launch": 1_500,
        "compute.math": 690_000,
    }


def test_a_fetch_that_runs_beside_a_kernel_costs_nothing():
    trace = one_step()
    trace.loader(1_100, 1_900)
    trace.kernel(1_000, 2_000, launch=(900, 908))
    assert trace.parts() == {"compute.math": 1_000 * US}


def test_without_workers_the_operators_inside_the_fetch_are_preparation_and_those_that_join_samples_hand_over():
    trace = after_a_gap()
    trace.loader(1_500, 1_560, name=SINGLE)
    trace.op(1_510, 1_540, name="aten::mul")
    trace.op(1_540, 1_550, name="aten::stack")
    found = trace.parts()
    assert found["input.prep"] == 30 * US
    assert found["input.ipc"] == 10 * US
    assert found["input.wait"] == 20 * US


def test_with_workers_the_operators_inside_the_fetch_say_nothing_about_its_cause():
    trace = after_a_gap()
    trace.loader(1_500, 1_560, name=WORKERS)
    trace.op(1_510, 1_540, name="aten::stack")
    found = trace.parts()
    assert found["input.wait"] == 60 * US
    assert "input.prep" not in found


def test_the_mark_of_a_wrapped_loader_is_input():
    trace = after_a_gap()
    trace.annotation("profilerkit.input", 1_500, 1_560)
    assert trace.parts()["input.wait"] == 60 * US


def test_a_gap_without_any_host_event_is_python():
    found = after_a_gap().parts()
    assert found == {
        "over.python": 90 * US,
        "over.dispatch": 8 * US,
        "over.launch": 2 * US,
        "compute.math": 900 * US,
    }


def test_a_gap_of_a_trace_without_operators_is_issuing_work_while_it_is_short_and_else_not_recorded():
    def parts(end):
        trace = one_step(end=4_000)
        trace.kernel(1_000, 1_500, launch=(1_000, 1_400))
        trace.kernel(end, 4_000, launch=(end - 10, end - 2))
        return trace.parts()

    assert parts(2_410)["over.dispatch"] == (900 + 8) * US
    assert "idle.unknown" not in parts(2_410)
    assert parts(2_511)["idle.unknown"] == 1_001 * US
    assert "over.python" not in parts(2_511)


def test_a_gap_belongs_to_the_thread_that_launched_the_kernel_which_ends_it():
    trace = after_a_gap()
    trace.op(1_500, 1_590)
    trace.loader(1_500, 1_590, tid=LOADER_THREAD)  # fetches ahead; nobody waits for it
    found = trace.parts()
    assert found["over.dispatch"] == 98 * US
    assert "input.wait" not in found


def test_a_backward_thread_that_is_quiet_leaves_its_gap_to_the_main_thread():
    trace = one_step()
    trace.op(1_000, 1_010)
    trace.kernel(1_000, 1_500, launch=(900, 908))
    trace.loader(1_500, 1_560)
    trace.op(1_580, 1_596, name="autograd::engine::evaluate_function: MulBackward0", tid=AUTOGRAD)
    trace.kernel(1_600, 2_000, launch=(1_590, 1_595), tid=AUTOGRAD)
    assert trace.parts() == {
        "compute.math": 900 * US,
        "input.wait": 60 * US,
        "over.python": 20 * US,
        "over.dispatch": 15 * US,
        "over.launch": 5 * US,
    }


def test_what_the_launching_thread_does_beats_what_the_main_thread_does():
    trace = one_step()
    trace.kernel(1_000, 1_500, launch=(900, 908))
    trace.loader(1_500, 1_590)
    trace.op(1_500, 1_596, name="autograd::engine::evaluate_function: MulBackward0", tid=AUTOGRAD)
    trace.kernel(1_600, 2_000, launch=(1_590, 1_595), tid=AUTOGRAD)
    found = trace.parts()
    assert found["over.dispatch"] == 95 * US
    assert "input.wait" not in found


def test_the_time_after_the_launch_returned_is_launch_latency():
    trace = one_step()
    trace.kernel(1_000, 1_500, launch=(900, 908))
    trace.kernel(1_600, 2_000, launch=(1_500, 1_508))
    assert trace.parts() == {"compute.math": 900 * US, "over.dispatch": 8 * US, "over.launch": 92 * US}


def test_a_kernel_launched_before_its_gap_began_waited_for_nothing_on_the_host():
    trace = one_step()
    trace.kernel(1_000, 1_500, launch=(900, 908))
    trace.kernel(1_600, 2_000, launch=(910, 918))
    trace.loader(1_500, 1_600)
    assert trace.parts() == {"compute.math": 900 * US, "over.launch": 100 * US}


@pytest.mark.parametrize("launched_before", [True, False])
def test_a_late_launch_at_the_start_of_the_recording_waits_for_what_was_launched_before(launched_before):
    # The host was ahead when the recording began; what the device still did is not in the file.
    trace = of_operators(end=9_000)
    if not launched_before:
        trace.kernel(880, 900, launch=(870, 875))
    trace.kernel(7_000, 9_000, launch=(990, 1_000))
    parts = trace.parts()
    assert parts == {("idle.unknown" if launched_before else "over.launch"): 6_000 * US, "compute.math": 2_000 * US}
    late = trace.facts().device.late_launch_ratio
    assert late == (0.0 if launched_before else 1.0)


@pytest.mark.parametrize(("latency", "part"), [("10000", "over.launch"), ("10000.001", "idle.unknown")])
def test_no_launch_takes_longer_than_ten_milliseconds(latency, part):
    started = 1_508 + float(latency)
    trace = one_step(end=20_000)
    trace.kernel(1_000, 1_500, launch=(900, 908))
    trace.kernel(started, 20_000, launch=(1_500, 1_508))
    assert trace.parts()[part] == round(float(latency) * US)


def test_the_gap_before_a_kernel_without_a_launch_is_the_main_threads():
    trace = one_step()
    trace.kernel(1_000, 1_500)
    trace.loader(1_500, 1_540)
    trace.op(1_540, 1_570)
    trace.kernel(1_600, 2_000)
    assert trace.parts() == {
        "compute.math": 900 * US,
        "input.wait": 40 * US,
        "over.dispatch": 30 * US,
        "over.python": 30 * US,
    }


def test_a_gap_without_any_host_thread_is_not_explained():
    trace = Trace()
    trace.kernel(1_000, 1_500)
    trace.kernel(1_600, 2_000)
    assert trace.parts() == {"compute.math": 900 * US, "idle.unknown": 100 * US}


def test_without_any_call_of_the_host_its_ranges_say_what_the_device_waits_for():
    trace = Trace()
    for number in range(6):
        start = 1_000 * number
        trace.annotation("load batch", start, start + 800)
        trace.annotation("forward", start + 800, start + 1_000)
        trace.kernel(start + 810, start + 1_000)
    assert trace.parts()["input.wait"] > 5 * trace.parts().get("idle.unknown", 0)


def test_the_end_of_a_step_after_its_last_kernel_is_what_the_main_thread_does():
    trace = one_step()
    trace.kernel(1_000, 1_700, launch=(900, 908))
    trace.op(1_750, 1_800)
    trace.optimizer(1_740, 1_990)  # no work of its own: the operators inside say what happens
    assert trace.parts() == {"compute.math": 700 * US, "over.dispatch": 50 * US, "over.python": 250 * US}


def test_a_gap_over_a_step_boundary_is_split_at_the_boundary():
    trace = Trace()
    trace.steps(1_000, 2_000, 3_000)
    trace.op(890, 895)
    trace.kernel(1_000, 1_900, launch=(1_000, 1_000))
    trace.loader(1_950, 2_050)
    trace.kernel(2_100, 3_000, launch=(2_060, 2_090))
    first, second = (named(row) for row in trace.facts().partition.per_step)
    assert first == {"compute.math": 900 * US, "over.python": 50 * US, "input.wait": 50 * US}
    assert second == {
        "input.wait": 50 * US,
        "over.python": 10 * US,
        "over.dispatch": 30 * US,
        "over.launch": 10 * US,
        "compute.math": 900 * US,
    }


def test_an_unexplained_wait_stays_unexplained_when_a_step_boundary_cuts_it():
    trace = Trace()
    trace.kernel(1_000, 2_000, launch=(900, 908))
    trace.kernel(18_000, 20_000, launch=(1_990, 2_000))  # 16 ms: no launch takes that long
    steps = Spans(np.array([1_000, 10_000]) * US, np.array([10_000, 20_000]) * US)
    found = named(cut(trace.read(), steps).per_step.sum(axis=0))
    assert found == {"compute.math": 3_000 * US, "idle.unknown": 16_000 * US}


def test_a_queue_that_a_sync_drained_is_idle_because_of_it_until_work_is_issued_again():
    trace = one_step()
    trace.kernel(1_000, 1_500, launch=(900, 908))
    trace.sync(1_200, 1_502)
    trace.op(1_510, 1_549)
    trace.kernel(1_550, 2_000, launch=(1_540, 1_548))
    assert trace.parts() == {"compute.math": 950 * US, "sync.drain": 48 * US, "over.launch": 2 * US}


def test_a_sync_shorter_than_ten_microseconds_drained_nothing():
    trace = one_step()
    trace.kernel(1_000, 1_500, launch=(900, 908))
    trace.sync("1492.001", 1_502)
    trace.op(1_510, 1_549)
    trace.kernel(1_550, 2_000, launch=(1_540, 1_548))
    assert trace.parts() == {
        "compute.math": 950 * US,
        "over.dispatch": 40 * US,
        "over.python": 8 * US,
        "over.launch": 2 * US,
    }


def test_a_sync_of_ten_microseconds_drains():
    trace = one_step()
    trace.kernel(1_000, 1_500, launch=(900, 908))
    trace.sync(1_492, 1_502)
    trace.kernel(1_550, 2_000, launch=(1_540, 1_548))
    assert trace.parts()["sync.drain"] == 48 * US


def test_a_sync_on_an_idle_device_costs_its_own_time_and_nothing_after_it():
    trace = of_operators()
    trace.kernel(1_000, 1_500, launch=(900, 908))
    trace.sync(1_600, 1_700)
    trace.kernel(1_750, 2_000, launch=(1_740, 1_748))
    assert trace.parts() == {
        "compute.math": 750 * US,
        "over.python": 140 * US,
        "sync.drain": 100 * US,
        "over.dispatch": 8 * US,
        "over.launch": 2 * US,
    }


def test_a_long_quiet_stretch_after_a_sync_is_the_users_python():
    trace = of_operators(end=4_000)
    trace.kernel(1_000, 1_500, launch=(900, 908))
    trace.sync(1_200, 1_502)
    trace.kernel(3_010, 4_000, launch=(3_000, 3_008))
    assert trace.parts() == {
        "compute.math": 1_490 * US,
        "sync.drain": 10 * US,
        "over.python": 1_498 * US,
        "over.launch": 2 * US,
    }


def test_a_fetch_after_a_sync_is_input():
    trace = one_step()
    trace.kernel(1_000, 1_500, launch=(900, 908))
    trace.sync(1_200, 1_502)
    trace.loader(1_510, 1_530)
    trace.kernel(1_550, 2_000, launch=(1_540, 1_548))
    assert trace.parts() == {
        "compute.math": 950 * US,
        "input.wait": 20 * US,
        "sync.drain": 28 * US,
        "over.launch": 2 * US,
    }


@pytest.mark.parametrize("boundary", [1_000, 1_520, 2_000])
def test_where_a_step_ends_does_not_change_what_a_sync_costs(boundary):
    trace = Trace()
    trace.steps(*sorted({900, boundary, 2_100}))
    trace.kernel(900, 1_500, launch=(800, 808))
    trace.sync(1_200, 1_502)
    trace.op(1_525, 1_549)
    trace.kernel(1_550, 2_100, launch=(1_540, 1_548))
    assert trace.parts()["sync.drain"] == 48 * US


@pytest.mark.parametrize("name", ["cudaMalloc", "cudaFree", "hipMalloc", "cuMemMap", "cudaHostAlloc"])
def test_a_gap_under_an_allocator_call_is_memory(name):
    trace = after_a_gap()
    trace.op(1_490, 1_580)
    trace.malloc(1_500, 1_560, name=name)
    assert trace.parts() == {
        "compute.math": 900 * US,
        "mem.alloc": 60 * US,
        "over.dispatch": 28 * US,
        "over.python": 10 * US,
        "over.launch": 2 * US,
    }


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("profilerkit.phase.checkpoint", "other.ckpt"),
        ("profilerkit.phase.evaluation", "other.eval"),
        ("profilerkit.phase.logging", "other.log"),
        ("profilerkit.phase.ema update", "other.phase"),
        ("profilerkit.phase.checkpoint_forward", "other.ckpt"),
        ("torch.save", "other.ckpt"),
        ("save checkpoint", "other.ckpt"),
        ("checkpoint_forward", "over.python"),  # activation checkpointing: training, not a saved state
        ("torch.utils.checkpoint", "over.python"),
        ("validation", "other.eval"),
        ("Optimizer.step#SGD.step", "over.python"),
        ("my block", "over.python"),
        ("catalog", "over.python"),
    ],
)
def test_a_gap_under_a_phase_belongs_to_the_phase(name, part):
    trace = after_a_gap()
    trace.annotation(name, 1_500, 1_590)
    assert trace.parts()[part] == 90 * US


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("profilerkit.phase.evaluation", {"other.eval": 90}),
        ("profilerkit.phase.save checkpoint", {"other.ckpt": 90}),
        ("profilerkit.phase.logging", {"other.log": 90}),
        ("profilerkit.phase.ema update", {"other.phase": 60, "input.wait": 20, "mem.alloc": 10}),
        ("validation", {"other.eval": 60, "input.wait": 20, "mem.alloc": 10}),
        ("torch.save", {"other.ckpt": 60, "input.wait": 20, "mem.alloc": 10}),
    ],
)
def test_only_a_phase_named_for_no_training_owns_the_input_and_the_allocation_in_it(name, split):
    trace = after_a_gap()
    trace.annotation(name, 1_500, 1_590)
    trace.loader(1_510, 1_530)
    trace.malloc(1_540, 1_550)
    found = trace.parts()
    own = ("other.", "input.", "mem.")
    assert {part: time for part, time in found.items() if part.startswith(own)} == {
        part: time * US for part, time in split.items()
    }


@pytest.mark.parametrize(
    ("name", "category", "part"),
    [
        ("Lazy Function Loading", "overhead", "warm.load"),
        ("gc.collect", "cpu_op", "over.gc"),
        ("_compile.compile_inner (dynamo_timed)", "cpu_op", "warm.compile"),
        ("cudaLaunchKernel", "cuda_runtime", "over.dispatch"),
        ("cudaDeviceSynchronize", "cuda_runtime", "sync.drain"),
    ],
)
def test_a_gap_is_named_by_what_the_host_does_in_it(name, category, part):
    trace = after_a_gap()
    trace.event(name, category, 1_500, 1_560)
    trace.op(1_500, 1_590)
    assert trace.parts()[part] >= 60 * US


def test_only_communication_that_no_kernel_hides_is_exposed():
    trace = one_step()
    trace.kernel(1_000, 1_500)
    trace.collective(1_400, 1_700)
    trace.kernel(1_600, 2_000)
    assert trace.parts() == {"compute.math": 900 * US, "comm.other": 100 * US}


def test_a_copy_does_not_hide_communication():
    trace = one_step()
    trace.kernel(1_000, 1_500)
    trace.collective(1_500, 1_800)
    trace.copy(1_600, 1_900, stream=30)
    trace.kernel(1_900, 2_000)
    assert trace.parts() == {"compute.math": 600 * US, "comm.other": 300 * US, "input.h2d": 100 * US}


@pytest.mark.parametrize(
    ("kind", "memory", "size", "part"),
    [
        ("HtoD", "Pageable -> Device", 1 << 20, "input.h2d"),
        ("HtoD", "Pinned -> Device", 1 << 20, "input.h2d"),
        ("HtoD", "Pinned -> Device", 65_536, "input.h2d"),
        ("HtoD", "Pinned -> Device", 65_535, "compute.membw"),
        ("HtoD", "Pinned -> Device", None, "input.h2d"),
        ("DtoH", "Device -> Pageable", 4, "sync.d2h"),
        ("DtoD", "Device -> Device", 1 << 20, "compute.membw"),
        ("PtoP", "Device -> Device", 1 << 20, "compute.membw"),
    ],
)
def test_an_exposed_copy_is_named_by_its_direction_and_size(kind, memory, size, part):
    trace = one_step()
    trace.kernel(1_000, 1_500)
    trace.copy(1_450, 1_600, kind=kind, memory=memory, size=size)
    trace.kernel(1_600, 2_000, name=OTHER_KERNEL)
    assert trace.parts() == {"compute.math": 500 * US, part: 100 * US, "compute.other": 400 * US}


def test_the_host_side_of_a_batch_copy_is_part_of_the_copy():
    trace = one_step()
    trace.kernel(1_000, 1_500, launch=(900, 908))
    trace.copy(1_560, 1_700, launch=(1_500, 1_552))
    trace.kernel(1_700, 2_000, launch=(1_600, 1_608))
    assert trace.parts() == {"compute.math": 800 * US, "input.h2d": 192 * US, "over.launch": 8 * US}


def test_a_memset_is_memory_traffic():
    trace = one_step()
    trace.kernel(1_000, 1_500)
    trace.memset(1_500, 1_600)
    trace.kernel(1_600, 2_000)
    assert trace.parts() == {"compute.math": 900 * US, "compute.membw": 100 * US}


@pytest.mark.parametrize(
    ("name", "length", "part"),
    [
        ("ampere_sgemm_128x64_tn", 10, "compute.math"),
        ("ampere_sgemm_128x64_tn", "9.999", "compute.small"),
        (ELEMENTWISE, 10, "compute.membw"),
        (OTHER_KERNEL, 10, "compute.other"),
        ("void flash_fwd_kernel<...>", 10, "compute.math"),
        ("at::native::(anonymous namespace)::convert_element_type", 10, "compute.other"),
    ],
)
def test_a_kernel_is_named_by_its_name_unless_it_is_too_short_to_matter(name, length, part):
    trace = one_step()
    trace.kernel(1_000, 1_000 + float(length), name=name)
    trace.op(1_000, 2_000)
    assert trace.parts()[part] == round(float(length) * US)


def test_where_kernels_overlap_the_one_that_ends_last_owns_the_time():
    trace = one_step()
    trace.kernel(1_000, 1_600)
    trace.kernel(1_200, 2_000, name=ELEMENTWISE, stream=8)
    trace.kernel(1_300, 1_400, name=OTHER_KERNEL, stream=9)
    assert trace.parts() == {"compute.math": 200 * US, "compute.membw": 800 * US}


def test_kernels_without_a_launch_count_as_compute():
    trace = one_step()
    trace.kernel(1_000, 2_000)
    facts = trace.facts()
    assert named(facts.totals) == {"compute.math": 1_000 * US}
    assert facts.device.queue_empty_ratio is None


def test_all_kernels_of_a_graph_belong_to_its_launch():
    trace = of_operators()
    trace.call("cudaGraphLaunch", 990, 1_100, correlation=77)
    for start in (1_150, 1_500):
        trace.kernel(start, start + 300, correlation=77)
    assert trace.parts() == {
        "over.dispatch": 100 * US,
        "over.launch": (50 + 50) * US,
        "compute.math": 600 * US,
        "over.python": 200 * US,
    }


def test_between_the_kernels_of_a_graph_the_host_has_no_part():
    trace = one_step()
    trace.call("cudaGraphLaunch", 990, 1_800, correlation=77)
    trace.kernel(1_050, 1_400, correlation=77)
    trace.kernel(1_500, 2_000, correlation=77)
    assert trace.parts() == {"over.dispatch": 50 * US, "over.launch": 100 * US, "compute.math": 850 * US}


def test_a_read_of_a_result_drains_the_queue_like_a_sync():
    trace = one_step()
    trace.kernel(1_000, 1_480, launch=(900, 908))
    trace.copy(1_480, 1_500, kind="DtoH", memory="Device -> Pageable", size=4, launch=(1_200, 1_502))
    trace.op(1_510, 1_549)
    trace.kernel(1_550, 2_000, launch=(1_540, 1_548))
    assert trace.parts() == {
        "compute.math": 930 * US,
        "sync.d2h": 22 * US,
        "sync.drain": 46 * US,
        "over.launch": 2 * US,
    }


def test_a_sync_that_found_nothing_in_the_queue_but_the_result_drained_nothing():
    trace = one_step()
    trace.kernel(1_000, 1_480, launch=(900, 908))
    trace.copy(1_496, 1_500, kind="DtoH", memory="Device -> Pinned", size=4, launch=(1_482, 1_486))
    trace.sync(1_488, 1_502)
    trace.op(1_502, 1_549)
    trace.kernel(1_550, 2_000, launch=(1_540, 1_548))
    found = trace.parts()
    assert found["sync.drain"] == 2 * US  # the call's own end
    assert found["over.dispatch"] == (4 + 46) * US


def test_a_copy_to_the_host_that_nobody_waits_for_drains_nothing():
    trace = one_step()
    trace.kernel(1_000, 1_480, launch=(900, 908))
    trace.copy(1_480, 1_500, kind="DtoH", memory="Device -> Pinned", size=4, launch=(1_200, 1_220))
    trace.kernel(1_550, 2_000, launch=(1_540, 1_548))
    assert "sync.drain" not in trace.parts()


@pytest.mark.parametrize("tid", [100, 0])
def test_work_of_the_profiler_on_no_thread_of_its_own_may_hold_any(tid):
    trace = after_a_gap()
    trace.event("Activity Buffer Request", "overhead", 1_500, 1_560, pid=-1 if tid == 0 else 100, tid=tid)
    assert trace.parts()["other.prof"] == 60 * US


def test_work_of_the_profiler_on_another_thread_holds_that_one():
    trace = after_a_gap()
    trace.op(1_000, 1_010, tid=AUTOGRAD)
    trace.event("Buffer Flush", "overhead", 1_500, 1_560, tid=AUTOGRAD)
    assert "other.prof" not in trace.parts()


@pytest.mark.parametrize(
    ("frame", "part"),
    [
        ("torch/serialization.py(944): save", "other.ckpt"),
        ("trainer.py(3): save_checkpoint", "other.ckpt"),
        ("safetensors/torch.py(280): save_file", "other.ckpt"),
        ("train.py(80): evaluate", "other.eval"),
        ("train.py(80): estimate_loss", "other.eval"),
        ("logging/__init__.py(1491): warning", "other.log"),
        ("logging/__init__.py(435): validate", "other.log"),
        ("tqdm/std.py(1200): update", "other.log"),
        ("json/__init__.py(183): dumps", "other.log"),
        ("<built-in function print>", "other.log"),
        ("gc.py(12): gc.collect", "over.gc"),
        ("<built-in function collect>", "over.gc"),
        ("torch/utils/checkpoint.py(500): checkpoint", "over.python"),  # activation checkpointing
        ("torch/nn/modules/module.py(1773): _call_impl", "over.python"),
    ],
)
def test_a_gap_under_a_frame_that_is_no_training_belongs_to_what_it_does(frame, part):
    trace = after_a_gap()
    trace.frame(frame, 1_500, 1_590)
    assert trace.parts()[part] == 90 * US


def test_a_fetch_inside_an_evaluation_that_only_a_frame_tells_is_input():
    trace = after_a_gap()
    trace.frame("train.py(80): evaluate", 1_500, 1_590)
    trace.loader(1_510, 1_530)
    found = trace.parts()
    assert (found["other.eval"], found["input.wait"]) == (70 * US, 20 * US)


def test_a_step_full_of_kernels_is_all_compute():
    trace = one_step()
    trace.kernel(900, 2_100)
    trace.loader(1_000, 2_000)
    trace.collective(1_000, 2_000)
    trace.copy(1_000, 2_000, stream=9)
    assert trace.parts() == {"compute.math": 1_000 * US}


def test_a_second_device_does_not_fill_the_gaps_of_the_busiest_one():
    trace = after_a_gap()
    trace.kernel(1_400, 1_700, device=1)
    assert trace.parts()["over.python"] == 90 * US


def test_without_device_events_the_operators_of_the_main_thread_are_the_compute():
    trace = one_step()
    trace.op(1_000, 1_300, name="aten::linear")
    trace.op(1_100, 1_250, name="aten::addmm")
    trace.op(1_250, 1_280, name="aten::relu")
    trace.op(1_400, 1_500, name="aten::relu")
    facts = trace.facts()
    assert facts.partition.mode == "cpu"
    assert named(facts.totals) == {"compute.math": 270 * US, "compute.other": 130 * US, "over.python": 600 * US}


def test_on_the_host_a_fetch_beats_the_operators_inside_it():
    trace = one_step()
    trace.loader(1_000, 1_400, name=SINGLE)
    trace.op(1_100, 1_200, name="aten::mul")
    trace.op(1_400, 2_000, name="aten::mm")
    assert trace.parts() == {"input.prep": 100 * US, "input.wait": 300 * US, "compute.math": 600 * US}


def test_operators_of_the_backward_thread_are_compute_and_those_of_other_threads_are_not():
    trace = one_step()
    trace.op(1_000, 1_300, name="aten::mm")
    trace.op(1_400, 1_700, name="autograd::engine::evaluate_function: MmBackward0", tid=AUTOGRAD)
    trace.op(1_450, 1_650, name="aten::mm", tid=AUTOGRAD)
    trace.op(1_700, 2_000, name="aten::mm", tid=LOADER_THREAD)
    assert trace.parts() == {"compute.math": 500 * US, "compute.other": 100 * US, "over.python": 400 * US}


def test_a_gloo_transfer_is_exposed_only_where_no_operator_runs():
    trace = one_step()
    trace.op(1_000, 1_500, name="aten::mm")
    trace.gloo(1_400, 1_800)
    trace.op(1_700, 2_000, name="aten::mm")
    found = trace.facts()
    assert named(found.totals) == {"compute.math": 800 * US, "comm.other": 200 * US}
    assert found.comm.total_ns == 400 * US
    assert found.comm.exposed_ns == 200 * US


@pytest.mark.parametrize("around", [None, "autograd::engine::evaluate_function: AddmmBackward0"])
def test_what_the_main_thread_does_to_issue_a_collective_is_communication(around):
    trace = one_step()
    if around:
        trace.op(1_000, 1_400, name=around)
    trace.op(1_100, 1_200, name="c10d::allreduce_")
    trace.op(1_120, 1_130, name="aten::copy_")
    trace.op(1_400, 2_000, name="aten::mm")
    rest = {"compute.other": 300 * US} if around else {"over.python": 300 * US}
    assert trace.parts() == {"comm.other": 100 * US, "compute.math": 600 * US, **rest}


def test_issuing_a_collective_on_one_thread_is_hidden_behind_the_operators_of_another():
    trace = one_step()
    trace.op(1_000, 1_500, name="aten::mm")
    trace.op(1_000, 1_600, name="autograd::engine::evaluate_function: MmBackward0", tid=AUTOGRAD)
    trace.op(1_400, 1_600, name="c10d::allreduce_", tid=AUTOGRAD)
    assert trace.parts() == {"compute.math": 500 * US, "comm.other": 100 * US, "over.python": 400 * US}


def test_a_phase_on_the_host_beats_its_operators():
    trace = one_step()
    trace.phase("checkpoint", 1_000, 1_400)
    trace.op(1_100, 1_300, name="aten::copy_")
    trace.op(1_400, 2_000, name="aten::mm")
    assert trace.parts() == {"other.ckpt": 400 * US, "compute.math": 600 * US}


def test_parts_that_do_not_sum_to_the_window_are_refused():
    trace = after_a_gap()
    columns = trace.read()
    overlapping = Spans(np.array([1_000, 1_500]) * US, np.array([1_800, 2_000]) * US)
    with pytest.raises(InvariantError, match="do not add up"):
        cut(columns, overlapping)


def test_the_parts_are_those_of_the_window_given():
    columns = after_a_gap().read()
    window = Spans(np.array([1_450 * US]), np.array([1_550 * US]))
    found = cut(columns, window)
    assert named(found.per_step.sum(axis=0)) == {"compute.math": 50 * US, "over.python": 50 * US}
    assert found.segments.label.tolist() == [leaf("compute.math"), leaf("over.python")]
