"""What the host shows of a run whose device was not recorded, and of recordings that hold next to nothing."""

import pytest

from profilerkit.api import analyze
from tests.recipes import GLOO, MS, Trace

STEP = 10_000


def unseen(body, steps=3):
    """Steps of 10 ms of a run that used a device: ``body(trace, start)`` makes each, and nothing of the device."""
    trace = Trace(rank=0, world_size=1, backend="nccl")
    trace.steps(*range(STEP, STEP * (steps + 2), STEP))
    for number in range(1, steps + 1):
        body(trace, number * STEP)
    return trace


def issuing(trace, start, read=500):
    for at in range(start, start + 9_000, 100):
        trace.op(at, at + 60, name="aten::linear")
    if read:
        trace.op(start + 9_200, start + 9_200 + read, name="aten::item")


def computing(trace, start, *, call="cudaMemcpyAsync"):
    trace.op(start, start + 7_000, name="aten::randn")
    trace.op(start + 7_100, start + 8_600, name="aten::to")
    trace.call(call, start + 7_200, start + 8_500)
    trace.op(start + 8_700, start + 8_800, name="aten::square")
    trace.call("cudaLaunchKernel", start + 8_720, start + 8_740)


def allocating(trace, start):
    trace.op(start, start + 9_000, name="aten::empty")
    trace.malloc(start, start + 8_000)
    trace.sync(start + 9_000, start + 9_900)


def verdict(trace, tmp_path):
    return analyze(trace.write(tmp_path / "trace.json")).verdict


@pytest.mark.parametrize(
    ("body", "bound", "said", "remedy"),
    [
        (issuing, "overhead-bound", "Issuing work takes 9.50 ms of every 10.0 ms step", "ProfilerActivity.CUDA"),
        (computing, "input-bound", "Getting batches takes 8.30 ms of every 10.0 ms step", "NVreg_Restrict"),
        (allocating, "memory-bound", "Allocating memory takes 8.00 ms of every 10.0 ms step", "NVreg_Restrict"),
    ],
)
def test_what_the_host_does_most_is_named_where_it_waits_for_the_device_little(body, bound, said, remedy, tmp_path):
    found = verdict(unseen(body), tmp_path)
    assert (found.bound, found.detail, found.confidence) == (bound, "likely", "low")
    assert found.headline.startswith(said)
    assert remedy in found.refuted_by


def test_a_host_that_never_waits_may_run_ahead_of_a_device_nobody_saw(tmp_path):
    found = verdict(unseen(lambda trace, start: issuing(trace, start, read=0)), tmp_path)
    assert found.bound == "inconclusive"


def test_a_host_that_waits_most_of_the_time_is_not_what_bounds_the_step(tmp_path):
    def waits(trace, start):
        trace.op(start, start + 1_000, name="aten::linear")
        trace.op(start + 1_000, start + 9_900, name="aten::item")

    assert verdict(unseen(waits), tmp_path).bound == "inconclusive"


def test_long_operators_make_the_batch_only_where_a_copy_follows_and_no_call_is_in_them():
    assert unseen(computing).parts()["input.prep"] == 3 * 7 * MS
    assert "input.prep" not in unseen(lambda trace, start: computing(trace, start, call="cudaEventRecord")).parts()
    assert "input.prep" not in unseen(lambda trace, start: (allocating(trace, start), computing(trace, start))).parts()


def test_of_a_run_without_a_device_operators_compute():
    trace = unseen(issuing)
    assert not any(part.startswith("compute.") for part in trace.parts())
    on_host = Trace(rank=0, world_size=1, backend="gloo")
    on_host.step(0, STEP, 2 * STEP)
    issuing(on_host, STEP)
    assert any(part.startswith("compute.") for part in on_host.parts())


def test_python_is_named_where_operators_or_ranges_that_hold_some_are_around():
    trace = Trace(rank=0, world_size=1, backend="gloo")
    trace.step(0, 1_000, 11_000)
    trace.gloo(3_000, 5_000, tid=GLOO)
    trace.op(90_000, 90_001, name="aten::empty")
    assert set(trace.parts()) == {"comm.other", "idle.unknown"}
    trace.op(4_000, 4_100)
    assert "idle.unknown" not in trace.parts()


def test_calls_beside_the_work_name_nothing(tmp_path):
    trace = Trace()
    trace.sync(1_000, 186_000, name="cudaDeviceSynchronize")
    found = verdict(trace, tmp_path)
    assert (found.bound, found.headline) == ("inconclusive", "No operator and no kernel was recorded")


def test_of_steps_that_were_timed_alone_their_work_is_to_be_recorded(tmp_path):
    trace = Trace()
    for number in range(12):
        trace.step(number, number * STEP, (number + 1) * STEP)
    assert verdict(trace, tmp_path).refuted_by.startswith("Record what happens in the steps:")


@pytest.mark.parametrize(("kernels", "bound"), [(2, "inconclusive"), (3, "compute-bound")])
def test_fewer_than_three_kernels_without_a_step_always_fill_the_recording(kernels, bound, tmp_path):
    trace = Trace()
    for at in range(1_000, 1_000 + kernels * 500, 500):
        trace.kernel(at, at + 500, launch=(at - 50, at - 40))
    assert verdict(trace, tmp_path).bound == bound
