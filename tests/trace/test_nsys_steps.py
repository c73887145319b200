"""Which ranges of an export mark steps, and when none is taken for one."""

import pytest
from nsys_exports import MS, TID, Export, training

from profilerkit.analysis.trace_facts import trace_facts
from profilerkit.formats.registry import read_trace


def steps_of(export, path):
    return trace_facts(read_trace(export.write(path))).steps


@pytest.mark.parametrize(
    "wording",
    [
        "step {}",
        "Step {}",
        "iteration {}",
        "iter: {}",
        "train_step_{}",
        "[batch #{}]",
        "epoch 3 iter {}/500",
        "step={}",
    ],
)
def test_ranges_with_the_number_of_a_step_mark_it(tmp_path, wording):
    steps = steps_of(training(ranges=wording), tmp_path / "a.sqlite")
    assert steps.index.tolist() == list(range(8))
    assert (steps.end - steps.start)[:-1].tolist() == [10 * MS] * 7
    assert steps.found_by == f'ranges like "{wording.format(0)}"'
    assert steps.inferred


@pytest.mark.parametrize("wording", ["layer {}", "epoch {}", "block.{}.forward", "timestep{}", "gemm_{}x"])
def test_other_numbers_mark_no_step(tmp_path, wording):
    assert steps_of(training(ranges=wording), tmp_path / "a.sqlite").found_by == "the whole trace"


def test_of_nested_ranges_with_numbers_the_outer_ones_are_the_steps(tmp_path):
    export = training(6)
    for step in range(6):
        for micro in range(2):
            begun = (step + 1) * 10 * MS + micro * 4 * MS
            export.range(f"micro batch {2 * step + micro}", begun + 10, begun + 3 * MS)
    assert len(steps_of(export, tmp_path / "a.sqlite").index) == 6


def test_ranges_that_were_pushed_and_never_popped_end_where_the_next_begins(tmp_path):
    export = training(6, ranges=None)
    for step in range(6):
        export.range(f"iteration{step}", (step + 1) * 10 * MS, 80 * MS)
    steps = steps_of(export, tmp_path / "a.sqlite")
    assert (steps.end - steps.start)[:-1].tolist() == [10 * MS] * 5
    assert steps.found_by == 'ranges like "iteration0"'


def test_a_numbered_range_within_another_ends_no_step(tmp_path):
    export = training(6, ranges=None)
    for step in range(6):
        export.range(f"iteration{step}", (step + 1) * 10 * MS, (80 - step) * MS)
    assert steps_of(export, tmp_path / "a.sqlite").found_by != 'ranges like "iteration0"'


def test_validation_beside_training_is_no_step(tmp_path):
    export = training(6, ranges="train step {}")
    for step in range(3):
        begun = (20 + step) * 10 * MS
        export.range(f"val step {step}", begun, begun + 5 * MS).launch("gemm", begun + 5, begun + 20_000, begun + MS)
    steps = steps_of(export, tmp_path / "a.sqlite")
    assert steps.found_by == 'ranges like "train step 0"'
    assert len(steps.index) == 6


def test_two_kinds_of_steps_side_by_side_are_not_told_apart(tmp_path):
    export = training(6, ranges="generator step {}")
    for step in range(6):
        begun = (20 + step) * 10 * MS
        export.range(f"critic step {step}", begun, begun + 5 * MS).launch("gemm", begun + 5, begun + 20_000, begun + MS)
    assert steps_of(export, tmp_path / "a.sqlite").found_by == "the whole trace"


@pytest.mark.parametrize("numbers", [(3, 2, 1, 0), (0, 2, 1, 3), (7,)])
def test_numbers_that_do_not_rise_or_stand_alone_mark_no_step(tmp_path, numbers):
    export = training(len(numbers), ranges=None)
    for place, number in enumerate(numbers):
        export.range(f"step {number}", (place + 1) * 10 * MS, (place + 2) * 10 * MS - 1)
    assert steps_of(export, tmp_path / "a.sqlite").found_by == "the whole trace"


def test_ranges_in_which_nothing_is_launched_mark_no_step(tmp_path):
    export = training(4, ranges=None)
    for number in range(4):
        export.range(f"step {number}", number * 100, number * 100 + 50)
    assert steps_of(export, tmp_path / "a.sqlite").found_by == "the whole trace"


def in_turn(names, turns, *, tid=TID, domain=0):
    """Ranges of so many names one after the other in each turn, with a kernel in each."""
    export = Export().gpu()
    for turn in range(turns):
        for place, text in enumerate(names):
            begun = (turn * len(names) + place + 1) * 5 * MS
            export.range(text, begun, begun + 4 * MS, tid=tid, domain=domain)
            export.launch("gemm", begun + 1_000, begun + 20_000, begun + 4 * MS, tid=tid)
    return export


@pytest.mark.parametrize("names", [("forward", "backward", "optimizer"), ("data", "fwd", "bwd"), ("train_step",)])
def test_ranges_that_come_in_turn_mark_steps_by_the_first(tmp_path, names):
    steps = steps_of(in_turn(names, 5), tmp_path / "a.sqlite")
    assert steps.found_by == f'ranges like "{names[0]}"'
    assert steps.start.tolist() == [(turn * len(names) + 1) * 5 * MS for turn in range(5)]
    assert steps.index.tolist() == list(range(5))


@pytest.mark.parametrize(
    ("names", "turns"),
    [
        (("forward", "backward"), 2),  # too few turns
        (("encoder", "decoder"), 6),  # no part of a step by name
        (("forward",), 6),  # may be any layer's
        (("attention",), 24),
        (("forward", "forward", "backward"), 5),
    ],
)
def test_ranges_that_may_be_anything_mark_no_step(tmp_path, names, turns):
    assert steps_of(in_turn(names, turns), tmp_path / "a.sqlite").found_by == "the whole trace"


def test_a_single_set_up_or_checkpoint_does_not_break_the_turn(tmp_path):
    export = in_turn(("forward", "backward"), 5)
    export.range("warm up", 0, 2 * MS).launch("gemm", 1_000, 20_000, MS)
    export.range("the whole run", 0, 10_000 * MS)
    assert len(steps_of(export, tmp_path / "a.sqlite").index) == 5


def test_ranges_of_libraries_and_operators_mark_no_step(tmp_path):
    path = tmp_path / "a.sqlite"
    assert steps_of(in_turn(("forward", "backward"), 5, domain=3), path).found_by == "the whole trace"
    export = in_turn(("FwdStep, seq = 1, op_id = 5", "BwdStep, seq = 1, op_id = 6"), 5)
    assert steps_of(export, path).found_by == "the whole trace"


def test_the_marks_of_torch_itself_come_first(tmp_path):
    export = training(6, ranges="ProfilerStep#{}, op_id = 3")
    for step in range(6):
        export.range(f"step {step}", (step + 1) * 10 * MS + 10, (step + 2) * 10 * MS - MS)
    steps = steps_of(export, tmp_path / "a.sqlite")
    assert steps.found_by == "ProfilerStep"
    assert not steps.inferred


def test_optimizer_steps_of_operators_mark_steps_where_no_range_does(tmp_path):
    export = training(6, ranges=None)
    for step in range(6):
        at = (step + 1) * 10 * MS + 9 * MS
        export.range("Optimizer.step#AdamW.step, op_id = 9", at, at + MS // 2)
    steps = steps_of(export, tmp_path / "a.sqlite")
    assert steps.found_by == "optimizer steps"


def test_a_range_is_quoted_in_part_only(tmp_path):
    steps = steps_of(training(ranges="step {} " + "x" * 5_000), tmp_path / "a.sqlite")
    assert len(steps.found_by) < 100


def test_numbers_may_begin_anew_in_each_epoch(tmp_path):
    export = training(6, ranges=None)
    for place in range(6):
        export.range(f"batch {place % 3}", (place + 1) * 10 * MS, (place + 2) * 10 * MS - 1)
    steps = steps_of(export, tmp_path / "a.sqlite")
    assert steps.index.tolist() == list(range(6))
    assert steps.found_by == 'ranges like "batch 0"'


def test_ranges_behind_the_device_s_last_record_are_steps_that_were_cut(tmp_path):
    export = training(8)
    for step in range(8, 13):
        begun = (step + 1) * 10 * MS
        export.range(f"step {step}", begun, begun + 9 * MS).range("forward", begun + MS, begun + 2 * MS)
    steps = steps_of(export, tmp_path / "a.sqlite")
    assert steps.found_by == 'ranges like "step 0"'
    assert steps.index.tolist() == list(range(13))
    assert steps.state[8:] == ("cut",) * 5


def test_ranges_without_launches_among_others_that_launch_are_no_steps(tmp_path):
    export = training(4, ranges=None)
    for number in range(12):
        begun = 10 * MS + number * 3 * MS
        export.range(f"batch {number}", begun, begun + MS // 100)
    assert steps_of(export, tmp_path / "a.sqlite").found_by == "the whole trace"


def test_the_end_of_each_step_s_own_range_is_kept(tmp_path):
    columns = read_trace(training(6).write(tmp_path / "a.sqlite"))
    marks = [row for row, name in enumerate(columns.name) if columns.strings[name].startswith("ProfilerStep#")]
    assert sorted((columns.end_ns[marks] - columns.ts_ns[marks]).tolist()) == [10 * MS - MS // 2] * 6
