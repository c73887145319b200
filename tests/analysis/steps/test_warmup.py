"""Warm-up by the change point of the step time: found in all its shapes, and not where there is none."""

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profilerkit.analysis.steps import trend as module
from profilerkit.analysis.steps.trend import warmup_length


def jitter(count, sigma=0.05, seed=0):
    return np.exp(sigma * np.random.default_rng(seed).standard_normal(count))


def settled(count, *first, seed=0, sigma=0.05):
    """``first`` and then steps of 100, all with jitter."""
    return (np.r_[first, np.full(count - len(first), 100)] * jitter(count, sigma, seed) * 1_000).astype(np.int64)


def test_the_examples_in_the_docstring_hold():
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("first", "length"),
    [
        ((), 0),
        ((5_000,), 1),
        ((5_000, 3_000, 900, 400, 200), 5),  # caches that fill
        ((5_000, 4_000, 100, 4_500), 4),  # compiled again after a step that needed no compiling
        ((5_000, 100, 100, 100, 100, 4_500), 1),  # a late recompilation is no warm-up
        ((300,) * 40, 40),  # a first epoch from a cold disk
        ((100, 5_000), 0),  # does not begin slow
    ],
)
def test_the_warm_up_ends_where_the_steps_settle(first, length, seed):
    assert warmup_length(settled(100, *first, seed=seed)) == length


def test_a_few_quick_steps_do_not_end_a_slow_first_epoch():
    steps = settled(100, *[300] * 40)
    steps[[7, 19, 20, 33]] = 100_000
    assert warmup_length(steps) == 40


@pytest.mark.parametrize(
    "curriculum",
    [
        np.linspace(300, 100, 90),
        np.linspace(100, 300, 90),
        np.repeat([300, 200, 100], 30),
        np.repeat([100, 200, 300], 30),
        np.geomspace(800, 100, 90),
    ],
)
def test_a_curriculum_is_no_warm_up(curriculum):
    for seed in range(20):
        assert warmup_length((curriculum * 1_000 * jitter(90, seed=seed)).astype(np.int64)) == 0


@pytest.mark.parametrize("period", [2, 3, 4, 10])
def test_steps_that_are_longer_at_intervals_are_no_warm_up(period):
    steps = settled(60)
    steps[period - 1 :: period] *= 3
    assert warmup_length(steps) == 0
    assert warmup_length(steps[period - 1 :]) <= 1  # begins with a long one


def test_healthy_steps_have_no_warm_up_however_they_jitter():
    found = [warmup_length(settled(50, sigma=sigma, seed=seed)) for seed in range(200) for sigma in (0.02, 0.1, 0.3)]
    assert np.mean(np.array(found) > 1) <= 0.01


@given(
    first=st.lists(st.integers(100, 10_000), max_size=10),
    rest=st.lists(st.integers(90, 110), min_size=12, max_size=40),
    scale=st.sampled_from([1, 3, 1_000]),
)
def test_the_unit_of_time_does_not_matter_and_half_of_the_steps_remain(first, rest, scale):
    steps = np.array([*first, *rest])
    assert warmup_length(steps * scale) == warmup_length(steps) <= len(steps) // 2
