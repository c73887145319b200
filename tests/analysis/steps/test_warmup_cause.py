"""What the first steps cost, and why. Recipes are in µs, answers in ns."""

import numpy as np
import pytest

from profilerkit.analysis.steps.trend import LOADING, causes, warmup_cost
from profilerkit.api import analyze
from profilerkit.model.step import LEAVES, WAITS, leaf
from tests.recipes import LOADER, MS, US, WORKERS, Log, training, write_run

LONG = 50_000


def slow_start(steps=8):
    """A training loop whose first step begins 50 ms later than its first kernel, for the test to say why."""
    trace = training(steps, start=100_000)
    trace.events = [event for event in trace.events if event["name"] != "ProfilerStep#0"]
    trace.step(0, 100_000 - LONG, 101_010)
    return trace


@pytest.mark.parametrize(
    ("cause", "happen"),
    [
        ("the first batches", lambda trace, at: trace.loader(at, at + LONG, name=WORKERS)),
        ("compilation", lambda trace, at: trace.op(at, at + LONG, name="_compile.compile_inner (dynamo_timed)")),
        ("growth of the allocator", lambda trace, at: trace.malloc(at, at + LONG)),
        (LOADING, lambda trace, at: trace.call("cudaLaunchKernel", at, at + LONG)),
        (LOADING, lambda trace, at: trace.event("Lazy Function Loading", "overhead", at, at + LONG)),
        (None, lambda trace, at: None),
    ],
)
def test_the_warm_up_is_told_with_its_length_and_its_cause(cause, happen):
    trace = slow_start()
    happen(trace, 100_000 - LONG)
    found = trace.facts().warmup
    assert (found.steps, found.excess_ns, found.cause) == (1, LONG * US, cause)


def test_kernels_that_only_the_first_steps_run_are_its_cause():
    trace = slow_start()
    for start in range(100_000 - LONG, 100_000, 10_000):
        trace.kernel(start, start + 9_990, launch=(start - 5, start))
    assert trace.facts().warmup.cause == "more kernels than later, as when cudnn tries algorithms"


def test_first_steps_as_quick_as_the_others_have_no_cause():
    found = training(8).facts().warmup
    assert (found.steps, found.excess_ns, found.cause) == (1, 0, None)


def test_without_steps_left_out_there_is_no_warm_up():
    assert training(1).facts().warmup is None


def test_a_step_left_out_in_the_middle_is_no_warm_up():
    state = ("warmup", "steady", "compile", "steady", "cut")
    found = warmup_cost(state, np.array([90, 10, 80, 10, 3]), {})
    assert (found.steps, found.time_ns, found.excess_ns) == (1, 90, 80)


def test_modules_loaded_while_the_device_works_cost_nothing():
    trace = slow_start()
    trace.call("cudaLaunchKernel", 100_000 - LONG, 100_000)
    trace.kernel(100_000 - LONG, 100_000)
    assert trace.facts().warmup.cause != LOADING


def test_causes_cover_the_leaves_they_name():
    per_step = np.arange(2 * len(LEAVES)).reshape(2, len(LEAVES))
    found = causes(per_step, np.array([5, 6]))
    fed = [leaf(part) for part in (*WAITS, "input.h2d")]
    assert found["compilation"].tolist() == per_step[:, leaf("warm.compile")].tolist()
    assert found["the first batches"].tolist() == per_step[:, fed].sum(axis=1).tolist()
    assert found[LOADING].tolist() == [5, 6]


def test_timers_tell_a_first_batch_that_came_late(tmp_path):
    log = Log()
    log.step(500_000, wait=490_000)
    log.steps(30, 10_000, wait=100)
    report = analyze(write_run(tmp_path / "run", [log], loader=LOADER))
    assert report.steps.warmup.cause == "the first batches"
    assert report.steps.warmup.excess_ns == 490 * MS


def test_the_report_shows_it_beside_the_window(tmp_path):
    trace = slow_start()
    trace.op(50_000, 100_000, name="_compile.compile_inner (dynamo_timed)")
    text = analyze(trace.write(tmp_path / "trace.json")).to_html().replace("\N{NO-BREAK SPACE}", " ")
    assert "1 step of warm-up took 51.0 ms, 50.0 ms more than steady ones: compilation" in text


def test_without_a_steady_step_there_is_no_warm_up():
    assert warmup_cost(("cut",), np.array([5]), {}) is None
