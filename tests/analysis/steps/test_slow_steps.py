"""Slow steps and what grew in them, and when steady steps are a weak sample of the run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilerkit.analysis.stats import median_error
from profilerkit.analysis.steps.series import weaknesses
from profilerkit.analysis.steps.table import slow_steps, told_steps, trace_series
from tests.analysis.steps.test_stalls import series
from tests.analysis.steps.test_step_log import facts_of
from tests.recipes import MS, US, Log, training


def test_one_step_of_two_seconds_among_two_hundred_is_told_with_what_it_costs():
    time = np.full(200, 100 * MS)
    time[57] = 2_000 * MS
    wait = np.full(200, 5 * MS)
    wait[57] = 1_810 * MS
    found = slow_steps(series(time, input_wait=wait, over_gc=np.full(200, MS)))
    assert (found.count, found.first, found.last, found.period) == (1, 57, 57, None)
    assert found.excess_ns == 1_900 * MS
    assert found.share == pytest.approx(1_900 / (199 * 100 + 2_000))
    assert (found.part, found.part_excess_ns, found.coverage) == ("input.wait", 1_805 * MS, pytest.approx(0.95))


@pytest.mark.parametrize(("length", "count"), [(131, 1), (130, 0)])
def test_a_step_is_slow_above_thirteen_tenths_of_the_median(length, count):
    found = slow_steps(series([100, 100, 100, 100, length]))
    assert (found.count if found else 0) == count


def test_steps_that_are_not_judged_are_not_slow():
    time = np.array([900, 100, 100, 100, 100, 100, 900])
    assert slow_steps(series(time, steady=time < 500)) is None


def test_two_steps_are_too_few_to_compare():
    assert slow_steps(series([100, 500])) is None
    assert slow_steps(series([100, 100, 500])).excess_ns == 400


def test_long_steps_that_recur_are_told_with_their_period():
    time = np.full(60, 100)
    time[4::12] = 200
    assert slow_steps(series(time)).period == 12


def test_optimizer_steps_of_accumulated_gradients_are_not_slow():
    time = np.full(40, 100)
    time[3::4] = 150
    assert slow_steps(series(time)).count == 10
    assert slow_steps(series(time, optimizes=range(3, 40, 4))) is None


def test_what_grew_is_told_beside_optimizer_steps_of_accumulated_gradients():
    time, wait, kernels = np.full(48, 1_000), np.full(48, 100), np.full(48, 900)
    time[3::4], kernels[3::4] = 2_000, 1_900
    slow = [9, 22, 29, 41]  # none of them an optimizer step
    time[slow] += 500
    wait[slow] += 450
    found = slow_steps(series(time, optimizes=range(3, 48, 4), input_wait=wait, compute_math=kernels))
    assert (found.count, found.excess_ns, found.share) == (4, 500, pytest.approx(2_000 / time.sum()))
    assert (found.part, found.part_excess_ns, found.coverage) == ("input.wait", 450, pytest.approx(0.9))


def test_of_a_trace_the_leaf_that_grew_is_told():
    trace = training(12, kernels=10, kernel=100)
    begun = next(e["ts"] for e in trace.events if e["name"] == "ProfilerStep#6")
    moved = trace.changed(lambda e: {**e, "ts": e["ts"] + 800} if e["ts"] > begun else e)  # 800 µs without any event
    found = slow_steps(trace_series(moved.facts()))
    assert (found.part, found.count, found.first) == ("over.python", 1, 6)
    assert (found.excess_ns, found.coverage) == (800 * US, pytest.approx(1.0, abs=0.01))


def test_of_timers_the_wait_or_phase_that_grew_is_told(tmp_path):
    log = Log().steps(20, 100, wait=10)
    log.step(400, wait=300)
    log.steps(20, 100, wait=10)
    found = facts_of(tmp_path, log).steps.slow
    assert (found.part, found.first, found.part_excess_ns) == ("input.wait", 20, 290 * US)


def test_timers_that_do_not_split_the_excess_name_no_part(tmp_path):
    log = Log().steps(20, 100, wait=10).steps(1, 400, wait=10).steps(20, 100, wait=10)
    found = facts_of(tmp_path, log).steps.slow
    assert (found.part, found.coverage, found.excess_ns) == (None, None, 300 * US)


def told(time, **fields):
    found = series(time, **fields)
    return [doubt.words for doubt in weaknesses(found, median_error(found.time[found.steady]))]


def test_even_steps_have_no_weakness():
    assert told(np.tile([98, 100, 102], 10)) == []


def test_steps_whose_median_is_hardly_known_are_noisy():
    (sentence,) = told([60, 100, 140, 90, 110, 70, 130, 100])
    assert "Step times vary widely: their median is known to ±" in sentence


def test_a_median_of_few_steps_has_no_interval_but_the_steps_have_a_range():
    assert told([16_800 * US, 16_000 * US, 53_800 * US]) == [
        "One of only 3 judged steps took 3.2 × the median.",
        "Step times vary widely: the 3 judged steps take 16.0–53.8 ms.",
    ]


@pytest.mark.parametrize(("last", "word"), [(130, "longer by 26 %"), (80, "shorter by 22 %")])
def test_steps_that_drift_one_way_are_not_one_population(last, word):
    (sentence,) = told(np.linspace(100 * US, last * US, 40))
    assert word.split(" by ")[0] in sentence
    assert word.split(" by ")[1] in sentence


def test_a_drift_below_a_tenth_is_no_weakness():
    assert told(np.linspace(100 * US, 109 * US, 40)) == []


def test_judged_steps_from_one_end_are_told():
    steady = np.arange(40) >= 20
    assert told(np.full(40, 100), steady=steady) == ["The 20 judged steps come from one end of the 40 recorded."]
    assert told(np.full(40, 100), steady=~steady) == ["The 20 judged steps come from one end of the 40 recorded."]
    assert told(np.full(40, 100), steady=np.arange(40) >= 19) == []


def test_healthy_jitter_seldom_reads_as_drift():
    alarms = 0
    for seed in range(300):
        time = (1e8 * np.exp(0.2 * np.random.default_rng(seed).standard_normal(60))).astype(np.int64)
        alarms += any("steadily" in sentence for sentence in told(time))
    assert alarms <= 0.03 * 300


@given(
    times=st.lists(st.integers(1_000, 9_000), min_size=5, max_size=40),
    scale=st.sampled_from([2, 8, 1_000]),
    shift=st.integers(0, 10**9),
)
def test_statistics_of_steps_scale_with_the_unit_and_do_not_depend_on_step_numbers(times, scale, shift):
    time, count = np.array(times), len(times)
    plain = log_of(time)
    other = log_of(time * scale, index=np.arange(count) + shift)
    for name in ("median", "mean", "p10", "p90"):
        assert getattr(other.time_ns, name) == pytest.approx(scale * getattr(plain.time_ns, name), abs=scale)
    assert other.time_ns.cv_ratio == pytest.approx(plain.time_ns.cv_ratio)
    assert (plain.slow is None) == (other.slow is None)
    if plain.slow:
        assert (other.slow.count, other.slow.part) == (plain.slow.count, plain.slow.part)
        assert other.slow.first - shift == plain.slow.first
        assert other.slow.share == pytest.approx(plain.slow.share)


def log_of(time, **fields):
    """The step table of steady steps, half of each Python."""
    found = series(time, over_python=time // 2, **fields)
    return told_steps(found, np.cumsum(time) - time, ("steady",) * len(time), "step()", inferred=False)


def test_nothing_judged_has_no_weakness():
    assert told([100, 100], steady=np.zeros(2, dtype=bool)) == []
