"""Steps that are longer at intervals: found with their period, and not in jitter."""

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilerkit.analysis.steps import series as module
from profilerkit.analysis.steps import series as series_module
from profilerkit.analysis.steps.series import MOST_STEPS, StepSeries, levelled, recurring, unnamed_stalls, what_grew

DRAWS = 200
US = 1_000


def series(time, *, steady=None, optimizes=(), index=None, **parts):
    time = np.asarray(time).astype(np.int64)
    flags = np.zeros(len(time), dtype=bool)
    flags[list(optimizes)] = True
    return StepSeries(
        index=np.arange(len(time)) if index is None else index,
        time=time,
        steady=np.ones(len(time), dtype=bool) if steady is None else steady,
        optimizes=flags,
        parts={name.replace("_", "."): np.asarray(spent) for name, spent in parts.items()},
    )


def stalls_of(time, **fields):
    found = series(time, **fields)
    return unnamed_stalls(found, found.time)


def jittered(seed, count=200, sigma=0.05):
    return 100_000 * US * np.exp(sigma * np.random.default_rng(seed).standard_normal(count))


@pytest.mark.parametrize("examples", [module, series_module])
def test_the_examples_in_the_docstrings_hold(examples):
    assert doctest.testmod(examples).failed == 0


@pytest.mark.parametrize(
    ("count", "period", "sigma", "stall"),
    [
        (200, 10, 0.02, 0.10),  # a tenth of the step each time, the weakest there is
        (60, 6, 0.02, 0.15),
        (200, 10, 0.10, 1.0),  # a tenth of all time
        (200, 50, 0.05, 5.0),
        (40, 4, 0.05, 0.4),
        (31, 10, 0.05, 1.0),
    ],
)
def test_a_stall_is_found_with_its_period(count, period, sigma, stall):
    found = 0
    for seed in range(DRAWS):
        time = jittered(seed, count, sigma)
        time[seed % period :: period] += stall * 100_000 * US
        found += [stall.period for stall in stalls_of(time)] == [period]
    assert found >= 0.97 * DRAWS


@pytest.mark.parametrize("count", [10, 40, 200])
@pytest.mark.parametrize("sigma", [0.05, 0.5])
def test_healthy_jitter_has_no_period(count, sigma):
    assert sum(bool(stalls_of(jittered(seed, count, sigma))) for seed in range(500)) <= 0.01 * 500


@pytest.mark.parametrize("count", [40, 200])
def test_outliers_by_chance_have_no_period(count):
    alarms = 0
    for seed in range(500):
        time = jittered(seed, count)
        time[np.random.default_rng(seed + 10**6).random(count) < 0.05] *= 3
        alarms += bool(stalls_of(time))
    assert alarms <= 0.01 * 500


def test_two_stalls_are_told_each_with_its_period_and_price():
    time = np.full(300, 100 * US)
    time[::10] += 20 * US
    time[::50] += 100 * US
    found = {stall.period: (stall.excess_ns, stall.count) for stall in stalls_of(time)}
    assert found == {10: (20 * US, 30), 50: (100 * US, 6)}
    assert sum(stall.share for stall in stalls_of(time)) == pytest.approx((30 * 20 + 6 * 100) / (time.sum() / US))


def test_the_period_is_the_fundamental_one():
    time = np.full(120, 100)
    time[::6] += 50
    assert recurring(np.arange(120), time)[0] == 6


def test_the_period_is_told_in_step_numbers_across_a_hole():
    """A deep window in the middle of the run takes steps out."""
    time = np.full(100, 100 * US)
    time[::10] += 50 * US
    keep = np.ones(100, dtype=bool)
    keep[33:47] = False
    (stall,) = stalls_of(time, steady=keep)
    assert (stall.period, stall.count, stall.steps) == (10, 9, (0, 90))


def test_of_very_many_steps_the_last_are_looked_at():
    time = np.full(MOST_STEPS + 5_000, 100)
    time[::100] += 50
    found = recurring(np.arange(len(time)), time)
    assert found[0] == 100
    assert found[1][0] >= 5_000


def test_the_part_that_grew_is_named_with_its_coverage():
    python = np.full(60, 10 * US)
    python[::6] += 45 * US
    time = np.full(60, 100 * US)
    time[::6] += 50 * US
    (stall,) = stalls_of(time, over_python=python, compute_math=np.full(60, 80 * US))
    assert (stall.grew, stall.coverage) == ("over.python", pytest.approx(0.9))


def test_where_no_part_holds_most_of_the_stall_none_is_named():
    one, other = np.full(60, 10 * US), np.full(60, 10 * US)
    one[::6] += 25 * US
    other[::6] += 20 * US
    time = one + other
    (stall,) = stalls_of(time + 100 * US, over_python=one)
    assert (stall.grew, stall.coverage) == (None, None)


def test_gradient_accumulation_is_no_stall():
    time = np.full(80, 100 * US)
    time[3::4] += 30 * US
    assert stalls_of(time)[0].period == 4
    assert stalls_of(time, optimizes=range(3, 80, 4)) == []


def test_a_stall_shows_through_gradient_accumulation():
    time = np.full(80, 100 * US)
    time[3::4] += 30 * US
    time[7::20] += 60 * US
    collect = np.zeros(80)
    collect[7::20] = 50 * US  # in optimizer steps, which are longer by themselves
    (stall,) = stalls_of(time, optimizes=range(3, 80, 4), over_gc=collect)
    assert (stall.period, stall.excess_ns) == (20, 60 * US)
    assert (stall.grew, stall.coverage) == ("over.gc", pytest.approx(5 / 6))


def test_one_step_without_an_optimizer_step_levels_nothing():
    time = np.r_[300, np.full(20, 100)]
    assert levelled(time, np.arange(21) > 0).tolist() == time.tolist()


def test_nothing_grew_where_the_steps_are_not_longer():
    slow = np.arange(6) < 3
    same = series(np.full(6, 100), over_gc=np.arange(6)[::-1])
    assert what_grew(same, slow, ~slow) is None
    assert what_grew(series([3, 3, 3, 1, 1, 1]), slow, ~slow) is None  # without parts


@given(
    jitter=st.lists(st.integers(0, 5), min_size=60, max_size=90),
    period=st.integers(2, 6),
    shift=st.integers(0, 10**6),
    scale=st.sampled_from([1, 3, 1_000]),
)
def test_neither_the_unit_of_time_nor_what_all_steps_share_changes_the_period(jitter, period, shift, scale):
    time = 100 + np.array(jitter)
    time[::period] += 50
    plain = recurring(np.arange(len(time)), time)
    moved = recurring(np.arange(len(time)), scale * time + shift)
    assert (plain[0], plain[1].tolist()) == (moved[0], moved[1].tolist())
