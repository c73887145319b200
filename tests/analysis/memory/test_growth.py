"""Slopes and growth: exact on lines, unmoved by outliers, silent on noise."""

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilerkit.analysis.memory import allocator as module
from profilerkit.analysis.memory.allocator import FEWEST_POINTS, told_growth
from profilerkit.analysis.stats import MOST_POINTS, theil_sen

DRAWS = 1_000


def grows(y):
    found = told_growth("allocated", np.arange(len(y)), np.asarray(y), None, 1.0)
    return found is not None and found.grows


def rate(draw):
    """How often growth is claimed over ``DRAWS`` seeds."""
    return sum(grows(draw(np.random.default_rng(seed))) for seed in range(DRAWS)) / DRAWS


def test_the_examples_in_the_docstring_hold():
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("count", [FEWEST_POINTS, 30, 200])
def test_flat_noise_grows_in_at_most_one_draw_of_a_hundred(count):
    assert rate(lambda rng: 1e9 + 1e7 * rng.standard_normal(count)) <= 0.01
    assert rate(lambda rng: 1e9 * np.exp(0.3 * rng.standard_normal(count))) <= 0.01


def test_noise_that_wanders_seldom_grows():
    def wander(rng):
        steps = rng.standard_normal(60)
        for number in range(1, 60):
            steps[number] += 0.8 * steps[number - 1]
        return steps

    assert rate(wander) <= 0.03


def test_a_leak_within_the_noise_of_a_few_steps_is_found():
    assert rate(lambda rng: np.arange(20) + 0.5 * rng.standard_normal(20)) >= 0.97


def test_a_staircase_grows_however_long_its_steps():
    assert grows(np.floor(np.arange(60) / 10) * 20.0)


@pytest.mark.parametrize("tau", [5, 10, 20])
def test_what_fills_up_does_not_grow(tau):
    assert not grows(1_000 * (1 - np.exp(-np.arange(60) / tau)))


@pytest.mark.parametrize("at", [5, 20, 30, 40, 55])
def test_a_single_jump_is_no_growth(at):
    assert not grows(np.where(np.arange(60) < at, 100.0, 300.0))


def test_what_shrinks_does_not_grow():
    assert not grows(np.arange(60, 0, -1.0))


@given(
    slope=st.floats(-1e6, 1e6),
    start=st.floats(0, 1e9),
    outliers=st.lists(st.tuples(st.integers(0, 39), st.floats(-1e12, 1e12)), max_size=8),
)
def test_a_fifth_of_the_points_may_lie_anywhere(slope, start, outliers):
    x = np.arange(40.0)
    y = start + slope * x
    clean = y.copy()
    for position, value in outliers:
        y[position] = value
    found = theil_sen(x, y)
    # More than half of the pairs are of untouched points.
    assert found.value == pytest.approx(theil_sen(x, clean).value, rel=1e-3, abs=1e-3)


@given(
    values=st.lists(st.integers(0, 10**9), min_size=8, max_size=60),
    shift=st.integers(-(10**9), 10**9),
    scale=st.sampled_from([2, 4, 1024]),
)
def test_a_slope_does_not_change_with_a_shift_and_scales_with_its_values(values, shift, scale):
    x, y = np.arange(len(values)), np.array(values)
    plain, moved, scaled = theil_sen(x, y), theil_sen(x + 7, y + shift), theil_sen(x, y * scale)
    assert moved.value == pytest.approx(plain.value)
    assert scaled.value == pytest.approx(scale * plain.value)
    assert plain.low <= plain.value <= plain.high


def test_many_points_are_put_together_without_losing_the_slope():
    x = np.arange(50 * MOST_POINTS)
    assert theil_sen(x, 3 * x + 100).value == pytest.approx(3.0)


def test_two_points_or_one_instant_have_no_slope():
    assert theil_sen(np.arange(2), np.arange(2)) is None
    assert theil_sen(np.full(9, 4), np.arange(9)) is None
