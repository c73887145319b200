"""Scales: percent of an axis, and ticks at round values."""

import pytest

from profilerkit.report.chart import Scale, below, decades, numbers_of, point, polyline, rectangle, step_axis


def test_linear_ticks_are_round_and_within_the_axis():
    axis = Scale(0.0, 38.0).axis("ms", lambda value: f"{value:g} ms")
    assert [tick.label for tick in axis.ticks] == ["0 ms", "10 ms", "20 ms", "30 ms"]
    assert [round(tick.at) for tick in axis.ticks] == [0, 26, 53, 79]


@pytest.mark.parametrize("high", [1e-9, 0.3, 1.0, 7.0, 99.0, 1e12])
def test_every_axis_has_two_to_seven_ticks(high):
    assert 2 <= len(Scale(0.0, high).axis("", str).ticks) <= 7


@pytest.mark.parametrize(
    ("scale", "unit", "ticks"),
    [
        (Scale(0.0, 50.0), " s", ["0 s", "10 s", "20 s", "30 s", "40 s", "50 s"]),
        (Scale(0.0, 50.0), ".0 ms", ["0.0 ms", "20.0 ms", "40.0 ms"]),
        (Scale(0.0, 48.0), ".0 ms", ["0.0 ms", "10.0 ms", "20.0 ms", "30.0 ms", "40.0 ms"]),
        (Scale(1.0, 1e4, is_log=True), "", ["1", "10", "100", "1000", "10000"]),
        (Scale(1.0, 1e4, is_log=True), " FLOP/s", ["1 FLOP/s", "100 FLOP/s", "10000 FLOP/s"]),
        (Scale(0.0, 42.0), " " + 40 * "x", ["0 " + 40 * "x", "20 " + 40 * "x", "40 " + 40 * "x"]),
    ],
)
def test_below_a_box_there_are_as_many_ticks_as_have_room_and_two_at_least(scale, unit, ticks):
    assert [tick.label for tick in scale.across("", lambda value: f"{value:g}{unit}").ticks] == ticks


@pytest.mark.parametrize(
    ("indexes", "labels"),
    [
        ([16, 41], ["16 to 41"]),
        ([7], ["7"]),
        (list(range(30)), ["0", "29"]),
        ([10_000, 10_001, 10_002], ["10,000 to 10,002"]),
    ],
)
def test_numbers_of_steps_that_have_no_room_beside_each_other_share_a_label(indexes, labels):
    assert [tick.label for tick in step_axis(indexes).ticks] == labels


def test_decades_hold_the_values_and_name_powers():
    scale = decades(3.0, 4_000.0)
    assert (scale.low, scale.high) == (1.0, 10_000.0)
    assert [tick.label for tick in scale.axis("", lambda v: f"{v:g}").ticks] == ["1", "10", "100", "1000", "10000"]
    assert scale.at(0.0) == 0.0
    assert scale.at(1e9) == 100.0
    assert decades(10.0, 10.0).high > decades(10.0, 10.0).low


@pytest.mark.parametrize(("lowest", "highest"), [(5e11, 9e11), (3.0, 4_000.0), (1.0, 1.0), (1e-3, 1e12)])
def test_a_scale_with_room_above_holds_the_values_and_two_ticks(lowest, highest):
    scale = below(lowest, highest)
    assert scale.low < lowest
    assert scale.at(highest) < 92.0
    assert len(scale.axis("", str).ticks) >= 2


def test_values_beyond_the_ends_lie_on_them():
    assert Scale(10.0, 20.0).at(5.0) == 0.0
    assert Scale(10.0, 20.0).at(25.0) == 100.0


def test_paths():
    assert rectangle(0, 10, 25.555, 100) == "M0 10H25.55V100H0z"
    assert point(1.0, 99.999) == "M1 100h0"
    assert polyline([(0.0, 1.0), (50.0, 2.5)]) == "M0 1L50 2.5"
    assert polyline([]) == ""


def test_numbers_never_lie_one_over_the_other_and_none_is_lost():
    points = [(85.0, 40.0), (79.5, 41.0), (84.0, 43.0), (97.0, 40.0), (10.0, 90.0), (50.0, 50.0)]
    labels = numbers_of(points)
    assert sorted(number for label in labels for number in label.text.split(", ")) == ["1", "2", "3", "4", "5"]
    assert {label.text for label in labels if label.x < 20} == {"5"}
    assert [label.side for label in numbers_of([(99.0, 10.0), (90.0, 90.0)])] == ["left", "right"]
