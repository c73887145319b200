"""Losses with a change are the same, apart by rounding, or others, beside what differs from run to run without it."""

import doctest
import math

import pytest

from profilerkit.experiment import losses
from profilerkit.experiment.losses import compared

STEADY = [1.0] * 60
FALLING = [3.0 - step / 30 for step in range(60)]


def grown(start: float, factor: float, steps: int) -> list[float]:
    """Losses that differ from steady ones by nothing at first, and by more in each step from then on."""
    return [1.0] * (60 - steps) + [1.0 + start * factor**step for step in range(steps)]


def test_the_examples_hold() -> None:
    assert doctest.testmod(losses).failed == 0


@pytest.mark.parametrize(
    ("changed", "numbers"),
    [
        (STEADY, "same"),
        ([1.0 + 1e-7] * 60, "rounding"),
        (grown(1e-7, 2.0, 20), "rounding"),
        (grown(1e-7, 40.0, 5), "differs"),
        ([1.0 + 1e-5] + [1.0] * 59, "differs"),
        (grown(1e-2, 1.0, 10), "differs"),
        ([*STEADY[:-1], math.nan], "differs"),
        ([*STEADY[:-1], None], "differs"),
        ([], "unknown"),
    ],
)
def test_rounding_starts_small_and_grows_from_step_to_step(changed: list[float | None], numbers: str) -> None:
    """``changed`` are factors of the losses of a model that learns."""
    made = [None if factor is None else factor * loss for factor, loss in zip(changed, FALLING, strict=False)]
    assert compared([FALLING, FALLING], [FALLING, made])[0] == numbers


def test_losses_that_are_further_apart_than_a_tenth_of_what_they_fell_differ() -> None:
    assert compared([STEADY, STEADY], [grown(1e-7, 2.0, 20)])[0] == "differs"


@pytest.mark.parametrize(
    ("own", "apart", "numbers"),
    [(1e-5, 2e-5, "rounding"), (1e-5, 1e-4, "differs"), (1e-2, 2e-2, "unknown"), (1e-2, 0.1, "differs")],
)
def test_what_the_baseline_differs_by_itself_is_no_difference(own: float, apart: float, numbers: str) -> None:
    baseline = [STEADY, [1.0 + own] * 60]
    assert compared(baseline, [[1.0 + apart] * 60])[0] == numbers
