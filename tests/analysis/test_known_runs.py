"""Whole runs with a known answer, from the recording to the verdict: each was once told wrongly."""

import msgspec
import pytest

from profilerkit.api import analyze
from profilerkit.model.finding import in_order
from profilerkit.rundir.layout import EventFlag, EventKind
from tests.recipes import ELEMENTWISE, LOADER, Log, Trace, host_training, training, write_run

A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_000_000_000, "computeMajor": 8}
TENSOR_CORE = "ampere_bf16_s16816gemm"


def told(directory, trace):
    return analyze(trace.write(directory / "trace.json"))


def shares(report):
    return {part.part: part.share for part in report.breakdown}


def fired(report):
    return {outcome.rule for outcome in report.outcomes if outcome.status == "fired"}


def test_irregular_waits_that_no_traced_step_saw_bound_the_run(tmp_path):
    log = Log()
    log.step(20_000)
    waits = [60_000 if number % 7 in (3, 4) or number % 11 == 5 else 100 for number in range(200)]
    for wait in waits:
        log.step(20_000 + wait, wait=wait, wait_cpu=50)
    log.window(0, 1, 0)
    trace = training(10, kernels=18, kernel=1_100, name=TENSOR_CORE, fetch=100, start=0)
    loader = msgspec.structs.replace(LOADER, num_workers=4)
    report = analyze(write_run(tmp_path / "run", [log], traces={0: trace}, loader=loader))
    assert (report.verdict.bound, report.verdict.detail) == ("input-bound", "wait")
    assert shares(report)["input.wait"] == pytest.approx(sum(waits) / (200 * 20_000 + sum(waits)), abs=0.01)
    assert "IN001" in fired(report)


def test_a_run_that_only_the_profiler_made_launch_bound_is_not_told_so(tmp_path):
    log = Log().steps(10, 10_000)
    begin = log.at
    log.steps(12, 20_000).window(begin, log.at, 10)
    log.steps(50, 10_000)
    # 18 ms a step under the profiler, 10 of them kernels: without it the device never idles.
    trace = training(10, kernels=10, kernel=1_000, gap=900, name=TENSOR_CORE)
    report = analyze(write_run(tmp_path / "run", [log], traces={0: trace}))
    assert (report.verdict.bound, report.verdict.confidence) == ("compute-bound", "medium")
    assert "Traced steps took 1.81 × the time of the others" in report.verdict.consequence
    assert "OV001" not in fired(report)
    assert sum(part.time_ns for part in report.breakdown) == report.steps.time_ns.mean


def allocating(*held, step=20_000):
    """Steps of one kernel each that wait ``held`` µs for the allocator first."""
    trace, at = Trace(devices=[A100]), 1_000
    for number, held_us in enumerate(held):
        begin, at = at, at + 500 + held_us
        trace.op(begin, at + 20)
        trace.malloc(begin + 400, at)
        trace.kernel(at + 30, at + step, name=TENSOR_CORE, launch=(at + 5, at + 15))
        at += step
        trace.step(number, begin, at)
    return trace


def test_what_one_step_of_three_holds_is_that_steps_and_bounds_nothing(tmp_path):
    report = told(tmp_path, allocating(250, 26_000, 350))
    assert report.verdict.bound == "compute-bound"
    (slow,) = next(outcome.findings for outcome in report.outcomes if outcome.rule == "RU004")
    assert slow.title == "Step 1 is 25.7 ms longer than the others"
    assert "100 % of that is in one part: allocator calls." in slow.why
    assert slow.why.startswith("100 %")
    assert "One step of 3 does not show how often it comes." in slow.why
    assert slow.saving is None


def test_what_each_of_three_steps_holds_bounds_them_however_long_they_are(tmp_path):
    assert told(tmp_path, allocating(9_000, 14_000, 7_000)).verdict.bound == "memory-bound"


def test_one_long_pause_is_booked_on_nothing_that_the_trace_saw(tmp_path):
    log = Log()
    for epoch in range(4):
        log.steps(49, 10_000)
        log.step(2_000_000 if epoch == 1 else 10_000)
    trace = host_training(10, compute=9_000, python=1_000)
    report = analyze(write_run(tmp_path / "run", [log], traces={0: trace}, loader=None))
    # What bounds the other 199 steps is known; the pause has a finding of its own.
    assert (report.verdict.bound, report.verdict.detail) == ("balanced", "")
    assert "RU004" in {outcome.rule for outcome, _ in in_order(report.outcomes)}
    assert shares(report)["over.python"] == pytest.approx(0.05, abs=0.01)
    assert shares(report)["idle.unknown"] == pytest.approx(0.5, abs=0.01)
    assert "2.0 × the median" in report.verdict.consequence


def test_a_pageable_scrap_beside_pinned_batches_is_not_what_costs(tmp_path):
    trace = Trace(devices=[A100])
    at = 1_000
    for number in range(12):
        trace.op(at, at + 8, name="aten::copy_")
        trace.copy(at + 10, at + 60, size=70_000, launch=(at + 2, at + 8))
        pinned = {"memory": "Pinned -> Device", "size": 100 << 20}
        trace.copy(at + 60, at + 5_060, launch=(at + 10, at + 16), **pinned)
        for index in range(50):
            start = at + 5_060 + 100 * index
            trace.kernel(start, start + 100, name=TENSOR_CORE, launch=(at + 20 + index, at + 21 + index))
        trace.step(number, at, at + 10_060)
        at += 10_060
    report = told(tmp_path, trace)
    assert shares(report)["input.h2d"] == pytest.approx(0.5, abs=0.01)
    assert "IN009" not in fired(report)
    assert "IN010" in fired(report)
    assert report.verdict.headline == "The GPU spends 5.06 ms of every 10.1 ms step on batch copies"


@pytest.mark.parametrize("steps", [1, 2])
def test_launches_that_block_on_a_full_queue_are_no_cold_start(tmp_path, steps):
    trace = Trace(devices=[A100])
    at, device = 1_000, 1_020
    for number in range(steps):
        begin = at
        for index in range(20):
            blocked = 300_000 if index >= 18 else 8
            trace.op(at, at + 8, name="aten::mm")
            trace.kernel(device, device + 50_000, name=TENSOR_CORE, launch=(at + 2, at + 2 + blocked))
            at, device = at + blocked + 4, device + 50_000
        at = max(at, device) if number == steps - 1 else at
        trace.step(number, begin, at)
    assert told(tmp_path, trace).verdict.bound == "compute-bound"


@pytest.mark.parametrize("name", ["cudaMalloc", "cudaLaunchKernel"])
def test_one_slow_call_in_a_dozen_launch_bound_steps_silences_no_rule(tmp_path, name):
    trace = Trace(devices=[A100])
    at = 1_000
    for number in range(12):
        begin = at
        for _ in range(50):
            trace.op(at, at + 900)
            trace.kernel(at + 900, at + 910, name=ELEMENTWISE, launch=(at + 890, at + 898))
            at += 920
        if number == 6:
            trace.call(name, at, at + 55_000)
            at += 55_000
        trace.step(number, begin, at)
    report = told(tmp_path, trace)
    assert (report.verdict.bound, report.verdict.detail) == ("overhead-bound", "launch")
    assert "OV001" in fired(report)


def test_the_last_of_few_steps_lasts_until_its_device_work_is_done(tmp_path):
    trace = Trace(devices=[A100])
    for index in range(20):
        host = 1_000 + 400 * index
        trace.op(host, host + 380, name="aten::mm")
        start = 6_000 + 5_000 * index
        trace.kernel(start, start + 5_000, name=TENSOR_CORE, launch=(host + 10, host + 20))
    trace.step(0, 1_000, 9_000)
    report = told(tmp_path, trace)
    assert report.verdict.bound == "compute-bound"
    assert report.steps.time_ns.median == 105_000_000


def ranks_of(directory, traces):
    return analyze(*(trace.write(directory / f"rank{rank}.json") for rank, trace in enumerate(traces)))


def test_a_rank_that_computes_longer_is_the_one_the_others_wait_for(tmp_path):
    report = ranks_of(
        tmp_path,
        [
            training(
                12,
                kernel=2_000 if rank == 2 else 1_000,
                comm=200 if rank == 2 else 10_200,
                name=TENSOR_CORE,
                rank=rank,
                world_size=4,
            )
            for rank in range(4)
        ],
    )
    assert (report.verdict.bound, report.verdict.rank) == ("compute-bound", 2)
    assert "wait 49 % of the step for rank 2" in report.verdict.consequence


def test_a_rank_without_device_events_is_not_the_one_that_is_judged(tmp_path):
    traces = [
        training(12, kernel=1_000, comm=6_000, name=TENSOR_CORE, rank=rank, world_size=4)
        if rank != 2
        else host_training(12, compute=16_000, rank=2, world_size=4)
        for rank in range(4)
    ]
    report = ranks_of(tmp_path, traces)
    assert (report.trust.mode, report.verdict.bound, report.verdict.rank) == ("gpu", "comm-bound", None)


def test_activation_checkpointing_is_not_taken_for_saving(tmp_path):
    trace = Trace(devices=[A100])
    at = 1_000
    for number in range(12):
        trace.annotation("checkpoint_forward", at, at + 9_000)
        for index in range(9):
            host = at + 1_000 * index
            trace.op(host, host + 990, name="aten::mm")
            trace.kernel(host + 600, host + 1_000, name=TENSOR_CORE, launch=(host + 580, host + 590))
        trace.step(number, at, at + 9_500)
        at += 9_500
    report = told(tmp_path, trace)
    assert (report.verdict.bound, report.verdict.detail) == ("overhead-bound", "launch")
    assert "other.ckpt" not in shares(report)


def test_a_compiled_model_is_not_told_to_compile(tmp_path):
    trace = Trace(devices=[A100])
    at = 1_000
    for number in range(10):
        for index in range(60):
            start = at + 100 * index + 10
            name = f"triton_poi_fused_add_mul_{index % 5}"
            trace.kernel(start, start + 100, name=name, launch=(at + 2 * index, at + 2 * index + 1))
        trace.step(number, at, at + 6_010)
        at += 6_010
    report = told(tmp_path, trace)
    assert (report.verdict.bound, report.verdict.detail, report.verdict.saving) == ("memory-bound", "bandwidth", None)
    assert "CP004" not in fired(report)


def test_the_loader_of_an_evaluation_is_not_what_training_waits_for(tmp_path):
    log = Log()
    for number in range(40):
        start = log.step(5_000 if number % 10 == 9 else 1_000)
        if number % 10 == 9:
            log.record(EventKind.PHASE, start + 500, 4_000, name=log.name("evaluation"))
            log.record(EventKind.WAIT, start + 600, 3_800, -1, flags=EventFlag.IN_PHASE)
    trace = host_training(8, compute=1_000)
    report = analyze(write_run(tmp_path / "run", [log], traces={0: trace}))
    assert (report.verdict.bound, report.verdict.detail) == ("overhead-bound", "evaluation")


def test_logging_in_every_step_is_priced(tmp_path):
    log = Log().steps(60, 10_000, phase=("logging", 4_000))
    trace = host_training(10, compute=6_000)
    report = analyze(write_run(tmp_path / "run", [log], traces={0: trace}, loader=None))
    assert report.verdict.headline == "Logging stops training for 4.00 ms in every step"
    assert shares(report) == {"compute.math": pytest.approx(0.6), "other.log": pytest.approx(0.4)}


def test_a_wait_for_something_else_is_no_wait_for_a_copy_to_the_host(tmp_path):
    """The device runs a step behind; once a step the host waits for the one before, beside a copy of 3 ms."""
    trace = Trace()
    for begin in range(10_000, 150_000, 10_000):
        issued = begin - 10_000
        trace.kernel(begin, begin + 6_000, name=TENSOR_CORE, launch=(issued + 102, issued + 108))
        call = (issued + 202, issued + 208)
        trace.copy(begin + 6_000, begin + 9_000, kind="DtoH", memory="Device -> Pinned", size=64 << 20, launch=call)
        trace.kernel(begin + 9_000, begin + 10_000, name=TENSOR_CORE, launch=(issued + 302, issued + 308))
        trace.sync(issued + 400, issued + 9_900, name="cudaEventSynchronize")
    trace.steps(*range(0, 150_000, 10_000))
    report = told(tmp_path, trace)
    assert shares(report)["sync.d2h"] == pytest.approx(0.3, abs=0.01)
    assert "OV002" not in fired(report)


@pytest.mark.parametrize(("memory", "is_held"), [("Device -> Pageable", True), ("Device -> Pinned", False)])
def test_a_copy_to_the_host_in_every_step_is_priced_where_it_holds_the_host(tmp_path, memory, is_held):
    trace = Trace()
    at = 1_000
    for number in range(12):
        begin = at
        trace.op(at, at + 8, name="aten::linear")
        trace.kernel(at + 10, at + 1_000, name=TENSOR_CORE, launch=(at + 2, at + 8))
        held = at + 1_401 if is_held else at + 912
        trace.copy(at + 1_000, at + 1_400, kind="DtoH", memory=memory, size=4 << 20, launch=(at + 900, held))
        trace.kernel(at + 1_405, at + 1_905, name=TENSOR_CORE, launch=(at + 1_402, at + 1_404))
        at += 1_905
        trace.step(number, begin, at)
    report = told(tmp_path, trace)
    assert shares(report)["sync.d2h"] == pytest.approx(0.21, abs=0.005)
    assert ("OV002" in fired(report)) is is_held
    assert report.verdict.headline.startswith("The GPU loses 40") is is_held
    if is_held:
        assert (report.verdict.bound, report.verdict.detail) == ("overhead-bound", "sync")
        assert report.verdict.saving.expected == pytest.approx(0.21, abs=0.005)


def first_use(part, *, capture=False):
    """One recording of 100 ms of which ``part`` goes by while modules load, or a graph is captured."""
    trace, at = Trace(devices=[A100]), 1_000
    for _ in range(30):
        trace.kernel(at + 20, at + 40, name="fill", launch=(at, at + 10))
        at += 40
    total = round(100_000 * part)
    if capture:
        trace.call("cudaStreamBeginCapture_v10000", at + 50, at + 60)
        for begin in range(at + 100, at + total, 500):
            trace.op(begin, begin + 400)
        at += total
        trace.call("cudaStreamEndCapture", at - 20, at)
    else:
        for number in range(10):
            trace.kernel(at + total // 10 + 5, at + total // 10 + 10, name=f"k{number}", launch=(at, at + total // 10))
            at += total // 10 + 20
    trace.op(at, at + 20)
    trace.kernel(at + 30, at + 100_000 - total, name=TENSOR_CORE, launch=(at + 5, at + 15))
    return trace


def test_many_short_loads_are_a_cold_start_as_few_long_ones_are(tmp_path):
    report = told(tmp_path, first_use(0.6))
    assert report.verdict.headline == "Only a cold start was recorded: first-use work takes 59 %"
    assert shares(report)["warm.load"] == pytest.approx(0.59, abs=0.005)


def test_beside_less_first_use_work_the_rest_is_named(tmp_path):
    report = told(tmp_path, first_use(0.35))
    assert report.verdict.bound == "compute-bound"
    (cold, *_) = next(outcome.findings for outcome in report.outcomes if outcome.rule == "RU003")
    assert cold.title == "First-use work takes 35 % of the window"


def test_the_capture_of_a_graph_is_no_step_to_launch_as_one(tmp_path):
    report = told(tmp_path, first_use(0.9, capture=True))
    assert report.verdict.headline == "Only the capture of a graph was recorded: it takes 89 %"
    assert "OV001" not in fired(report)
