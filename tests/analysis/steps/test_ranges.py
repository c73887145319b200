"""Steps by the program's own ranges, set-up and start-up. Recipes are in µs, answers in ns."""

import numpy as np
import pytest

from profilerkit.api import analyze
from profilerkit.model.finding import in_order
from profilerkit.model.step import WHOLE_TRACE
from tests.recipes import US, Trace

BACKWARD = "autograd::engine::evaluate_function: MmBackward0"


def calls(trace, at, *, backward=True, kernels=4):
    """Forward and, where asked, backward operators with a kernel each, in 200 µs."""
    for index in range(kernels):
        begin = at + 40 * index
        name = BACKWARD if backward and index >= kernels // 2 else "aten::mm"
        trace.op(begin, begin + 30, name=name)
        trace.kernel(begin + 20, begin + 50, launch=(begin + 5, begin + 12))


def looped(names, rounds, *, backward=True):
    """Rounds of 1,000 µs, whose every range holds 200 µs of work."""
    trace = Trace()
    for number in range(rounds):
        for place, name in enumerate(names):
            at = 10_000 + 1_000 * number + 300 * place
            trace.annotation(name.format(number), at, at + 200)
            calls(trace, at, backward=backward)
    return trace


@pytest.mark.parametrize(
    "names",
    [
        ["iteration {}"],
        ["step"],
        ["model_inference"],
        ["[pl][profile]run_training_batch"],
        ["forward", "backward", "optimizer"],
        ["## forward ##", "## backward ##", "## optimizer ##"],
        ["load", "compute", "apply"],  # each round runs a backward pass
    ],
)
def test_a_loop_of_many_small_ranges_is_as_many_steps(names):
    steps = looped(names, 100).facts().steps
    assert len(steps.start) == 100
    assert set((steps.end - steps.start)[:-1].tolist()) == {1_000 * US}


def test_a_range_for_the_optimizer_ends_a_step_where_nothing_else_marks_any():
    steps = looped(["opt"], 100, backward=False).facts().steps
    assert (len(steps.start), steps.found_by) == (100, "optimizer steps")
    assert set(np.diff(steps.end).tolist()) == {1_000 * US}


@pytest.mark.parametrize(("start", "found"), [(9_000, "the whole trace"), (4_000, "ProfilerStep")])
def test_an_empty_mark_behind_all_work_is_no_step(start, found):
    trace = Trace()
    trace.op(1_000, 5_000)
    trace.op(4_010, 4_020)
    trace.step(0, start, start + 30)
    assert trace.facts().steps.found_by == found


def test_names_that_say_nothing_mark_no_steps_without_a_backward_pass():
    assert looped(["load", "compute", "apply"], 100, backward=False).facts().steps.found_by == WHOLE_TRACE


def test_layers_within_one_call_are_no_steps():
    trace = looped(["Attention", "FeedForward"], 4, backward=False)
    trace.annotation("Model_Forward", 9_990, 14_000)
    assert trace.facts().steps.found_by == WHOLE_TRACE
    inside = looped(["forward", "update"], 4, backward=False)
    inside.annotation("Model_Forward", 9_990, 14_000)
    assert inside.facts().steps.found_by == WHOLE_TRACE


def test_steps_within_a_range_around_the_whole_loop_are_steps():
    trace = looped(["forward", "update"], 5)
    trace.annotation("the loop", 9_990, 15_000)
    assert len(trace.facts().steps.start) == 5


@pytest.mark.parametrize("has_optimizer", [True, False])
def test_a_single_range_that_trains_is_the_step(has_optimizer):
    trace = Trace()
    trace.op(1_000, 9_000, name="aten::normal_")
    trace.kernel(9_000, 9_100, launch=(8_900, 8_910))
    trace.annotation("mine", 20_000, 20_400)
    calls(trace, 20_010)
    if has_optimizer:
        trace.optimizer(20_300, 20_390)
    trace.kernel(20_400, 20_500, launch=(20_380, 20_385))
    steps = trace.facts().steps
    if has_optimizer:
        assert (steps.start.tolist(), steps.end.tolist()) == ([20_000 * US], [20_500 * US])
        assert steps.found_by == 'the range "mine"'
    else:
        assert steps.found_by == WHOLE_TRACE


@pytest.mark.parametrize(("range_name", "begin"), [("get_batch", 3_000), ("build model", 9_000)])
def test_the_whole_trace_begins_at_the_first_kernel_or_the_batch_before_it(range_name, begin):
    trace = Trace()
    trace.op(1_000, 2_500, name="aten::normal_")
    trace.annotation(range_name, 3_000, 4_000)
    trace.kernel(9_000, 9_900, launch=(8_900, 8_910))
    steps = trace.facts().steps
    assert (steps.start.tolist(), steps.end.tolist()) == ([begin * US], [9_900 * US])


def launched_slowly(*, first=30_000, other=20):
    """Two kernels in turn in three steps; the first launch of the second takes ``first`` µs."""
    trace = Trace()
    at = 1_000
    for number in range(3):
        began = at
        for name in ("mine_a", "mine_b"):
            length = first if (number, name) == (0, "mine_b") else other
            trace.op(at, at + length + 5)
            trace.kernel(at + length + 10, at + length + 110, name=name, launch=(at, at + length))
            at += length + 110
        trace.step(number, began, at)
    return trace


def test_a_first_launch_far_slower_than_the_others_is_start_up_and_saves_nothing(tmp_path):
    trace = launched_slowly()
    assert trace.parts()["warm.load"] == pytest.approx(30_000 * US, rel=0.01)
    report = analyze(trace.write(tmp_path / "trace.json"))
    found = {outcome.rule: finding for outcome, finding in in_order(report.outcomes)}
    assert "OV001" not in found or found["OV001"].saving.high < 0.1


@pytest.mark.parametrize("lengths", [{"first": 900}, {"first": 30_000, "other": 2_000}])
def test_a_first_launch_as_slow_as_others_or_short_is_none(lengths):
    assert "warm.load" not in launched_slowly(**lengths).parts()


@pytest.mark.parametrize("count", [3, 4])
def test_a_mark_behind_the_last_launch_is_cut(count):
    trace = Trace()
    for number in range(count - 1):
        at = 1_000 * (number + 1)
        trace.step(number, at, at + 1_000)
        calls(trace, at)
    trace.step(count - 1, 1_000 * count, 1_000 * count + 10)
    assert trace.facts().steps.state[-1] == "cut"


def test_without_a_device_a_mark_behind_the_last_operator_is_cut():
    trace = Trace()
    for number in range(2):
        at = 1_000 * (number + 1)
        trace.step(number, at, at + 1_000)
        trace.op(at, at + 900)
    trace.step(2, 3_000, 3_010)
    assert trace.facts().steps.state == ("steady", "steady", "cut")


def test_what_the_host_takes_down_behind_the_last_work_is_of_no_step(tmp_path):
    trace = Trace()
    for at, name in ((10_000, "aten::linear"), (10_100, "aten::relu"), (10_200, "aten::mean")):
        trace.op(at, at + 80, name=name)
        trace.kernel(at + 50, at + 95, launch=(at + 30, at + 35))
    end = max(event["ts"] + event["dur"] for event in trace.events if event.get("cat") == "kernel")
    for number in range(50):
        trace.call("cuModuleUnload", 30_000 + 1_000 * number, 30_900 + 1_000 * number)
    steps = trace.facts().steps
    assert steps.end.tolist() == [end * US]
    report = analyze(trace.write(tmp_path / "trace.json"))
    page = report.to_markdown()
    assert "recording" in report.verdict.headline
    assert "steps/s" not in page
    assert "every step" not in page
    assert f"{report.steps.steady} steady step" not in page
