"""Which steps are slow, and where the next one is expected."""

import pytest

from profilerkit.capture.schedule import LONGEST_STEPS, Recurrence, StepTimes


def times_of(*durations_ns):
    times = StepTimes()
    return times, [times.add(duration) for duration in durations_ns]


def test_a_step_is_slow_above_three_times_the_median():
    times, _ = times_of(*[100] * 32)
    assert times.median_ns == 100
    assert not times.add(300)
    assert times.add(301)


def test_nothing_is_slow_before_there_are_twenty_steps_to_compare_with():
    _, slow = times_of(*[100] * 18, 10_000)
    assert not any(slow)


def test_compiling_at_the_beginning_does_not_hide_later_slow_steps():
    times, _ = times_of(*[1_000_000] * 5, *[100] * 43)
    assert times.add(400)


def test_the_median_follows_steps_that_get_longer():
    times, _ = times_of(*[100] * 64, *[1_000] * 64)
    assert not times.add(2_000)


def test_the_last_steps_are_the_last_in_their_order():
    times, _ = times_of(*range(100))
    assert times.last(3) == [97, 98, 99]
    assert times_of(1, 2)[0].last(3) == [1, 2]
    assert times_of()[0].last(3) == []


def recurrence_of(*steps):
    found = Recurrence()
    for step in steps:
        found.add(step)
    return found


def test_the_next_slow_step_of_a_period_is_in_the_middle_of_the_window():
    expected = recurrence_of(100, 200, 300).expected(earliest=302)
    assert (expected.first_step, expected.first_step + expected.steps - 1) == (398, 402)


@pytest.mark.parametrize("gaps", [(100, 104), (104, 100)])
def test_a_period_that_varies_makes_the_window_longer(gaps):
    expected = recurrence_of(100, 100 + gaps[0], 304).expected(earliest=306)
    assert (expected.first_step, expected.first_step + expected.steps - 1) == (402, 410)


def test_a_window_that_must_be_asked_for_takes_the_next_period_but_as_many_as_are_needed():
    found = recurrence_of(100, 200, 300)
    assert found.expected(earliest=398).first_step == 398
    assert found.expected(earliest=399).first_step == 498
    assert found.expected(earliest=650).first_step == 698


@pytest.mark.parametrize("steps", [(), (100,), (100, 200), (100, 150, 400), (100, 150, 400, 900)])
def test_what_has_no_period_yet_is_not_expected(steps):
    assert recurrence_of(*steps).expected(earliest=1_000) is None


def test_neighbours_are_one_disturbance():
    assert recurrence_of(100, 101, 102).expected(earliest=104) is None
    assert recurrence_of(100, 101, 200, 201, 300, 301).expected(earliest=303).first_step == 398


def test_slow_steps_that_come_often_without_a_period_get_a_long_window_at_once():
    expected = recurrence_of(100, 110, 125, 132).expected(earliest=134)
    assert (expected.first_step, expected.steps) == (134, LONGEST_STEPS)
