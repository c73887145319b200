"""The mean untraced step out of timers and a traced window."""

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profilerkit.analysis import rank_facts as composition
from profilerkit.analysis.rank_facts import compose, rank_facts
from profilerkit.rundir.layout import EventKind
from profilerkit.rundir.reader import read_run
from tests.recipes import Log, Trace, write_run

quick = settings(max_examples=120, deadline=None, derandomize=True)


def composed(traced, *, time=100, spent=None, stall=0.0, on_gpu=True):
    """Part to time of steps of ``time`` (one length, or one per step) whose timers saw ``spent``."""
    lengths = np.array([time] * 4 if isinstance(time, int) else time, dtype=np.int64)
    arrays = {name: np.array(np.broadcast_to(value, lengths.shape)) for name, value in (spent or {}).items()}
    found = compose(lengths, arrays, traced, room=lengths, on_gpu=on_gpu, stall_ns=stall)
    assert sum(value for value, _ in found.values()) == pytest.approx(lengths.mean())
    return {name: pytest.approx(value) for name, (value, _) in found.items()}


def sources(traced, **fields):
    lengths = np.full(4, 100)
    found = compose(lengths, {}, traced, room=lengths, stall_ns=0.0, **fields)
    return {name: source for name, (_, source) in found.items()}


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(composition).failed == 0


def test_kernels_keep_their_length_and_the_host_gets_what_is_left():
    # 40 of kernels and 120 of host under the profiler: without it 60 are left for the host.
    found = composed({"compute.math": 40.0, "over.dispatch": 90.0, "over.python": 30.0})
    assert found == {"compute.math": 40, "over.dispatch": 45, "over.python": 15}


def test_a_device_that_never_idles_unprofiled_waits_for_no_host():
    assert composed({"compute.math": 100.0, "over.dispatch": 81.0}) == {"compute.math": 100}


def test_kernels_longer_than_the_step_are_cut_to_it():
    assert composed({"compute.math": 90.0, "comm.other": 30.0}) == {"compute.math": 75, "comm.other": 25}


def test_a_wait_counts_only_as_far_as_the_device_idles():
    found = composed({"compute.math": 80.0}, spent={"input.wait": 50})
    assert found == {"compute.math": 80, "input.wait": 20}


def test_waits_take_the_idle_time_before_phases_do():
    found = composed({"compute.math": 60.0}, spent={"input.wait": 30, "other.log": 30})
    assert found == {"compute.math": 60, "input.wait": 30, "other.log": 10}


def test_on_a_host_waits_are_held_against_nothing():
    assert composed({"compute.math": 20.0}, spent={"input.wait": 80}, on_gpu=False) == {
        "input.wait": 80,
        "compute.math": 20,
    }


@pytest.mark.parametrize(("left", "unknown"), [(50, 0), (51, 1), (80, 30)])
def test_host_parts_grow_by_a_quarter_at_most_and_the_rest_is_not_explained(left, unknown):
    found = composed({"compute.math": 50.0, "over.python": 40.0}, time=50 + left)
    assert found.pop("idle.unknown", 0) == unknown
    assert found == {"compute.math": 50, "over.python": left - unknown}


def test_without_a_trace_nothing_but_the_timers_explains():
    assert composed({}, spent={"input.wait": 30}) == {"input.wait": 30, "idle.unknown": 70}


@pytest.mark.parametrize("time", [50, 79, 80, 100, 125])
def test_on_a_host_everything_is_scaled_alike(time):
    found = composed({"compute.math": 50.0, "comm.bw": 10.0, "over.python": 40.0}, time=time, on_gpu=False)
    assert found == {"compute.math": 0.5 * time, "comm.bw": 0.1 * time, "over.python": 0.4 * time}


def test_on_a_host_what_is_blocked_on_reading_is_not_slowed_by_the_profiler():
    traced = {"input.fetch": 50.0, "over.python": 60.0, "compute.other": 40.0}
    assert composed(traced, time=100, on_gpu=False) == {"input.fetch": 50, "over.python": 30, "compute.other": 20}
    # The others keep half of what was traced, and are never scaled by less than the reading.
    assert composed(traced, time=90, on_gpu=False) == {"input.fetch": 40, "over.python": 30, "compute.other": 20}
    assert composed(traced, time=60, on_gpu=False) == {"input.fetch": 20, "over.python": 24, "compute.other": 16}
    # Steps that are longer than the traced ones tell nothing of the profiler.
    assert composed(traced, time=165, on_gpu=False) == {"input.fetch": 55, "over.python": 66, "compute.other": 44}


def test_on_a_host_steps_much_longer_than_the_traced_ones_stay_unexplained():
    found = composed({"compute.math": 60.0, "over.python": 40.0}, time=130, on_gpu=False)
    assert found == {"compute.math": 75, "over.python": 50, "idle.unknown": 5}


def test_steps_longer_than_typical_stay_unexplained():
    found = composed({"compute.math": 100.0}, time=[100, 100, 100, 500])
    assert found == {"compute.math": 100, "idle.unknown": 100}


def test_steps_that_their_own_wait_makes_longer_are_explained():
    found = composed({"compute.math": 100.0}, time=[100, 100, 100, 500], spent={"input.wait": [0, 0, 0, 400]})
    assert found == {"compute.math": 100, "input.wait": 100}


def test_a_periodic_stall_has_its_own_part_and_only_the_rest_is_unexplained():
    found = composed({"compute.math": 100.0}, time=[100, 100, 100, 500], stall=80.0)
    assert found == {"compute.math": 100, "other.stall": 80, "idle.unknown": 20}


def test_a_stall_is_never_longer_than_what_the_slow_steps_add():
    found = composed({"compute.math": 100.0}, time=[100, 100, 100, 500], stall=300.0)
    assert found == {"compute.math": 100, "other.stall": 100}


def test_only_uncut_kernels_are_as_good_as_measured():
    assert sources({"compute.math": 60.0, "over.python": 40.0}, on_gpu=True) == {
        "compute.math": "measured",
        "over.python": "derived",
    }
    assert sources({"compute.math": 160.0}, on_gpu=True) == {"compute.math": "derived"}
    assert sources({"compute.math": 60.0, "over.python": 40.0}, on_gpu=False) == {
        "compute.math": "derived",
        "over.python": "derived",
    }


lengths = st.lists(st.integers(1, 10**9), min_size=1, max_size=12)
amounts = st.floats(0, 2e9)
parts = st.dictionaries(
    st.sampled_from(["compute.math", "comm.other", "input.h2d", "over.python", "over.dispatch", "idle.unknown"]),
    amounts,
)
named = st.dictionaries(st.sampled_from(["input.wait", "other.ckpt", "over.gc"]), st.integers(0, 10**9))


@quick
@given(lengths, named, parts, amounts, st.booleans())
def test_whatever_was_seen_the_parts_sum_to_the_mean_step(time, spent, traced, stall, on_gpu):
    steps = np.array(time, dtype=np.int64)
    arrays = {name: np.minimum(value, steps) for name, value in spent.items()}
    found = compose(steps, arrays, traced, room=steps, on_gpu=on_gpu, stall_ns=stall)
    assert sum(value for value, _ in found.values()) == pytest.approx(steps.mean(), rel=1e-9)
    assert all(value > 0 for value, _ in found.values())


@quick
@given(st.integers(0, 100), st.integers(0, 100), st.floats(0, 100))
def test_a_longer_wait_never_has_a_smaller_part(wait, more, kernels):
    def part(value):
        time, spent = np.full(4, 200), {"input.wait": np.full(4, value)}
        found = compose(time, spent, {"compute.math": kernels}, room=time, on_gpu=True, stall_ns=0.0)
        return found.get("input.wait", (0.0, ""))[0]

    assert part(wait) <= part(wait + more)


def shares_of(tmp_path, trace, log):
    (record,) = read_run(write_run(tmp_path / "run", [log], traces={0: trace})).ranks
    return {part.part: part.share for part in rank_facts("rank_00000", trace.facts(), record).parts}


def stopping(steps=8, *, stops=lambda number: number % 10 == 4, stop=4_000, on_gpu=False, optimizes=False):
    """A traced loop of 1 ms steps, 900 µs of it computing, that stands still in some; on a GPU it copies meanwhile."""
    trace, at = Trace(), 1_000
    for number in range(steps):
        began, at = at, at + 100
        for _ in range(3 if optimizes and number % 4 == 3 else 1):
            if on_gpu:
                trace.op(at - 20, at - 2)
                trace.kernel(at, at + 900, launch=(at - 10, at - 4))
            else:
                trace.op(at, at + 900, name="aten::mm")
            at += 900
        if optimizes and number % 4 == 3:
            trace.optimizer(at - 100, at)
        if stops(number):
            if on_gpu:
                trace.copy(at, at + stop, kind="DtoH", memory="Device -> Pageable", launch=(at - 5, at + stop))
            at += stop
        trace.step(number, began, at)
    return trace


def test_a_checkpoint_in_the_traced_window_is_told_once(tmp_path):
    """No event of a trace names it: it looks like Python there."""
    log = Log()
    for number in range(80):
        saved = number % 10 == 4
        log.step(5_000 if saved else 1_000, phase=("checkpoint", 4_000) if saved else None)
    log.window(0, 12_000, 0)
    found = shares_of(tmp_path, stopping(), log)
    assert found["other.ckpt"] == pytest.approx(400 / 1_400, rel=0.02)
    assert found["over.python"] == pytest.approx(100 / 1_400, rel=0.05)
    assert found["compute.math"] == pytest.approx(900 / 1_400, rel=0.05)


def test_copies_of_a_checkpoint_are_the_checkpoint(tmp_path):
    log = Log()
    for number in range(80):
        saved = number % 10 == 4
        log.step(5_000 if saved else 1_000, phase=("checkpoint", 4_000) if saved else None)
    log.window(0, 12_000, 0)
    found = shares_of(tmp_path, stopping(on_gpu=True), log)
    assert "sync.d2h" not in found
    assert found["other.ckpt"] == pytest.approx(400 / 1_400, rel=0.02)
    assert found["compute.math"] == pytest.approx(900 / 1_400, rel=0.05)


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("shift", [0, 1], ids=["in its step", "in the step beside"])
def test_a_stall_in_the_traced_window_is_told_once(tmp_path, shift, on_gpu):
    log = Log()
    for number in range(80):
        log.step(5_000 if number % 10 == 4 else 1_000)
    log.window(0, 12_000, 0)
    trace = stopping(stops=lambda number: number % 10 == 4 + shift, on_gpu=on_gpu)
    found = shares_of(tmp_path, trace, log)
    assert found["other.stall"] == pytest.approx(400 / 1_400, rel=0.03)
    assert found["compute.math"] == pytest.approx(900 / 1_400, rel=0.05)
    assert sum(found.values()) == pytest.approx(1.0)


def test_a_window_of_nothing_but_a_stall_has_it_taken_off(tmp_path):
    log = Log()
    for number in range(80):
        log.step(5_000 if number % 10 == 4 else 1_000)
    log.window(4_000, 9_000, 4)
    trace = Trace()
    trace.op(1_100, 2_000, name="aten::mm")
    trace.step(4, 1_000, 6_000)
    found = shares_of(tmp_path, trace, log)
    assert found["compute.math"] == pytest.approx(900 / 1_400, rel=0.1)


def test_steps_with_an_optimizer_step_keep_their_weight_where_they_stop(tmp_path):
    """One step of four optimizes and computes three times as long; one of these also stops."""
    log = Log()
    for number in range(80):
        optimizes, saved = number % 4 == 3, number % 20 == 3
        if optimizes:
            log.record(EventKind.OPTIMIZER, log.at + 2_700, 100)
        log.step((2_800 if optimizes else 1_000) + 4_000 * saved, phase=("checkpoint", 4_000) if saved else None)
    log.window(0, 21_000, 0)
    trace = stopping(13, stops=lambda number: number == 3, optimizes=True)
    found = shares_of(tmp_path, trace, log)
    assert found["compute.math"] / found["over.python"] == pytest.approx(1_350 / 100, rel=0.05)


def test_traced_steps_that_a_busy_machine_holds_up_do_not_compose_the_typical_one(tmp_path):
    """Of eight traced steps five wait for a slice of 4 ms, each in another place; of the untraced ones few do."""
    log = Log()
    for number in range(80):
        log.step(5_000 if number in (23, 31, 58, 59, 71) else 1_000)
    log.window(0, 28_000, 0)
    found = shares_of(tmp_path, stopping(stops=lambda number: number in (1, 2, 4, 5, 6)), log)
    assert found["compute.math"] / found["over.python"] == pytest.approx(9, rel=0.05)
