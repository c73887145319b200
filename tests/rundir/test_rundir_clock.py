"""Two clocks of one process: from one to the other, and where the time of day was set."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from profilerkit.rundir.process import ClockAnchor, clock_of
from profilerkit.rundir.reader import read_run
from tests.recipes import MS, Log, S, rank_meta, write_run

DAY = 1_800_000_000 * S


def anchors(*pairs):
    return [ClockAnchor(perf_ns=perf, unix_ns=unix, width_ns=100) for perf, unix in pairs]


def test_between_two_anchors_the_drift_is_divided():
    clock = clock_of(anchors((0, DAY), (60 * S, DAY + 60 * S + 600_000)), None)
    assert clock.unix_ns(30 * S) == DAY + 30 * S + 300_000
    assert clock.unix_ns(-S) == DAY - S
    assert clock.unix_ns(61 * S) == DAY + 61 * S + 600_000


@given(st.integers(-10 * S, 200 * S), st.lists(st.integers(-20_000, 20_000), min_size=2, max_size=5))
def test_there_and_back_is_the_same_instant(at, drifts):
    clock = clock_of(
        anchors(*((index * 60 * S, DAY + index * 60 * S + drift) for index, drift in enumerate(drifts))), None
    )
    assert abs(clock.perf_ns(clock.unix_ns(at)) - at) <= 1


def test_a_slew_is_no_step_and_a_step_is():
    slewed = clock_of(anchors((0, DAY), (60 * S, DAY + 60 * S + 29 * MS)), None)
    assert slewed.steps_ns() == ()
    stepped = clock_of(anchors((0, DAY), (60 * S, DAY + 60 * S - 40 * MS), (120 * S, DAY + 120 * S - 40 * MS)), None)
    assert stepped.steps_ns() == (-40 * MS,)


def test_an_anchor_behind_the_one_before_is_left_out():
    clock = clock_of(anchors((10, DAY), (10, DAY + 5), (20, DAY - 5), (30, DAY + 20)), None)
    assert clock.perf == (10, 30)


def test_a_step_of_the_clock_and_damaged_anchors_are_notes(tmp_path):
    run = write_run(tmp_path / "run", [Log().steps(3, 1_000)])
    lines = [msgspec.json.encode(anchor) for anchor in anchors((0, DAY), (60 * S, DAY + 60 * S - 2 * S))]
    (run / "rank_00000" / "clock.jsonl").write_bytes(b"\n".join([lines[0], b"{}", lines[1], b'{"perf_ns": 12']))
    rank = read_run(run).ranks[0]
    assert rank.clock.perf == (0, 60 * S)
    assert any("clock was set by up to 2.00 s during the run" in note for note in rank.notes)
    assert "clock.jsonl: 1 of 3 lines are damaged and were left out" in rank.notes


def test_without_any_anchor_there_is_no_clock():
    assert clock_of([], None) is None
    assert clock_of([], rank_meta()).unix_ns(0) == rank_meta().anchor_unix_ns
