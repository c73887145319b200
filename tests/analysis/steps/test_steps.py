import doctest
import tempfile
from pathlib import Path

import numpy as np
import pytest

from profilerkit.analysis.host.names import HostNames
from profilerkit.analysis.steps import find as module
from profilerkit.analysis.steps.find import find_steps
from profilerkit.analysis.steps.trend import warmup_length
from profilerkit.formats.registry import read_trace
from profilerkit.trace.columns import Category
from profilerkit.trace.launches import launch_of
from tests.recipes import AUTOGRAD, MAIN, US, WORKERS, Trace, training


def steps_of(trace, whole=None, *, linked=False):
    columns = trace.read()
    return find_steps(columns, HostNames.of(columns), whole, launch_of(columns) if linked else None)


def steps_with_kernels(*counts, length=1_000):
    """A step per count, with that many kernels in it."""
    trace = Trace()
    trace.steps(*range(1_000, 1_000 + length * (len(counts) + 1), length))
    for number, count in enumerate(counts):
        for index in range(count):
            at = 1_000 + number * length + 50 * index
            trace.kernel(at, at + 40)
    return trace


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(module).failed == 0


def test_a_step_runs_to_the_start_of_the_next_so_that_nothing_between_them_is_unowned():
    trace = Trace()
    for number, (start, end) in enumerate([(100, 190), (200, 290), (300, 390), (400, 490)]):
        trace.step(number + 5, start, end)
    found = steps_of(trace)
    assert found.found_by == "ProfilerStep"
    assert not found.inferred
    assert found.index.tolist() == [5, 6, 7, 8]
    assert found.start.tolist() == [100 * US, 200 * US, 300 * US, 400 * US]
    assert found.end.tolist() == [200 * US, 300 * US, 400 * US, 490 * US]


def test_copies_of_the_marker_on_the_device_are_no_steps():
    trace = Trace()
    for number in range(4):
        trace.step(number, 100 + 100 * number, 200 + 100 * number, copied_to_gpu=True)
        trace.kernel(110 + 100 * number, 150 + 100 * number)
    found = steps_of(trace)
    assert found.index.tolist() == [0, 1, 2, 3]
    assert found.start.tolist() == [100 * US, 200 * US, 300 * US, 400 * US]


def test_a_marker_written_twice_is_one_step():
    trace = Trace()
    trace.steps(100, 200, 300, 400, 500)
    doubled = trace.changed(lambda event: [event, event])
    assert steps_of(doubled).start.tolist() == steps_of(trace).start.tolist()
    assert steps_of(doubled).end.tolist() == steps_of(trace).end.tolist()


def test_markers_of_another_thread_do_not_cut_the_steps_of_the_loop():
    trace = Trace()
    trace.steps(100, 200, 300, 400, 500)
    trace.annotation("ProfilerStep#90", 150, 160, tid=MAIN + 7)
    assert steps_of(trace).index.tolist() == [0, 1, 2, 3]


def test_a_number_too_long_for_a_step_is_no_marker():
    trace = Trace()
    trace.steps(100, 200, 300, 400, 500)
    trace.annotation("ProfilerStep#" + "9" * 40, 150, 160)
    assert steps_of(trace).index.tolist() == [0, 1, 2, 3]


def test_without_markers_the_ends_of_optimizer_steps_bound_the_steps():
    trace = Trace()
    trace.op(100, 120)
    for end in (200, 300, 400, 500):
        trace.optimizer(end - 10, end)
    found = steps_of(trace)
    assert found.found_by == "optimizer steps"
    assert found.inferred
    assert found.start.tolist() == [100 * US, 200 * US, 300 * US, 400 * US]
    assert found.end.tolist() == [200 * US, 300 * US, 400 * US, 500 * US]
    assert found.state[-1] == "steady"  # it ends with its own optimizer step: it is whole


def test_without_markers_and_optimizer_the_fetches_begin_the_steps():
    trace = Trace()
    for start in (100, 200, 300, 400, 500):
        trace.loader(start, start + 10, name=WORKERS)
        trace.op(start + 10, start + 90)
    found = steps_of(trace)
    assert found.found_by == "DataLoader fetches"
    assert found.start.tolist() == [100 * US, 200 * US, 300 * US, 400 * US, 500 * US]
    assert found.end[-1] == 590 * US
    assert found.state[-1] == "cut"  # nothing says where the last one ends


@pytest.mark.parametrize("mark", ["optimizer", "loader"])
def test_inferred_marks_written_twice_bound_one_step_each(mark):
    trace = Trace()
    for start in (100, 200, 300, 400, 500):
        getattr(trace, mark)(start, start + 10)
        trace.op(start + 10, start + 90)
    doubled = trace.changed(lambda event: [event, event])
    assert steps_of(doubled).start.tolist() == steps_of(trace).start.tolist()
    assert steps_of(doubled).state == steps_of(trace).state


def test_a_trace_without_any_mark_is_one_step():
    trace = Trace()
    trace.op(100, 150)
    trace.kernel(160, 480, launch=(110, 120))
    found = steps_of(trace)
    assert found.found_by == "the whole trace"
    assert found.inferred
    assert (found.start.tolist(), found.end.tolist()) == ([160 * US], [480 * US])
    assert found.state == ("steady",)


def optimizers(*names, rounds=4, last=None):
    """A hundred µs per optimizer and round; the round ``last`` has only the first one."""
    trace = Trace()
    trace.op(0, 20)
    at = 100
    for number in range(rounds):
        for name in names if number != last else names[:1]:
            trace.annotation(f"Optimizer.step#{name}.step", at - 10, at)
            at += 100
    return trace


def test_of_optimizers_that_take_turns_the_last_of_the_round_marks_the_step():
    found = steps_of(optimizers("SGD", "Adam"))
    assert found.end.tolist() == [200 * US, 400 * US, 600 * US, 800 * US]
    assert steps_of(optimizers("SGD")).end.tolist() == [100 * US, 200 * US, 300 * US, 400 * US]


def test_optimizers_that_step_unequally_often_each_mark_a_step():
    found = steps_of(optimizers("SGD", "Adam", last=3))
    assert found.end.tolist() == [100 * US * number for number in range(1, 8)]


def iterations(trace, *kinds, rounds=4):
    """Rounds of 100 µs per kind: a fetch (f), a backward pass (b), an optimizer step (o), or both of these (g)."""
    trace.op(0, 20)
    at = 100
    for _ in range(rounds):
        for kind in kinds:
            if kind == "f":
                trace.loader(at, at + 10)
            if kind in "bg":
                trace.op(at + 20, at + 40, name="autograd::engine::evaluate_function: MmBackward0", tid=AUTOGRAD)
            if kind in "og":
                trace.annotation("Optimizer.step#Adam.step", at + 80, at + 100)
            at += 100
    return trace


@pytest.mark.parametrize(
    ("kinds", "length"),
    [
        ("boo", 300),  # two optimizers of one class share a backward pass
        ("fgg", 300),  # each with its own backward pass, for one batch
        ("bbbbo", 500),  # gradients of four backward passes
        ("fbfbfbfbo", 900),
        ("fg", 200),
        ("g", 100),  # without a loader every backward pass with its optimizer step is a step
    ],
)
def test_optimizer_steps_for_one_batch_or_backward_pass_end_one_step(kinds, length):
    found = steps_of(iterations(Trace(), *kinds))
    assert set(np.diff(found.start).tolist()[1:]) == {length * US}
    assert len(found.index) == 4


def test_optimizer_steps_that_follow_fetches_unevenly_each_end_a_step():
    trace = iterations(Trace(), *"fgg", rounds=2)
    later = iterations(Trace(), *"fggg", rounds=2)
    trace.events += [{**event, "ts": event["ts"] + 600} for event in later.events]
    assert len(steps_of(trace).index) == 10


def test_the_mark_around_an_optimizer_step_of_the_same_class_is_no_step_of_its_own():
    trace = Trace()
    for at in (100, 200, 300, 400):
        trace.op(at, at + 40, name="autograd::engine::evaluate_function: MmBackward0", tid=AUTOGRAD)
        trace.annotation("Optimizer.step#SGD.step", at + 50, at + 90)
        trace.annotation("Optimizer.step#SGD.step", at + 52, at + 88)
    assert steps_of(trace).end.tolist() == [190 * US, 290 * US, 390 * US, 490 * US]


@pytest.mark.parametrize("kinds", ["boo", "fgg", "fg"])
def test_some_events_written_twice_do_not_change_the_steps(kinds):
    trace = iterations(steps_with_kernels(*[10] * 8), *kinds, rounds=8)
    odd = iter(range(10**6))
    doubled = trace.changed(lambda event: [event, event] if next(odd) % 3 else event)
    plain, other = steps_of(trace), steps_of(doubled)
    assert (other.start.tolist(), other.end.tolist(), other.state) == (
        plain.start.tolist(),
        plain.end.tolist(),
        plain.state,
    )


def test_steps_that_hold_an_optimizer_step_are_told_from_those_that_only_accumulate():
    trace = steps_with_kernels(*[5] * 8)
    for number in (1, 3, 5, 7):
        trace.optimizer(1_900 + 1_000 * number, 1_950 + 1_000 * number)
    assert steps_of(trace).optimizes.tolist() == [False, True] * 4
    inferred = steps_of(iterations(Trace(), *"bg"))
    assert inferred.optimizes.all()


def working_behind(count):
    """Steps of 1,000 µs whose device work, launched in each, takes 1,000 µs more than the host's own."""
    trace = Trace()
    trace.steps(*range(1_000, 1_000 * (count + 2), 1_000))
    for number in range(count):
        begin = 1_000 * (number + 1)
        trace.kernel(begin + 1_000, begin + 2_000, launch=(begin + 10, begin + 20))
    trace.kernel(30_000, 31_000, launch=(29_000, 29_010))  # launched after the last step
    return trace


@pytest.mark.parametrize(("count", "end"), [(1, 3_000), (4, 5_000)])
def test_a_single_step_ends_with_the_work_launched_in_it(count, end):
    assert steps_of(working_behind(count), linked=True).end[-1] == end * US
    assert steps_of(working_behind(count)).end[-1] == 1_000 * (count + 1) * US


def test_of_three_steps_each_ends_with_the_device_or_none():
    trace = working_behind(3)
    found = steps_of(trace, linked=True)
    lag = 1_000 * US
    assert [end - own for end, own in zip(found.end.tolist(), found.by_host.end.tolist(), strict=True)] in (
        [0, 0, 0],
        [lag, lag, lag],
    )


def test_a_single_optimizer_step_is_no_boundary():
    trace = Trace()
    trace.op(100, 150)
    trace.optimizer(180, 200)
    trace.optimizer(180, 200)  # written twice
    assert steps_of(trace).found_by == "the whole trace"


def test_the_last_step_has_no_successor_and_is_cut():
    assert steps_of(steps_with_kernels(5, 5, 5, 5, 5)).state == ("warmup", "steady", "steady", "steady", "cut")


def test_a_tail_step_with_fewer_kernels_than_four_fifths_is_cut():
    whole = steps_of(steps_with_kernels(*[10] * 6, 8, 10))
    assert whole.state == ("warmup", *["steady"] * 6, "cut")
    cut = steps_of(steps_with_kernels(*[10] * 6, 7, 10))
    assert cut.state == ("warmup", *["steady"] * 5, "cut", "cut")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_capture_of_up_to_three_steps_is_judged_on_what_it_has(count):
    assert steps_of(steps_with_kernels(*[5] * count)).state == ("steady",) * count


def test_of_four_steps_only_the_cut_one_is_dropped():
    assert steps_of(steps_with_kernels(5, 5, 5, 5)).state == ("steady", "steady", "steady", "cut")


def test_a_step_that_compiles_is_not_judged():
    trace = steps_with_kernels(*[5] * 8)
    trace.op(4_200, 4_700, name="_compile.compile_inner (dynamo_timed)")
    assert steps_of(trace).state == ("warmup", "steady", "steady", "compile", "steady", "steady", "steady", "cut")


def test_running_a_compiled_region_is_not_compiling():
    trace = steps_with_kernels(*[5] * 8)
    for number in range(8):
        trace.op(1_200 + 1_000 * number, 1_700 + 1_000 * number, name="Torch-Compiled Region: 0/0")
    assert "compile" not in steps_of(trace).state


def test_slow_first_steps_are_warm_up_and_reported_beside_the_window():
    trace = Trace()
    trace.steps(*np.cumsum([1_000, 900, 160, 100, 100, 100, 100, 100, 100, 100]).tolist())
    assert steps_of(trace).state == ("warmup", "warmup", *["steady"] * 6, "cut")


def test_warm_up_steps_in_front_do_not_change_the_window():
    slow = Trace()
    slow.steps(0, 50_000, 80_000)  # two steps before the loop below, fifty times as long
    plain = training(8, fetch=300, start=100_000)
    long = training(8, fetch=300, start=100_000)
    long.events = [*slow.events, *long.events]
    renamed = iter(range(100))
    long = long.changed(
        lambda e: {**e, "name": f"ProfilerStep#{next(renamed)}"} if e["name"].startswith("ProfilerStep") else e
    )
    assert steps_of(long).state[:2] == ("warmup", "warmup")
    assert shares(long) == shares(plain)


def shares(trace):
    """Share of each part, from counts that are exact."""
    found = trace.parts()
    return {name: value / sum(found.values()) for name, value in found.items()}


@pytest.mark.parametrize(("first", "warmup"), [(151, 1), (150, 0)])
def test_warm_up_is_longer_than_one_and_a_half_settled_steps(first, warmup):
    assert warmup_length(np.array([first, 100, 100, 100, 100, 100])) == warmup


def test_a_slow_step_after_a_settled_one_is_no_warm_up():
    assert warmup_length(np.array([100, 900, 100, 100, 100, 100])) == 0


def test_five_steps_are_too_few_to_tell_warm_up_by_their_length():
    assert warmup_length(np.array([900, 100, 100, 100, 100])) == 0


def test_an_event_without_length_leaves_nothing_to_judge():
    trace = Trace()
    trace.op(100, 100)
    found = steps_of(trace)
    assert found.state == ("cut",)
    assert len(found.steady) == 0


def test_steps_keep_their_nanoseconds():
    trace = Trace()
    trace.steps("100.001", "200.002", "300.003", "400.004", "500.005")
    assert steps_of(trace).start.tolist() == [100_001, 200_002, 300_003, 400_004]
    assert steps_of(trace).steady.total_ns == 400_004 - 100_001


def test_steps_that_capture_did_not_see_whole_are_not_in_the_trace():
    found = steps_of(steps_with_kernels(*[5] * 8), whole=(2, 6))
    assert found.index.tolist() == [2, 3, 4, 5, 6]
    assert found.end.tolist() == [4_000 * US, 5_000 * US, 6_000 * US, 7_000 * US, 8_000 * US]
    assert found.state[-1] == "steady"  # capture knows where it ended


def test_a_window_without_a_whole_step_has_no_marked_step():
    assert steps_of(steps_with_kernels(*[5] * 4), whole=(90, 99)).found_by == "the whole trace"


def cut_off(trace, share):
    """The columns of a trace whose file, with the device's events after the host's as Kineto writes them, is cut."""
    trace.events.sort(key=lambda event: event["cat"] == "kernel")
    whole = trace.bytes()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        path.write_bytes(whole[: int(len(whole) * share)])
        return read_trace(path)


def states_of(columns):
    return find_steps(columns, HostNames.of(columns)).state


def test_of_a_file_that_is_cut_off_the_steps_that_lost_their_kernels_are_cut():
    columns = cut_off(steps_with_kernels(10, 10, 10, 10, 10, 10), 0.7)
    assert columns.damage.truncated
    state = states_of(columns)
    assert "steady" in state[:4]
    assert "cut" not in state[:4]
    assert set(state[4:]) == {"cut"}


def test_of_a_file_that_is_cut_off_one_whole_step_is_enough():
    assert states_of(cut_off(steps_with_kernels(10, 10, 10), 0.6)) == ("steady", "cut", "cut")


def test_of_a_file_that_is_cut_off_the_step_that_lost_operators_is_cut():
    trace = Trace()
    for number in range(4):
        trace.step(number, 1_000 * number, 1_000 * number + 1_000)
        for at in range(1_000 * number, 1_000 * number + 1_000, 100):
            trace.op(at + 10, at + 90)
    trace.events.sort(key=lambda event: event["ts"])
    state = states_of(cut_off(trace, 0.6))
    assert set(state[:-1]) == {"steady"}
    assert state[-1] == "cut"


def test_a_file_that_is_cut_off_without_marked_steps_is_judged_while_the_device_was_seen():
    trace = Trace()
    for at in range(1_000, 5_000, 50):
        trace.op(at, at + 40)
        trace.kernel(at + 10, at + 50)
    columns = cut_off(trace, 0.8)
    found = find_steps(columns, HostNames.of(columns))
    assert found.state == ("steady",)
    assert found.end[0] == columns.end_ns[columns.is_a(Category.KERNEL)].max()
    assert found.end[0] < columns.end_ns.max()


def test_what_the_device_still_does_of_earlier_work_is_no_part_of_a_recording_without_steps():
    def recorded(wait, first=10):
        trace = Trace()
        trace.kernel(1_000, 1_000 + first, launch=(980, 990))
        for at in range(1_100 + wait, 3_100 + wait, 100):
            trace.kernel(at, at + 100, launch=(1_020, 1_030))
        return steps_of(trace, linked=True).start.tolist()

    assert recorded(50_000) == [51_100 * US]
    assert recorded(5_000) == [1_000 * US]  # a launch may take that long
    assert recorded(50_000, first=1_000) == [1_000 * US]  # most of what was recorded is not done behind the wait
