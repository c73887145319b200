"""What a trace's memory instants and allocator calls tell: peaks, fragmentation, retries, owners, growth."""

import pytest

from profilerkit.model.memory import AliveAtPeak
from tests.recipes import AUTOGRAD, MAIN, Trace, training

MIB = 1 << 20
A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_000_000_000, "computeMajor": 8}


L4 = {"id": 1, "name": "NVIDIA L4", "totalGlobalMem": 24_000_000_000, "computeMajor": 8}


def loop(steps=8, *, device=0, **fields):
    """Steps of 1,000 µs, marked, from 1,000 µs on; the first is warm-up and the last has no successor."""
    trace = Trace(**fields)
    trace.steps(*range(1_000, 1_000 * (steps + 2), 1_000))
    for number in range(steps):
        trace.kernel(1_000 * number + 1_100, 1_000 * number + 1_200, device=device)
    return trace


def levels(trace, *allocated, reserved=1_000 * MIB, **where):
    """One instant in each step, with the memory allocated then in MiB."""
    for number, level in enumerate(allocated):
        trace.memory(1_000 * number + 1_500, MIB, allocated=level * MIB, reserved=reserved, **where)
    return trace


def of(trace):
    return trace.facts().memory


def test_fragmentation_is_what_lies_idle_of_the_reserved_memory_when_most_is_allocated():
    trace = loop()
    trace.memory(3_100, 1, allocated=600, reserved=800)
    trace.memory(3_200, 1, allocated=500, reserved=1_000)
    assert of(trace).fragmentation_ratio == pytest.approx(0.25)
    assert (of(trace).peak_allocated_bytes, of(trace).peak_reserved_bytes) == (600, 1_000)


@pytest.mark.parametrize(("judged", "peak", "capacity"), [(0, 900, 85), (1, 100, 24)])
def test_the_judged_device_is_told_with_its_capacity_however_busy_the_memory_of_another(judged, peak, capacity):
    trace = levels(loop(device=judged, devices=(A100, L4)), *[100] * 8, device=1)
    trace.memory(3_600, 1, allocated=900 * MIB, reserved=900 * MIB, device=0)
    levels(trace, *[700] * 8, device_type=0)
    memory = of(trace)
    assert (memory.place, memory.peak_allocated_bytes) == ("device", peak * MIB)
    assert memory.capacity_bytes == capacity * 10**9


def test_without_instants_of_the_judged_device_another_is_told_with_the_capacity_of_its_own():
    trace = levels(loop(device=0, devices=(A100, L4)), *[100] * 8, device=1)
    assert (of(trace).peak_allocated_bytes, of(trace).capacity_bytes) == (100 * MIB, 24_000_000_000)


def test_instants_that_name_no_device_are_of_the_judged_one():
    trace = levels(loop(device=1, devices=(A100, L4)), *[100] * 8, device=-1)
    assert (of(trace).peak_allocated_bytes, of(trace).capacity_bytes) == (100 * MIB, 24_000_000_000)


def test_more_than_the_capacity_leaves_no_room():
    trace = levels(loop(52, devices=(A100,)), *range(1_000, 1_520, 10), reserved=90_000 * MIB)
    (grown,) = of(trace).growth
    assert (grown.headroom_bytes, grown.steps_to_full, grown.ns_to_full) == (0, 0.0, 0)


def test_without_a_device_the_hosts_memory_is_told_and_nothing_is_reserved():
    memory = of(levels(loop(), *[70] * 8, reserved=0, device_type=0))
    assert (memory.place, memory.peak_allocated_bytes) == ("host", 70 * MIB)
    assert (memory.peak_reserved_bytes, memory.fragmentation_ratio) == (None, None)


def test_instants_of_2021_without_totals_leave_the_peaks_unmeasured():
    trace = loop()
    for number in range(8):
        trace.memory(1_000 * number + 1_500, MIB, allocated=-1, reserved=-1)
    memory = of(trace)
    assert (memory.peak_allocated_bytes, memory.rows, memory.growth) == (None, (), ())


def test_every_step_has_its_peak_also_outside_the_steady_window():
    memory = of(levels(loop(4), 900, 500, 600, 700))
    assert [(row.index, row.peak_bytes // MIB) for row in memory.rows] == [(0, 900), (1, 500), (2, 600), (3, 700)]
    assert memory.rows_of == "allocated"


def test_a_step_without_instants_has_no_row():
    trace = levels(loop(6), 500, 500)
    assert [row.index for row in of(trace).rows] == [0, 1]


def test_memory_that_steps_leave_behind_grows_and_fills_the_device():
    trace = levels(loop(52, devices=(A100,)), *range(1_000, 1_520, 10), reserved=2_000 * MIB)
    (grown,) = of(trace).growth
    assert (grown.of, grown.grows) == ("allocated", True)
    assert grown.bytes_per_step == grown.low_bytes_per_step == grown.high_bytes_per_step == 10 * MIB
    assert grown.headroom_bytes == 85_000_000_000 - 2_000 * MIB
    assert grown.steps_to_full == pytest.approx(grown.headroom_bytes / (10 * MIB))
    assert grown.ns_to_full == pytest.approx(grown.steps_to_full * 1_000_000)
    assert (grown.first_step, grown.last_step, grown.n) == (1, 50, 50)


def test_growth_over_fewer_than_fifty_steps_is_not_carried_forward_to_a_full_memory():
    trace = levels(loop(51, devices=(A100,)), *range(1_000, 1_510, 10), reserved=2_000 * MIB)
    (grown,) = of(trace).growth
    assert (grown.grows, grown.n, grown.bytes_per_step) == (True, 49, 10 * MIB)
    assert (grown.steps_to_full, grown.ns_to_full) == (None, None)
    assert grown.headroom_bytes == 85_000_000_000 - 2_000 * MIB


def test_growth_goes_by_the_least_memory_of_a_step_not_by_its_peak():
    trace = levels(loop(14), *[1_000] * 14)
    for number in range(14):  # activations that get larger, and are freed
        at, size = 1_000 * number + 1_600, 100 * number * MIB
        trace.memory(at, size, allocated=1_000 * MIB + size, reserved=4_000 * MIB)
    (grown,) = of(trace).growth
    assert (grown.grows, grown.bytes_per_step, grown.steps_to_full) == (False, 0.0, None)


def test_a_cache_that_fills_up_does_not_grow():
    trace = levels(loop(20), *[min(100 * number, 500) for number in range(1, 21)])
    assert not of(trace).growth[0].grows


def test_without_a_capacity_there_is_no_time_to_a_full_memory():
    (grown,) = of(levels(loop(14), *range(1_000, 1_140, 10))).growth
    assert grown.grows
    assert (grown.headroom_bytes, grown.steps_to_full, grown.ns_to_full) == (None, None, None)


def test_too_few_steps_say_nothing_about_growth():
    assert of(levels(loop(9), *range(1_000, 1_090, 10))).growth == ()  # seven of them are steady


def alive(*entries):
    return tuple(AliveAtPeak(op=op, module=module, count=count, bytes=size) for op, module, count, size in entries)


def test_what_is_alive_at_the_peak_is_told_by_the_operator_around_the_allocation():
    trace = loop(6, devices=(A100,))
    trace.op(3_000, 3_100, name="aten::linear")
    trace.op(3_010, 3_090, name="aten::addmm")
    trace.op(3_020, 3_030, name="aten::empty")
    trace.op(3_200, 3_210, name="aten::empty")  # asked for by no operator
    trace.memory(3_025, 300, allocated=800, reserved=900, address=0x10)
    trace.memory(3_205, 50, allocated=850, reserved=900, address=0x20)
    trace.memory(3_300, 20, allocated=870, reserved=900, address=0x30)  # outside of any operator
    memory = of(trace)
    assert memory.alive == alive(("aten::addmm", None, 1, 300), ("aten::empty", None, 1, 50), (None, None, 1, 20))
    assert memory.alive_before_bytes == 500


def test_blocks_that_were_freed_or_came_later_are_not_alive_at_the_peak():
    trace = loop(6)
    for start, name in ((3_000, "aten::mm"), (3_100, "aten::relu"), (3_200, "aten::add")):
        trace.op(start, start + 50, name=name)
    trace.memory(3_010, 100, allocated=100, reserved=900, address=0x10)
    trace.memory(3_060, -100, allocated=0, reserved=900, address=0x10)
    trace.memory(3_110, 300, allocated=300, reserved=900, address=0x10)  # the same address again
    trace.memory(3_210, 200, allocated=250, reserved=900, address=0x20)
    assert of(trace).alive == alive(("aten::relu", None, 1, 300))
    assert of(trace).alive_before_bytes == 0


def test_an_allocation_belongs_to_an_operator_of_its_own_thread():
    trace = loop(6)
    trace.op(3_000, 3_100, name="aten::mm")
    trace.op(3_000, 3_100, name="aten::mul", tid=AUTOGRAD)
    trace.memory(3_050, 100, allocated=100, reserved=900, address=0x10, tid=AUTOGRAD)
    assert of(trace).alive == alive(("aten::mul", None, 1, 100))


def test_modules_are_told_where_the_stack_was_recorded():
    trace = loop(6)
    trace.event("nn.Module: ResNet_0", "python_function", 3_000, 3_300)
    trace.event("nn.Module: Linear_4", "python_function", 3_010, 3_200)
    trace.event("torch/nn/functional.py(1): linear", "python_function", 3_020, 3_190)
    trace.op(3_030, 3_100, name="aten::addmm")
    trace.memory(3_050, 100, allocated=100, reserved=900, address=0x10)
    assert of(trace).alive == alive(("aten::addmm", "nn.Module: Linear_4", 1, 100))


def test_a_retry_is_a_call_for_memory_after_one_that_gave_some_back_in_the_same_operator():
    trace = loop(6)
    for step in (3_000, 4_000):
        trace.op(step, step + 100, name="aten::empty")
        trace.malloc(step + 10, step + 20)
        trace.malloc(step + 30, step + 40, name="cudaFree")
        trace.malloc(step + 50, step + 60, name="cudaFree")
        trace.malloc(step + 70, step + 80)
    assert (of(trace).allocator_retries, of(trace).allocator_frees_per_step) == (2, 1.0)


def test_a_cache_emptied_by_hand_is_no_retry():
    trace = loop(6)
    trace.malloc(3_010, 3_020, name="cudaFree")
    trace.op(3_100, 3_200, name="aten::empty")
    trace.malloc(3_110, 3_120)
    assert of(trace).allocator_retries == 0


def test_without_runtime_calls_nothing_is_known_of_retries():
    trace = Trace()
    trace.steps(*range(1_000, 9_000, 1_000))
    levels(trace, *[70] * 6, device_type=0)
    assert (of(trace).allocator_retries, of(trace).allocator_frees_per_step) == (None, None)


@pytest.mark.parametrize("change", ["twice", "reversed"])
def test_neither_order_nor_copies_of_events_change_what_is_told(change):
    trace = training(10, devices=(A100,))
    for number in range(40):
        at = 1_000 + 250 * number
        trace.op(at, at + 20, name="aten::mm", tid=MAIN)
        trace.memory(at + 5, 100, allocated=1_000 + 100 * number, reserved=9_000, address=number)
    other = trace.changed(lambda event: [event, event] if change == "twice" else event)
    if change == "reversed":
        other.events.reverse()
    assert of(other) == of(trace)
